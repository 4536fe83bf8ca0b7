"""Stage: retrieval with truncated vectors, of which only the first dimensions are kept.

A model that was trained for it (Matryoshka learning, arXiv:2205.13147) loses little; any other is
measured in the same way, to compare. Passages are not embedded again: their vectors are cut.
"""

import sys
from collections.abc import Sequence

import jax
import numpy as np

from t5x_style.distributed import startup
from t5x_style.evaluation import ranking, score_files
from t5x_style.evaluation.retrieval_systems import MakeSource
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.representation import DENSE, QUERY
from t5x_style.interfaces.text_encoder import TextEncoder
from t5x_style.retrieval import beir_collection, embedding_shards, exact_index

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "evaluate_short_vectors": {
        "name": "evaluate_short_vectors",
        "version": 1,
        "outputs": ["scores"],
        "program": True,
        "check": "check",
    }
}


def evaluate_short_vectors(
    corpus: str,
    split: str,
    model: TextEncoder,
    texts: MakeSource,
    embeddings: str,
    lengths: Sequence[int],
    depth: int,
    metrics: Sequence[str],
    model_dir: str,
) -> dict[str, str]:
    """Writes scores.json (`score_files`) by the number of dimensions, and prints the means.

    Cut vectors are brought to unit length where whole ones are compared by cosine or have it.

    Args:
      corpus: a folder in BEIR's layout.
      split: whose queries are asked.
      model: embeds the queries.
      texts: makes their source.
      embeddings: folder of `encode_corpus`: vectors of all passages by the same model, in memory.
      lengths: numbers of dimensions; whole vectors are measured, too.
      depth: how many passages are listed for a query, by exact search.
      metrics: names like 'nDCG@10'.
      model_dir: where the file goes.

    Raises:
      ValueError: see `check`; or a length that is not below that of the vectors.
      ContractError: the vectors are another model's.
    """
    check(corpus, split, lengths, depth, metrics)
    by_kind, ids, contract, checkpoint = embedding_shards.read(embeddings)
    passages = by_kind[DENSE][:]
    index = exact_index.ExactIndex(passages, ids, contract, checkpoint)
    where = f"{embeddings}, the folder of the passages' vectors,"
    index_lib.check_contract(index, model.contract, where)
    index_lib.check_checkpoint(index, model.fingerprint, where)
    _require_shorter(lengths, contract.dimension)
    judged, known = beir_collection.Passages(corpus), beir_collection.read_queries(corpus)
    qrels = beir_collection.read_qrels(corpus, split, known, judged)
    wanted = [known[query] for query in qrels]
    source = texts(list(qrels), wanted, contract.query_length, contract.query_prefix)
    queries, first, found = model.encode(QUERY, source, DENSE), jax.process_index() == 0, {}
    for length in (contract.dimension, *lengths):
        short = [cut(side, length, contract) for side in (queries, passages)]
        run = ranking.make_run(list(qrels), ids, *exact_index.top_k(short[0], short[1], depth))
        scores = ranking.score_run(run, qrels, metrics)
        found[str(length)] = score_files.record(judged, qrels, scores)
        if first:
            means = {metric: round(value, 4) for metric, value in scores.means().items()}
            print(f"{length} of {contract.dimension} dimensions: {means}", file=sys.stderr)
    if first:
        score_files.write(model_dir, found)
    return {"scores": score_files.FILE_NAME}


def check(
    corpus: str, split: str, lengths: Sequence[int], depth: int, metrics: Sequence[str]
) -> None:
    """What can be known to be wrong before the job runs; reads names of files only.

    Raises:
      ValueError: lengths below 1 or twice, or metrics as in `evaluate`.
      FileNotFoundError: the collection has no such split.
    """
    if len(set(lengths)) < len(lengths) or any(length < 1 for length in lengths):
        raise ValueError(
            "evaluate_short_vectors.lengths: expected distinct numbers of dimensions, found "
            f"{list(lengths)}"
        )
    ranking.require_depth(metrics, depth, "evaluate_short_vectors.depth")
    beir_collection.find_qrels(corpus, split)


def cut(vectors: np.ndarray, length: int, contract: Contract) -> np.ndarray:
    """The first `length` dimensions of vectors [N, D], float32, as they are compared."""
    short = np.ascontiguousarray(vectors[:, :length], np.float32)
    if not contract.normalise and contract.similarity != "cosine":
        return short
    lengths = np.linalg.norm(short, axis=1, keepdims=True)
    return np.divide(short, lengths, out=np.zeros_like(short), where=lengths > 0)


def _require_shorter(lengths: Sequence[int], dimension: int) -> None:
    if too_long := [length for length in lengths if length >= dimension]:
        raise ValueError(
            f"evaluate_short_vectors.lengths: expected fewer dimensions than the {dimension} of "
            f"whole vectors, found {too_long}"
        )


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.evaluate_short_vectors.evaluate_short_vectors")
