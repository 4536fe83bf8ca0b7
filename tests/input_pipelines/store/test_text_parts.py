"""Rows of whole texts with tables: the rows of `WholeTexts`, and where titles and sentences are."""

import os
from pathlib import Path

import numpy as np
import pytest

from input_pipelines.sources.text_sources import BadRecords, Record
from input_pipelines.store import layouts, prepare
from input_pipelines.store.text_parts import TextsWithParts, document_of
from input_pipelines.store.token_store import TokenStore
from input_pipelines.tokenizers import tokenization

RECORDS = [
    Record("a#0", "Red fish", "The fish swims. It is red! Is it one fish?", ""),
    Record("a#1", "Red fish", "A second passage of it. The end.", ""),
    Record("b", "", "No title here. Two sentences.", ""),
    Record("c", "A title alone", "", ""),
    Record("d#x", "", "One sentence", ""),
]


class Listed:
    """A source of the records above."""

    def records(self, bad: BadRecords) -> list[Record]:
        return RECORDS


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tokenization.Tokenizer:
    folder = str(tmp_path_factory.mktemp("tokenizer"))
    out = tokenization.train_tokenizer(
        model_dir=folder, source=Listed(), vocabulary_size=90, alphabet_size=100, min_frequency=1,
        lowercase=True, strip_accents=True, sample=0, seed=0, max_bad_records=0,
    )  # fmt: skip
    return tokenization.Tokenizer(os.path.join(folder, out["tokenizer"]))


@pytest.mark.parametrize(("length", "prefix"), [(64, ""), (12, ""), (5, ""), (64, "passage: ")])
def test_rows_are_those_of_whole_texts(
    tokenizer: tokenization.Tokenizer, length: int, prefix: str
) -> None:
    found = TextsWithParts().rows(RECORDS, tokenizer, length, prefix)
    expected = layouts.WHOLE_TEXTS.rows(RECORDS, tokenizer, length, prefix)
    assert found.truncated == expected.truncated
    for one, other in zip(found.records, expected.records, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.word_starts.tolist() == other.word_starts.tolist()
        assert (one.id, one.title, one.text) == (other.id, other.title, other.text)


@pytest.mark.parametrize("prefix", ["", "passage: "])
def test_tables_say_where_titles_and_sentences_are(
    tokenizer: tokenization.Tokenizer, prefix: str
) -> None:
    made = TextsWithParts().rows(RECORDS, tokenizer, 64, prefix)

    def said(row: int, start: int, end: int) -> str:
        return tokenizer.decode_batch([made.records[row].tokens[start:end].tolist()])[0]

    titles = [said(row, *place) for row, place in enumerate(made.tables["title"].tolist())]
    assert titles == ["red fish", "red fish", "", "a title alone", ""]
    sentences = [(row, said(row, *place)) for row, *place in made.tables["sentences"].tolist()]
    assert sentences == [
        (0, "the fish swims."), (0, "it is red!"), (0, "is it one fish?"),
        (1, "a second passage of it."), (1, "the end."),
        (2, "no title here."), (2, "two sentences."), (4, "one sentence"),
    ]  # fmt: skip
    page = made.tables["page"].tolist()
    assert page[0] == page[1] and len(set(page)) == 4


def test_what_is_cut_off_is_in_no_table(tokenizer: tokenization.Tokenizer) -> None:
    whole = TextsWithParts().rows(RECORDS, tokenizer, 64, "").tables
    for length in (4, 9, 14):
        cut = TextsWithParts().rows(RECORDS, tokenizer, length, "")
        ends = np.array([len(record.tokens) - 1 for record in cut.records])
        assert (cut.tables["title"] <= ends[:, None]).all()
        table = whole["sentences"]
        kept = table[table[:, 2] <= ends[table[:, 0]]]
        assert cut.tables["sentences"].tolist() == kept.tolist()


def test_prepare_stores_the_tables(tokenizer: tokenization.Tokenizer, tmp_path: Path) -> None:
    prepare.prepare(
        model_dir=str(tmp_path), source=Listed(), tokenizer=tokenizer.folder, name="parts",
        split="all", kind="passage", length=64, prefix="", shard_size=2, workers=1,
        max_bad_records=0, layout=TextsWithParts(),
    )  # fmt: skip
    store = TokenStore.open(str(tmp_path / "store"))
    expected = TextsWithParts().rows(RECORDS, tokenizer, 64, "").tables
    assert store.manifest["layout"] == "text"
    for name, table in expected.items():
        np.testing.assert_array_equal(store.table(name), table)
        assert store.table(name).dtype == table.dtype


@pytest.mark.parametrize(
    ("name", "document"), [("a#0", "a"), ("a#b#12", "a#b"), ("a#b", "a#b"), ("#1", "#1")]
)
def test_documents_by_id(name: str, document: str) -> None:
    assert document_of(name) == document
