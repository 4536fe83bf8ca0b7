"""LaBSE begins with the encoder of a masked language model, whatever its pooling."""

import gin
import jax
import numpy as np
import pytest
from flax import nnx

from models.objectives import labse, mlm
from t5x_style.distributed import partitioning
from t5x_style.step import optimizers, train_state
from t5x_style.training import warm_start
from tests.kits import shipped_gin, tiny_models
from tests.models.objectives.test_fine_tuning import COMMON, Arrays, arrays_of, below
from tests.models.objectives.test_labse import make


@pytest.mark.parametrize("pooling", ["pooler", "cls", "mean"])
def test_from_a_masked_language_model(pooling: str) -> None:
    pretrained = arrays_of(mlm.Mlm(*COMMON, 0.15, 16, rngs=nnx.Rngs(1)))
    with shipped_gin.parsed("runs/initialise/labse.gin", POOLING=pooling):
        bound = "t5x_style.training.warm_start.Initialise."
        paths = gin.query_parameter(bound + "paths").scoped_configurable_fn()
        rest = {name: gin.query_parameter(bound + name) for name in ("unused", "missing")}

    def built(rngs: nnx.Rngs) -> labse.LaBSE:
        return make(segments=1, encoder=tiny_models.CONFIG, pooling=pooling)

    one = partitioning.Partitioner(partitioning.MeshShape(1, 1, 1), devices=jax.devices()[:1])
    _, state, shardings = train_state.create(built, optimizers.AdamW(1e-3, 1, 2), one, 0)
    start = warm_start.Initialise(Arrays(pretrained), paths, **rest)
    begun, fresh = warm_start.taken_over(state, [start], shardings)

    assert {path.rsplit("/", 2)[0] for path in fresh} == (
        {"embedder/pooler"} if pooling == "pooler" else set()
    )
    expected = below(pretrained, "encoder/")
    found = {"/".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(begun.params)}
    place = "embedder/encoder/" if pooling == "pooler" else "encoder/"
    assert below(found, place).keys() == expected.keys()
    for path, array in below(found, place).items():
        np.testing.assert_array_equal(array[: len(expected[path])], expected[path], err_msg=path)
