"""Which difference of two models' outputs counts, by row and by output."""

import math

import numpy as np
import pytest

from t5x_style.interfaces.contract import Vocabulary
from t5x_style.serving import saved_model, saved_model_check
from t5x_style.serving.saved_model_check import largest_difference
from tests.kits import tiny_models
from tests.t5x_style.serving import bundle_kit

VECTORS = np.ones((3, 4), np.float32)
TOKENS = np.arange(6, dtype=np.int32).reshape(3, 2)
OUTPUTS = {"embedding": VECTORS, "sparse_tokens": TOKENS}


@pytest.mark.parametrize(
    ("changed", "worst"),
    [
        ({}, (0.0, "embedding", 0)),
        ({"embedding": VECTORS + [[0], [0.25], [-0.5]]}, (0.5, "embedding", 2)),
        ({"sparse_tokens": TOKENS + [[0, 0], [0, 1], [0, 0]]}, (math.inf, "sparse_tokens", 1)),
    ],
)
def test_numbers_are_subtracted_and_ids_are_equal_or_not(changed, worst):
    assert largest_difference(OUTPUTS | changed, OUTPUTS) == worst


def test_nan_is_worse_than_another_id():
    broken = VECTORS * np.array([[1], [1], [np.nan]], np.float32)
    value, output, row = largest_difference(
        {"sparse_tokens": TOKENS + 1, "embedding": broken}, OUTPUTS
    )
    assert (math.isnan(value), output, row) == (True, "embedding", 2)


def test_outputs_without_any_entry_do_not_differ():
    nothing = {"sparse_tokens": np.zeros((3, 0), np.int32), "weights": np.zeros((3, 0), np.float32)}
    assert largest_difference(nothing, nothing) == (0.0, "sparse_tokens", 0)


def test_compared_rows_are_of_every_kind():
    """Lengths from 1 to the longest, several batch sizes, full and padded rows, other ids there."""
    vocabulary = tiny_models.VOCABULARY
    found = list(saved_model_check.groups(12, vocabulary))
    counts = [group["segment_ids"].sum(axis=1).tolist() for group in found]
    assert [group["tokens"].shape for group in found] == [(1, 1), (5, 7), (2, 12)]
    assert counts == [[1], [7, 5, 4, 2, 1], [12, 1]]
    assert all(group["tokens"].max() < vocabulary.size for group in found)
    assert all((group["tokens"][:, 0] == vocabulary.cls).all() for group in found)
    assert found[1]["tokens"][1, 4] == vocabulary.sep
    assert list(saved_model_check.groups(1, vocabulary))  # the shortest contract


def test_a_program_newer_than_tensorflow_is_refused_with_advice(tmp_path):
    from tensorflow.core.protobuf import saved_model_pb2

    tokenizer, trained, _ = bundle_kit.folders(tmp_path / "parts")
    folder, model = tmp_path / "saved", trained.restored
    saved_model.save(folder, saved_model.portable(model), "embed_passage", {})
    file = folder / "saved_model.pb"
    message = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    (graph,) = message.meta_graphs
    nodes = [node for one in graph.graph_def.library.function for node in one.node_def]
    for node in nodes:
        if node.op == "XlaCallModule":
            node.attr["version"].i = 99
    file.write_bytes(message.SerializeToString())
    advice = r"version 99 is not supported.*<= \d+.*pip install -e \."
    with pytest.raises(saved_model.ExportError, match=advice):
        saved_model_check.compare(folder, model, Vocabulary.load(str(tokenizer)))
