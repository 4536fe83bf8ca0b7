"""Which share of texts is cut, and by how much, is printed and written for reports."""

import json

from input_pipelines.sources.text_sources import Record
from input_pipelines.store import cut_texts
from input_pipelines.store.cut_texts import CutTexts
from tests.input_pipelines.store.test_prepare import Listed, run, train

SIZES = (1, 2, 6, 7, 12)  # words; of eight tokens, two are special


def test_a_store_says_what_it_cut(tmp_path, capsys):
    records = [Record(f"{i}", "", " ".join(["word"] * n), "") for i, n in enumerate(SIZES)]
    tokenizer = train(tmp_path / "tokenizer", records)
    capsys.readouterr()
    found, _ = run(tmp_path / "store", tokenizer, Listed(records), shard_size=2)
    said = capsys.readouterr().out
    assert found["truncated"] == 2
    assert json.loads((tmp_path / "store/cut_texts.json").read_text()) == {
        "kind": "passage",
        "length": 8,
        "texts": 5,
        "cut": 2,
        "share": 0.4,
        "tokens": {"median": 3.5, "percentile_95": 5.75, "all": 7},
        "share_of_tokens": 7 / (7 + found["total_tokens"]),
    }
    assert said.startswith("docs/train: 2 of 5 texts (kind passage), 40.0%, are longer than 8")
    assert "in the median 4 tokens were cut off, 95 % lost 6 or fewer" in said
    assert "Raise the length (PASSAGE_LENGTH" in said
    long = cut_texts.long_texts(f"{tmp_path}/store/store")
    assert (long.length, long.ids) == (8, {"2", "3", "4"})  # "2" fills the length, and is whole


def test_queries_and_few_passages_have_no_warning():
    for kind, count in (("query", 90), ("passage", 20)):
        said = CutTexts(kind, 8, 100, 700, [3] * count).text()
        assert f"{count}.0%" in said and "warning" not in said
    assert "warning" in CutTexts("passage", 8, 100, 700, [3] * 21).text()


def test_none_is_cut():
    found = CutTexts("query", 8, 100, 700, [])
    assert found.text() == "none of 100 texts (kind query) is longer than 8 tokens"
    assert found.as_dict()["tokens"] == {"median": 0.0, "percentile_95": 0.0, "all": 0}
    assert found.share == found.as_dict()["share_of_tokens"] == 0
    assert cut_texts.FILE == "cut_texts.json"
