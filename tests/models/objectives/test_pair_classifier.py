"""The classifier of pairs: its loss, meshes, a toy; evaluation; all of it by gin, from MARGE."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from input_pipelines.batches import classifier_batches
from input_pipelines.store.token_store import TokenStore
from models.objectives import pair_classifier
from t5x_style.evaluation.pair_classification import PairClassificationEvaluator
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.objective import FunctionError, GroupShape, ModelFunction, check_batch
from t5x_style.training import warm_start
from tests.kits import fine_tuning_kit, labelled_texts, tiny_models
from tests.kits.labelled_texts import CLASSES
from tests.parity import parity_kit

SIDE = 8
SIZES = fine_tuning_kit.SIZES | {"max_positions": 2 * SIDE - 1}
ROWS, LENGTH, SEGMENTS = 8, 40, 4
CONFIG = dataclasses.replace(tiny_models.CONFIG, layers=1, max_positions=2 * SIDE - 1)


def objective(segments=1, config=CONFIG, **changes):
    shape = GroupShape(ROWS, LENGTH, segments)
    settings = {"pair": shape, "side_length": SIDE, "classes": CLASSES} | changes
    return pair_classifier.PairClassifier(
        config, tiny_models.VOCABULARY, **settings, rngs=nnx.Rngs(0)
    )


PARTS = [(n, tokens) for n, (_, tokens) in enumerate(tiny_models.segments(16, 3, 2 * SIDE - 1))]


def batch(rows, segments):
    group = tiny_models.group(rows, LENGTH, segments)
    types = (group["positions"] >= 3) & (group["segment_ids"] > 0)
    label = jnp.where(group["segment_valid"], group["example_id"] * 7 % 3, -1)
    return {"pair": {**group, "token_types": types.astype(jnp.int32), "label": label}}


APART = batch([[part] for part in PARTS], 1)
PACKED = batch([*([PARTS[2 * n], PARTS[2 * n + 1]] for n in range(7, 0, -1)), PARTS[:2]], 4)


def test_the_batch_is_as_specified():
    check_batch(objective(pair=GroupShape(16, LENGTH, 1)).batch_specs()[0], APART, "the test")


def test_the_loss_is_that_of_plain_numbers():
    module = objective()
    pair = APART["pair"]
    text = (pair["tokens"], pair["positions"], pair["segment_ids"], pair["token_types"])
    cls = np.asarray(module.encoder(*text), np.float64)[:, 0]
    p = {n: np.asarray(v[...], np.float64) for n, v in parity_kit.parameters(module).items()}
    pooled = np.tanh(cls @ p["pooler/dense/kernel"] + p["pooler/dense/bias"])
    logits = pooled @ p["classifier/kernel"] + p["classifier/bias"]
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    label = np.arange(16) * 7 % 3
    loss, metrics = module.loss(APART, jax.random.key(0))
    assert float(loss.value()) == pytest.approx(-log_p[np.arange(16), label].mean(), rel=1e-5)
    assert float(metrics["accuracy"].value()) == np.mean(logits.argmax(1) == label)
    found = module.functions()["classify"].call(pair)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found[:, 0], logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mesh", [pytest.param((8, 1, 1), marks=pytest.mark.slow), (2, 2, 2)])
def test_packing_and_meshes_change_nothing(mesh):
    one, gradients = fine_tuning_kit.value_and_gradients(objective(), APART)
    other, found = fine_tuning_kit.value_and_gradients(objective(segments=4), PACKED, mesh)
    assert other == pytest.approx(one, rel=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(found[name], gradient, atol=1e-5, err_msg=name)


def test_an_encoder_without_token_types_reads_pairs_too():
    module = objective(config=dataclasses.replace(CONFIG, type_vocab=1))
    flipped = APART["pair"] | {"token_types": 1 - APART["pair"]["token_types"]}
    np.testing.assert_array_equal(module.classify(APART["pair"]), module.classify(flipped))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("one",)}, "two or more classes, each once, found"),
        ({"classes": "ab"}, "two or more classes"),
        ({"side_length": 9}, "pairs of up to 17, found .* max_positions 15"),
        ({"side_length": 2}, "side_length: expected from 3 to 20"),
        ({"pair": GroupShape(ROWS, 14, 1)}, "fits a row of 14 tokens, found 8"),
    ],
)
def test_sizes_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        objective(**changes)


def toy(seed):
    """Pairs of the class 'same' where word 7 is in the second text, whatever is in the first."""
    rng = np.random.default_rng(seed)
    texts = rng.integers(8, 20, (32, 2, 4))
    texts[rng.random((32, 2)) < 0.5, rng.integers(4)] = 7
    rows = [[(n, [2, *first, 3, *second, 3])] for n, (first, second) in enumerate(texts.tolist())]
    group = tiny_models.group(rows, 12, 1)
    types = (group["positions"] >= 6) & (group["segment_ids"] > 0)
    label = (texts[:, 1] == 7).any(1).astype(np.int32)[:, None]
    return {"pair": {**group, "token_types": types.astype(jnp.int32), "label": jnp.asarray(label)}}


@pytest.mark.slow
def test_a_toy_is_learnt():
    config = dataclasses.replace(CONFIG, hidden=32, mlp=64)
    module = objective(config=config, pair=GroupShape(32, 12, 1), side_length=6)
    accuracies = fine_tuning_kit.learn(module, toy, 100, "accuracy")
    assert np.mean(accuracies[:5]) < 0.8 and np.mean(accuracies[-10:]) > 0.97


# --- evaluation, and all of it by gin -------------------------------------------------------------


class RemoteLog:
    """Pairs whose labels are known, eight a batch; two languages."""

    classes = CLASSES
    labels = np.arange(80) % 3
    ids = [f"{'de' if n < 30 else 'en'}/{n}" for n in range(80)]

    def batches(self):
        for start in range(0, 80, 8):
            ids = np.arange(start, start + 8)[:, None]
            yield {
                "example_id": ids,
                "segment_valid": ids >= 0,
                "tokens": ids,
                "segment_ids": ids + 1,
            }


def test_accuracy_and_f1_by_language():
    right = RemoteLog.labels
    said = np.where(np.arange(80) % 4 == 0, 1, right)  # 'same' for a quarter

    def classify(group):
        return jnp.asarray(np.eye(3, dtype=np.float32)[said[group["example_id"]]])

    evaluator = PairClassificationEvaluator("dev", RemoteLog())
    functions = {"classify": ModelFunction(classify, {}, "[B, S, C]", "classify")}
    found = evaluator.evaluate(functions, 0)
    assert set(found) == set(evaluator.metrics)
    assert found["accuracy"] == pytest.approx(np.mean(said == right))
    assert found["accuracy_de"] == pytest.approx(np.mean((said == right)[:30]))
    hits = np.sum((said == 1) & (right == 1))
    expected = 2 * hits / (np.sum(said == 1) + np.sum(right == 1))
    assert found["F1_same"] == pytest.approx(expected)
    per_class = [found[f"F1_{name}"] for name in CLASSES]
    assert found["F1"] == pytest.approx(np.mean(per_class)) and {"F1_de", "F1_en"} <= found.keys()
    with pytest.raises(FunctionError, match="of kind 'classify'; found .* offers"):
        evaluator.evaluate({"score": ModelFunction(classify, {}, "", "score")}, 0)
    with pytest.raises(ValueError, match="expected logits of the classes .* found 2 for each"):
        two = ModelFunction(lambda group: classify(group)[..., :2], {}, "", "classify")
        evaluator.evaluate({"classify": two}, 0)


@pytest.mark.slow
def test_by_gin_from_marge(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    labelled_texts.tokenizer_of(folder)
    tokenizer = str(folder / "tokenizer")
    given = fine_tuning_kit.train_marge(tmp_path / "marge", Vocabulary.load(tokenizer), SIZES)
    common = {"TOKENIZER": tokenizer, "CLASSES": repr(CLASSES), "SIDE_LENGTH": SIDE}
    prepared = {"PAIR_FILE": folder / "pairs.jsonl", "LENGTH": 2 * SIDE - 1}
    prepared |= {"MODEL_DIR": tmp_path / "pairs", "prepare.prepare.workers": 1}
    files = ["runs/stores/labelled_pairs", "data/pairs/pair_lines"]
    assert fine_tuning_kit.run("", files, **common, **prepared) == 0
    store = tmp_path / "pairs" / "store"
    labels = TokenStore.open(str(store)).table(classifier_batches.LABEL)
    assert labels.tolist() == [CLASSES.index(line["label"]) for line in labelled_texts.lines()]
    files = [
        "runs/training/train",
        "models/tiny",
        "objectives/pair_classifier",
        "data/pairs/labelled_pairs",
    ]
    files += ["runs/development/labelled_pairs", "runs/initialise/fine_tuning"]
    sizes = {f"bert.BertConfig.{name}": size for name, size in SIZES.items()}
    model = tmp_path / "model"
    macros = {"ROWS": ROWS, "ROW_LENGTH": LENGTH, "SEGMENTS": SEGMENTS, "SEED": 0, "STEPS": 2}
    macros |= {
        "WARMUP_STEPS": 1,
        "LEARNING_RATE": 1e-12,
        "MODEL_DIR": model,
        "LABELLED_PAIRS": store,
    }
    macros |= {"DEVELOPMENT_PAIRS": store, "PRETRAINED": tmp_path / "marge", "BY_LANGUAGE": True}
    assert (
        fine_tuning_kit.run(
            "t5x_style.train.train", files, **common, **macros, **sizes, EXPONENT=0.3
        )
        == 0
    )
    found = warm_start.Checkpoint(str(model)).arrays()
    fine_tuning_kit.assert_taken_over(found, given, {"pooler", "classifier"})
    logged = [json.loads(line) for line in (model / "metrics.jsonl").read_text().splitlines()]
    told = {name for line in logged for name in line}
    names = {"eval/dev/accuracy", "eval/dev/accuracy_de", "eval/dev/F1_neither", "train/accuracy"}
    assert names <= told
    contract = Contract.load(model)
    assert contract.similarity == "class" and contract.dimension == 3
