"""Long texts as passages."""

import pytest

from input_pipelines.sources.passage_splitter import Chunked, split_words
from input_pipelines.sources.text_sources import BadRecords, Lines, Record


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b\n\nc", ["a b\n\nc"]),
        ("a b\n\nc d", ["a b", "c d"]),
        ("a b c d e f g", ["a b c", "d e f", "g"]),
        ("a b\nc d\n\ne", ["a b", "c d\n\ne"]),
        ("  a\n    b", ["  a\n    b"]),
        ("\n\n", []),
    ],
)
def test_split_words_at_paragraphs_then_lines_then_words(text, expected):
    assert split_words(text, 3) == expected


class Given:
    def __init__(self, *texts):
        self.texts = texts

    def records(self, bad):
        for number, text in enumerate(self.texts):
            yield Record(f"r{number}", "Title", text, "here")


def test_a_record_becomes_passages_that_keep_its_title():
    source = Chunked(Given("One two three four.\nHead.\nFive six seven.", "Short."), 4, 2)
    found = [(r.id, r.title, r.text) for r in source.records(BadRecords(0))]
    assert found == [
        ("r0#0", "Title", "One two three four."),
        ("r0#1", "Title", "Head.\nFive six seven."),
        ("r1#0", "Title", "Short."),  # all that the record has
    ]


def test_every_word_of_long_enough_passages_is_kept(tmp_path):
    words = [f"w{i}" for i in range(1000)]
    (tmp_path / "a.txt").write_text(" ".join(words) + "\n")
    source = Chunked(Lines([str(tmp_path / "a.txt")], 10_000), 90, 1)
    pieces = [r.text.split() for r in source.records(BadRecords(0))]
    assert [word for piece in pieces for word in piece] == words
    assert max(map(len, pieces)) == 90


@pytest.mark.parametrize(("words", "least"), [(0, 0), (5, 6), (5, -1)])
def test_sizes_that_make_no_sense_are_refused(words, least):
    with pytest.raises(ValueError, match="min_words"):
        Chunked(Given(), words, least)
