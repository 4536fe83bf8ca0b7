"""Preparing a token store: contents, TFDS, restart, worker count, bad input."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

from input_pipelines.sources.text_sources import Jsonl, Record, SourceError
from input_pipelines.store import example_proto, prepare, store_writer, worker_pool
from input_pipelines.store.store_writer import StoreRecord, StoreSummary
from input_pipelines.tokenizers import tokenization

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa".split()
RECORDS = [
    Record(f"p{i}", f"Title {WORDS[i % 10]}", " ".join(WORDS[: i % 10 + 1]), f"f:{i}")
    for i in range(25)
]


class Listed:
    """A source of given records; stops with an error before record `stop`."""

    def __init__(self, records, stop=None):
        self._records = records
        self._stop = stop

    def records(self, bad):
        for i, record in enumerate(self._records):
            if i == self._stop:
                raise KeyboardInterrupt
            yield record


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return train(tmp_path_factory.mktemp("tok"), RECORDS)


def train(folder, records, size=120):
    out = tokenization.train_tokenizer(
        model_dir=str(folder), source=Listed(records), vocabulary_size=size, alphabet_size=100,
        min_frequency=1, lowercase=True, strip_accents=True, sample=0, seed=0, max_bad_records=0,
    )  # fmt: skip
    return os.path.join(str(folder), out["tokenizer"])


def run(folder, tokenizer, source, **changed):
    arguments = {
        "name": "docs", "split": "train", "kind": "passage", "length": 8, "prefix": "",
        "shard_size": 6, "workers": 1, "max_bad_records": 0, **changed,
    }  # fmt: skip
    prepare.prepare(model_dir=str(folder), source=source, tokenizer=tokenizer, **arguments)
    return manifest(folder), json.loads((folder / "report.json").read_text())


def manifest(folder):
    return json.loads((folder / "store" / "manifest.json").read_text())


def rows(folder):
    for shard in manifest(folder)["shards"]:
        reader = ArrayRecordReader(str(folder / "store" / shard["file"]))
        yield from map(example_proto.parse, reader.read_all())


def test_rows_manifest_and_side_files(tokenizer, tmp_path):
    found, report = run(tmp_path, tokenizer, Listed(RECORDS))
    store = tmp_path / "store"
    parsed = list(rows(tmp_path))
    assert [r["id"].decode() for r in parsed] == [r.id for r in RECORDS]
    assert [r["text"].decode() for r in parsed] == [r.text for r in RECORDS]
    assert parsed[3]["title"] == b"Title delta"
    assert parsed[3]["source"] == b"f:3"
    expected = tokenization.Tokenizer(tokenizer).encode_batch(
        ["Title delta alpha beta gamma delta"], 8
    )
    assert parsed[3]["tokens"].tolist() == expected[0].tokens.tolist()
    assert parsed[3]["word_starts"].tolist() == expected[0].word_starts.tolist()
    lengths = np.load(store / "lengths.npy")
    assert lengths.dtype == np.int32
    assert lengths.tolist() == [len(r["tokens"]) for r in parsed]
    assert json.loads((store / "ids.json").read_text()) == [r.id for r in RECORDS]
    assert [s["count"] for s in found["shards"]] == [6, 6, 6, 6, 1]
    assert found["shards"][0]["file"] == "docs-train.array_record-00000-of-00005"
    for shard in found["shards"]:
        path = store / shard["file"]
        assert shard["bytes"] == path.stat().st_size
        assert shard["sha256"] == store_writer.file_sha256(str(path))
    assert found["count"] == report["count"] == 25
    assert found["total_tokens"] == lengths.sum()
    assert found["total_words"] == sum(r["word_starts"].sum() for r in parsed)
    assert found["truncated"] > 0
    assert max(lengths) == found["max_length"] == 8
    assert found["tokenizer_fingerprint"] == tokenization.Tokenizer(tokenizer).fingerprint
    assert not (store / prepare.PARTS).exists()


def test_tfds_opens_the_folder(tokenizer, tmp_path):
    import tensorflow_datasets as tfds

    run(tmp_path, tokenizer, Listed(RECORDS))
    builder = tfds.builder_from_directory(str(tmp_path / "store"))
    assert builder.info.splits["train"].num_examples == 25
    source = builder.as_data_source("train")
    parsed = list(rows(tmp_path))
    for i in (0, 7, 24):
        row = source[i]
        assert row["id"] == RECORDS[i].id.encode()
        assert row["tokens"].tolist() == parsed[i]["tokens"].tolist()
        assert row["tokens"].dtype == np.int32
        assert row["word_starts"].dtype == np.bool_


def test_the_store_does_not_depend_on_the_number_of_workers(tokenizer, tmp_path):
    found = [run(tmp_path / str(n), tokenizer, Listed(RECORDS), workers=n)[0] for n in (1, 2, 3)]
    assert found[0] == found[1] == found[2]
    for name in os.listdir(tmp_path / "1" / "store"):
        one, two = ((tmp_path / n / "store" / name).read_bytes() for n in "12")
        assert one == two, name


def test_a_worker_has_neither_jax_nor_tensorflow():
    code = "[m for m in ('jax', 'tensorflow') if m in __import__('sys').modules]"
    with worker_pool.executor(2) as executor:
        assert executor.submit(eval, code).result() == []
        parallel = "__import__('os').environ['TOKENIZERS_PARALLELISM']"
        assert executor.submit(eval, parallel).result() == "false"


def test_workers_end_with_the_process_that_started_them():
    """A parent that is killed the hard way; its worker holds the other end of a pipe."""
    code = (
        "import os, sys, time\n"
        "from input_pipelines.store import worker_pool\n"
        "executor = worker_pool.executor(2)\n"
        "print(executor.submit(os.getpid).result(), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    # Workers inherit stdout: it ends, and this returns before its limit, when they too are gone.
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert int(done.stdout) > 0


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stopped_run_goes_on_where_it_was(tokenizer, tmp_path, workers):
    undisturbed, _ = run(tmp_path / "whole", tokenizer, Listed(RECORDS))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", tokenizer, Listed(RECORDS, stop=20), workers=1)
    assert not (tmp_path / "cut" / "store" / "manifest.json").exists()
    found, report = run(tmp_path / "cut", tokenizer, Listed(RECORDS), workers=workers)
    assert report["shards_reused"] == 3
    assert found == undisturbed


def stopped(folder, tokenizer):
    """A run stopped after three shards of six records."""
    with pytest.raises(KeyboardInterrupt):
        run(folder, tokenizer, Listed(RECORDS, stop=20))
    return folder / "store" / prepare.PARTS


def test_a_damaged_shard_is_made_again(tokenizer, tmp_path):
    parts = stopped(tmp_path, tokenizer)
    shard = parts / "00001.array_record"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    (parts / "00002.array_record").unlink()
    found, report = run(tmp_path, tokenizer, Listed(RECORDS))
    assert report["shards_reused"] == 1
    assert found == run(tmp_path / "again", tokenizer, Listed(RECORDS))[0]


def test_changed_records_settings_or_tokenizer_are_not_reused(tokenizer, tmp_path):
    stopped(tmp_path / "records", tokenizer)
    changed = [*RECORDS[:7], Record("p7", "x", "y", ""), *RECORDS[8:]]
    assert run(tmp_path / "records", tokenizer, Listed(changed))[1]["shards_reused"] == 2
    stopped(tmp_path / "length", tokenizer)
    assert run(tmp_path / "length", tokenizer, Listed(RECORDS), length=7)[1]["shards_reused"] == 0
    stopped(tmp_path / "prefix", tokenizer)
    assert (
        run(tmp_path / "prefix", tokenizer, Listed(RECORDS), prefix="q: ")[1]["shards_reused"] == 0
    )
    stopped(tmp_path / "tokenizer", tokenizer)
    other = train(tmp_path / "other", [*RECORDS, Record("q", "", "omega psi chi", "")])
    assert run(tmp_path / "tokenizer", other, Listed(RECORDS))[1]["shards_reused"] == 0


def test_a_kill_while_shards_get_their_names_loses_nothing(tokenizer, tmp_path, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store_writer, "finish", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, tokenizer, Listed(RECORDS))
    found, report = run(tmp_path, tokenizer, Listed(RECORDS))
    assert report["shards_reused"] == 5
    assert found == run(tmp_path / "again", tokenizer, Listed(RECORDS))[0]


def test_preparing_again_with_fewer_records_leaves_no_old_shard(tokenizer, tmp_path):
    run(tmp_path, tokenizer, Listed(RECORDS))
    found, _ = run(tmp_path, tokenizer, Listed(RECORDS[:7]))
    shards = [f for f in os.listdir(tmp_path / "store") if "array_record" in f]
    assert sorted(shards) == [s["file"] for s in found["shards"]]


def test_prefix_is_part_of_the_tokens(tokenizer, tmp_path):
    run(tmp_path, tokenizer, Listed(RECORDS[:1]), prefix="beta ", kind="query")
    expected = tokenization.Tokenizer(tokenizer).encode_batch(["beta Title alpha alpha"], 8)
    assert next(rows(tmp_path))["tokens"].tolist() == expected[0].tokens.tolist()
    assert (manifest(tmp_path)["kind"], manifest(tmp_path)["prefix"]) == ("query", "beta ")


def test_empty_records_are_dropped_and_counted(tokenizer, tmp_path):
    found, report = run(tmp_path, tokenizer, Listed([Record("e", " ", "", ""), *RECORDS[:2]]))
    assert found["count"] == 2
    assert found["dropped"] == report["dropped"] == {"empty": 1}


def test_an_empty_corpus_stops(tokenizer, tmp_path):
    with pytest.raises(SourceError, match="nothing to store"):
        run(tmp_path, tokenizer, Listed([]))
    with pytest.raises(SourceError, match="1 empty, 0 malformed"):
        run(tmp_path, tokenizer, Listed([Record("e", "", "", "")]))


def test_malformed_records_are_counted_in_manifest_and_report(tokenizer, tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text('{"id": "a", "text": "alpha"}\n{oops\n{"id": "a", "text": "beta"}\n')
    source = Jsonl([str(path)], ["id"], "", "text", "", 1000)
    with pytest.raises(SourceError, match=r"max_bad_records=1.*c\.jsonl:3"):
        run(tmp_path / "out", tokenizer, source, max_bad_records=1)
    found, report = run(tmp_path / "out", tokenizer, source, max_bad_records=2)
    assert found["dropped"] == {"duplicate_id": 1, "not_json": 1}
    assert "c.jsonl:2" in report["bad_records"][0]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"length": 2}, "prepare.length: expected at least 3, found 2"),
        ({"shard_size": 0}, "prepare.shard_size: expected at least 1, found 0"),
        ({"workers": -1}, "prepare.workers: expected at least 0, found -1"),
        ({"name": "My-Docs"}, "name='My-Docs': expected lower-case"),
        ({"kind": "other"}, "expected one of passage, query, text"),
    ],
)
def test_settings_are_checked(tokenizer, tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        run(tmp_path, tokenizer, Listed(RECORDS), **changed)


def test_tensorflow_reads_our_examples():
    import tensorflow as tf

    ours = example_proto.serialize({"id": "é", "tokens": np.array([3, 2**31]), "none": []})
    theirs = tf.train.Example.FromString(ours)
    assert theirs.features.feature["id"].bytes_list.value[:] == ["é".encode()]
    assert theirs.features.feature["tokens"].int64_list.value[:] == [3, 2**31]
    assert theirs.features.feature["none"].WhichOneof("kind") == "int64_list"
    assert theirs.SerializeToString(deterministic=True) == ours


def test_store_writer_refuses_what_does_not_add_up(tmp_path):
    summary = StoreSummary("d", "train", "text", "f", 9, 8, "", "text", 1, 0, {})
    record = StoreRecord("a", "", "", "", np.arange(3), np.ones(2, np.bool_))
    with pytest.raises(ValueError, match="3 tokens but 2 word_starts"):
        store_writer.write_shard(str(tmp_path / "s"), [record])
    with pytest.raises(ValueError, match="hold 0 records, but there are 1 lengths and 0 ids"):
        store_writer.finish(str(tmp_path), [], np.array([3]), [], summary)
    with pytest.raises(ValueError, match="no record to store"):
        store_writer.finish(str(tmp_path), [], np.array([]), [], summary)
