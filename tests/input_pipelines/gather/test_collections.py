"""Other people's text: TFDS and ir_datasets by name, MS MARCO's files, all as BEIR folders."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from input_pipelines.gather import write_beir
from input_pipelines.sources import beir, msmarco
from input_pipelines.sources.ir_datasets_source import IrDocuments, IrQrels, IrQueries
from input_pipelines.sources.mixtures import Chain
from input_pipelines.sources.msmarco import TrecQrels, Tsv
from input_pipelines.sources.text_sources import BadRecords, SourceError
from input_pipelines.sources.tfds_source import Tfds
from input_pipelines.tokenizers import tokenization
from t5x_style.retrieval import beir_collection
from tests.kits import tfds_kit

REPOSITORY = Path(__file__).resolve().parents[3]

# --- TFDS ---


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A dataset with nested features, written by TFDS itself in two shards."""
    import tensorflow_datasets as tfds

    features = {
        "id": tfds.features.Scalar(np.int64),
        "title": tfds.features.Text(),
        "body": {"text": tfds.features.Text()},
    }
    rows = [{"id": 7 + i, "title": f"Título {i}", "body": {"text": f"text {i}"}} for i in range(5)]
    folder = tmp_path_factory.mktemp("tfds")
    tfds_kit.write(folder, "tiny", features, rows)
    return folder


def tiny(folder, name="tiny", **changes):
    fields = {
        "name": name, "data_dir": str(folder), "split": "train", "id_field": "id",
        "title_field": "title", "text_field": "body/text",
    }  # fmt: skip
    return Tfds(**{**fields, **changes})


@pytest.mark.parametrize("by", ["name", "folder"])
def test_a_prepared_dataset_is_read_in_order(prepared, by):
    name = "tiny" if by == "name" else str(prepared / "tiny/1.0.0")
    for _ in range(2):
        found = list(tiny(prepared, name).records(BadRecords(0)))
        assert [r.id for r in found] == ["7", "8", "9", "10", "11"]
        assert (found[0].title, found[4].text) == ("Título 0", "text 4")
    assert found[1].source == "tiny/1.0.0:train:1"


def test_splits_and_numbers_as_ids(prepared):
    found = tiny(prepared, split="train[1:3]", id_field="", title_field="").records(BadRecords(0))
    assert [(r.id, r.title, r.text) for r in found] == [("0", "", "text 1"), ("1", "", "text 2")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "tinny"}, "no dataset 'tinny'"),
        ({"split": "test"}, "no split 'test'.*train"),
        ({"text_field": "body/words"}, "no field 'body/words'.*title"),
        ({"text_field": "text"}, "no field 'text'"),
    ],
)
def test_names_that_tfds_does_not_have(prepared, changes, message):
    with pytest.raises(SourceError, match=message):
        list(tiny(prepared, **changes).records(BadRecords(0)))


def test_a_text_that_is_a_number_is_malformed(prepared):
    bad = BadRecords(9)
    assert not list(tiny(prepared, text_field="id", id_field="").records(bad))
    assert bad.counts == {"wrong_type": 5}


def test_a_damaged_shard_is_named(prepared, tmp_path):
    import shutil

    shutil.copytree(prepared, tmp_path / "copy")
    version = tmp_path / "copy/tiny/1.0.0"
    shard = next(path for path in sorted(version.iterdir()) if ".tfrecord" in path.name)
    data = bytearray(shard.read_bytes())
    data[20] ^= 1
    shard.write_bytes(data)
    with pytest.raises(SourceError, match="damaged"):
        list(tiny(tmp_path / "copy").records(BadRecords(0)))


# --- MS MARCO and TREC ---


def write(path: Path, text: str) -> str:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


@pytest.fixture
def marco(tmp_path):
    return {
        "passages": Tsv(write(tmp_path / "c.tsv.gz", "0\tone\n1\ttwo\twith a tab\n2\tthree\n")),
        "queries": Chain([
            Tsv(write(tmp_path / "q.train.tsv", "10\t first\n11\tunjudged\n")),
            Tsv(write(tmp_path / "q.dev.tsv", "20\tsecond\n")),
        ]),
        "judgements": {
            "train": TrecQrels(write(tmp_path / "train.tsv", "10\t0\t1\t1\n10\t0\t2\t0\n")),
            "dev": TrecQrels(write(tmp_path / "dev.trec", "20 Q0 2 3\n\n")),
        },
    }  # fmt: skip


def test_msmarco_becomes_a_beir_folder(marco, tmp_path):
    write_beir.write_collection(**marco, max_bad_records=0, model_dir=str(tmp_path / "out"))
    folder = str(tmp_path / "out/corpus")
    corpus = list(beir.BeirCorpus(folder, 1000).records(BadRecords(0)))
    assert [(p.id, p.text) for p in corpus] == [
        ("0", "one"), ("1", "two\twith a tab"), ("2", "three"),
    ]  # fmt: skip
    queries = beir.BeirQueries(folder, ("train", "dev"), 1000).records(BadRecords(0))
    assert [(q.id, q.text) for q in queries] == [("10", "first"), ("20", "second")]
    train = beir.read_qrels(folder, "train", BadRecords(0))
    assert [(q.query, q.passage, q.score) for q in train] == [("10", "1", 1), ("10", "2", 0)]
    report = json.loads((tmp_path / "out/corpus/report.json").read_text())
    assert report["passages"] == 3 and report["judgements"] == {"train": 2, "dev": 1}


@pytest.mark.parametrize(
    ("part", "line", "reason"),
    [
        ("passages", "no tab", "not_id_tab_text"),
        ("passages", "5\t  ", "not_id_tab_text"),
        ("passages", "0\tagain", "duplicate_id"),
        ("train", "10\t1\t1", "bad_qrel"),
        ("train", "10 0 99 1", "qrel_names_no_passage"),
        ("train", "99 0 1 1", "qrel_names_no_query"),
        ("train", "10 0 1 2", "judged_twice"),
    ],
)
def test_malformed_lines_are_counted_and_named(marco, tmp_path, part, line, reason):
    place = marco["passages"] if part == "passages" else marco["judgements"][part]
    path = Path(place.path)
    more = f"{line}\n".encode()  # gzip files may be concatenated
    path.write_bytes(path.read_bytes() + (gzip.compress(more) if path.suffix == ".gz" else more))
    with pytest.raises(SourceError, match=f"{path.name}:[0-9]"):
        write_beir.write_collection(**marco, max_bad_records=0, model_dir=str(tmp_path / "a"))
    write_beir.write_collection(**marco, max_bad_records=1, model_dir=str(tmp_path / "b"))
    report = json.loads((tmp_path / "b/corpus/report.json").read_text())
    assert report["bad_records"] == {reason: 1}


@pytest.mark.parametrize(("line", "judging"), [("", 0), ("20 Q0 2 0\n", 1)])
def test_a_split_that_comes_out_empty_is_refused(marco, tmp_path, line, judging):
    marco["judgements"]["dev"] = TrecQrels(write(tmp_path / "dev.trec", line))
    with pytest.raises(SourceError, match=f"split 'dev' comes out empty: of {judging} queries"):
        write_beir.write_collection(**marco, max_bad_records=0, model_dir=str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("topics", "qrels", "queries", "judged"),
    [
        ("dl19-passage.topics.tsv.gz", "dl19-passage.qrels.gz", 43, 9260),
        ("dl20.topics.tsv.gz", "dl20-passage.qrels.gz", 200, 11386),
        (
            "msmarco-passage.dev-small.topics.tsv.gz",
            "msmarco-passage.dev-small.qrels.gz",
            6980,
            7437,
        ),
    ],
)
def test_topics_and_judgements_as_published(shared, topics, qrels, queries, judged):
    folder, bad = shared / "data/trec_dl", BadRecords(0)
    asked = {record.id for record in Tsv(str(folder / topics)).records(bad)}
    found = list(TrecQrels(str(folder / qrels)).judgements(bad))
    assert len(asked) == queries and len(found) == judged
    assert {query for query, _, _, _ in found} <= asked


def test_a_collection_and_queries_as_published(shared):
    folder = shared / "data/msmarco_toy"
    for name, count, repeated in (
        ("collection", 89, 0),
        ("dev_queries", 9, 2),
        ("val_queries", 9, 1),
    ):
        bad = BadRecords(repeated)
        records = list(Tsv(str(folder / f"{name}.tsv.gz")).records(bad))
        assert len(records) == count and all(record.text for record in records)
        assert bad.counts.total() == bad.counts["duplicate_id"] == repeated


def test_judgements_as_json(shared, tmp_path):
    path = str(shared / "data/msmarco_toy/qrels.json.gz")
    found = list(msmarco.qrels(path).judgements(BadRecords(0)))
    assert len(found) == 11 and found[0][:3] == ("2", "69", 1)
    asked = Tsv(str(shared / "data/msmarco_toy/dev_queries.tsv.gz")).records(BadRecords(2))
    assert {query for query, _, _, _ in found} == {record.id for record in asked}
    for text, message in (
        ('{"q": {"p": 1}', "is not JSON"),
        ("[]", "expected an object of queries"),
        ('{"q": {"p": "1"}}', "expected passages of a query"),
        ('{"q": ["p"]}', "expected passages of a query"),
    ):
        qrels = msmarco.qrels(write(tmp_path / "qrels.json", text))
        with pytest.raises(SourceError, match=message):
            list(qrels.judgements(BadRecords(0)))


def test_a_query_without_an_answer_is_left_out_and_counted(marco, tmp_path):
    with open(tmp_path / "train.tsv", "a") as file:
        file.write("11 0 1 0\n11 0 2 -1\n")
    write_beir.write_collection(**marco, max_bad_records=0, model_dir=str(tmp_path / "out"))
    report = json.loads((tmp_path / "out/corpus/report.json").read_text())
    assert report["queries_without_answer"] == {"train": 1, "dev": 0}
    assert report["queries"] == 2
    corpus = tmp_path / "out/corpus"
    held = beir_collection.Passages(corpus), beir_collection.read_queries(corpus)
    assert beir_collection.read_qrels(corpus, "train", held[1], held[0]) == {"10": {"1": 1, "2": 0}}


def test_a_chain_refuses_an_id_twice(tmp_path):
    parts = [Tsv(write(tmp_path / name, "1\ttext\n")) for name in ("a", "b")]
    with pytest.raises(SourceError, match="earlier source"):
        list(Chain(parts).records(BadRecords(0)))


# --- ir_datasets ---


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    """A collection under a new name, from files on disk."""
    import ir_datasets

    folder = tmp_path_factory.mktemp("ir")
    made = ir_datasets.create_dataset(
        docs_tsv=write(folder / "docs.tsv", "d1\tone word\nd2\ttwo words\n"),
        queries_tsv=write(folder / "queries.tsv", "q1\twhich is first?\n"),
        qrels_trec=write(folder / "qrels", "q1 0 d1 1\n"),
    )
    ir_datasets.registry.register("tiny-collection", made)
    only_docs = ir_datasets.create_dataset(docs_tsv=str(folder / "docs.tsv"))
    ir_datasets.registry.register("tiny-documents", only_docs)
    return "tiny-collection"


def test_ir_datasets_become_a_beir_folder(registered, tmp_path):
    write_beir.write_collection(
        IrDocuments(registered), IrQueries((registered, registered)),
        {"test": IrQrels(registered)}, 0, str(tmp_path),
    )  # fmt: skip
    folder = str(tmp_path / "corpus")
    corpus = list(beir.BeirCorpus(folder, 1000).records(BadRecords(0)))
    assert [(p.id, p.text) for p in corpus] == [("d1", "one word"), ("d2", "two words")]
    queries = list(beir.BeirQueries(folder, ("test",), 1000).records(BadRecords(0)))
    assert [(q.id, q.text) for q in queries] == [("q1", "which is first?")]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (IrDocuments("tiny-colection"), "nearest names are.*tiny-collection"),
        (IrDocuments("tiny-collection", title_field="headline"), "no field.*headline.*text"),
        (IrQueries(("tiny-documents",)), "has no queries"),
        (IrQueries(("tiny-collection",), text_field="narrative"), "no field.*narrative"),
    ],
)
def test_names_that_ir_datasets_does_not_have(registered, source, message):
    with pytest.raises(SourceError, match=message):
        list(source.records(BadRecords(0)))


# --- by gin ---


def run_stage(folder, *arguments):
    """Runs a stage as a user would."""
    command = [sys.executable, "-m", "t5x_style.stage", *arguments, f"--gin.MODEL_DIR={folder}"]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)


@pytest.mark.slow
def test_tfds_and_msmarco_through_gin(prepared, marco, tmp_path):
    asked = "".join(f"{query}\tquestion {query}\n" for query in range(10, 20))
    judged = "".join(f"{query} 0 1 1\n" for query in range(10, 20))
    run_stage(
        tmp_path / "marco", "--gin_file=gin_configs/runs/collections/msmarco.gin",
        f"--gin.COLLECTION={marco['passages'].path}", "--gin.DEV_SHARE=0.4",
        f"--gin.TRAIN_QUERIES={write(tmp_path / 'q.train.tsv', asked)}",
        f"--gin.TEST_QUERIES={write(tmp_path / 'q.test.tsv', '30' + chr(9) + 'third')}",
        f"--gin.TRAIN_QRELS={write(tmp_path / 'train.trec', judged)}",
        f"--gin.TEST_QRELS={write(tmp_path / 'test.trec', '30 0 0 1')}",
    )  # fmt: skip
    corpus = tmp_path / "marco/corpus"
    assert (corpus / "qrels/test.tsv").read_text().splitlines()[1:] == ["30\t0\t1"]
    train, dev = (set((corpus / f"qrels/{s}.tsv").read_text().split("\n")[1:-1])
                  for s in ("train", "dev"))  # fmt: skip
    assert train and dev and not train & dev and len(train | dev) == 10

    source = beir.BeirCorpus(str(corpus), 1000)
    tokenization.train_tokenizer(str(tmp_path), source, 200, 64, 1, True, True, 0, 0, 0)
    run_stage(
        tmp_path / "store", "--gin_file=gin_configs/runs/stores/texts.gin",
        "--gin_file=gin_configs/sources/tfds_articles.gin",
        f"--gin.TOKENIZER={tmp_path}/tokenizer",
        "--gin.DATASET=tiny", f"--gin.DATA_DIR={prepared}", "--gin.TEXT_FIELD=body/text",
        "--gin.LENGTH=16", "--gin.prepare.prepare.workers=1",
    )  # fmt: skip
    assert json.loads((tmp_path / "store/report.json").read_text())["count"] == 5


def test_the_shipped_configuration_for_ir_datasets_is_whole(tmp_path):
    command = [
        sys.executable, "-m", "t5x_style.stage", f"--gin.MODEL_DIR={tmp_path}/out",
        "--gin_file=gin_configs/runs/collections/ir_datasets.gin", "--gin.DOCUMENT_DATASET=no-such",
        "--gin.TRAIN=no-such", "--gin.DEV=no-such", "--gin.TEST=no-such",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode and "ir_datasets knows no 'no-such'" in done.stderr


def test_development_queries_are_held_out_of_the_training_queries(tmp_path):
    from input_pipelines.gather import dev_split, write_beir
    from input_pipelines.sources import beir

    write(tmp_path / "corpus.jsonl", '{"_id": "p", "title": "", "text": "words"}\n')
    names = [f"q{n}" for n in range(100)]
    lines = [json.dumps({"_id": name, "text": "ask"}) + "\n" for name in names]
    write(tmp_path / "queries.jsonl", "".join(lines))
    write(tmp_path / "qrels.train.tsv", "".join(f"{name}\tp\t1\n" for name in names))
    given = dev_split.BeirJudgements(str(tmp_path), "train")
    parts = {n: dev_split.HoldOutSplit(given, 0.2, n == "dev") for n in ("train", "dev")}
    sources = (
        beir.BeirCorpus(str(tmp_path), 1000),
        beir.BeirQueries(str(tmp_path), ("train",), 1000),
    )
    out = tmp_path / "out"
    write_beir.write_collection(*sources, parts, 0, str(out))
    found = {n: set(beir.query_ids(str(out / "corpus"), n)) for n in parts}
    assert found["train"] | found["dev"] == set(names)
    assert not found["train"] & found["dev"] and 10 <= len(found["dev"]) <= 30
    with pytest.raises(ValueError, match="share: expected between 0 and 1, found 1"):
        dev_split.HoldOutSplit(given, 1, True)
