"""Whole-word masks of a text in XLM-R's ids: <s> 0, <pad> 1, </s> 2, <unk> 3, <mask> last."""

import jax
import numpy as np

from models.corruption import masking
from t5x_style.interfaces.contract import Vocabulary

VOCABULARY = Vocabulary(
    size=60, pad=1, unk=3, cls=0, sep=2, mask=59, special_ids=(0, 1, 2, 3, 59), fingerprint="xlmr"
)
# <s> ▁Hel lo , ▁東 京 <unk> </s> <pad> <pad>; a word is a run up to the next 1.
TOKENS = [0, 10, 11, 12, 13, 14, 3, 2, 1, 1]
WORD_STARTS = [1, 1, 0, 1, 1, 1, 1, 1, 0, 0]
WORDS = [[1, 2], [3], [4], [5], [6]]  # columns; neither <s>, </s> nor padding is in one
REAL = 8
DRAWS = 256


def group():
    """`DRAWS` examples with this one text."""
    rows = {
        "tokens": TOKENS,
        "word_starts": WORD_STARTS,
        "positions": [*range(REAL), 0, 0],
        "segment_ids": [1] * REAL + [0, 0],
    }
    made = {name: np.tile(np.int32(row), (DRAWS, 1)) for name, row in rows.items()}
    made["word_starts"] = made["word_starts"].astype(bool)
    return made | {"example_id": np.arange(DRAWS, dtype=np.int32)[:, None]}


def test_specials_are_never_masked_and_words_are_whole():
    text, mask = group(), masking.WholeWordMask(0.5, (VOCABULARY.cls, VOCABULARY.sep))
    selected = masking.whole_word_mask(text, mask, jax.random.key(0))
    tokens, labels = masking.replace_selected(text, selected, VOCABULARY, jax.random.key(0))
    selected, labels = np.asarray(selected), np.asarray(labels)
    assert not selected[:, [0, 7, 8, 9]].any()
    assert (selected.sum(1) == 4).all()  # round(8 * 0.5), and every word here fits
    for word in WORDS:
        chosen = selected[:, word]
        assert (chosen.all(1) == chosen.any(1)).all() and chosen.any()
    assert (labels[:, 6] == masking.IGNORED).all()  # <unk> spends budget, and is not predicted
    kept = ~selected | (labels == masking.IGNORED)
    np.testing.assert_array_equal(np.asarray(tokens)[kept], text["tokens"][kept])
    assert (np.asarray(tokens) == VOCABULARY.mask).any()


def test_the_decoder_sees_specials_from_every_row_but_their_own():
    text, mask = group(), masking.WholeWordMask(0.5, (VOCABULARY.cls, VOCABULARY.sep))
    visible = np.asarray(masking.decoder_visibility(text, mask, 256, jax.random.key(0)))
    for special in (0, 7):
        rows = [row for row in range(REAL) if row != special]
        assert visible[:, rows, special].all() and not visible[:, special, special].any()
    assert not visible[:, REAL:].any() and not visible[:, :, REAL:].any()
    for word in WORDS:
        others = [row for row in range(REAL) if row not in word]
        seen = visible[:, others][:, :, word]
        assert (seen.all(2) == seen.any(2)).all() and 0 < seen.mean() < 1
    # Four of the six tokens that are not special are hidden from the special ones.
    assert (visible[:, [0, 7], 1:7].sum(2) == 2).all()
