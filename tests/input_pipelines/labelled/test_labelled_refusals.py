"""Data that cannot be read or cannot be meant is refused, with what was found, where and advice."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from input_pipelines.labelled import detection, understanding
from input_pipelines.labelled.examples import LayoutError
from input_pipelines.sources.text_sources import BadRecords, SourceError
from tests.input_pipelines.labelled import layout_files as files

Rows = list[dict[str, object]]


def read(path: Path, limit: int = 0, **settings: object) -> understanding.Read:
    return understanding.read(str(path), BadRecords(limit, "JOB"), **settings)


def refused(path: Path, *words: str, error: type[SourceError] = LayoutError, **settings) -> None:
    with pytest.raises(error) as raised:
        read(path, **settings)
    for word in words:
        assert word in str(raised.value)


def pairs(count: int, **columns: str) -> Rows:
    """Rows of columns -> format of the row's number."""
    return [{name: form.format(i) for name, form in columns.items()} for i in range(count)]


PARAGRAPH = "paragraph {} " + "of many words " * 10


def shared_paragraphs(question: str) -> Rows:
    """Four questions about each of five paragraphs, in the wrong columns."""
    return [{"a": PARAGRAPH.format(i // 4), "b": question.format(i)} for i in range(20)]


@pytest.mark.parametrize("rows", [
    pairs(4, answer="p {}", question="q {}"),
    pairs(4, positive="p {}", anchor="q {}", negative="n {}"),
])  # fmt: skip
def test_columns_that_are_swapped_by_their_names(rows: Rows, tmp_path: Path) -> None:
    path = files.table(tmp_path / "a.csv", rows)
    first, second = list(rows[0])[:2]
    advice = f"COLUMNS=\"{{'query': '{second}', 'positive': '{first}'}}\""
    refused(path, "a.csv: columns", "swapped", advice)
    found = read(path, columns={"query": second, "positive": first})
    assert set(found.labelled.queries.values()) == {f"q {i}" for i in range(4)}


@pytest.mark.parametrize(
    ("rows", "evidence"),
    [
        (shared_paragraphs("word {}"), "5 different queries have 20 passages"),
        (pairs(9, a=PARAGRAPH, b="what is {}?"), "100% of the passages end in a question mark"),
    ],
)
def test_columns_that_are_swapped_by_what_they_hold(
    rows: Rows, evidence: str, tmp_path: Path
) -> None:
    path = files.table(tmp_path / "a.csv", rows)
    refused(path, "seem to be swapped", "in the median a query has", evidence, "COLUMNS=\"{'query'")
    found = read(path, columns={"query": "a", "positive": "b"})
    assert "queries are long" in found.understood.warnings[0]
    assert "warning: queries are long" in found.understood.text()
    assert read(path, columns={"query": "b", "positive": "a"}).understood.warnings == []


def test_long_queries_alone_are_a_warning(tmp_path: Path) -> None:
    found = read(files.table(tmp_path / "a.csv", pairs(9, a=PARAGRAPH, b="code {}")))
    assert "queries are long" in found.understood.warnings[0]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (pairs(3, query="q {}", title="t {}", passage="p {}"), ["['query', 'title', 'passage']"]),
        (pairs(3, text="t {}"), ["expected ',' between columns"]),
        (pairs(3, id="{}", query="q {}", label="1"), ["['id', 'query', 'label']", "COLUMNS="]),
        (
            pairs(3, negative="n {}", query="q {}"),
            ["['negative', 'query']", "sentence-transformers"],
        ),
        ([{"what is love": "x", "a feeling": "y"}], ["['what is love', 'a feeling']"]),
        ([{"Is it?": "x", "It is.": "y"}], ["a.csv:1", "names of columns in the first line"]),
    ],
)
def test_unknown_columns(rows: Rows, words: list[str], tmp_path: Path) -> None:
    refused(files.table(tmp_path / "a.csv", rows), *words)


def test_a_first_line_with_another_separator(tmp_path: Path) -> None:
    files.table(tmp_path / "a.csv", pairs(3, query="q {}", passage="p {}"), ";")
    refused(tmp_path / "a.csv", "a.csv:1", "found ';'", "commas")


@pytest.mark.parametrize(
    ("columns", "word"),
    [
        ({"query": "q", "positive": "absent"}, "not ['absent']"),
        ({"query": "q"}, "'query' and 'positive'"),
        ({"query": "q", "positive": "p", "answer": "p"}, "there is no ['answer']"),
    ],
)
def test_a_mapping_that_does_not_fit(columns: dict[str, str], word: str, tmp_path: Path) -> None:
    path = files.table(tmp_path / "a.csv", pairs(3, q="q {}", p="p {}"))
    refused(path, "the file has ['q', 'p']", word, columns=columns)


def test_files_of_several_layouts(tmp_path: Path) -> None:
    files.lines(tmp_path / "train.jsonl", files.flag_embedding())
    files.lines(tmp_path / "test.jsonl", files.tuples())
    refused(tmp_path, "files of one layout", "train.jsonl: FlagEmbedding", "test.jsonl: Columns")


@pytest.mark.parametrize(
    ("first", "then"),
    [(files.tuples, files.flag_embedding), (files.flag_embedding, files.tevatron)],
)
def test_rows_of_several_layouts(
    first: Callable[[], Rows], then: Callable[[], Rows], tmp_path: Path
) -> None:
    path = files.lines(tmp_path / "a.jsonl", [*first(), *then()])
    refused(path, "a.jsonl:5", "expected a row like those before", "fields")


BAD_ROWS: list[tuple[Rows, str]] = [
    ([{"query": "q", "passage": ""}], "field 'passage': expected a text, found an empty one"),
    ([{"query": None, "passage": "p"}], "field 'query': expected a text, found none"),
    ([{"query": "q"}], "no field 'passage'"),
    ([{"query": 7, "passage": "p"}], "field 'query': expected a string, found int"),
    ([{"query": "q", "passage": {"text": "p"}}], "expected a string, found dict"),
]


@pytest.mark.parametrize(("rows", "message"), BAD_ROWS)
def test_malformed_rows_are_quoted_and_counted(rows: Rows, message: str, tmp_path: Path) -> None:
    good = pairs(3, query="q {}", passage="p {}")
    path = files.lines(tmp_path / "a.jsonl", [*good, *rows])
    place = f"{path}:4: "
    refused(path, place, message, "--gin.JOB.max_bad_records=NUMBER", error=SourceError)
    found = read(path, limit=1)
    assert sum(found.understood.bad_records.values()) == 1
    assert "left out: malformed rows" in found.understood.text()
    assert len(found.labelled.queries) == 3


def test_a_malformed_row_of_a_table_is_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'query,passage\nq1,"a\nb"\n\nq2,p2,more\nq\xff,p\nq3,"p" 3\nq4,p4\nq5,p5\n')
    bad = BadRecords(3)
    found = understanding.read(str(path), bad)
    assert list(found.labelled.queries.values()) == ["q1", "q4", "q5"]
    assert [one.split(": ")[0] for one in bad.examples] == [f"{path}:{n}" for n in (5, 6, 7)]
    assert "expected 2 cells, as the first line has, found 3" in bad.examples[0]


@pytest.mark.parametrize("score", ["high", "nan", "", None, "inf"])
def test_scores_that_are_no_numbers(score: str | None, tmp_path: Path) -> None:
    rows = pairs(3, query="q {}", passage="p {}", score="1")
    rows[1]["score"] = score
    message = "found none" if score is None else "expected a finite number"
    for path in (files.lines(tmp_path / "a.jsonl", rows), files.table(tmp_path / "a.csv", rows)):
        word = "expected a finite number" if path.suffix == ".csv" else message
        refused(path, "field 'score'", word, error=SourceError)


@pytest.mark.parametrize(
    "extra", [{"pos_scores": [1, 2]}, {"neg_id": ["a"]}, {"neg": "n"}, {"pos": []}]
)
def test_lists_that_do_not_fit(extra: dict[str, object], tmp_path: Path) -> None:
    rows = files.flag_embedding()
    rows[2] |= extra
    refused(files.lines(tmp_path / "a.jsonl", rows), ":3: field", "expected", error=SourceError)


def test_scores_whose_meaning_is_unknown(tmp_path: Path) -> None:
    rows = pairs(4, query="q {}", passage="p {}", score="-{}.5")
    refused(files.table(tmp_path / "a.csv", rows), "between -3.5 and -0.5", "POSITIVE_FROM=NUMBER")
    rows = pairs(4, query="q {}", passage="p {}", score="0")
    refused(files.table(tmp_path / "b.csv", rows), "expected relevant passages, found none")


@pytest.mark.parametrize(
    ("write", "row", "labels"),
    [
        (files.scored, {"sentence1": "who said so?", "sentence2": "It rained.", "label": 1}, "1 0"),
        (
            files.triplets,
            {"anchor": "who said so?", "positive": "It rained.", "negative": "x"},
            "1 0",
        ),
        (files.flag_embedding, {"query": "y", "pos": ["a", "x"], "neg": ["x"]}, "0 1"),
    ],
)
def test_contradictory_labels(
    write: Callable[[], Rows], row: dict[str, object], labels: str, tmp_path: Path
) -> None:
    path = files.lines(tmp_path / "a.jsonl", [*write(), row])
    here, before = labels.split()
    words = (f"with the label {here} here and {before} in", "expected one label for a pair")
    refused(path, f"{path}:{len(write()) + 1}: ", *words, error=SourceError)
    assert read(path, limit=1).understood.bad_records == {"contradiction": 1}


def test_an_id_of_two_texts(tmp_path: Path) -> None:
    rows = files.tevatron()
    rows[3]["query_id"] = "0"
    refused(
        files.lines(tmp_path / "a.jsonl", rows), "query '0' had another text", error=SourceError
    )
    rows = files.tevatron()
    rows[3]["positive_passages"] = [{"docid": "d1", "title": "", "text": "new"}]
    refused(files.lines(tmp_path / "b.jsonl", rows), "'d1' had another text", error=SourceError)


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        (pairs(1, query="q {}", passage="p {}"), "at least two pairs"),
        ([{"query": "q", "passage": "p"}] * 5, "at least two pairs"),
        (pairs(5, query="same", passage="p {}"), "5 rows with the same one, 'same'"),
        (pairs(5, query="q {}", passage="same"), "found one for all 5 queries"),
    ],
)
def test_data_without_a_choice(rows: Rows, word: str, tmp_path: Path) -> None:
    refused(files.table(tmp_path / "a.csv", rows), word)


def test_a_beir_folder_that_is_not_whole(tmp_path: Path) -> None:
    folder = files.beir(tmp_path / "in")
    (folder / "qrels/train.tsv").write_text(
        "query-id\tcorpus-id\tscore\nq0\tabsent\t1\nq9\td0\t1\n"
    )
    refused(folder, "passage 'absent' is not in the corpus", error=SourceError)
    (folder / "qrels/train.tsv").unlink()
    refused(folder, "expected judgements, qrels/train.tsv")
    refused(files.beir(tmp_path / "b"), "Leave them out", columns={"query": "a"})


def test_paths_without_labelled_data(tmp_path: Path) -> None:
    refused(tmp_path / "absent", "does not exist")
    (tmp_path / "a.xlsx").write_text("")
    refused(tmp_path / "a.xlsx", "'.csv', '.tsv'")
    refused(tmp_path, "expected one file of rows", "found ['a.xlsx']")
    for name in ("mine.csv", "yours.csv"):
        files.table(tmp_path / name, pairs(3, query="q {}", passage="p {}"))
    refused(tmp_path, "cannot place ['mine.csv', 'yours.csv']")
    files.lines(tmp_path / "empty.jsonl", [])
    refused(tmp_path / "empty.jsonl", "expected rows with a query and a passage, found none")


@pytest.mark.parametrize("names", [
    ("config.json", "model.safetensors", "tokenizer.json"),
    ("config.json", "pytorch_model.bin"),
    ("config.json", "modules.json"),
])  # fmt: skip
def test_a_model_in_place_of_data(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    refused(tmp_path, f"found a model: {', '.join(names)}", "the data and the model swapped?")
    if names[1] != "modules.json":
        refused(tmp_path / names[1], f"found a model: {names[1]}")


def test_damaged_binary_files(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 cut")
    refused(tmp_path / "a.parquet", "in the format parquet")
    saved = files.dataset(tmp_path / "saved", files.tuples())
    (saved / "data-00001-of-00002.arrow").unlink()
    refused(saved, "of which 1 are missing", "Save the dataset again")
    (saved / "state.json").write_text("{")
    refused(saved, "expected JSON as `datasets` saves it")
    files.dataset_dict(tmp_path / "both", {"train": files.tuples()})
    (tmp_path / "both/dataset_dict.json").write_text(json.dumps({"splits": ["train", "left"]}))
    refused(tmp_path / "both", "Rename 'left'")
    files.parquet(tmp_path / "numbers.parquet", [{"query": i, "passage": "p"} for i in range(3)])
    refused(tmp_path / "numbers.parquet", "expected a string, found int", error=SourceError)


def test_the_first_row_is_enough_to_know_the_layout(tmp_path: Path) -> None:
    """For checks before a run: a broken end is not read."""
    path = files.lines(tmp_path / "a.jsonl", files.flag_embedding())
    path.write_text(path.read_text() + "{")
    assert detection.open_labelled(str(path)).layout == "FlagEmbedding's lines"
    refused(path, "not JSON", error=SourceError)
