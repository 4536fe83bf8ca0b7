"""Pairs of texts with classes: in files, in a store, in batches."""

import dataclasses
import gzip

import numpy as np
import pytest

from input_pipelines.batches import classifier_batches
from input_pipelines.batches.classifier_batches import (
    LabelledPairs,
    LabelledPairsPipeline,
    PairSource,
)
from input_pipelines.sources import text_sources
from input_pipelines.sources.labelled_pair_files import PairLines, PairTables
from input_pipelines.sources.languages import LanguageError
from input_pipelines.sources.text_sources import BadRecords, SourceError
from input_pipelines.store import prepare
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers import tokenization
from t5x_style.evaluation.pair_classification import PairClassificationEvaluator
from tests.kits import labelled_texts
from tests.kits.labelled_texts import CLASSES, write
from tests.kits.tiny_stores import write_store

SIDE = 8
ROWS, LENGTH, SEGMENTS = 8, 40, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer and a store of pairs."""
    root = tmp_path_factory.mktemp("pairs")
    source = labelled_texts.tokenizer_of(root)
    layout = LabelledPairs(SIDE, CLASSES)
    prepare.prepare(
        str(root), source, str(root / "tokenizer"), "t", "all", "text", 2 * SIDE - 1, "", 17, 1, 0,
        layout,
    )  # fmt: skip
    return root


def pipeline(folder, **changes):
    settings = {"classes": CLASSES, "side": SIDE, "seed": 3, "rows": ROWS, "length": LENGTH}
    settings |= {"segments": SEGMENTS, "block": 64, "tokenizer": str(folder / "tokenizer")}
    settings |= {"stores": [str(folder / "store")]} | changes
    return LabelledPairsPipeline(settings.pop("stores"), **settings)


def source(folder, **changes):
    settings = {"classes": CLASSES, "side": SIDE, "tokenizer": str(folder / "tokenizer")}
    return PairSource(str(folder / "store"), LENGTH, SEGMENTS, ROWS, **settings | changes)


# --- files ----------------------------------------------------------------------------------------

GOOD = {"id": "en/1", "first": "a b", "second": "c", "label": "same"}


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        (
            {"label": "alike"},
            "unknown_label",
            r"expected one of \['different', 'same', 'neither'\]",
        ),
        ({"label": True}, "wrong_type", "field 'label'"),
        ({"second": " "}, "empty_side", "field 'second': expected a text, found none"),
        ({"first": None}, "wrong_type", "field 'first': expected a string"),
        ({"id": "en/0"}, "duplicate_id", "was already given in .*pairs.jsonl:1"),
    ],
)
def test_a_malformed_line_is_counted_and_quoted(tmp_path, change, reason, message):
    rows = [GOOD | {"id": "en/0"}, GOOD | change, GOOD | {"id": "en/2"}]
    path = write(tmp_path / "pairs.jsonl", rows)
    bad = BadRecords(1, quiet=True)
    assert [r.id for r in PairLines(path, CLASSES).records(bad)] == ["en/0", "en/2"]
    assert bad.counts == {reason: 1}
    with pytest.raises(SourceError, match=message):
        list(PairLines(path, CLASSES).records(BadRecords(0)))


def test_a_line_without_a_side_is_malformed(tmp_path):
    path = write(tmp_path / "pairs.jsonl", [{k: v for k, v in GOOD.items() if k != "second"}])
    with pytest.raises(SourceError, match="no field 'second'"):
        list(PairLines(path, CLASSES).records(BadRecords(0)))


def test_paws_x(tmp_path):
    """Tables as published: numbers as labels, quotes that mean nothing, empty texts."""
    for code in ("de", "zh"):
        (tmp_path / code).mkdir()
        with gzip.open(tmp_path / code / "dev.tsv.gz", "wt") as file:
            file.write("id\tsentence1\tsentence2\tlabel\n")
            file.write(f'1\t"Er {code}\tEr "sagte" es .\t0\n2\tA\tB\t1\n3\t\tB\t1\n4\tA\tB\n')
    tables = PairTables(str(tmp_path), "{language}/dev.tsv.gz", ["de", "zh"], ("0", "1"))
    with open(tmp_path / "de" / "more.tsv", "w") as file:
        file.write("id\tsentence1\tsentence2\tlabel\n7\tA\tB\t1\t0\n")
    with pytest.raises(SourceError, match="expected 4 cells, found 5"):
        more = dataclasses.replace(tables, name="{language}/more.tsv", languages=["de"])
        list(more.records(BadRecords(0)))
    with pytest.raises(LanguageError, match="PairTables.*once, found 'de' and 'deu'"):
        dataclasses.replace(tables, languages=["de", "deu"])
    bad = BadRecords(4, quiet=True)
    found = list(tables.records(bad))
    assert [r.id for r in found] == ["de/1", "de/2", "zh/1", "zh/2"]
    assert found[0] == text_sources.Record("de/1", '"Er de', 'Er "sagte" es .', "0")
    assert bad.counts == {"empty_side": 2, "columns": 2}
    other = dataclasses.replace(tables, columns=("id", "premise", "hypothesis", "label"))
    with pytest.raises(SourceError, match="found no \\['premise', 'hypothesis'\\]"):
        list(other.records(bad))
    with pytest.raises(ValueError, match="expected '{language}' in name"):
        dataclasses.replace(tables, name="dev.tsv")


# --- stores and batches ---------------------------------------------------------------------------


def read_back(group, texts):
    """(token types, label) of each segment, checked against what each side is alone."""
    found = {}
    for row, slot in zip(*np.nonzero(group["segment_valid"]), strict=True):
        inside = group["segment_ids"][row] == slot + 1
        number = int(group["example_id"][row, slot])
        first, second = texts[number]
        assert group["tokens"][row][inside].tolist() == [*first, *second[1:]]
        types = [0] * len(first) + [1] * (len(second) - 1)
        assert group["token_types"][row][inside].tolist() == types
        assert group["positions"][row][inside].tolist() == list(range(len(types)))
        found[number] = int(group["label"][row, slot]) if "label" in group else None
    assert not group["token_types"][group["segment_ids"] == 0].any()
    return found


@pytest.fixture(scope="module")
def texts(folder):
    """The tokens of each side alone, and its class, in the order of the file."""
    tokenizer = tokenization.Tokenizer(str(folder / "tokenizer"))
    rows = list(labelled_texts.lines())
    sides = [tokenizer.encode_batch([row[side] for row in rows], SIDE) for side in
             ("first", "second")]  # fmt: skip
    both = [(a.tokens.tolist(), b.tokens.tolist()) for a, b in zip(*sides, strict=True)]
    return both, [CLASSES.index(row["label"]) for row in rows]


@pytest.mark.parametrize("segments", [1, SEGMENTS])
def test_batches_hold_the_pairs_with_their_classes(folder, texts, segments):
    made = pipeline(folder, segments=segments)
    seen = {}
    for step in range(12):
        group = made.batch(step)["pair"]
        spec = made.specs()["pair"]
        assert {n: (a.shape, a.dtype) for n, a in group.items()} == spec
        assert (group["label"] == -1).tolist() == (~group["segment_valid"]).tolist()
        seen |= read_back(group, texts[0])
    assert seen == dict(enumerate(texts[1]))


@pytest.mark.parametrize("by_language", [False, True])
def test_two_stores_keep_their_classes(folder, texts, by_language):
    """Of the second store's rows, too, and where languages take turns."""
    stores = [str(folder / "store")] * 2
    made = pipeline(folder, stores=stores, by_language=by_language)
    count, seen = len(texts[0]), {}
    for step in range(24):
        seen |= read_back(made.batch(step)["pair"], texts[0] * 2)
    assert seen.keys() >= {0, count - 1, count, 2 * count - 1}
    assert all(label == texts[1][number % count] for number, label in seen.items())


def test_a_batch_is_a_function_of_its_step(folder):
    made, again = pipeline(folder), pipeline(folder)
    assert made.fingerprint == again.fingerprint != pipeline(folder, seed=4).fingerprint
    ahead = again.batches(5, rows=np.array([1, 6]))
    whole = made.batch(5)["pair"]
    for name, array in next(ahead)["pair"].items():
        np.testing.assert_array_equal(array, whole[name][[1, 6]], err_msg=name)
    ahead.close()
    groups = [made.batch(step)["pair"] for step in range(20)]
    assert any((group["example_id"] >= labelled_texts.COUNTS["de"]).any() for group in groups)


def test_every_pair_is_classified_once(folder, texts):
    everything = source(folder)
    found = {}
    for group in everything.batches():
        assert {n: (a.shape, a.dtype) for n, a in group.items()} == everything.specs()
        found |= read_back(group, texts[0])
    assert found.keys() == set(range(len(texts[0])))
    assert everything.labels.tolist() == texts[1]
    some = source(folder, max_pairs=20)
    assert some.ids == source(folder, max_pairs=20).ids and len(some.ids) == len(some.labels) == 20
    chosen = [texts[0][row] for row in some.rows]
    assert read_back(some.group(0), chosen)


def test_stores_that_do_not_fit_are_refused(folder, tmp_path):
    with pytest.raises(StoreError, match="cut at 9 tokens and the classes .* made with 8"):
        pipeline(folder, side=9)
    with pytest.raises(StoreError, match=r"classes \['same', 'different', 'neither'\], in this"):
        source(folder, classes=("same", "different", "neither"))
    plain = str(write_store(tmp_path / "plain", [5, 6]))
    with pytest.raises(StoreError, match="prepared with runs/stores/labelled_pairs.gin"):
        classifier_batches.classes_of(TokenStore.open(plain))
    with pytest.raises(ValueError, match="PairSource.length: expected at least 1"):
        PairSource(str(folder / "store"), 12, 1, 4, classes=CLASSES, side=SIDE)
    for classes in ((), ("one",), ("a", "a"), ("a|b", "c"), ("a b", "c")):
        with pytest.raises(ValueError, match="two or more different names"):
            LabelledPairs(SIDE, classes)
    with pytest.raises(ValueError, match="expected its class, one of .* found 'pairs.jsonl:3'"):
        records = [text_sources.Record("a", "b", "c", "pairs.jsonl:3")]
        LabelledPairs(SIDE, CLASSES).rows(records, None, 20, "")
    with pytest.raises(ValueError, match="LabelledPairs: expected no prefix, found 'query: '"):
        LabelledPairs(SIDE, CLASSES).rows([], None, 20, "query: ")


def test_a_class_that_never_occurs(folder, tmp_path, capsys):
    path = write(
        tmp_path / "two.jsonl", (row for row in labelled_texts.lines() if row["label"] != "neither")
    )
    tokens = str(folder / "tokenizer")
    prepare.prepare(
        str(tmp_path), PairLines(path, CLASSES), tokens, "t", "all", "text", 2 * SIDE - 1, "", 100,
        1, 0, LabelledPairs(SIDE, CLASSES),
    )  # fmt: skip
    with pytest.raises(StoreError, match="pairs of every class, found .*'neither': 0"):
        pipeline(tmp_path, tokenizer=tokens)
    evaluator = PairClassificationEvaluator("dev", source(tmp_path, tokenizer=tokens))
    assert "none is of class neither" in capsys.readouterr().err
    assert "F1_same" in evaluator.metrics and "F1_neither" not in evaluator.metrics
