"""SPLADE: its weights, packed rows and meshes, the regulariser, and what it refuses."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.interop import export_hf
from models.losses.contrastive import ContrastiveConfig
from models.networks import bert, text_embedding
from models.objectives import splade
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.objective import Batch, GroupShape
from t5x_style.interfaces.representation import SPARSE
from tests.kits import published_folders, tiny_models
from tests.kits.interop import needs_interop
from tests.models.losses.contrastive_batches import (
    PACKED,
    PLAIN,
    largest_error,
    shapes_of,
    value_and_gradients,
)
from tests.parity import parity_kit

SHORT = dataclasses.replace(tiny_models.CONFIG, layers=1)
EMBEDDING = dataclasses.replace(
    tiny_models.EMBEDDING, normalise=False, similarity="dot", temperature=1.0
)


def objective(batch: Batch, **settings: Any) -> splade.SPLADE:
    settings = {"query_flops": 0.3, "passage_flops": 0.1, "ramp": 0, "chunk": 16} | settings
    return splade.SPLADE(
        SHORT, settings.pop("embedding", EMBEDDING), tiny_models.VOCABULARY, *shapes_of(batch),
        ContrastiveConfig(), rngs=nnx.Rngs(0), **settings,
    )  # fmt: skip


def test_packed_in_chunks_on_a_mesh_equals_one_device() -> None:
    expected = value_and_gradients(objective(PLAIN), PLAIN)
    assert expected[0] > 0.5 and any(gradient.any() for gradient in expected[1])
    found = value_and_gradients(objective(PACKED, encode_chunks=2), PACKED, (2, 2, 2))
    assert largest_error(found, expected) <= 2e-5


def plain_weights(model: splade.SPLADE, group: Any) -> np.ndarray:
    """[B, S, V], from logits of all tokens."""
    hidden = model.encoder(group["tokens"], group["positions"], group["segment_ids"])
    logits = np.asarray(model.head.transform(hidden) @ model.encoder.word_table.T)
    logits = logits + np.asarray(model.head.bias[...])
    size = model.config.vocab_size
    found = np.zeros((*group["cls_at"].shape, logits.shape[-1]))
    for row, ids in enumerate(np.asarray(group["segment_ids"])):
        for segment in range(found.shape[1]):
            if (ids == segment + 1).any():
                of_text = logits[row][ids == segment + 1, :size]
                found[row, segment, :size] = np.log1p(np.maximum(of_text, 0)).max(axis=0)
    return found


def test_weights_and_what_is_kept_of_them() -> None:
    group = PACKED["passage"]
    model = objective(PACKED, terms=7)
    expected = plain_weights(model, group)
    assert (expected > 0).any()
    np.testing.assert_allclose(model.weights(group), expected, atol=1e-5)
    sparse = {name: np.asarray(one) for name, one in model.represent(group)[SPARSE].items()}
    for row in range(len(expected)):
        for segment in np.flatnonzero(np.asarray(group["segment_valid"])[row]):
            own = sparse["segments"][row] == segment + 1
            largest = np.sort(expected[row, segment])[::-1][:7]
            kept = np.sort(sparse["weights"][row][own])[::-1]
            np.testing.assert_allclose(kept, largest[largest > 0], atol=1e-5)
            of_tokens = expected[row, segment, sparse["tokens"][row][own]]
            np.testing.assert_allclose(of_tokens, sparse["weights"][row][own], atol=1e-5)
    assert not sparse["segments"][sparse["weights"] == 0].any()


def test_the_regulariser_is_that_of_the_paper_and_grows() -> None:
    weights = np.random.default_rng(0).uniform(size=(6, 11)).astype(np.float32)
    valid = np.array([True] * 4 + [False] * 2)
    given = jnp.where(valid[:, None], weights, 0)
    expected = np.square(weights[:4].mean(axis=0)).sum()
    np.testing.assert_allclose(splade.regulariser(given, valid), expected, rtol=1e-6)

    def parts(model: splade.SPLADE) -> tuple[float, float, float]:
        loss, metrics = nnx.jit(lambda model, batch: model.loss(batch, None))(model, PLAIN)
        flops = [float(metrics[f"flops_{side}"].value()) for side in ("query", "passage")]
        added = float(loss.value()) - float(metrics["contrastive"].value())
        return added, *flops

    whole, query, passage = parts(objective(PLAIN))
    assert whole == pytest.approx(0.3 * query + 0.1 * passage, rel=1e-4)
    growing = objective(PLAIN, ramp=10)
    assert parts(growing)[0] == pytest.approx(0.01 * whole, rel=1e-2)
    growing.after_update(jnp.asarray(4), jax.random.key(0))
    assert parts(growing)[0] == pytest.approx(0.25 * whole, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"query_flops": -1.0}, "query_flops, passage_flops and ramp of at least 0"),
        ({"terms": 0}, "terms and encode_chunks of at least 1"),
        ({"embedding": dataclasses.replace(EMBEDDING, normalise=True)}, "similarity 'dot'"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        objective(PLAIN, **settings)


@needs_interop
def test_sentence_transformers_gives_the_same_weights(tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder

    texts, length = published_folders.TEXTS[1:4], 16
    tokenizer = str(published_folders.encoder(tmp_path / "tokenizer"))
    vocabulary = Vocabulary.load(tokenizer)
    config = bert.BertConfig(
        vocabulary.size, 16, 2, 2, 32, 32, dropout=0.0, attention_dropout=0.0,
        initializer_range=0.3,
    )  # fmt: skip
    embedding = text_embedding.EmbeddingConfig("cls", False, "dot", 1.0, length, length, "", "")
    shape = GroupShape(len(texts), length, 1)
    model = splade.SPLADE(
        config, embedding, vocabulary, shape, shape, ContrastiveConfig(), 0.0, 0.0, 0, 8,
        rngs=nnx.Rngs(0),
    )  # fmt: skip

    (tmp_path / "stage").mkdir()
    model.contract().save(tmp_path / "stage")
    weights = parity_kit.Weights(model)
    written = export_hf.export(
        str(tmp_path / "out"), str(tmp_path / "stage"), weights, config, vocabulary, tokenizer
    )
    assert written == {"sparse_encoder": "sparse_encoder"}
    opened = SparseEncoder(str(tmp_path / "out/sparse_encoder"), device="cpu")
    theirs = opened.encode_document(texts, convert_to_sparse_tensor=False).numpy()
    tokens = opened.tokenizer(texts, padding=True, return_tensors="np")
    group = parity_kit.token_group(tokens["input_ids"], tokens["attention_mask"])
    ours = np.asarray(model.weights(group))[:, 0, : vocabulary.size]
    assert (ours > 0).any()
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
