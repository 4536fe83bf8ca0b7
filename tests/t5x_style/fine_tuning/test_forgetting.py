"""A model on collections that nothing was trained on, embedded from their texts."""

import json

import numpy as np
import pytest

from t5x_style import forgetting
from t5x_style.evaluation.text_search import TextSearch
from t5x_style.interfaces.representation import PASSAGE
from tests.kits import retrieval_helpers as helpers


class Words:
    """A source that keeps its texts."""

    def __init__(self, ids, texts, length, prefix):
        self.ids, self.texts = list(ids), [prefix + text for text in texts]


class Encoder:
    """Embeds a text as the counts of some words; one that is `lost` mixes up those of queries."""

    contract, fingerprint = helpers.CONTRACT, "encoder"

    def __init__(self, lost=False):
        self.lost, self.asked = lost, []

    def encode(self, side, source, kind="dense"):
        self.asked.append((side, source.texts))
        words = ["csv", "json", "networking", "queue", "read"]
        found = np.array([[t.lower().count(w) for w in words] for t in source.texts], np.float32)
        return found if side == PASSAGE or not self.lost else found[:, ::-1]


def measured(tmp_path, collections, encoder):
    system = TextSearch("model", encoder, Words)
    outputs = forgetting.forgetting(collections, system, "test", 5, ["MRR@3"], str(tmp_path))
    return json.loads((tmp_path / outputs["scores"]).read_text())


def test_a_model_is_measured_on_each_collection(tmp_path):
    folders = [helpers.write_corpus(tmp_path / name) for name in ("one", "two")]
    encoder = Encoder()
    found = measured(tmp_path, folders, encoder)
    assert list(found) == ["one", "two"] and found["one"] == found["two"]
    one = found["one"]
    assert np.mean(one["metrics"]["MRR@3"]) == 0.75  # p3 has more of q0
    assert one["passages"] == 5 and len(one["queries"]) == len(set(one["groups"])) == 2
    sides = dict(encoder.asked[:2])
    assert sides["passage"][0] == "csv Read and write tabular data in CSV files."  # with its title
    assert sides["query"] == ["how to read a csv file", "parse json"]
    lost = measured(tmp_path, folders, Encoder(lost=True))
    assert np.mean(lost["one"]["metrics"]["MRR@3"]) < 0.75


def test_without_collections_nothing_is_measured(tmp_path):
    assert measured(tmp_path, [], Encoder()) == {}


def test_what_cannot_be_measured_is_refused(tmp_path):
    folder = helpers.write_corpus(tmp_path / "one")
    with pytest.raises(ValueError, match="expected folders of distinct names"):
        forgetting.check([folder, folder], "test", 5, ["MRR@3"])
    with pytest.raises(ValueError, match="looks further than the lists"):
        forgetting.check([folder], "test", 2, ["MRR@3"])
    with pytest.raises(FileNotFoundError):
        forgetting.check([folder], "other", 5, ["MRR@3"])
