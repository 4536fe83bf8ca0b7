"""The objectives inside the engine: published weights, any mesh, and a loss that falls."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from models.interop import hf_config, import_hf, layout_bert
from models.objectives import mlm
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import Batch, GroupShape
from t5x_style.step import optimizers, train_state, train_step
from t5x_style.training import warm_start
from tests.kits import tiny_models
from tests.parity import parity_kit

CONFIG = tiny_models.CONFIG
ROWS = 8
BATCH: Batch = {
    "text": tiny_models.group([[p] for p in tiny_models.segments(ROWS, longest=12)], 12, 1)
}
OPTIMIZER = optimizers.AdamW(5e-3, 2, 1000)
MLM = functools.partial(
    mlm.Mlm,
    CONFIG,
    tiny_models.EMBEDDING,
    tiny_models.VOCABULARY,
    GroupShape(rows=ROWS, length=12, segments=1),
    0.3,
    16,
)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A Hugging Face folder of the tiny model, with random weights."""
    network = MLM(rngs=nnx.Rngs(9))
    arrays = {p: np.asarray(v[...]) for p, v in parity_kit.parameters(network).items()}
    tensors = layout_bert.LAYOUT.export_arrays(arrays, CONFIG.vocab_size)
    save_file(
        {n: np.ascontiguousarray(a) for n, a in tensors.items()}, tmp_path / "model.safetensors"
    )
    fields = hf_config.config_to_hf(CONFIG, tiny_models.VOCABULARY.pad, "BertForMaskedLM")
    (tmp_path / "config.json").write_text(json.dumps(fields))
    return tmp_path


def train(folder: Path, mesh: tuple[int, int, int], steps: int) -> list[float]:
    """The losses of `steps` on `mesh`, from the published weights."""
    devices = jax.devices()[: int(np.prod(mesh))]
    partitioner = partitioning.Partitioner(partitioning.MeshShape(*mesh), devices=devices)
    definition, state, shardings = train_state.create(MLM, OPTIMIZER, partitioner, 0)
    source = import_hf.HuggingFace(str(folder), CONFIG.vocab_size)
    taken = warm_start.Initialise(source, {"encoder": "encoder", "head": "head"})
    state = warm_start.apply(state, [taken], shardings)
    step = jax.jit(
        functools.partial(train_step.train_step, definition, partitioner.mesh),
        donate_argnums=0,
        out_shardings=(shardings, None),
    )
    batch = jax.device_put(BATCH, partitioner.batch_sharding)
    losses = []
    for _ in range(steps):
        state, metrics = step(state, batch)
        losses.append(float(metrics["loss"].value()))
    return losses


@pytest.mark.slow
def test_published_weights_train_alike_on_any_mesh_and_the_loss_falls(published: Path) -> None:
    losses = train(published, (1, 1, 1), 20)
    assert np.mean(losses[-3:]) < np.mean(losses[:3]) - 0.5
    for mesh in ((8, 1, 1), (2, 2, 2)):
        found = train(published, mesh, 3)
        np.testing.assert_allclose(found, losses[:3], rtol=1e-5, err_msg=str(mesh))


def test_the_engine_sees_exactly_the_published_encoder(published: Path) -> None:
    partitioner = partitioning.Partitioner(partitioning.MeshShape(2, 2, 2))
    _, state, shardings = train_state.create(MLM, OPTIMIZER, partitioner, 0)
    source = import_hf.HuggingFace(str(published), CONFIG.vocab_size)
    head = ("^head/",)
    taken = warm_start.Initialise(source, {"encoder": "encoder"}, unused=head, missing=head)
    state = warm_start.apply(state, [taken], shardings)
    expected = source.arrays()
    for path, variable in nnx.to_flat_state(state.params):
        name = "/".join(map(str, path))
        found = np.asarray(variable[...])
        same = found[: expected[name].shape[0]] == expected[name]
        assert same.all() == name.startswith("encoder/") or "bias" in name or "scale" in name, name
