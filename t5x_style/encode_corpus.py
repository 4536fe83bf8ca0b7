"""Stage: embed each text of a source, under the contract of the model.

Other representations that the model offers are written next to them, all of one forward pass. They
are written in shards (`retrieval.embedding_shards`). Stopped and started again, the stage makes the
shards that are missing, and ends with the bits of a run that was not stopped: a shard is packed and
encoded without regard to the others. In several processes each batch is spread over all of them, as
in training, and process 0 writes.
"""

import sys
from collections.abc import Collection

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from t5x_style.checkpoints import restored_model
from t5x_style.distributed import startup
from t5x_style.interfaces import representation
from t5x_style.interfaces.texts import EncodeSource
from t5x_style.retrieval import embedding_shards, resumable_parts
from t5x_style.retrieval.token_vectors import compact

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "encode_corpus": {
        "name": "encode_corpus",
        "version": 1,
        "outputs": ["embeddings"],
        "program": True,
        "check": "check",
    }
}

EMPTY_ABOVE = 0.05  # share of texts without any sparse weight that is warned of, as in trainings


def encode_corpus(
    model: restored_model.Trained,
    source: EncodeSource,
    function: str,
    storage: embedding_shards.Storage,
    model_dir: str,
    kinds: Collection[str] = ("dense",),
) -> dict[str, str]:
    """Writes the shards that are missing, then contract.json and manifest.json.

    Args:
      model: embeds the texts; gin loads it.
      source: the texts, each exactly once.
      function: 'embed_passage' for a corpus, 'embed_query' for queries.
      storage: how vectors are kept; of passages' tokens perhaps fewer, or as int8.
      model_dir: where the files go.
      kinds: of representations that are written: 'dense', 'sparse', 'multi_vector'; of their
        weights in a training the keys count.

    Raises:
      ContractError: texts were tokenized otherwise than the model's contract says.
      RepresentationError: the model does not offer the kinds, or there is no such function, or
        the storage is not for these kinds.
    """
    kinds = [*kinds]
    check(function, kinds, storage)
    side = representation.side_of(function)
    version = embedding_shards.version(
        model.contract,
        checkpoint=model.fingerprint,
        source=source.fingerprint,
        function=function,
        storage=[storage.shard_size, storage.dtype],
        **({} if kinds == [representation.DENSE] else {"kinds": kinds}),
        **({"tokens": storage.token_facts} if storage.token_facts else {}),
    )
    bounds = storage.bounds(len(source.ids))
    first = jax.process_index() == 0
    with embedding_shards.ShardWriter(model_dir, version, storage, source.ids, kinds) as writer:
        missing = resumable_parts.agreed(writer.missing() if first else [], len(bounds))
        if first and len(missing) < len(bounds):
            kept = len(bounds) - len(missing)
            print(f"encode_corpus: {kept} of {len(bounds)} shards are there", file=sys.stderr)
        parts = [bounds[number] for number in missing]
        found = model.represent_parts(side, source, parts, kinds)
        for number, representations in zip(missing, found, strict=True):
            if first:
                writer.write(number, representations)
        if first:
            writer.finish(model.contract, model.fingerprint)
            if representation.SPARSE in kinds:
                _report_sparse(embedding_shards.entry_counts(model_dir, representation.SPARSE))
    if jax.process_count() > 1:  # no process reports an end that the writer has not reached
        multihost_utils.sync_global_devices("encode_corpus: written")
    return {"embeddings": "."}


def _report_sparse(counts: np.ndarray) -> None:
    """Prints how many texts no query finds by weights of words, given the weights of each text."""
    empty = float(np.mean(counts == 0))
    print(
        f"encode_corpus: sparse: {empty:.1%} of {len(counts):,} texts have no weight; "
        f"{counts.mean():.1f} terms a text",
        file=sys.stderr,
    )
    if empty > EMPTY_ABOVE:
        logging.warning(
            "encode_corpus: %.1f%% of the texts have no weight, more than %.0f%%: nothing finds "
            "them by weights of words. Look at empty_passage in the log of the training, and at "
            "texts without words.",
            100 * empty,
            100 * EMPTY_ABOVE,
        )


def check(function: str, kinds: Collection[str], storage: embedding_shards.Storage) -> None:
    """Check arguments before `encode_corpus` runs.

    Raises:
      RepresentationError: there is no such function or kind, or the storage is not for them.
    """
    side = representation.side_of(function)
    representation.require_kinds([*kinds], representation.KINDS, "encode_corpus.kinds")
    compact.require_fit(storage.token_facts, side, [*kinds])


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.encode_corpus.encode_corpus")
