"""The gin files of coCondenser and DiffCSE: whole configurations, and where weights come from."""

import copy
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gin
import jax
import numpy as np
import pytest
from flax import nnx

from input_pipelines.pairs.training_pairs import TrainingPairs
from models.losses import contrastive
from models.networks import bert
from models.objectives import diffcse
from t5x_style.configuration import gin_checks
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape
from t5x_style.step import optimizers, train_state
from t5x_style.training import warm_start
from tests.kits import shipped_gin, tiny_models
from tests.kits.pair_stores import some_texts, write_texts
from tests.kits.tiny_stores import FINGERPRINT
from tests.parity import parity_kit

REPOSITORY = Path(__file__).resolve().parents[2]
TRAINING = {
    "TOKENIZER": "t", "STORE": "s", "SEED": 1, "MODEL_DIR": "o", "STEPS": 2, "WARMUP_STEPS": 1,
    "LEARNING_RATE": 0.1, "QUERY_LENGTH": 12, "PASSAGE_LENGTH": 24,
}  # fmt: skip


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    gin.clear_config()
    yield
    gin.clear_config()


def parse(files: list[str], macros: dict[str, Any]) -> None:
    """As a training stage does: strict, so that each binding and macro has to be reached."""
    flags = gin_checks.parse_flags(
        [f"--gin_file={REPOSITORY}/gin_configs/{name}.gin" for name in files]
        + [f"--gin.{name}={value}" for name, value in (TRAINING | macros).items()]
    )
    config = flags.read()
    gin_checks.check_names(config, ("t5x_style.stage.run", "t5x_style.train.train"))
    gin_checks.parse(config)


@pytest.mark.parametrize("segments", [1, 8])
def test_cocondenser_and_its_spans_have_the_same_rows(tmp_path: Path, segments: int) -> None:
    (tmp_path / "vocabulary.json").write_text(json.dumps({"fingerprint": FINGERPRINT}))
    store = write_texts(tmp_path / "store", some_texts(60))
    files = [
        "runs/training/train", "models/tiny", "objectives/cocondenser",
        "data/pretraining/document_spans",
    ]  # fmt: skip
    parse(files, {
        "STORE": store, "TOKENIZER": tmp_path, "QUERIES": 16, "SKIP_FROM": 1, "SPAN_MIN_TOKENS": 2,
        "QUERY_SEGMENTS": segments, "PASSAGE_SEGMENTS": segments,
    })  # fmt: skip
    pipeline = gin_checks.configured(TrainingPairs)()
    assert pipeline.pairs.counts == {"spans": 16}
    for side, rows in (("query", pipeline.query_rows), ("passage", pipeline.passage_rows)):
        with gin.config_scope(side):
            shape = gin_checks.configured(GroupShape)()
        assert (shape.rows, shape.length, shape.segments) == (rows.rows, 24, segments)
    spec = contrastive.batch_spec(GroupShape(1, 24, 1), GroupShape(1, 24, 1), 0, False)
    found = {group: set(features) for group, features in pipeline.batch(0).items()}
    assert found == {group: set(features) for group, features in spec.items()}


@pytest.mark.parametrize("source", ["diffcse", "diffcse_published"])
def test_diffcse_is_a_whole_configuration(source: str) -> None:
    files = [
        "runs/training/train", "models/bert", "models/generator_tiny", "objectives/diffcse",
        "data/pretraining/packed", f"runs/initialise/{source}",
    ]  # fmt: skip
    given = ("PRETRAINED", "GENERATED") if source == "diffcse" else (
        "PUBLISHED", "PUBLISHED_GENERATOR",
    )  # fmt: skip
    parse(files, {
        "ROWS": 4, "ROW_LENGTH": 24, "SEGMENTS": 2, "DROPOUT": 0.1, **dict.fromkeys(given, "p"),
    })  # fmt: skip
    rate = gin.query_parameter("models.objectives.diffcse.DiffCSE.mask_rate")
    assert str(rate) == "%MASK_RATE"


class Given:
    """Weights in place of a checkpoint's."""

    def __init__(self, config: bert.BertConfig, seed: int) -> None:
        encoder = nnx.eval_shape(lambda: config.build(nnx.Rngs(0)))
        rng = np.random.default_rng(seed)
        shapes = {
            f"encoder/{path}": leaf.shape for path, leaf in parity_kit.parameters(encoder).items()
        }
        self._found = {
            path: rng.normal(size=shape).astype(np.float32) for path, shape in shapes.items()
        }
        self._found["head/bias"] = rng.normal(size=config.padded_vocab).astype(np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        return self._found


def test_discriminator_and_encoder_begin_alike_and_heads_fresh() -> None:
    with shipped_gin.parsed("runs/initialise/diffcse.gin", PRETRAINED="p", GENERATED="g"):
        found = copy.deepcopy(gin.query_parameter("t5x_style.train.train.initialise_from"))
    assert [str(one.source.folder) for one in found] == ["p", "p", "g"]
    config = bert.BertConfig(**{**vars(tiny_models.CONFIG), "dropout": 0.1})
    sources = [Given(config, 1), Given(config, 2)]
    replaced = [
        warm_start.Initialise(sources[n // 2], one.paths, None, one.unused, one.missing)
        for n, one in enumerate(found[:2])
    ]
    embedding = tiny_models.EMBEDDING.__class__(
        **{**vars(tiny_models.EMBEDDING), "similarity": "cosine"}
    )
    make = functools.partial(
        diffcse.DiffCSE, config, embedding, tiny_models.VOCABULARY, GroupShape(8, 12, 1),
        contrastive.ContrastiveConfig(), config, 16,
    )  # fmt: skip
    generator = warm_start.Initialise(sources[1], found[2].paths, missing=["^generator/head/"])
    one = partitioning.Partitioner(partitioning.MeshShape(1, 1, 1), devices=jax.devices()[:1])
    definition, state, shardings = train_state.create(make, optimizers.AdamW(1e-3, 1, 2), one, 0)
    state = warm_start.apply(state, [*replaced, generator], shardings)
    begun = parity_kit.parameters(definition.module(state.params, state.variables))
    for path, array in begun.items():
        if "encoder/" in path:
            source = sources[path.startswith("generator/")].arrays()
            expected = source[path[path.index("encoder/") :]]
            np.testing.assert_array_equal(array, expected, err_msg=path)
    np.testing.assert_array_equal(begun["generator/head/bias"], sources[1].arrays()["head/bias"])
    assert {path.split("/")[0] for path in begun} == {"encoder", "decoder", "head", "generator"}
