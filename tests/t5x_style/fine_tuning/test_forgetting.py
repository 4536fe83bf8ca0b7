"""Two models on collections that nothing was trained on, embedded from their texts."""

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


def systems(**encoders):
    return [TextSearch(name, encoder, Words) for name, encoder in encoders.items()]


def measured(tmp_path, collections, found):
    outputs = forgetting.forgetting(
        collections, found, "untouched", "test", 5, ["MRR@3"], 100, 0, str(tmp_path)
    )
    return json.loads((tmp_path / outputs["metrics"]).read_text())


def test_what_was_lost_is_measured_on_each_collection(tmp_path):
    folders = [helpers.write_corpus(tmp_path / name) for name in ("one", "two")]
    encoders = {"untouched": Encoder(), "finetuned": Encoder(lost=True)}
    found = measured(tmp_path, folders, systems(**encoders))
    assert list(found) == ["one", "two"]
    assert found["one"]["systems"]["untouched"]["MRR@3"]["value"] == 0.75  # p3 has more of q0
    assert found["one"]["n"] == 2 and found["one"]["passages"] == 5
    assert found["one"]["against"]["systems"]["finetuned"]["MRR@3"]["difference"] < 0
    sides = dict(encoders["untouched"].asked[:2])
    assert sides["passage"][0] == "csv Read and write tabular data in CSV files."  # with its title
    assert sides["query"] == ["how to read a csv file", "parse json"]


def test_without_collections_nothing_is_measured(tmp_path):
    assert measured(tmp_path, [], systems(untouched=Encoder(), finetuned=Encoder())) == {}


def test_what_cannot_be_compared_is_refused(tmp_path):
    folder = helpers.write_corpus(tmp_path / "one")
    good = {"systems": systems(untouched=Encoder()), "baseline": "untouched", "split": "test",
            "depth": 5, "metrics": ["MRR@3"]}  # fmt: skip
    for changes, message in (
        ({"collections": [folder, folder]}, "expected folders of distinct names"),
        ({"collections": [folder], "depth": 2}, "looks further than the lists"),
        ({"collections": [folder], "baseline": "bm25"}, "expected some of"),
    ):
        with pytest.raises(ValueError, match=message):
            forgetting.check(**good | changes)
    with pytest.raises(FileNotFoundError):
        forgetting.check([folder], **good | {"split": "other"})
