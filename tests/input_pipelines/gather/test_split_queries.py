"""Judged queries divided into train, dev and test; texts in memory as a source."""

import dataclasses
import json

import numpy as np
import pytest

from input_pipelines.batches import text_batches
from input_pipelines.gather import dev_split
from input_pipelines.sources import beir
from input_pipelines.sources.text_sources import BadRecords, SourceError
from t5x_style.interfaces.contract import ContractError
from t5x_style.retrieval import encoding
from tests.kits import chunk_stores, fine_tuning_kit, retrieval_helpers

SHARES = {"train": 0.5, "dev": 0.2, "test": 0.3}


def write(folder, queries):
    folder.mkdir(exist_ok=True)
    (folder / "qrels").mkdir()
    (folder / "corpus.jsonl").write_text(
        '{"_id": "p", "title": "", "text": "words"}\n{"_id": "o", "text": "others"}\n'
    )
    rows = [json.dumps({"_id": f"q{n}", "text": f"ask {n}"}) + "\n" for n in range(queries)]
    (folder / "queries.jsonl").write_text("".join(rows))
    judged = "".join(f"q{n}\tp\t1\nq{n}\to\t0\n" for n in range(queries))
    (folder / "qrels/test.tsv").write_text(judged)
    return dev_split.BeirJudgements(str(folder), "test")


def queries(share):
    return {row[0] for row in share.judgements(BadRecords(0))}


def divided(given, **more):
    return {split: queries(dev_split.Share(given, SHARES, split, **more)) for split in SHARES}


def test_every_query_is_in_one_split_of_the_right_size(tmp_path):
    given = write(tmp_path / "corpus", 93)
    found = divided(given)
    assert [len(of) for of in found.values()] == [46, 19, 28]
    assert set().union(*found.values()) == {f"q{n}" for n in range(93)}
    assert found == divided(given)
    assert found != divided(given, seed=1)
    rows = list(dev_split.Share(given, SHARES, "dev").judgements(BadRecords(0)))
    assert len(rows) == 38 and {row[2] for row in rows} == {0, 1}


def test_queries_without_an_answer_do_not_count(tmp_path):
    given = write(tmp_path / "corpus", 20)
    path = tmp_path / "corpus/qrels/test.tsv"
    path.write_text(path.read_text().replace("q3\tp\t1\n", ""))
    assert "q3" not in set().union(*divided(given, min_queries=1).values())


def test_too_few_queries_and_bad_shares_are_refused(tmp_path):
    given = write(tmp_path / "corpus", 12)
    with pytest.raises(SourceError, match="split 'dev': expected at least 5 queries, found 2: 12"):
        queries(dev_split.Share(given, SHARES, "dev"))
    for shares in ({"train": 0.5, "dev": 0.2}, {"dev": 1.5, "train": -0.5}, {"train": 1.0}):
        with pytest.raises(ValueError, match="positive shares that add up to 1"):
            dev_split.Share(given, shares, "dev")


def test_as_a_stage_it_writes_a_new_folder(tmp_path):
    write(tmp_path / "corpus", 40)
    before = {p: p.read_bytes() for p in (tmp_path / "corpus").rglob("*") if p.is_file()}
    macros = {"CORPUS": tmp_path / "corpus", "MODEL_DIR": tmp_path / "run/split"}
    assert fine_tuning_kit.run("", ["runs/collections/split_queries"], **macros) == 0
    made = str(tmp_path / "run/split/corpus")
    found = [set(beir.query_ids(made, split)) for split in ("train", "dev", "test")]
    assert [len(of) for of in found] == [16, 8, 16] and len(set().union(*found)) == 40
    assert before == {p: p.read_bytes() for p in (tmp_path / "corpus").rglob("*") if p.is_file()}


# --- texts in memory ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    return chunk_stores.make_tokenizer(folder, {"en/a/0": "one two three four five six"}, ["en"])


def test_texts_in_memory_are_batches_of_texts_of_a_length(tokenizer):
    make = text_batches.TextBatcher(tokenizer, rows=2)
    source = make(["a", "b", "c"], ["one", "one two three", "two"], 12, "five ")
    first, last = source.batches()
    assert source.widths == [3, 6, 9, 12]
    assert [group["tokens"].shape for group in (first, last)] == [(2, 6), (2, 6)]
    assert first["example_id"][:, 0].tolist() == [1, 0] and first["segment_valid"].all()
    assert last["example_id"][:, 0].tolist() == [2, -1]
    assert last["segment_valid"][:, 0].tolist() == [True, False]
    assert not last["segment_ids"][1].any()
    (alone,) = source.part(2, 3).batches()
    assert np.array_equal(alone["tokens"], last["tokens"]) and alone["example_id"][0, 0] == 0
    assert source.fingerprint != source.part(0, 2).fingerprint
    assert (source.segment_length, source.prefix, source.layout) == (12, "five ", "text")
    (long,) = make(["a"], ["one " * 30], 12, "").batches()
    assert long["tokens"].shape == (2, 12) and long["segment_ids"][0].all()  # cut
    (short,) = make(["a"], ["one"], 12, "").batches()
    assert short["tokens"].shape == (2, 3)
    with pytest.raises(ValueError, match="found 0 texts, 1 ids and 2 rows"):
        make(["a"], [], 6, "")


def test_texts_in_memory_are_compared_with_a_contract(tokenizer):
    source = text_batches.TextBatcher(tokenizer, rows=2)(["a"], ["one"], 8, "")
    changes = {"tokenizer_fingerprint": source.tokenizer_fingerprint, "query_length": 8}
    contract = dataclasses.replace(retrieval_helpers.CONTRACT, query_prefix="", **changes)
    encoding.check_source(source, contract, "query")
    with pytest.raises(ContractError, match="query_length: expected 9, found 8"):
        encoding.check_source(source, dataclasses.replace(contract, query_length=9), "query")
