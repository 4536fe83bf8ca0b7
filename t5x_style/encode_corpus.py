"""Stage: one vector for each text of a source, under the contract of the model that made it."""

from pathlib import Path

import jax

from t5x_style import runtime, trained
from t5x_style.retrieval import encoding


def encode_corpus(
    model: trained.Trained,
    source: encoding.EncodeSource,
    function: str,
    model_dir: str,
) -> dict[str, str]:
    """Writes embeddings.npy [N, D] float32, ids.json, contract.json and manifest.json.

    Args:
      model: embeds the texts; gin loads it.
      source: the texts, each exactly once.
      function: 'embed_passage' for a corpus, 'embed_query' for queries.
      model_dir: where the files go.
    """
    vectors = model.encode(function, source)
    if jax.process_index() == 0:
        stored = encoding.Embeddings(vectors, list(source.ids), model.contract)
        encoding.save_embeddings(Path(model_dir), stored)
    return {"embeddings": "."}


if __name__ == "__main__":
    from t5x_style import stage

    runtime.start()
    stage.main("t5x_style.encode_corpus.encode_corpus")
