"""Warm-up requests of a SavedModel: the bytes of the official classes, for each shape."""

import numpy as np
import pytest

from t5x_style.serving import saved_model, warmup_requests

# PredictionLog of tensorflow-serving-api 2.21, SerializeToString(deterministic=True)
OFFICIAL = (
    "32680a660a0d1a0b656d6265645f7175657279122c0a0e617474656e74696f6e5f6d61736b121a080312081202080112"
    "020803220c01000000010000000100000012270a09696e7075745f696473121a080312081202080112020803220c0000"
    "00000000000000000000"
)


def tokens(length):
    ids = np.zeros((1, length), np.int32)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def test_a_request_has_the_bytes_of_the_official_classes() -> None:
    assert warmup_requests.request("embed_query", tokens(3)).hex() == OFFICIAL


def test_sizes_above_127_take_two_bytes() -> None:
    made = warmup_requests.request("embed_query", tokens(64))
    size = made[1] & 127 | made[2] << 7
    assert made[0] == 6 << 3 | 2
    assert size == len(made) - 3


@pytest.mark.parametrize(
    ("longest", "expected"),
    [(8, [8]), (16, [16]), (48, [16, 32, 48]), (256, [16, 32, 64, 128, 256])],
)
def test_lengths_double_up_to_the_longest(longest, expected) -> None:
    assert list(warmup_requests.lengths(longest)) == expected


def test_every_signature_has_a_request_for_each_length(tmp_path) -> None:
    warmup_requests.write(tmp_path, "embed_query", {"embed_query": 32, "embed_passage": 64})
    tf = saved_model.cpu_only_tensorflow()
    found = [one.numpy() for one in tf.data.TFRecordDataset(str(tmp_path / warmup_requests.FILE))]
    assert found == [
        warmup_requests.request(signature, tokens(length))
        for signature, lengths in (
            ("embed_query", (16, 32)),
            ("embed_passage", (16, 32, 64)),
            ("serving_default", (16, 32)),
        )
        for length in lengths
    ]
