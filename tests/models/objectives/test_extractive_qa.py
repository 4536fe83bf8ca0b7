"""Answers as spans of a passage: loss, answering; and all of it by gin, from MARGE."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from input_pipelines.batches.qa_windows import WindowsToAnswer
from input_pipelines.batches.question_windows import QuestionWindows
from input_pipelines.sources.squad_questions import AskedPassages
from input_pipelines.store.token_store import TokenStore
from models.objectives import extractive_qa
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.evaluation.extractive_qa import ExtractiveEvaluator
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.objective import FunctionError, GroupShape, ModelFunction, check_batch
from t5x_style.training import warm_start
from tests.kits import fine_tuning_kit, question_texts, tiny_models
from tests.kits.question_texts import (
    LANGUAGES,
    LENGTH,
    QUESTION,
    ROWS,
    SEGMENTS,
    STRIDE,
    WINDOW,
    pipeline,
)
from tests.parity import parity_kit


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return question_texts.make(tmp_path_factory.mktemp("questions"))


# --- the objective --------------------------------------------------------------------------------

CONFIG = dataclasses.replace(tiny_models.CONFIG, layers=1, max_positions=WINDOW)


def objective(segments=1, rows=16, config=CONFIG, **changes):
    settings = {"text": GroupShape(rows, LENGTH, segments), "question_length": QUESTION}
    settings |= {"window": WINDOW, "max_answer_length": 4} | changes
    return extractive_qa.ExtractiveQA(config, tiny_models.VOCABULARY, **settings, rngs=nnx.Rngs(0))


def parts(count):
    """Windows of other lengths; every fourth has no answer, and points at [CLS]."""
    rng = np.random.default_rng(1)
    made = []
    for number in range(count):
        asked, told = (rng.integers(5, 50, n).tolist() for n in rng.integers((1, 3), (5, 12)))
        start = len(asked) + 2 + int(rng.integers(0, len(told) - 1))
        made.append(
            ((number, [2, *asked, 3, *told, 3]), (start, start + 1) if number % 4 else (0, 0))
        )
    return made


PARTS = parts(16)


def batch(rows, segments):
    group = tiny_models.group([[part[0] for part in row] for row in rows], LENGTH, segments)
    places = np.full((2, len(rows), segments), -1, np.int32)
    for row, own in enumerate(rows):
        for slot, (_, span) in enumerate(own):
            places[:, row, slot] = span
    return {"text": {**group, "start": jnp.asarray(places[0]), "end": jnp.asarray(places[1])}}


APART = batch([[part] for part in PARTS], 1)
PACKED = batch([PARTS[2 * n : 2 * n + 2] for n in range(7, -1, -1)], 4)


def plain_logits(module):
    """Of each window alone: [n, 2] float64, and which of its tokens are the passage's."""
    p = {n: np.asarray(v[...], np.float64) for n, v in parity_kit.parameters(module).items()}
    behind = [np.cumsum(np.equal(t, 3)) - np.equal(t, 3) > 0 for (_, t), _ in PARTS]
    types = jnp.asarray([np.pad(own, (0, LENGTH - len(own))) for own in behind], jnp.int32)
    text = APART["text"]
    hidden = module.encoder(text["tokens"], text["positions"], text["segment_ids"], types)
    for row, own, ((_, tokens), span) in zip(hidden, behind, PARTS, strict=True):
        told = np.asarray(row, np.float64)[: len(tokens)]
        logits = told @ p["span/kernel"] + p["span/bias"]
        yield logits, own & (np.array(tokens) != 3), span


def test_batches_are_as_specified(folder):
    specs = objective(SEGMENTS, ROWS).batch_specs()[0]
    check_batch(specs, pipeline(folder).batch(4), "the test")


def test_the_loss_is_that_of_plain_numbers():
    module, expected, right = objective(), [], []
    for logits, passage, span in plain_logits(module):
        allowed = passage | (np.arange(len(passage)) == 0)
        kept = np.where(allowed[:, None], logits, -np.inf)
        log_p = kept - np.log(np.exp(kept).sum(0))
        expected.append(-(log_p[span[0], 0] + log_p[span[1], 1]) / 2)
        right.append(tuple(kept.argmax(0)) == span)
    loss, metrics = module.loss(APART, jax.random.key(0))
    assert float(loss.value()) == pytest.approx(np.mean(expected), rel=1e-5)
    here = np.array([span[0] > 0 for _, span in PARTS])
    assert float(metrics["exact_match"].value()) == pytest.approx(np.mean(np.array(right)[here]))
    assert float(metrics["cls_match"].value()) == pytest.approx(np.mean(np.array(right)[~here]))


@pytest.mark.parametrize(("segments", "given"), [(1, APART), (4, PACKED)])
def test_the_best_span_of_all(segments, given):
    module = objective(segments, len(given["text"]["tokens"]))
    found = {n: np.asarray(x) for n, x in module.functions()["answer"].call(given["text"]).items()}
    valid = np.asarray(given["text"]["segment_valid"])
    numbers = np.asarray(given["text"]["example_id"])[valid]
    told = {n: tuple(x[valid][i] for x in found.values()) for i, n in enumerate(numbers.tolist())}
    for number, (logits, passage, _) in enumerate(plain_logits(module)):
        places = np.flatnonzero(passage)
        spans = {
            (s, e): logits[s, 0] + logits[e, 1] for s in places for e in places if 0 <= e - s < 4
        }
        best = max(spans, key=spans.get)
        assert told[number][:2] == best
        assert told[number][2] == pytest.approx(spans[best], rel=1e-4, abs=1e-5)
        allowed = logits[passage | (np.arange(len(passage)) == 0)]
        everything = np.log(np.exp(allowed).sum(0)).sum()
        assert told[number][3] == pytest.approx(spans[best] - everything, rel=1e-4, abs=1e-5)


def test_a_window_without_a_passage_has_no_answer():
    text = tiny_models.group([[(0, [2, 9, 3, 3])]] * 8, LENGTH, 1)
    found = objective(rows=8).answer(text)
    assert np.all(np.isneginf(found["score"])) and np.all(np.isneginf(found["log_probability"]))


@pytest.mark.parametrize("mesh", [pytest.param((8, 1, 1), marks=pytest.mark.slow), (2, 2, 2)])
def test_packing_and_meshes_change_nothing(mesh):
    one, gradients = fine_tuning_kit.value_and_gradients(objective(), APART)
    module = objective(4, 8)
    other, found = fine_tuning_kit.value_and_gradients(module, PACKED, mesh)
    assert other == pytest.approx(one, rel=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found[name], gradient, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 21}, "windows of up to 21, found .* max_positions 20"),
        ({"question_length": 19}, "rows that hold a window; found 19, 20 and 48"),
        ({"text": GroupShape(8, 16, 1)}, "found 7, 20 and 16"),
        ({"max_answer_length": 0}, "ExtractiveQA.max_answer_length: expected at least 1"),
    ],
)
def test_sizes_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        objective(**changes)


def toy(seed):
    """The answer begins with word 7 and ends with word 8; both are in the question, too."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(32):
        told, start = rng.integers(9, 20, 8), int(rng.integers(0, 7))
        end = min(start + int(rng.integers(1, 4)), 7)
        told[start], told[end] = 7, 8
        rows.append([((number, [2, 7, 8, 3, *told.tolist(), 3]), (start + 4, end + 4))])
    return batch(rows, 1)


@pytest.mark.slow
def test_a_toy_is_learnt():
    config = dataclasses.replace(CONFIG, hidden=32, mlp=64)
    values = fine_tuning_kit.learn(objective(rows=32, config=config), toy, 60, "exact_match")
    assert values[0] < 0.2 and np.mean(values[-10:]) > 0.95


# --- answering, and all of it by gin --------------------------------------------------------------


def windows(folder, **changes):
    settings = {"window": WINDOW, "rows": ROWS, "length": LENGTH, "segments": SEGMENTS}
    of = AskedPassages(str(folder), "{language}.jsonl", LANGUAGES)
    layout = QuestionWindows(QUESTION, STRIDE)
    return WindowsToAnswer(of, str(folder / "tokenizer"), layout, **settings | changes)


def test_answers_are_characters_of_the_passage(folder):
    """A model that knows the spans of the store answers every question that a window holds."""
    made, store = windows(folder), TokenStore.open(str(folder / "store"))
    assert made.ids == store.ids
    spans = np.asarray(store.table("span"))
    held = {name.rpartition("#")[0] for name, (start, _) in zip(store.ids, spans, strict=True)
            if start}  # fmt: skip

    def answer(group):
        at = np.maximum(group["example_id"], 0)
        score = jnp.where(spans[at][..., 0] > 0, 1.0, -jnp.inf)
        start, end = (jnp.asarray(spans[at][..., n]) for n in (0, 1))
        return {"start": start, "end": end, "score": score, "log_probability": score}

    evaluator = ExtractiveEvaluator("dev", made)
    functions = {"answer": ModelFunction(answer, {}, "[B, S] each", "answer")}
    found = evaluator.evaluate(functions, 0)
    assert set(found) == set(evaluator.metrics)
    assert found["EM"] == found["F1"] == pytest.approx(len(held) / len(made.questions()))
    assert found["EM_mean"] == pytest.approx((found["EM_de"] + found["EM_en"]) / 2)
    told = evaluator.answers(functions, 0)
    assert "  " in told[next(iter(sorted(held)))]  # as in the passage
    assert {name for name, text in told.items() if text} == held
    with pytest.raises(FunctionError, match="dev: a model that answers questions, with a function"):
        evaluator.evaluate({}, 0)


def test_eight_devices_answer_as_one(folder):
    vocabulary = Vocabulary.load(str(folder / "tokenizer"))
    config = dataclasses.replace(CONFIG, vocab_size=vocabulary.size, vocab_multiple=128)
    settings = {
        "question_length": QUESTION,
        "window": WINDOW,
        "max_answer_length": 4,
        "rngs": nnx.Rngs(0),
    }
    text = GroupShape(ROWS, LENGTH, SEGMENTS)
    module = extractive_qa.ExtractiveQA(config, vocabulary, text, **settings)
    graph, state = nnx.split(module)
    call = jax.jit(lambda group: nnx.merge(graph, state, copy=True).answer(group))
    answer = {"answer": ModelFunction(call, {}, "[B, S] each", "answer")}
    spread = Partitioner(MeshShape(8, 1, 1))
    one = ExtractiveEvaluator("dev", windows(folder)).answers(answer, 0)
    assert len(set(one.values())) > 10
    assert ExtractiveEvaluator("dev", windows(folder), spread).answers(answer, 0) == one


def test_windows_to_answer(folder):
    some = windows(folder, each=5)
    assert set(some.sets().values()) == set(LANGUAGES) and len(some.questions()) <= 10
    assert some.text(0, 0, 0) == "" and some.text(0, 4, 99) == ""
    name = next(iter(some.questions()))
    assert some.exact(name, "nothing") is False and some.f1(name, "nothing") == 0.0
    with pytest.raises(ValueError, match="rows of at least 20, found 19"):
        windows(folder, length=19)


@pytest.mark.slow
def test_by_gin_from_marge(folder, tmp_path):
    tokenizer = str(folder / "tokenizer")
    sizes = fine_tuning_kit.SIZES | {"max_positions": WINDOW}
    given = fine_tuning_kit.train_marge(tmp_path / "marge", Vocabulary.load(tokenizer), sizes)
    common = {"TOKENIZER": tokenizer, "QUERY_LENGTH": QUESTION}
    prepared = {"QUESTION_FOLDER": folder, "QUESTION_NAME": "de.jsonl", "LENGTH": WINDOW}
    prepared |= {"STRIDE": STRIDE, "MODEL_DIR": tmp_path / "windows"}
    prepared |= {"prepare.prepare.workers": 1}
    assert fine_tuning_kit.run("", ["runs/stores/question_windows"], **common, **prepared) == 0
    files = ["runs/training/train", "models/marge_tiny_encoder", "objectives/extractive_qa"]
    files += ["data/questions/question_windows"]
    files += ["runs/development/question_windows", "runs/initialise/fine_tuning"]
    model = tmp_path / "model"
    macros = {"ROWS": ROWS, "ROW_LENGTH": LENGTH, "SEGMENTS": SEGMENTS, "SEED": 0, "STEPS": 2}
    macros |= {"WARMUP_STEPS": 1, "LEARNING_RATE": 1e-12, "MODEL_DIR": model, "WINDOW": WINDOW}
    macros |= {"WINDOWS": tmp_path / "windows" / "store", "PRETRAINED": tmp_path / "marge"}
    macros |= {"DEVELOPMENT_FOLDER": folder, "DEVELOPMENT_NAME": "'{language}.jsonl'"}
    macros |= {"DEVELOPMENT_LANGUAGES": repr(list(LANGUAGES)), "DEVELOPMENT_STRIDE": STRIDE}
    macros |= {f"bert.BertConfig.{name}": size for name, size in sizes.items()}
    assert fine_tuning_kit.run("t5x_style.train.train", files, **common, **macros) == 0
    found = warm_start.Checkpoint(str(model)).arrays()
    fine_tuning_kit.assert_taken_over(found, given, {"span"})
    logged = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    told = {name for line in logged for name in line}
    assert {"eval/dev/EM_de", "eval/dev/F1_mean", "train/exact_match"} <= told
