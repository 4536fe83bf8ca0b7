"""[CLS] before each part of a long text, alone and in a source that is encoded."""

from pathlib import Path

import numpy as np
import pytest

from input_pipelines.batches import repeated_cls
from input_pipelines.batches.packed_text import EncodeSource
from input_pipelines.store.token_store import Passages
from tests.kits.tiny_stores import CLS, SEP, realistic_lengths, write_store


@pytest.mark.parametrize("every", [1, 2, 3, 100])
def test_cls_stands_before_each_part_of_a_text(every: int) -> None:
    random = np.random.default_rng(every)
    lengths = np.concatenate([[2, 3, 4, 5], random.integers(2, 30, 40)])
    texts = [[CLS, *random.integers(10, 99, n - 2).tolist(), SEP] for n in lengths]
    tokens = np.concatenate(texts).astype(np.int32)
    found = repeated_cls.repeat(Passages(tokens, tokens < 50, lengths), every)
    expected = []
    for text in texts:
        content = text[1:-1]
        parts = [content[i : i + every] for i in range(0, len(content), every)] or [[]]
        expected.append([token for part in parts for token in (CLS, *part)] + [SEP])
    np.testing.assert_array_equal(found.tokens, np.concatenate(expected))
    np.testing.assert_array_equal(found.lengths, [len(one) for one in expected])
    np.testing.assert_array_equal(found.word_starts, found.tokens < 50)
    sizes = np.arange(2, 40)
    fitting = sizes[repeated_cls.with_repeated(sizes, every) <= 20]
    assert repeated_cls.longest(20, every) == fitting.max()


def test_a_source_repeats_cls_within_the_contracts_length(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "store", realistic_lengths(70, seed=70, longest=32))
    sizes = {"length": 64, "segments": 4, "rows": 8, "segment_length": 16}
    found = EncodeSource(str(folder), **sizes, cls_every=4)
    assert found.segment_length == 16
    assert found.fingerprint != EncodeSource(str(folder), **sizes).fingerprint
    counts, longest = {}, 0
    for group in found.batches():
        for row, segment in zip(*np.nonzero(group["segment_valid"]), strict=True):
            text = group["tokens"][row][group["segment_ids"][row] == segment + 1]
            longest = max(longest, len(text))
            counts[int(group["example_id"][row, segment])] = int((text == CLS).sum())
            assert (np.flatnonzero(text == CLS) % 5 == 0).all() and text[-1] == SEP
    # [CLS] 4 [CLS] 4 [CLS] 3 [SEP]: of 15 tokens with [CLS] and [SEP], cut at 16 with the rest
    assert longest == 16 and set(counts) == set(range(len(found)))
    lengths = np.minimum(found.store.lengths, 13)
    assert counts == dict(enumerate((np.maximum(lengths - 3, 0) // 4 + 1).tolist()))
    with pytest.raises(ValueError, match=r"cls_every: expected 1 or more, or None, found 0"):
        EncodeSource(str(folder), **sizes, cls_every=0)
