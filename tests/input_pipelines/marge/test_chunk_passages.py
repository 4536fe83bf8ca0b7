"""Chunks of documents as passages whose source is their language."""

import json
from pathlib import Path

import pytest

from input_pipelines.marge import chunk_passages
from input_pipelines.sources import beir
from input_pipelines.sources.text_sources import BadRecords
from input_pipelines.store.token_store import StoreError, TokenStore
from tests.kits import chunk_stores, tiny_stores

DOCUMENTS = {
    "zh-Hant/news/a": "eins zwei drei vier fünf sechs sieben acht neun zehn",
    "de/news/a?b#1": "alpha beta",
    "en/tales/a": "rho pi",
}


def job_runs():
    """The run for recorded outputs, in the current folder."""
    folder = Path("made")
    tokenizer = chunk_stores.make_tokenizer(folder / "t", DOCUMENTS, ["de", "en", "zh-Hant"])
    return {"": {"store": chunk_stores.make_store(folder / "s", DOCUMENTS, tokenizer, 6)}}


def test_each_chunk_is_a_passage_of_its_language(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = job_runs()[""]["store"]
    made = chunk_passages.write_chunks(store, "out")
    assert made == {"corpus": "corpus", "report": "report.json"}
    passages = list(beir.BeirCorpus("out/corpus", 10_000).records(BadRecords(0)))
    opened = TokenStore.open(store)
    assert [one.id for one in passages] == list(opened.ids)
    assert {one.source for one in passages} == {"zh-Hant", "de", "en"}
    texts = {}
    for one in passages:
        document = one.id.rpartition("#")[0]
        assert one.source == document.partition("/")[0] and one.title == ""
        texts.setdefault(document, []).append(one.text)
    assert {name: " ".join(parts) for name, parts in texts.items()} == DOCUMENTS
    assert len(texts["zh-Hant/news/a"]) > 1
    report = json.loads(Path("out/report.json").read_text())
    assert report["passages"] == len(opened) == sum(report["languages"].values())
    assert report["languages"]["de"] == len(texts["de/news/a?b#1"])


def test_a_store_without_chunks_is_refused(tmp_path):
    store = tiny_stores.write_store(tmp_path / "store", [5, 9])
    with pytest.raises(StoreError, match="expected chunks, prepared with runs/stores/chunks.gin"):
        chunk_passages.write_chunks(str(store), str(tmp_path / "out"))
