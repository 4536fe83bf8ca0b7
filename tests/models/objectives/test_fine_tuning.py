"""Fine-tuning begins with the encoder of any pre-training, and with nothing else of it."""

import json

import gin
import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file

from models.interop import hf_config, import_hf, layout_bert
from models.networks import pooled_encoder
from models.objectives import extractive_qa, mlm, pair_classifier, retromae, simlm
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape
from t5x_style.step import optimizers, train_state
from t5x_style.training import warm_start
from tests.kits import shipped_gin, tiny_models
from tests.parity import parity_kit

TEXT = GroupShape(rows=8, length=16, segments=1)
CONFIG, VOCABULARY = tiny_models.CONFIG, tiny_models.VOCABULARY
COMMON = (CONFIG, tiny_models.EMBEDDING, VOCABULARY, TEXT)
MADE = {
    "mlm": (mlm.Mlm, (*COMMON, 0.15, 16)),
    "retromae": (retromae.RetroMAE, (*COMMON, 0.3, 0.5, 16)),
    "simlm": (simlm.SimLM, (*COMMON, 0.3, 0.5, 16, CONFIG)),
}
TUNED = {
    "pair_classifier": (pair_classifier.PairClassifier, (CONFIG, VOCABULARY, TEXT, 6, ("a", "b"))),
    "extractive_qa": (extractive_qa.ExtractiveQA, (CONFIG, VOCABULARY, TEXT, 5, 12, 4)),
}


def settings(file):
    """paths, unused and missing of a gin file that initialises."""
    with shipped_gin.parsed(f"runs/{file}.gin"):
        return {
            name: gin.query_parameter(f"t5x_style.training.warm_start.Initialise.{name}")
            for name in ("paths", "unused", "missing")
        }


def created(name):
    """The state of an objective that is fine-tuned, and its shardings."""
    factory, arguments = TUNED[name]
    one = partitioning.Partitioner(partitioning.MeshShape(1, 1, 1), devices=jax.devices()[:1])
    make = lambda rngs: factory(*arguments, rngs=rngs)  # noqa: E731
    return train_state.create(make, optimizers.AdamW(1e-3, 1, 2), one, 0)[1:]


class Arrays:
    """Weights that are given."""

    def __init__(self, found):
        self._found = found

    def arrays(self):
        return self._found


def arrays_of(module):
    return {path: np.asarray(leaf[...]) for path, leaf in parity_kit.parameters(module).items()}


def assert_begins_as(name, source, file, encoder):
    """Applies a gin file; the result has the encoder, and other parts at random."""
    state, shardings = created(name)
    begun = warm_start.apply(state, [warm_start.Initialise(source, **settings(file))], shardings)
    fresh = {path for path, _ in nnx.to_flat_state(state.params) if path[0] != "encoder"}
    assert {path[0] for path in fresh} == (
        {"pooler", "classifier"} if name == "pair_classifier" else {"span"}
    )
    before = dict(nnx.to_flat_state(state.params))
    for path, leaf in nnx.to_flat_state(begun.params):
        told = before[path][...] if path in fresh else encoder["/".join(map(str, path[1:]))]
        np.testing.assert_array_equal(leaf[...][: len(told)], told, err_msg=str(path))


def below(arrays, prefix):
    return {p.removeprefix(prefix): a for p, a in arrays.items() if p.startswith(prefix)}


@pytest.mark.parametrize("name", TUNED)
@pytest.mark.parametrize("pretrained", MADE)
def test_from_what_was_pretrained(name, pretrained):
    factory, arguments = MADE[pretrained]
    arrays = arrays_of(factory(*arguments, rngs=nnx.Rngs(1)))
    assert_begins_as(name, Arrays(arrays), "initialise/fine_tuning", below(arrays, "encoder/"))


@pytest.mark.parametrize("name", TUNED)
def test_from_labse(name):
    """Of LaBSE the parameters are those of its embedder."""
    network = pooled_encoder.PooledEncoder(CONFIG, rngs=nnx.Rngs(1))
    arrays = {f"embedder/{path}": array for path, array in arrays_of(network).items()}
    encoder = below(arrays, "embedder/encoder/")
    assert_begins_as(name, Arrays(arrays), "initialise/fine_tuning_labse", encoder)


@pytest.mark.parametrize("name", TUNED)
def test_from_a_published_folder(name, tmp_path):
    """With an MLM head, as BERT is published."""
    network = mlm.Mlm(*COMMON, 0.15, 16, rngs=nnx.Rngs(1))
    tensors = layout_bert.LAYOUT.export_arrays(arrays_of(network), CONFIG.vocab_size)
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    save_file(contiguous, tmp_path / "model.safetensors")
    fields = hf_config.config_to_hf(CONFIG, VOCABULARY.pad, "BertForMaskedLM")
    (tmp_path / "config.json").write_text(json.dumps(fields))
    source = import_hf.HuggingFace(str(tmp_path), CONFIG.vocab_size)
    encoder = below(source.arrays(), "encoder/")
    assert_begins_as(name, source, "initialise/fine_tuning_published", encoder)
