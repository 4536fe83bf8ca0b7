"""Stage: a published ScaNN index over the embeddings of a corpus.

With `--watch` it is no stage, but builds an index of each new checkpoint: see `watch_index`.
"""

import sys

from t5x_style.retrieval import encoding, scann_index, versioned_folder

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"build_index": {"name": "build_index", "version": 1}}


def build_index(
    embeddings: str,
    settings: scann_index.ScannSettings,
    keep: int,
    minimum_recall: float,
    model_dir: str,
) -> dict[str, str]:
    """Builds, measures recall against exact search, and publishes as a new version.

    Args:
      embeddings: folder that encode_corpus wrote.
      settings: of ScaNN.
      keep: how many published versions stay on disk.
      minimum_recall: of the exact top 10; an index below it is not published.
      model_dir: of the index, see `retrieval.versioned_folder`.

    Raises:
      scann_index.RecallError: recall is below `minimum_recall`.
    """
    stored = encoding.load_embeddings(embeddings)
    index = scann_index.build(
        model_dir,
        stored.vectors,
        stored.ids,
        stored.contract,
        settings,
        keep,
        minimum_recall,
        stored.checkpoint,
    )
    print(
        f"build_index: {len(index.ids):,} passages, recall@10 against exact search "
        f"{index.recall:.4f}, version {versioned_folder.current(model_dir).name}",
        file=sys.stderr,
    )
    return {"index": "."}


if __name__ == "__main__":
    if "--watch" in sys.argv:
        # By name: the stage does not depend on what watching takes.
        from importlib import import_module

        words = [word for word in sys.argv[1:] if word != "--watch"]
        sys.exit(import_module("t5x_style.watch_index").main(words))
    from t5x_style import stage
    from t5x_style.distributed import startup

    startup.tolerate_absent_tpu()
    stage.main("t5x_style.build_index.build_index")
