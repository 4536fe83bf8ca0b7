"""Stage: a published index over the embeddings of a corpus; gin chooses its type."""

import sys

from t5x_style.interfaces import index as index_lib
from t5x_style.retrieval import encoding, published_index, versioned_folder

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "build_index": {
        "name": "build_index",
        "version": 1,
        "outputs": ["index"],
        "program": True,
        "check": "check",
    }
}


def build_index(
    embeddings: str,
    index: index_lib.IndexType,
    keep: int,
    minimum_recall: float,
    model_dir: str,
) -> dict[str, str]:
    """Builds, measures recall against exact search, and publishes as a new version.

    Args:
      embeddings: folder that encode_corpus wrote.
      index: the type that is built, with its settings; it decides the kind of representation.
      keep: how many published versions stay on disk.
      minimum_recall: of the exact top 10; an index below it is not published.
      model_dir: of the index, see `retrieval.versioned_folder`.

    Raises:
      published_index.RecallError: recall is below `minimum_recall`.
      RepresentationError: the folder does not hold the kind that the index does.
    """
    check(keep, minimum_recall)
    stored = encoding.load_embeddings(embeddings, index.kind)
    built = published_index.publish(model_dir, stored, index, keep, minimum_recall)
    print(
        f"build_index: {len(built.ids):,} passages, recall@10 against exact search "
        f"{built.recall:.4f}, version {versioned_folder.current(model_dir).name}",
        file=sys.stderr,
    )
    return {"index": "."}


def check(keep: int, minimum_recall: float) -> None:
    """Check arguments before `build_index` runs.

    Raises:
      ValueError: a number out of its range.
    """
    versioned_folder.require_keep(keep)
    if not 0 <= minimum_recall <= 1:
        raise ValueError(f"build_index.minimum_recall: expected 0 to 1, found {minimum_recall}")


if __name__ == "__main__":
    from t5x_style import stage
    from t5x_style.distributed import startup

    startup.start(together=False)
    stage.main("t5x_style.build_index.build_index")
