"""A bundle's reader gives what the model gives whose texts were made as in training."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipelines.batches import reader_inputs
from input_pipelines.sources.text_sources import Record
from input_pipelines.store.block_layout import TitleAndBody
from input_pipelines.tokenizers import tokenization
from models.corruption import evidence_layout
from models.losses import marginal
from t5x_style.interfaces.representation import PASSAGE, QUERY
from t5x_style.retrieval import answer_reader
from t5x_style.serving import answers, batch_shapes
from t5x_style.serving.opened import bundle_service
from t5x_style.serving.service import Encoded, Hit, RequestError
from tests.t5x_style.serving import bundle_kit, reading_kit

TEXTS = [one.text for one in bundle_kit.PASSAGES]
QUESTION = "where does the river go"
SENTENCE = "Bread is made of [MASK] and [MASK]."


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    with reading_kit.opened(tmp_path_factory.mktemp("answer"), "answer") as found:
        yield found


@pytest.fixture(scope="module")
def filling(tmp_path_factory):
    with reading_kit.opened(tmp_path_factory.mktemp("fill"), "fill") as found:
        yield found


WORDS = st.lists(st.sampled_from(["river", "sea", "Bread", ",", "[SEP]", "é", "\t"]), max_size=40)


@settings(deadline=None)
@given(WORDS.map(" ".join), WORDS.map(" ".join))
def test_passages_with_titles_apart_are_tokenized_as_in_training(answering, title, text):
    service, _, folder = answering
    (found,) = service._tokenizer.passages([(title, text)])
    tokenizer = tokenization.Tokenizer(folder)
    (row,) = TitleAndBody().rows([Record("1", title, text, "")], tokenizer, 24, "").records
    assert found.ids.tolist() == row.tokens.tolist()
    assert len(found.pieces) == len(found.places) == len(found.ids)


@settings(deadline=None)
@given(WORDS.map(" ".join), WORDS.map(" ".join))
def test_what_a_reader_reads_is_made_as_in_training(answering, question, text):
    service, _, folder = answering
    reading = reader_inputs.Reading(folder, 12, 24, 1)
    pairs = reading.pairs([question], [text])
    (group,) = pairs.batches()
    found = service.reader.joint(service.tokenize(QUERY, question), text)
    count = int(group["segment_ids"].sum())
    assert found.ids.tolist() == group["tokens"][0, :count].tolist()
    for at, place in enumerate(found.places):
        assert place == pairs.characters(0, at, at)


def test_answers_are_those_of_the_trained_reader(answering):
    service, model, folder = answering
    reading = reader_inputs.Reading(folder, 12, 24, 2)
    functions = reading_kit.functions(model)
    expected = answer_reader.Reader(functions, model.contract(), reading).read(
        [QUESTION] * len(TEXTS), TEXTS
    )
    question = service.tokenize(QUERY, QUESTION)
    futures = [service.reader.span(service.reader.joint(question, text)) for text in TEXTS]
    for future, one in zip(futures, expected, strict=True):
        found = future.result(60)
        assert found.place == one.span and found.place is not None
        assert found.score == pytest.approx(one.score, abs=1e-5)
        assert found.probability == pytest.approx(one.probability, rel=1e-4)


def test_a_passage_without_a_text_has_no_answer(answering):
    service, _, _ = answering
    question = service.tokenize(QUERY, QUESTION)
    found = service.reader.span(service.reader.joint(question, "")).result(60)
    assert found.place is None and found.probability == 0
    hit = Hit(1.0, {}, "e", "", "", "")
    assert answers.ordered([hit], [found])[0].text == ""


def test_words_for_masks_are_those_of_the_trained_model(filling):
    """p(y|x) of the loss, for any y: the masked tokens of a batch that training would see."""
    service, model, _ = filling
    reader = service.reader
    sentence = reader.masked(SENTENCE)
    hits = _hits(service, sentence, 3)
    joints = [reader.joint(sentence, text) for text in ["", *(hit.text for hit in hits)]]
    words = [reader.words(joint).result(60) for joint in joints]
    (encoded, nothing) = (
        service.submit(side, tokens, ("dense",)).result(60)
        for side, tokens in ((QUERY, sentence), (PASSAGE, reader.nothing()))
    )
    relevance = [service.similarity(encoded, [nothing])[0], *(hit.score for hit in hits)]
    size = service.facts.contract["vocabulary_size"]
    found = answers.filled(answers.probabilities(relevance), words, size)
    batch = _batch(model, service, sentence, hits)
    # Any two tokens may have been hidden: the loss of each pair is -log p of the two.
    for pair in ([7, 9], [size - 1, 5]):
        labels = np.full_like(batch["query"]["tokens"], -100)
        labels[0, np.flatnonzero(batch["query"]["tokens"][0] == model.vocabulary.mask)] = pair
        batch["query"]["labels"] = labels
        trained = nnx.jit(lambda one, given: one.score(given, None))(model, batch)
        loss, _ = marginal.marginal_likelihood(*trained, "token")
        chances = [
            one.probability[one.tokens.tolist().index(token)]
            for one, token in zip(found, pair, strict=True)
        ]
        assert -np.log(chances).sum() / 2 == pytest.approx(float(loss.value()), rel=1e-4)
    assert found[0].probability.sum() == pytest.approx(1, abs=1e-4)
    assert (np.diff(found[0].probability) <= 0).all() and found[0].by_passage.shape == (4, size)


def _hits(service, sentence, k):
    encoded: Encoded = service.submit(QUERY, sentence, ("dense",)).result(60)
    return service.search(encoded, "dense", k)


def _batch(model, service, sentence, hits):
    """What `REALM.retrieve` makes of a sentence and blocks that were found for it."""
    length, blocks = 24, [service._tokenizer.passages([(h.title, h.text)])[0].ids for h in hits]
    tokens = np.stack([np.pad(one, (0, length - len(one))) for one in blocks])[None]
    lengths = np.array([[len(one) for one in blocks]])
    query = {
        name: np.asarray(one)
        for name, one in evidence_layout.row_group(
            np.pad(sentence.ids, (0, 12 - len(sentence.ids)))[None],
            np.array([len(sentence.ids)]),
            np.array([0]),
        ).items()
    }
    both = evidence_layout.with_null(tokens, lengths, model.vocabulary)
    return {
        "query": query,
        "candidate": evidence_layout.candidate_group(*both, query),
        "joint": evidence_layout.joint_group(*both, query, model.vocabulary),
    }


def test_the_places_of_masks_are_those_of_the_text(filling):
    service, _, _ = filling
    found = service.reader.masked(SENTENCE)
    assert [SENTENCE[slice(*place)] for place in service.reader.masks(found)] == ["[MASK]"] * 2
    shown = [SENTENCE[slice(*place)] for place in found.places if place]
    assert "".join(shown).lower() == SENTENCE.replace(" ", "").lower()


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("Bread is made of flour.", "expected \\[MASK\\] for what is to be filled in.*found none"),
        ("the river " * 12 + "[MASK]", "among the first 10 tokens"),
        ("[MASK]" * 4, "expected at most 3 \\[MASK\\].*found 4"),
        ("[MASK]" * 30_000, "expected at most 3 \\[MASK\\].*found 30000"),
    ],
)
def test_a_sentence_that_cannot_be_filled_in_is_refused(filling, sentence, message):
    service, _, _ = filling
    with pytest.raises(RequestError, match=message):
        service.reader.masked(sentence)


def test_what_a_model_reads_is_among_its_facts(answering, filling):
    assert answering[0].facts.reads == "answer"
    assert filling[0].facts.reads == "fill"


def test_all_that_requests_need_is_compiled_before_the_first(filling):
    service, _, _ = filling
    service.warm_up()
    count = service.programs.compiled
    sentence = service.reader.masked(SENTENCE)
    service.reader.words(service.reader.joint(sentence, TEXTS[0])).result(60)
    service.submit(PASSAGE, service.reader.nothing(), ("dense",)).result(60)
    assert service.programs.compiled == count


def test_a_batch_that_fills_in_is_as_large_as_its_outputs_may_be(filling, monkeypatch):
    service, _, folder = filling
    _, masks, words = service.programs.output_shape("fill", "log_probability")
    monkeypatch.setattr(batch_shapes, "OUTPUT_BYTES", 3 * 4 * masks * words)
    version = Path(folder).parents[1] / "bundle/versions/1"
    with contextlib.closing(bundle_service.BundleService(version, before=service)) as limited:
        rows = {name: max(map(max, one.rows.values())) for name, one in shapes(limited)}
        assert rows["fill"] == 3 < rows["embed_passage"]
    assert {name: max(map(max, one.rows.values())) for name, one in shapes(service)}["fill"] > 3


def shapes(service):
    return service.batches._shapes.items()
