"""MLM: what is masked, what is lost, and that packing changes neither."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.objectives import mlm
from t5x_style.interfaces.objective import Batch, GroupShape, check_batch, embedder
from tests.kits import tiny_models
from tests.parity import parity_kit

PARTS = tiny_models.segments(5, longest=8)
ALONE = tiny_models.group([[part] for part in PARTS], 12, 1)
PACKED = tiny_models.group([[PARTS[3], PARTS[0], PARTS[4]], [PARTS[2], PARTS[1]]], 24, 3)


def objective(**changes: float) -> mlm.Mlm:
    return mlm.Mlm(
        dataclasses.replace(tiny_models.CONFIG, **changes),
        tiny_models.EMBEDDING,
        tiny_models.VOCABULARY,
        GroupShape(rows=5, length=12, segments=1),
        mask_rate=0.4,
        chunk=16,
        rngs=nnx.Rngs(0),
    )


@nnx.jit
def corrupt(module: mlm.Mlm, batch: Batch) -> Batch:
    return module.corrupt(batch, jax.random.key(7))


def labels_by_example(group: dict[str, jax.Array]) -> dict[int, list[tuple[int, int]]]:
    """Example id -> (corrupted token, label) of each of its tokens."""
    tokens, labels = np.asarray(group["tokens"]), np.asarray(group["labels"])
    ids, segment_ids = np.asarray(group["example_id"]), np.asarray(group["segment_ids"])
    return {
        int(ids[r, s]): list(zip(tokens[r][own], labels[r][own], strict=True))
        for r, s in zip(*np.nonzero(np.asarray(group["segment_valid"])), strict=True)
        for own in [segment_ids[r] == s + 1]
    }


def test_packing_changes_neither_masks_nor_loss_nor_gradients() -> None:
    module = objective()
    alone, packed = (corrupt(module, {"text": group}) for group in (ALONE, PACKED))
    assert labels_by_example(alone["text"]) == labels_by_example(packed["text"])
    assert np.sum(np.asarray(alone["text"]["labels"]) >= 0) > 3
    one, one_gradients = parity_kit.value_and_gradients(module, alone)
    other, other_gradients = parity_kit.value_and_gradients(module, packed)
    assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert one["accuracy"] == pytest.approx(other["accuracy"])
    for name, gradient in one_gradients.items():
        np.testing.assert_allclose(other_gradients[name], gradient, atol=1e-5, err_msg=name)


def test_loss_is_the_plain_cross_entropy_at_the_labels() -> None:
    module = objective()
    batch = corrupt(module, {"text": ALONE})
    text = batch["text"]
    hidden = module.encoder(text["tokens"], text["positions"], text["segment_ids"])
    logits = module.head.transform(hidden) @ module.encoder.word_table.T + module.head.bias[...]
    log_probs = jax.nn.log_softmax(logits[..., :50])
    picked = np.take_along_axis(
        np.asarray(log_probs), np.maximum(text["labels"], 0)[..., None], axis=-1
    )
    expected = -picked[..., 0][np.asarray(text["labels"]) >= 0].mean()
    loss, _ = module.loss(batch, jax.random.key(0))
    assert float(loss.value()) == pytest.approx(expected, rel=1e-5)


def test_padded_vocabulary_rows_get_no_gradient() -> None:
    module = objective()
    batch = corrupt(module, {"text": ALONE})
    graph, params = nnx.split(module)
    loss = lambda p: nnx.merge(graph, p).loss(batch, jax.random.key(0))[0].value()  # noqa: E731
    grads = jax.jit(jax.grad(loss))(params)
    table = np.asarray(grads["encoder"]["embeddings"]["word"]["embedding"][...])
    assert table.shape[0] == 64 and np.abs(table[:50]).sum() > 0
    assert not table[50:].any()
    assert not np.asarray(grads["head"]["bias"][...])[50:].any()


def test_dropout_is_off_in_evaluation() -> None:
    module = objective(dropout=0.5)
    batch = corrupt(module, {"text": ALONE})
    losses = [float(module.loss(batch, jax.random.key(i))[0].value()) for i in (0, 1)]
    assert losses[0] != losses[1]
    module.eval()
    losses = [float(module.loss(batch, jax.random.key(i))[0].value()) for i in (0, 1)]
    assert losses[0] == losses[1]


def test_the_batch_it_asks_for_and_its_contract() -> None:
    module = objective()
    check_batch(module.batch_specs()[0], {"text": ALONE}, "the test")
    contract = module.contract()
    assert (contract.dimension, contract.vocabulary_size, contract.pooling) == (16, 50, "cls")
    vectors = embedder(module.functions(), "passage")(PACKED)
    assert vectors.shape == (2, 3, 16) and vectors.dtype == jnp.float32
    assert not np.asarray(vectors[1, 2]).any(), "an absent segment has no vector"


def test_a_vocabulary_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 50, found 60"):
        objective(vocab_size=60)


def test_positions_begin_anew_behind_a_first_separator():
    sep, cls = tiny_models.VOCABULARY.sep, tiny_models.VOCABULARY.cls
    translation = [cls, 7, 8, sep, 9, 10, 11, sep]
    plain = [cls, 7, 8, sep]
    rows = jnp.array([[*translation, *plain, 0, 0], [*plain, *translation, 0, 0]])
    positions = jnp.array([[*range(8), *range(4), 0, 0], [*range(4), *range(8), 0, 0]])
    found = mlm.restarted({"tokens": rows, "positions": positions}, sep)
    anew = [0, 1, 2, 3, 1, 2, 3, 4]
    assert found.tolist() == [[*anew, *range(4), 0, 0], [*range(4), *anew, 0, 0]]


def test_a_segment_has_no_more_masks_than_allowed():
    module = objective()
    few = mlm.Mlm(
        module.config, module.embedding_config, module.vocabulary, module.text,
        mask_rate=0.4, chunk=16, max_predictions=1, rngs=nnx.Rngs(0),
    )  # fmt: skip
    masked = np.sum(np.asarray(corrupt(few, {"text": ALONE})["text"]["labels"]) >= 0, axis=1)
    assert masked.max() == 1
