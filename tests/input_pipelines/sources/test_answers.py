"""Answers as SQuAD and CuratedTREC compare them, and their places in text."""

import gzip
import json
import re
import string
import unicodedata

import hypothesis
import hypothesis.strategies as st
import pytest

from input_pipelines.sources import answers
from input_pipelines.sources.answers import Answers, Finder
from input_pipelines.sources.text_sources import BadRecords, SourceError

HARD = "aA theThe-.,'$–€≠é̈ Σß\t\nofxX01"


def squad_normalised(text):
    """The published evaluation's own steps, after NFD as ORQA has it."""
    text = unicodedata.normalize("NFD", text).lower()
    text = "".join(character for character in text if character not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


@hypothesis.settings(max_examples=300, deadline=None)
@hypothesis.given(st.text(alphabet=HARD, max_size=30))
def test_normalised_as_squads_evaluation_does_it(text):
    assert answers.normalised(text) == squad_normalised(text)


def test_normalised_real_paragraphs_as_squads_evaluation_does_it(shared):
    with gzip.open(shared / "data/squad/dev-v1.1.jsonl.gz", "rt") as file:
        texts = [json.loads(line)["context"] for line, _ in zip(file, range(300), strict=False)]
    assert len(texts) == 300
    for text in texts:
        assert answers.normalised(text) == squad_normalised(text)


@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(st.text(alphabet=HARD, max_size=30))
@hypothesis.example("AΣ̈A")  # the last A is an article, and Σ the end of what is cut out
def test_words_know_their_characters(text):
    for word in answers.words(text):
        alone = answers.normalised(text[word.start : word.end])
        assert alone.replace("ς", "σ") == word.text.replace("ς", "σ")


def test_exact_and_f1():
    one = Answers(("The Denver Broncos", "Denver"))
    assert one.exact("denver broncos.") and one.exact("a Denver") and not one.exact("Broncos")
    assert one.f1("Broncos") == pytest.approx(2 / 3) and one.f1("Carolina") == 0
    assert one.f1("the Broncos of Denver") == pytest.approx(0.8)
    assert Answers(("x x y",)).f1("x y y") == pytest.approx(2 / 3)  # a word counts as often as both


def test_expressions_match_from_the_beginning_whatever_the_case():
    height = Answers((r"20,?320\s*f(ee|oo)t|6,194-meter",), is_regex=True)
    assert height.exact("20320 feet") and height.exact("6,194-METER") and height.f1("20,320 foot")
    assert not height.exact("about 20320 feet")


def test_every_place_is_found_whole_words_only():
    text = "The U.S. and the US; Busan isn't US-led. us"
    found = Finder([Answers(("U.S.",)), Answers(("the us and",)), Answers(("led",))]).find(text)
    assert sorted(text[a:b] for q, (a, b) in found if q == 0) == ["U.S", "US", "us"]
    assert not [q for q, _ in found if q == 2]  # "US-led" is one word, as the evaluation sees it


def test_questions_share_an_answer_and_overlap():
    text = "New York City in New York"
    asked = [Answers(("New York", "New York City")), Answers(("york",)), Answers(("york in",))]
    found = sorted((q, text[a:b]) for q, (a, b) in Finder(asked).find(text))
    assert found == [
        (0, "New York"), (0, "New York"), (0, "New York City"), (1, "York"), (1, "York"),
    ]  # fmt: skip


def test_expressions_are_found_wherever_they_match():
    text = "Born in 1912, died in 1954."
    found = Finder([Answers((r"19\d\d", "x*"), is_regex=True)]).find(text)
    assert sorted(text[a:b] for _, (a, b) in found) == ["1912", "1954"]  # and nothing empty


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"answers": []}, "no_answers"),
        ({}, "no_answers"),
        ({"answers": "text"}, "no_answers"),
        ({"answers": [1]}, "bad_answer"),
        ({"answers": ["the", "!"]}, "empty_answer"),
        ({"answers": ["(19"], "answer_type": "regex"}, "bad_regex"),
        ({"answers": ["x"], "answer_type": "glob"}, "bad_answer_type"),
    ],
)
def test_malformed_answers_are_told_with_their_line(tmp_path, row, reason):
    file = tmp_path / "questions.jsonl"
    good = {"id": "q1", "question": "?", "answers": ["a house", "the"]}
    file.write_text(json.dumps(good) + "\n" + json.dumps({"id": "q2", **row}) + "\n")
    bad = BadRecords(1, quiet=True)
    read = answers.read(str(file), bad)
    assert read == {"q1": Answers(("a house",)), "q2": None}
    assert dict(bad.counts) == {reason: 1} and f"{file}:2" in bad.examples[0]
    with pytest.raises(SourceError, match=f"questions.jsonl:2.*{reason}"):
        answers.read(str(file), BadRecords(0, quiet=True))


def test_every_published_expression_is_read(shared):
    file = shared / "data/curatedtrec/test.jsonl.gz"
    read = answers.read(str(file), BadRecords(0))
    assert len(read) == 766 and all(one.is_regex for one in read.values())
