"""Weights imported by path: layers, padding, meshes; whatever does not match is an error."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses import contrastive
from models.networks import bag
from models.objectives import bi_encoder
from t5x_style.checkpoints import checkpointing
from t5x_style.checkpoints.checkpointing import Checkpointer, Checkpointing
from t5x_style.configuration import gin_checks
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape, Objective
from t5x_style.step import optimizers, train_state
from t5x_style.step.optimizers import path_string
from t5x_style.training import warm_start
from t5x_style.training.warm_start import Checkpoint, Initialise, InitialiseError
from tests.kits import tiny_models


class Tower(nnx.Module):
    """A table, stacked layers and a bias."""

    def __init__(self, vocab, layers, *, rngs):
        normal = nnx.initializers.normal(1.0)
        self.word = nnx.Param(normal(rngs.params(), (vocab, 4)), out_sharding=("vocab", "embed"))
        self.layers = nnx.Param(
            normal(rngs.params(), (layers, 4, 6)), out_sharding=("layers", "embed", "mlp")
        )
        self.bias = nnx.Param(normal(rngs.params(), (4,)), out_sharding=("embed",))


class Single(nnx.Module):
    """One layer, not stacked."""

    def __init__(self, *, rngs):
        self.layers = nnx.Param(jnp.zeros((4, 6)), out_sharding=("embed", "mlp"))


class Model(Objective):
    """Named towers."""

    def __init__(self, towers, *, rngs):
        for name, (vocab, layers) in towers.items():
            module = Tower(vocab, layers, rngs=rngs) if layers else Single(rngs=rngs)
            setattr(self, name, module)
        self.count = nnx.Variable(jnp.zeros((), jnp.int32))


@dataclasses.dataclass(frozen=True, eq=False)
class Arrays:
    """Weights that are given, as another library's would be."""

    values: Mapping[str, Any]
    reads: list = dataclasses.field(default_factory=list)

    def arrays(self):
        self.reads.append(1)
        return self.values


def tower(name="encoder", vocab=8, layers=4, seed=1):
    """The arrays of a Tower."""
    random = np.random.RandomState(seed)
    shapes = {"word": (vocab, 4), "layers": (layers, 4, 6), "bias": (4,)}
    return {f"{name}/{part}": random.randn(*shape) for part, shape in shapes.items()}


def created(mesh=(1, 1, 1), frozen=(), **towers):
    devices = jax.devices()[: int(np.prod(mesh))]
    partitioner = partitioning.Partitioner(partitioning.MeshShape(*mesh), devices=devices)
    optimizer = optimizers.AdamW(0.05, 2, 12, no_decay=(), frozen=frozen)
    make = functools.partial(Model, towers)
    return train_state.create(make, optimizer, partitioner, 0)[1:]


def parameters(state):
    frozen = nnx.split_state(state.variables, nnx.Param, ...)[0]
    flat = [*nnx.to_flat_state(state.params), *nnx.to_flat_state(frozen)]
    return {path_string(path): np.asarray(variable[...]) for path, variable in flat}


def taken(*initialisers, **kwargs):
    state, shardings = created(**kwargs)
    return parameters(warm_start.apply(state, initialisers, shardings))


def assert_equal(found, expected):
    np.testing.assert_array_equal(found, np.asarray(expected, np.float32))


@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2)])
def test_everything_of_a_source_in_its_sharding(mesh):
    state, shardings = created(mesh, encoder=(8, 4))
    source = tower()
    new = warm_start.apply(state, [Initialise(Arrays(source), {"": ""})], shardings)
    assert parameters(new).keys() == source.keys()
    for path, array in parameters(new).items():
        assert_equal(array, source[path])
        assert array.dtype == np.float32  # the source has float64
    for array, sharding in zip(jax.tree.leaves(new), jax.tree.leaves(shardings), strict=True):
        assert array.sharding == sharding
    assert int(new.step) == 0 and jax.tree.structure(new) == jax.tree.structure(state)


def test_our_own_checkpoint_of_another_mesh(tmp_path):
    before, _ = created((2, 2, 2), encoder=(8, 4), head=(8, 2))
    before = dataclasses.replace(before, params=jax.tree.map(lambda x: x + 1, before.params))
    checkpointer = Checkpointer(tmp_path / "checkpoints", Checkpointing(keep=1))
    checkpointer.save(before, {})
    checkpointer.close()
    initialiser = Initialise(
        Checkpoint(str(tmp_path)), {"encoder": "reader"}, unused=("^head/",), missing=("^new/",)
    )
    found = taken(initialiser, reader=(8, 4), new=(8, 1))
    fresh = parameters(created(reader=(8, 4), new=(8, 1))[0])
    for part in ("word", "layers", "bias"):
        assert_equal(found[f"reader/{part}"], parameters(before)[f"encoder/{part}"])
        assert_equal(found[f"new/{part}"], fresh[f"new/{part}"])
    with pytest.raises(checkpointing.CheckpointError, match="no checkpoint of step 3"):
        Checkpoint(str(tmp_path), step=3).arrays()


@pytest.mark.parametrize(
    ("layers", "count", "expected"),
    [
        ((0, 1, 2, 3, 0, 1, 2, 3), 8, [0, 1, 2, 3, 0, 1, 2, 3]),  # L/2 -> L
        ((0, 0, 1, 1, 2, 2, 3, 3), 8, [0, 0, 1, 1, 2, 2, 3, 3]),
        ((-2, -1), 2, [2, 3]),  # the last two layers become a decoder
        (None, 4, [0, 1, 2, 3]),
    ],
)
def test_layers_are_chosen_and_repeated(layers, count, expected):
    source = tower()
    found = taken(Initialise(Arrays(source), {"encoder": "other"}, layers), other=(8, count))
    assert_equal(found["other/layers"], source["encoder/layers"][expected])
    assert_equal(found["other/word"], source["encoder/word"])


def test_encoder_and_the_last_layer_as_decoder_read_the_source_once():
    source = Arrays(tower())
    found = taken(
        Initialise(source, {"encoder": "encoder"}),
        Initialise(source, {"encoder/layers": "decoder/layers"}, [-1]),
        encoder=(8, 4),
        decoder=(0, 0),
    )
    assert_equal(found["decoder/layers"], source.values["encoder/layers"][3])
    assert_equal(found["encoder/layers"], source.values["encoder/layers"])
    assert len(source.reads) == 1


def test_two_sources_and_the_later_wins():
    first, second = tower(seed=1), tower(seed=2)
    found = taken(
        Initialise(Arrays(first), {"encoder": "encoder"}),
        Initialise(Arrays(second), {"encoder/word": "encoder/word"}, unused=("layers", "bias")),
        encoder=(8, 4),
    )
    assert_equal(found["encoder/word"], second["encoder/word"])
    assert_equal(found["encoder/bias"], first["encoder/bias"])


def test_padded_vocabulary_keeps_its_fresh_rows():
    source = tower(vocab=5)
    kwargs = {"mesh": (2, 2, 2), "encoder": (8, 4)}
    found = taken(Initialise(Arrays(source), {"": ""}), **kwargs)["encoder/word"]
    assert_equal(found[:5], source["encoder/word"])
    assert_equal(found[5:], parameters(created(**kwargs)[0])["encoder/word"][5:])


def test_frozen_parameters_are_filled_too():
    source = tower()
    state, shardings = created(frozen=("word",), encoder=(8, 4))
    new = warm_start.apply(state, [Initialise(Arrays(source), {"": ""})], shardings)
    assert_equal(new.variables["encoder"]["word"][...], source["encoder/word"])
    assert int(new.variables["count"][...]) == 0


def test_all_that_does_not_match_is_listed():
    source = tower() | {"encoder/odd": np.zeros(2), "head/bias": np.zeros(2)}
    source["encoder/bias"] = np.zeros(7)
    with pytest.raises(InitialiseError) as error:
        taken(
            Initialise(Arrays(source), {"encoder": "encoder", "heed": "encoder"}, [0, 9]),
            encoder=(6, 2),
            new=(8, 1),
        )
    message = str(error.value)
    for line in (
        "encoder/odd: in Arrays(",
        "head/bias: in Arrays(",
        "'heed': Arrays(",
        "expected layers among 4, found [0, 9]",
        "expected shape (4,), found (7,)",
        "expected shape (6, 4), found (8, 4)",
        "new/word: in the model, in no source",
        "Initialise.unused",
    ):
        assert line in message, line
    assert "encoder/bias: in the model" not in message  # said once


def test_another_number_of_layers_needs_a_choice():
    with pytest.raises(InitialiseError, match=r"expected shape \(2, 4, 6\), found \(4, 4, 6\)"):
        taken(Initialise(Arrays(tower()), {"": ""}), encoder=(8, 2))


def test_a_bags_table_starts_an_encoders_word_table(tmp_path):
    """gin_configs/runs/initialise/bag.gin on the two networks that it is for."""
    config = gin_checks.parse_flags(["--gin_file=gin_configs/runs/initialise/bag.gin"]).read()
    target = "t5x_style.training.warm_start.Initialise"
    settings = {
        name: config.bindings["", target, name].value for name in ("paths", "unused", "missing")
    }
    words, width = tiny_models.CONFIG.vocab_size, tiny_models.CONFIG.hidden
    bag_config = bag.BagConfig(words, width, (0, 1, 2, 3, 4), vocab_multiple=32)
    weighted = dataclasses.replace(tiny_models.EMBEDDING, pooling="weighted_mean")
    before = bi_encoder_state(bag_config, weighted)[0]
    checkpointer = Checkpointer(tmp_path / "checkpoints", Checkpointing(keep=1))
    checkpointer.save(before, {})
    checkpointer.close()
    fresh, shardings = bi_encoder_state(tiny_models.CONFIG, tiny_models.EMBEDDING)
    source = Initialise(Checkpoint(str(tmp_path)), **settings)
    found = parameters(warm_start.apply(fresh, [source], shardings))
    expected = parameters(fresh)
    expected["encoder/embeddings/word/embedding"] = parameters(before)["encoder/word/embedding"]
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        assert_equal(found[path], array)


def bi_encoder_state(config, vectors):
    make = functools.partial(
        bi_encoder.BiEncoder, config, vectors, tiny_models.VOCABULARY, GroupShape(2, 8, 1),
        GroupShape(2, 8, 1), contrastive.ContrastiveConfig(),
    )  # fmt: skip
    partitioner = partitioning.Partitioner(devices=jax.devices()[:1])
    return train_state.create(make, optimizers.AdamW(0.05, 2, 12, no_decay=()), partitioner, 0)[1:]
