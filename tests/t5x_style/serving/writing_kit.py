"""Documents in several languages, and a tiny MARGE of random parameters that writes from them."""

import dataclasses
import functools

import jax
import numpy as np

from models.networks import decoding, seq2seq
from models.objectives import marge
from t5x_style.checkpoints import restored_model
from t5x_style.distributed import partitioning
from t5x_style.interfaces import contract
from t5x_style.interfaces.objective import GroupShape
from tests.kits import tiny_models

WORDS = "eins zwei drei vier fünf sechs sieben acht neun zehn"
DOCUMENTS = {
    **{f"de/news/{n}": " ".join([f"n{n}", *[WORDS] * (1 + n)]) for n in range(4)},
    **{f"en/news/{n}": f"n{n} one two three" for n in range(3)},
    "en/tales/0": "one, two.",
}
LANGUAGES = ("de", "en", "fr")
LENGTH = 12  # tokens of a chunk


def marge_of(tokenizer, mesh=(1, 1, 1), normalise=False, **changes):
    """An untrained MARGE as `restored_model.Trained`.

    Args:
      tokenizer: folder of a tokenizer of DOCUMENTS.
      mesh: sizes of a `MeshShape`.
      normalise: whether its vectors have unit length, as an index needs them.
      changes: of its GenerationConfig of 8 tokens.
    """
    vocabulary = contract.load_vocabulary(tokenizer)
    config = dataclasses.replace(
        tiny_models.CONFIG, vocab_size=vocabulary.size, vocab_multiple=128, max_positions=LENGTH
    )
    embedding = dataclasses.replace(
        tiny_models.EMBEDDING, similarity="cosine", normalise=normalise,
        query_length=LENGTH, passage_length=LENGTH,
    )  # fmt: skip
    shape = GroupShape(8, 24, 2)
    make = functools.partial(
        marge.Marge, config, seq2seq.DecoderConfig(1, 8, 1, 8, LENGTH), marge.RelevanceConfig(1),
        embedding, vocabulary, shape, shape, 16, decoding.GenerationConfig(8, **changes),
    )  # fmt: skip
    devices = jax.devices()[: int(np.prod(mesh))]
    return restored_model.untrained(
        make, partitioning.Partitioner(partitioning.MeshShape(*mesh), devices=devices), 3
    )
