"""Stage: evaluate retrieval with truncated vectors, which keep only the first dimensions.

A model that was trained for it (Matryoshka learning, arXiv:2205.13147) loses little; any other is
measured in the same way, to compare. Passages are not embedded again: their vectors are cut. Of
vectors of tokens those of queries and passages are cut alike, and compared by MaxSim.
"""

import sys
from collections.abc import Mapping, Sequence

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from t5x_style.distributed import startup
from t5x_style.evaluation import comparison, ranking, score_files
from t5x_style.evaluation.retrieval_systems import MakeSource
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.representation import (
    DENSE,
    MULTI_VECTOR,
    QUERY,
    Entries,
    Representation,
    RepresentationError,
)
from t5x_style.interfaces.text_encoder import TextEncoder
from t5x_style.retrieval import beir_collection, embedding_shards, exact_index
from t5x_style.retrieval.token_vectors import cutting

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
KINDS = (DENSE, MULTI_VECTOR)
SAMPLES = 10_000  # of the bootstrap that the table's intervals are of


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
    kind: str = "dense",
) -> dict[str, str]:
    """Writes scores.json (`score_files`) by the number of dimensions, and prints a table.

    Cut vectors are brought to unit length where whole ones are compared by cosine or have it; those
    of tokens as `cutting.cut`. The table has the difference of each length to whole vectors, with
    the 95 % interval of a paired bootstrap, and the bytes of a vector in float32.

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
      kind: 'dense', or 'multi_vector' of the vectors of tokens.

    Raises:
      ValueError: see `check`; or a length that is not below that of the vectors.
      ContractError: the vectors are another model's.
      RepresentationError: the folder lacks the kind, or its vectors of tokens are pooled or int8,
        which would come after the cut.
    """
    check(corpus, split, lengths, depth, metrics, kind)
    kept = {"pool_factor": 1, "token_dtype": None} if kind == MULTI_VECTOR else None
    by_kind, ids, contract, checkpoint = embedding_shards.read(embeddings, (kind,), kept)
    passages = by_kind[kind][:]
    index = exact_index.ExactIndex(passages, ids, contract, checkpoint, kind)
    where = f"{embeddings}, the folder of the passages' vectors,"
    index_lib.check_contract(index, model.contract, where, kind)
    index_lib.check_checkpoint(index, model.fingerprint, where)
    whole = _vectors(passages).shape[1]
    _require_shorter(lengths, whole)
    judged, known = beir_collection.Passages(corpus), beir_collection.read_queries(corpus)
    qrels = beir_collection.read_qrels(corpus, split, known, judged)
    wanted = [known[query] for query in qrels]
    source = texts(list(qrels), wanted, contract.query_length, contract.query_prefix)
    queries, first = model.encode(QUERY, source, kind), jax.process_index() == 0
    scores: dict[str, ranking.Scores] = {}
    for length in (whole, *lengths):
        short = [cut(side, length, contract) for side in (queries, passages)]
        hits = exact_index.top_k(short[0], short[1], depth, kind)
        one = ranking.score_run(ranking.make_run(list(qrels), ids, *hits), qrels, metrics)
        scores[str(length)] = one
        if first:
            means = {metric: round(value, 4) for metric, value in one.means().items()}
            print(f"{length} of {whole} dimensions: {means}", file=sys.stderr)
    if first:
        found = {name: score_files.record(judged, qrels, one) for name, one in scores.items()}
        score_files.write(model_dir, found)
        groups = found[str(whole)]["groups"]
        Console(width=None if sys.stdout.isatty() else 120).print(
            table(scores, None if groups is None else np.array(groups))
        )
    return {"scores": score_files.FILE_NAME}


def check(
    corpus: str,
    split: str,
    lengths: Sequence[int],
    depth: int,
    metrics: Sequence[str],
    kind: str = "dense",
) -> None:
    """Check arguments before the job runs; reads names of files only.

    Raises:
      ValueError: lengths below 1 or twice, or metrics as in `evaluate`.
      RepresentationError: a kind without vectors.
      FileNotFoundError: the collection has no such split.
    """
    if kind not in KINDS:
        raise RepresentationError(
            f"evaluate_short_vectors.kind: expected one of {[*KINDS]}, found {kind!r}"
        )
    if len(set(lengths)) < len(lengths) or any(length < 1 for length in lengths):
        raise ValueError(
            "evaluate_short_vectors.lengths: expected distinct numbers of dimensions, found "
            f"{list(lengths)}"
        )
    ranking.require_depth(metrics, depth, "evaluate_short_vectors.depth")
    beir_collection.find_qrels(corpus, split)


def cut(vectors: Representation, length: int, contract: Contract) -> Representation:
    """The first `length` dimensions of vectors [N, D]or of `Entries`, ready for comparison."""
    if isinstance(vectors, Entries):
        return cutting.cut(vectors, length)
    short = np.ascontiguousarray(vectors[:, :length], np.float32)
    if not contract.normalise and contract.similarity != "cosine":
        return short
    lengths = np.linalg.norm(short, axis=1, keepdims=True)
    return np.divide(short, lengths, out=np.zeros_like(short), where=lengths > 0)


def table(scores: Mapping[str, ranking.Scores], groups: np.ndarray | None) -> Table:
    """A row for each number of dimensions, the first that of whole vectors.

    Args:
      scores: by number of dimensions, on the same queries.
      groups: [n] int64, the group of each query; None: each query is one.
    """
    whole = next(iter(scores))
    report = comparison.compare(scores, whole, (), SAMPLES, 0, groups)
    result = Table(
        title="retrieval with truncated vectors",
        caption=f"difference to {whole} dimensions, 95 % paired bootstrap intervals over "
        f"{comparison.units(report)}; bytes of a vector in float32",
    )
    for name in ("dimensions", "bytes", *scores[whole].values):
        result.add_column(name, justify="right")
    for length, values in report["systems"].items():
        cells = [f"{one['value']:.4f}" for one in values.values()]
        against = report["against"]["systems"].get(length)
        if against:
            cells = [
                f"{cell}\n{one['difference']:+.4f} ({one['low']:+.3f} to {one['high']:+.3f})"
                for cell, one in zip(cells, against.values(), strict=True)
            ]
        result.add_row(length, f"{4 * int(length):,}", *cells)
    return result


def _vectors(representation: Representation) -> np.ndarray:
    """[N, D] or [T, d]"""
    many = isinstance(representation, Entries)
    return np.asarray(representation.arrays["vectors"] if many else representation)


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
