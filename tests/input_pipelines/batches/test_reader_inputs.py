"""Readers' texts, what they point at in characters, and how often that is right."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from input_pipelines.batches import reader_inputs
from input_pipelines.gather import answer_key, write_beir
from input_pipelines.sources.text_sources import Record, SourceError
from input_pipelines.tokenizers import tokenization
from models.corruption import evidence_layout
from t5x_style import evaluate_answers, report
from t5x_style.evaluation import answer_metrics
from t5x_style.interfaces.contract import ContractError
from t5x_style.interfaces.objective import FunctionError, ModelFunction
from t5x_style.retrieval import answer_reader as reader_lib
from t5x_style.retrieval.answer_reader import Reader
from t5x_style.retrieval.beir_collection import Passages
from tests.kits import retrieval_helpers as helpers
from tests.kits import tiny_stores

BLOCKS = {
    "a#0": "The Denver Broncos won in 1998, and all were glad.",
    "a#1": "In Paris nobody saw it; in Rome they slept.",
    "b#0": "It was 1912 when she came from Rome.",
}
ASKED = [
    {"_id": "who", "text": "who won?", "answers": ["the denver broncos"]},
    {"_id": "when", "text": "when did she come?", "answers": [r"19[01]\d"], "answer_type": "regex"},
    {"_id": "where", "text": "where?", "answers": ["Oslo"]},
]


class Texts:
    """Blocks and questions, for a tokenizer."""

    def records(self, bad):
        for name, text in BLOCKS.items():
            yield Record(name, "", text, "")
        for row in ASKED:
            yield Record(row["_id"], "", row["text"], "")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("reading")
    tokenization.train_tokenizer(
        str(path), Texts(), 300, 200, 1, True, True, sample=0, seed=0, max_bad_records=0
    )
    (path / "corpus").mkdir()
    rows = [{"_id": name, "title": "A title", "text": text} for name, text in BLOCKS.items()]
    for name, lines in (("corpus", rows), ("queries", ASKED)):
        (path / "corpus" / f"{name}.jsonl").write_text(
            "".join(json.dumps(line) + "\n" for line in lines)
        )
    return path


def reading_of(folder, **changes):
    settings = {"query_length": 12, "passage_length": 40, "rows": 2}
    return reader_inputs.Reading(str(folder / "tokenizer"), **settings | changes)


def contract(made):
    return helpers.CONTRACT.__class__(
        **{
            **vars(helpers.CONTRACT),
            "tokenizer_fingerprint": made.fingerprint,
            "query_length": made.query_length,
            "passage_length": made.passage_length,
        }
    )


@jax.jit
def third_to_fifth(group):
    """Points at the third to fifth token of every body; the score is how long the text is."""
    lengths = jnp.sum(group["segment_ids"] > 0, axis=1)
    body = evidence_layout.in_body(group["tokens"], lengths, 3)
    first = jnp.argmax(body, axis=1)
    nothing = jnp.sum(body, axis=1) < 5
    score = jnp.where(nothing, -jnp.inf, lengths.astype(jnp.float32))
    found = {"start": first + 2, "end": first + 4, "score": score, "log_probability": score - 90}
    return {name: array[:, None] for name, array in found.items()}


ANSWERS = ModelFunction(third_to_fifth, {}, "[B, S] each", "answer")
SCORES = ModelFunction(third_to_fifth, {}, "[B, S] each", "score")


def test_texts_are_question_and_body_and_spans_are_their_characters(folder):
    made = reading_of(folder)
    texts = list(BLOCKS.values())
    questions = ["who won?"] * 3
    pairs = made.pairs(questions, texts)
    groups = list(pairs.batches())
    assert [len(group["tokens"]) for group in groups] == [2, 2]
    assert groups[1]["segment_valid"][:, 0].tolist() == [True, False]
    assert groups[1]["example_id"][:, 0].tolist() == [2, -1]
    tokenizer = tokenization.Tokenizer(str(folder / "tokenizer"))
    for number, (question, text) in enumerate(zip(questions, texts, strict=True)):
        asked, told = (tokenizer.pieces([one])[0] for one in (question, text))
        expected = [2, *asked.tokens, 3, *told.tokens[:37], 3]
        row = groups[number // 2]["tokens"][number % 2]
        assert row[: len(expected)].tolist() == expected and not row[len(expected) :].any()
        begin = len(asked.tokens) + 2
        start, end = pairs.characters(number, begin + 1, begin + 2)
        assert (start, end) == (told.offsets[1, 0], told.offsets[2, 1])
        for wrong in ((begin - 1, begin), (0, 0), (begin, begin + 37)):
            assert pairs.characters(number, *wrong) is None


def test_long_questions_and_passages_are_cut(folder):
    made = reading_of(folder, query_length=4, passage_length=8)
    pairs = made.pairs(["who won? " * 9], [BLOCKS["a#0"] * 3])
    (group,) = pairs.batches()
    assert group["tokens"].shape == (2, 12)
    assert (group["tokens"][0] == 3).sum() == 2 and group["segment_ids"][0].sum() == 4 + 6


def test_a_reader_points_at_text(folder):
    made = reading_of(folder)
    found = Reader({"answer": ANSWERS}, contract(made), made).read(
        ["who won?"] * 2, [BLOCKS["a#0"], "Hm."]
    )
    start, end = found[0].span
    pieces = tokenization.Tokenizer(str(folder / "tokenizer")).pieces([BLOCKS["a#0"]])[0]
    assert (start, end) == (pieces.offsets[2, 0], pieces.offsets[4, 1])
    assert found[1].span is None and found[1].score == reader_lib.NOTHING
    assert [one.passage for one in found] == [0, 1]


def test_a_model_without_a_reader_or_with_other_texts_is_refused(folder):
    made = reading_of(folder)
    with pytest.raises(FunctionError, match=r"offers \['score'\]"):
        Reader({"score": SCORES}, contract(made), made)
    with pytest.raises(ContractError, match="passage_length"):
        Reader({"answer": ANSWERS}, contract(made), reading_of(folder, passage_length=39))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"query_length": 2}, "query_length"), ({"passage_length": 3}, "passage_length")],
)
def test_lengths_without_room_are_refused(folder, changes, message):
    with pytest.raises(ValueError, match=message):
        reading_of(folder, **changes)


# --- the answer key -------------------------------------------------------------------------------


def test_the_key_knows_questions_and_what_is_right(folder, tmp_path):
    key = answer_key.AnswerKey(str(folder / "corpus"))
    assert list(key.questions()) == ["who", "when", "where"]
    assert key.exact("who", "Denver Broncos") and key.f1("who", "Denver") == pytest.approx(2 / 3)
    assert key.stands_in("when", BLOCKS["b#0"]) and not key.stands_in("when", BLOCKS["a#0"])
    some = answer_key.AnswerKey(str(folder / "corpus/queries.jsonl"), only=["where", "who"])
    assert list(some.questions()) == ["who", "where"]
    with pytest.raises(ValueError, match="expected a BEIR folder"):
        answer_key.AnswerKey(str(folder / "corpus/queries.jsonl"), split="test")
    with pytest.raises(SourceError, match="no question"):
        answer_key.AnswerKey(str(folder / "corpus"), only=["nobody"])


# --- the stage ------------------------------------------------------------------------------------


class Listed:
    """A retriever with a fixed list."""

    name = "fixed"

    def __init__(self, run):
        self._run = run

    def run(self, bench, split):
        return {q: hits[: bench.depth] for q, hits in self._run.items() if q in bench.texts(split)}

    def facts(self):
        return {}


class Pointing:
    """A reader that finds `said` of a text, with a score."""

    def __init__(self, said):
        self._said = said

    def read(self, questions, passages):
        found = []
        for number, text in enumerate(passages):
            word, score = self._said.get(text, ("", 0.0))
            span = (text.index(word), text.index(word) + len(word)) if word else None
            found.append(reader_lib.Found(number, span, score, -1.0))
        return found


RUN = {
    "who": [("a#1", 3.0), ("a#0", 2.5), ("b#0", 1.0)],
    "when": [("b#0", 9.0), ("a#0", 1.0), ("a#1", 0.0)],
    "where": [("b#0", 2.0), ("a#1", 1.0), ("a#0", 0.5)],
}
SAID = {
    BLOCKS["a#0"]: ("The Denver Broncos", 1.0),
    BLOCKS["a#1"]: ("Paris", 0.0),
    BLOCKS["b#0"]: ("1912", 1.0),
}


def systems(read=3):
    reader = Pointing(SAID)
    return [
        answer_metrics.Answering("plain", "fixed", reader, read, 0.0),
        answer_metrics.Answering("weighed", "fixed", reader, read),
        answer_metrics.Answering("first", "fixed", reader, 1),
    ]


def evaluated(folder, tmp_path, **changes):
    arguments = {
        "corpus": str(folder / "corpus"),
        "key": answer_key.AnswerKey(str(folder / "corpus")),
        "retrievers": [Listed(RUN)],
        "answering": systems(),
        "baseline": "first",
        "samples": 100,
        "seed": 0,
        "model_dir": str(tmp_path),
        "depths": (1, 2),
        "compared": [("weighed", "plain")],
    }
    evaluate_answers.evaluate_answers(**arguments | changes)
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    return json.loads((tmp_path / "metrics.json").read_text()), {a["id"]: a for a in answers}


def test_the_best_span_of_reader_and_relevance_is_the_answer(folder, tmp_path):
    metrics, answers = evaluated(folder, tmp_path)
    assert answers["who"]["weighed"] == "The Denver Broncos" and answers["who"]["first"] == "Paris"
    assert answers["when"]["weighed"] == answers["when"]["plain"] == "1912"
    # Alone, the reader likes two texts as much: the better hit is taken, which is the wrong one.
    assert answers["where"]["plain"] == "1912" and answers["where"]["right"] == []
    assert answers["when"]["right"] == ["plain", "weighed", "first"]
    values = {name: one["EM"]["value"] for name, one in metrics["systems"].items()}
    assert values["weighed"] == pytest.approx(2 / 3) and values["first"] == pytest.approx(1 / 3)
    for one in metrics["systems"].values():  # of the retriever, whoever reads
        assert one["Recall@1"]["value"] == pytest.approx(1 / 3)
        assert one["Recall@2"]["value"] == pytest.approx(2 / 3)
    assert metrics["compared"][0]["one"] == "weighed" and metrics["n"] == 3


def test_sets_of_questions_have_tables_of_their_own(folder, tmp_path, capsys):
    rows = [row | {"set": "many" if row["_id"] != "where" else "one"} for row in ASKED]
    path = tmp_path / "asked.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    metrics, _ = evaluated(folder, tmp_path, key=answer_key.AnswerKey(str(path)))
    assert {name: of["n"] for name, of in metrics["sets"].items()} == {"many": 2, "one": 1}
    values = {n: of["systems"]["weighed"]["EM"]["value"] for n, of in metrics["sets"].items()}
    assert values == {"many": 1.0, "one": 0.0}
    assert "one: 1 queries" in capsys.readouterr().out
    page = "\n".join(report.tables(metrics))
    assert page.index("## questions") < page.index("## many") < page.index("## one")
    assert "| weighed | 1.0000" in page


def test_a_question_of_which_nothing_was_found_counts_as_wrong(folder, tmp_path):
    run = {**RUN, "who": []}
    metrics, answers = evaluated(folder, tmp_path, retrievers=[Listed(run)])
    assert answers["who"]["weighed"] == "" and answers["who"]["right"] == []
    assert metrics["systems"]["weighed"]["EM"]["value"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"answering": []}, "expected one or more"),
        ({"answering": systems() * 2}, "distinct names"),
        ({"baseline": "nobody"}, "expected some of"),
        ({"retrievers": []}, "at least one system"),
        ({"answering": [answer_metrics.Answering("x", "other", Pointing({}), 1)], "baseline": "x",
          "compared": ()}, "no system is called 'other'"),
    ],
)  # fmt: skip
def test_systems_that_are_not_there_are_refused(folder, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        evaluated(folder, tmp_path, **changes)
    with pytest.raises(ValueError, match="read of at least 1"):
        answer_metrics.Answering("x", "fixed", Pointing({}), 0)


def test_blocks_become_passages(tmp_path):
    store = tiny_stores.write_store(tmp_path / "store", [5, 9, 7])
    assert write_beir.write_blocks(str(store), str(tmp_path)) == {"corpus": "corpus"}
    passages = Passages(tmp_path / "corpus")
    assert passages.ids == ["p0", "p1", "p2"]
    assert passages.passage(1).title == "title p1" and "text é of p1" in passages.passage(1).text


def test_probabilities_are_of_the_log(folder):
    found = reader_lib.Found(0, (0, 1), 1.0, float(np.log(0.25)))
    assert found.probability == pytest.approx(0.25)
