"""Shorter vectors of tokens: the first dimensions of each, as Matryoshka learning trains them."""

import numpy as np

from t5x_style.interfaces.representation import Entries


def cut(texts: Entries, size: int) -> Entries:
    """The first `size` dimensions of each vector, at the length of the whole one.

    What a model with this `token_vector_size` gives (`interfaces.contract`), from the whole vectors
    of one without: of unit length, or of that by which M3's queries have a mean for a score.

    Args:
      texts: several vectors [T, d] float32 of N texts, in memory.
      size: from 1 to d.
    """
    vectors = texts.arrays["vectors"]
    short = np.array(vectors[:, :size], np.float32)
    lengths = np.linalg.norm(short, axis=1, keepdims=True)
    wanted = np.linalg.norm(vectors, axis=1, keepdims=True)
    short *= np.divide(wanted, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return Entries(texts.offsets, {"vectors": short})
