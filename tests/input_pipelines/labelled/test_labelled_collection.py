"""The stage that makes a collection of labelled data, on files of several layouts and real data."""

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from input_pipelines.batches import negatives
from input_pipelines.labelled import labelled_collection, passage_overlap, understanding
from input_pipelines.labelled.division import PARTS, SplitRules
from input_pipelines.labelled.examples import LayoutError
from input_pipelines.sources import beir
from input_pipelines.sources.text_sources import BadRecords, SourceError
from input_pipelines.store.token_store import TokenStore
from t5x_style.mine import mine
from t5x_style.mining import candidates
from t5x_style.mining.hard_negatives import MiningSettings
from t5x_style.retrieval.beir_collection import Passages, read_qrels, read_queries
from tests.input_pipelines.labelled import layout_files as files
from tests.kits import stage_kit, tiny_stores
from tests.kits.stage_kit import clean_process  # noqa: F401

ITEMS: list[files.Item] = [
    (f"word{i} other{i}?", f"It is answer{i // 2}.", [f"It is answer{i // 2 + 1}."])
    for i in range(40)
]
RULES = SplitRules(dev_share=0.1, test_share=0.2)


def make(data: Path, folder: Path, rules: SplitRules = RULES, **changed: object) -> dict:
    """Runs the job; returns its report."""
    settings = {"corpus": None, "columns": {}, "positive_from": None, "max_bad_records": 0}
    folder.mkdir(exist_ok=True)
    outputs = labelled_collection.labelled_collection(
        str(data), rules=rules, model_dir=str(folder), **(settings | changed)
    )
    assert set(outputs) == {"corpus", "negatives", "report"}
    return json.loads((folder / outputs["report"]).read_text())


def rows(path: Path) -> Iterator[dict]:
    return map(json.loads, path.read_text().splitlines())


def everything(folder: Path) -> dict[str, bytes]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_a_beir_folder_with_three_splits_and_negatives(tmp_path: Path) -> None:
    report = make(files.table(tmp_path / "a.csv", files.tuples(ITEMS)), tmp_path / "out")
    corpus = str(tmp_path / "out/corpus")
    asked = {part: set(beir.query_ids(corpus, part)) for part in PARTS}
    assert {part: len(names) for part, names in asked.items()} == report["splits"]
    assert report["splits"] == {"train": 28, "dev": 4, "test": 8}
    bad = BadRecords(0)
    queries = list(beir.BeirQueries(corpus, PARTS, 1 << 20).records(bad))
    passages = {one.id: one.text for one in beir.BeirCorpus(corpus, 1 << 20).records(bad)}
    assert len(queries) == 40 and len(passages) == 21
    expected = {q: (p, ns) for q, p, ns in ITEMS}
    texts = {one.id: one.text for one in queries}
    lines = list(rows(tmp_path / "out/negatives.jsonl"))
    assert {line["query_id"] for line in lines} == asked["train"]
    for line in lines:
        positive, wrong = expected[texts[line["query_id"]]]
        assert [passages[name] for name in line["positive_ids"]] == [positive]
        assert [passages[name] for name in line["negative_ids"]] == wrong
    assert report["divided"] == "by passage"
    assert report["overlap"]["test"]["gold_in_training"] == 0
    assert report["overlap"]["test"]["apart"] == sorted(asked["test"])
    assert report["layout"] == "columns of triplets" and len(report["examples"]) == 3
    assert (
        report["enough_for_a_verdict"] is False and "4 development queries" in report["notes"][-1]
    )


def test_layouts_and_places_of_files_do_not_matter(tmp_path: Path) -> None:
    """Outputs are equal but for the name of the layout."""
    made = []
    for number, write in enumerate((files.tuples, files.triplets, files.flag_embedding)):
        (tmp_path / str(number)).mkdir()
        path = files.lines(tmp_path / f"{number}/data.jsonl", write(ITEMS))
        make(path, tmp_path / f"out{number}")
        made.append(everything(tmp_path / f"out{number}"))
    reports = [json.loads(one.pop("report.json")) for one in made]
    assert made[0] == made[1] == made[2] and len(made[0]) == 6
    for report in reports:
        del report["layout"], report["roles"]
    assert reports[0] == reports[1] == reports[2]


def test_training_reads_the_negatives_and_the_teachers_scores(tmp_path: Path) -> None:
    given = [
        {
            "query_id": f"q{i}",
            "query": f"word{i} other{i}",
            "pos": [f"text {i}"],
            "pos_id": [f"p{i}"],
            "neg": [f"text {i + 1}", f"text {i + 2}"],
            "neg_id": [f"p{i + 1}", f"p{i + 2}"],
            "pos_scores": [5.0],
            "neg_scores": [1.0, 0.5],
        }
        for i in range(4)
    ]
    rules = SplitRules(dev_share=0.0, test_share=0.0)
    report = make(files.lines(tmp_path / "a.jsonl", given), tmp_path / "out", rules)
    assert report["taught"] == 4 and report["splits"] == {"train": 4, "dev": 0, "test": 0}
    stores = [
        TokenStore.open(str(tiny_stores.write_store(tmp_path / prefix, [9] * 7, prefix=prefix)))
        for prefix in "qp"
    ]
    pairs = negatives.read_pairs(str(tmp_path / "out/negatives.jsonl"), *stores, teacher=True)
    assert pairs.queries.tolist() == [0, 1, 2, 3]
    assert pairs.positives.tolist() == [[0], [1], [2], [3]]
    assert pairs.negatives.tolist() == [[1, 2], [2, 3], [3, 4], [4, 5]]
    assert pairs.teacher is not None and pairs.teacher.tolist() == [[5.0, 1.0, 0.5]] * 4


def test_copies_of_an_answer_are_never_negatives(tmp_path: Path) -> None:
    """A tenth of the passages twice: mining passes all of them over, training knows them."""
    items = [(f"It is answer{i // 2}, word{i}?", *rest) for i, (_, *rest) in enumerate(ITEMS)]
    folder = files.beir(tmp_path / "data", items)
    corpus = folder / "corpus.jsonl"
    passages = list(rows(corpus))
    copied = {one["_id"]: f"copy-{one['_id']}" for one in passages[::10]}
    with corpus.open("a") as file:
        for one in passages[::10]:
            text = f"  {one['text'].upper()} "
            file.write(json.dumps(one | {"_id": copied[one["_id"]], "text": text}) + "\n")
    make(folder, tmp_path / "out")
    collection = str(tmp_path / "out/corpus")
    places = {"train": 0, "dev": 0, "test": 0}
    for part in PARTS:
        known = read_qrels(collection, part, read_queries(collection), Passages(collection))
        for judged in known.values():
            both = [name for name in copied if name in judged and copied[name] in judged]
            places[part] += len(both)
            if part == "train":
                assert len(both) == len(copied.keys() & judged.keys())
    assert places["train"] > 0 and places["dev"] == places["test"] == 0
    settings = MiningSettings(20, 10, skip_top=0, max_overlap=1.0, max_score_ratio=0.0)
    mine(collection, "train", candidates.Bm25, settings, 100, str(tmp_path),
         given=str(tmp_path / "out/negatives.jsonl"))  # fmt: skip
    lines = list(rows(tmp_path / "negatives.jsonl"))
    passed = sum(line["passed_over"]["positive"] for line in lines)
    assert passed == len(lines) + places["train"]  # copies were found, and passed over
    for line in lines:
        wrong = {copied.get(name, "") for name in line["positive_ids"]} & {*line["negative_ids"]}
        assert not wrong, line


def test_checks_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="absent.csv does not exist"):
        labelled_collection.check(str(tmp_path / "absent.csv"), None, {}, 0)
    path = files.table(tmp_path / "a.csv", files.tuples(ITEMS))
    with pytest.raises(SourceError, match="expected a file of passages"):
        labelled_collection.check(str(path), str(tmp_path / "absent"), {}, 0)
    with pytest.raises(ValueError, match="max_bad_records: expected 0 or more"):
        labelled_collection.check(str(path), None, {}, -1)
    labelled_collection.check(str(path), None, {}, 0)


def test_as_a_stage_it_shows_what_it_understood(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = files.table(tmp_path / "a.csv", files.tuples(ITEMS))
    text = "include 'gin_configs/runs/collections/labelled.gin'\n"
    assert stage_kit.run(text, tmp_path, LABELLED_DATA=str(path)) == 0
    shown = capsys.readouterr().out
    assert "a.csv: columns of triplets (query = anchor, positive = positive" in shown
    assert "1. query     word0 other0?" in shown
    assert "test: 6 queries; 0 of 3 relevant passages answer training queries, too" in shown
    assert "note: 6 development queries, fewer than 200" in shown
    assert stage_kit.record(tmp_path)["outputs"].keys() == {"corpus", "negatives", "report"}


def test_scifact_has_test_passages_in_training(shared: Path) -> None:
    """As its README counts them."""
    found = understanding.read(str(shared / "data/ir_scifact"), BadRecords(0))
    given = found.labelled.splits
    test, train = ({q for q in given if split in given[q]} for split in ("test", "train"))
    overlap = passage_overlap.measure(test, train, found.relevance.relevant, [])
    assert (overlap.queries, overlap.gold, overlap.gold_in_training) == (300, 283, 181)
    assert len(overlap.shared) + len(overlap.apart) == 300


def test_scifacts_near_duplicates_are_refused_or_left_out(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data/ir_scifact"
    with pytest.raises(LayoutError, match="14 test queries are training queries, too, or share"):
        make(folder, tmp_path / "refused")
    report = make(folder, tmp_path / "out", SplitRules(leaks="drop"))
    assert len(report["dropped_training_queries"]) == 14
    assert report["splits"] == {"train": 676, "dev": 119, "test": 300}
    test = report["overlap"]["test"]
    assert test["near_duplicates"] == 0 and test["gold"] == 283
    assert (len(test["shared"]), len(test["apart"])) == (135, 165)


def test_squad_is_divided_by_paragraph_and_its_swapped_columns_are_seen(
    shared: Path, tmp_path: Path
) -> None:
    with gzip.open(shared / "data/squad/dev-v1.1.jsonl.gz", "rt", encoding="utf-8") as file:
        articles = [json.loads(line) for line in file][:400]
    pairs = [(qa["question"], one["context"]) for one in articles for qa in one["qas"]]
    for name, order in (("right", 1), ("wrong", -1)):
        with open(tmp_path / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("first", "second"), *(pair[::order] for pair in pairs)])
    report = make(tmp_path / "right.csv", tmp_path / "out", SplitRules())
    assert report["divided"] == "by passage" and report["warnings"] == []
    assert report["overlap"]["test"]["gold_in_training"] == 0
    assert report["enough_for_a_verdict"] and report["splits"]["dev"] >= 200
    with pytest.raises(LayoutError, match="the columns seem to be swapped"):
        make(tmp_path / "wrong.csv", tmp_path / "wrong")
