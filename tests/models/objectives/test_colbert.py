"""ColBERT: its loss in closed form, augmented queries, punctuation, meshes, and what it refuses."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from input_pipelines.sources import beir
from input_pipelines.tokenizers import tokenization
from models.interop import export_hf, punctuation
from models.losses.joint_losses import JointLossConfig
from models.networks import bert, query_augmentation, text_embedding
from models.objectives import colbert
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.objective import Batch, GroupShape
from t5x_style.interfaces.representation import MULTI_VECTOR, RepresentationError
from tests.kits import published_folders, tiny_models
from tests.kits.interop import needs_interop
from tests.models.losses.contrastive_batches import (
    GROUP,
    PACKED,
    PLAIN,
    QUERIES,
    largest_error,
    shapes_of,
    value_and_gradients,
)
from tests.parity import parity_kit

N, SIZE, PUNCTUATION = 12, 6, (7, 11, 30)
SHORT = dataclasses.replace(tiny_models.CONFIG, layers=1)
EMBEDDING = dataclasses.replace(
    tiny_models.EMBEDDING, normalise=True, similarity="cosine", query_length=N
)
LOSSES = JointLossConfig({MULTI_VECTOR: 1.0}, {MULTI_VECTOR: 1.0})
MASK = tiny_models.VOCABULARY.mask


def objective(batch: Batch, **settings: Any) -> colbert.ColBERT:
    settings = {
        "embedding_config": EMBEDDING, "loss_config": LOSSES, "group_size": GROUP,
        "punctuation": PUNCTUATION, "vector_size": SIZE,
    } | settings  # fmt: skip
    query, passage = shapes_of(batch)
    return colbert.ColBERT(
        SHORT, vocabulary=tiny_models.VOCABULARY, query=query, passage=passage,
        rngs=nnx.Rngs(0), **settings,
    )  # fmt: skip


def plain_vectors(model: colbert.ColBERT, tokens: np.ndarray, there: np.ndarray) -> jax.Array:
    """[n, L, d] of a text a row: unit vectors of projected states."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    states = model.encoder(jnp.asarray(tokens), positions, jnp.asarray(there, jnp.int32))
    projected = states @ model.multi_vector.dense.kernel[...]
    return projected / jnp.linalg.norm(projected, axis=-1, keepdims=True)


def plain_scores(model: colbert.ColBERT, batch: Batch) -> jax.Array:
    """[Q, P] of a batch of a text a row, as section 3 of the paper has them."""
    tokens = np.asarray(batch["query"]["tokens"])
    asked = np.full((len(tokens), N), MASK)
    for row, ids in enumerate(np.asarray(batch["query"]["segment_ids"])):
        asked[row, : ids.sum()] = tokens[row, : ids.sum()]
    queries = plain_vectors(model, asked, np.ones_like(asked))
    held = np.asarray(batch["passage"]["tokens"])
    there = np.asarray(batch["passage"]["segment_ids"]) == 1
    passages = plain_vectors(model, held, there)
    cosines = jnp.einsum("qnd,pld->qpnl", queries, passages, precision="highest")
    kept = jnp.asarray(there & ~np.isin(held, PUNCTUATION))
    return jnp.where(kept[:, None], cosines, -2.0).max(axis=-1).sum(axis=-1)


def plain_loss(model: colbert.ColBERT, batch: Batch) -> jax.Array:
    """Mean over queries of -log softmax of the positive, over its group and the batch."""
    scores = plain_scores(model, batch)
    documents = np.asarray(batch["passage"]["document_id"])[:, 0]
    numbers = np.arange(QUERIES * GROUP)
    mine = numbers // GROUP == np.arange(QUERIES)[:, None]
    copies = documents == documents[::GROUP, None]  # of a query's positive
    compared = jnp.asarray(mine | ~copies)
    total = jax.nn.logsumexp(jnp.where(compared, scores, -jnp.inf), axis=1)
    return jnp.mean(total - scores[np.arange(QUERIES), numbers[::GROUP]])


def test_the_loss_and_its_gradients_are_those_of_the_definition() -> None:
    model = objective(PLAIN)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    value, gradients = jax.jit(
        jax.value_and_grad(lambda params: plain_loss(nnx.merge(graph, params, rest), PLAIN))
    )(params)
    expected = float(value), [np.asarray(leaf) for leaf in jax.tree.leaves(gradients)]
    assert expected[0] > 0.5 and all(gradient.any() for gradient in expected[1])
    assert largest_error(value_and_gradients(model, PLAIN), expected) <= 2e-5
    found = value_and_gradients(
        objective(PACKED, exchange="ring", cells=20_000, encode_chunks=2), PACKED, (2, 2, 2)
    )
    assert largest_error(found, expected) <= 2e-5


def test_packed_rows_give_the_vectors_of_single_ones() -> None:
    model = objective(PACKED)
    functions = model.functions()
    for side in ("query", "passage"):
        by_text: list[dict[Any, np.ndarray]] = []
        for batch in (PLAIN, PACKED):
            group = batch[side]
            found = functions[f"embed_{side}"](group, kinds=(MULTI_VECTOR,))[MULTI_VECTOR]
            vectors, numbers = np.asarray(found["vectors"]), np.asarray(found["segments"])
            ids = np.asarray(group["example_id"])
            texts: dict[Any, np.ndarray] = {}
            for row, segment in np.argwhere(np.asarray(group["segment_valid"])):
                of = np.asarray(group["segment_ids"])[row] == segment + 1
                name = (int(ids[row, segment]), *np.asarray(group["tokens"])[row, of].tolist())
                texts[name] = vectors[row, numbers[row] == segment + 1]
            assert not vectors[numbers == 0].any()
            by_text.append(texts)
        plain, packed = by_text
        assert plain.keys() == packed.keys()
        for name, one in plain.items():
            words = [token for token in name[1:] if token not in PUNCTUATION]
            assert one.shape == ((N if side == "query" else len(words)), SIZE)
            np.testing.assert_allclose(packed[name], one, atol=1e-5)
            np.testing.assert_allclose(np.linalg.norm(one, axis=-1), 1, atol=1e-5)


def test_queries_are_filled_with_mask_up_to_their_length() -> None:
    group = {
        "tokens": jnp.asarray([[2, 9, 3, 2, 8, 6, 3, 0], [2, 5, 5, 5, 3, 0, 0, 0]]),
        "segment_ids": jnp.asarray([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 1, 1, 1, 0, 0, 0]]),
        "token_types": jnp.ones((2, 8), jnp.int32),
        "cls_at": jnp.asarray([[0, 3], [0, 0]]),
        "segment_valid": jnp.asarray([[True, True], [True, False]]),
    }
    found = query_augmentation.augmented(group, MASK, 6)
    np.testing.assert_array_equal(
        found["tokens"][:3],
        [[2, 9, 3, 4, 4, 4], [2, 8, 6, 3, 4, 4], [2, 5, 5, 5, 3, 4]],
    )
    np.testing.assert_array_equal(found["segment_ids"][:, 0], [1, 1, 1, 0])
    np.testing.assert_array_equal(found["segment_ids"], found["segment_ids"][:, :1].repeat(6, 1))
    np.testing.assert_array_equal(found["positions"], np.arange(6) + np.zeros((4, 1), int))
    np.testing.assert_array_equal(found["segment_valid"], [[True], [True], [True], [False]])
    assert found["token_types"].shape == (4, 6) and not found["token_types"].any()


def test_masks_carry_weight() -> None:
    """A query has its length in vectors; those of [MASK] differ by place."""
    found = objective(PLAIN).represent("query", PLAIN["query"])[MULTI_VECTOR]
    assert (np.asarray(found["segments"]) == 1).all()
    of_mask = np.asarray(found["vectors"])[:, 8:]  # no query has more than 8 tokens
    assert np.abs(of_mask[:, 0] - of_mask[:, 1]).max(axis=-1).min() > 1e-3


def test_punctuation_of_passages_has_no_vectors_and_still_is_context() -> None:
    passage = PLAIN["passage"]
    tokens = np.asarray(passage["tokens"])
    row = int(np.argmax(np.isin(tokens, PUNCTUATION).any(axis=1)))
    place = int(np.argmax(np.isin(tokens[row], PUNCTUATION)))
    model = objective(PLAIN)
    found = model.represent("passage", passage)[MULTI_VECTOR]
    assert found["segments"][row, place] == 0 and not found["vectors"][row, place].any()
    whole = objective(PLAIN, punctuation=()).represent("passage", passage)[MULTI_VECTOR]
    kept = np.asarray(found["segments"]) > 0
    np.testing.assert_allclose(
        np.asarray(found["vectors"])[kept], np.asarray(whole["vectors"])[kept], atol=1e-6
    )
    assert np.asarray(whole["segments"]).sum() > kept.sum()
    other = {**passage, "tokens": passage["tokens"].at[row, place].set(20)}
    changed = model.represent("passage", other)[MULTI_VECTOR]["vectors"][row]
    assert np.abs(np.asarray(changed[0] - found["vectors"][row, 0])).max() > 1e-4
    asked = {**PLAIN["query"], "tokens": jnp.where(PLAIN["query"]["tokens"] > 4, 7, 2)}
    assert (np.asarray(model.represent("query", asked)[MULTI_VECTOR]["segments"]) == 1).all()


def test_metrics_and_contract() -> None:
    model = objective(PLAIN)
    _, metrics = model.loss(PLAIN, None)
    scores = plain_scores(model, PLAIN)[np.arange(QUERIES), np.arange(QUERIES) * GROUP]
    found = float(metrics["positive_similarity"].value())
    assert found == pytest.approx(float(scores.mean()) / N, rel=1e-5) and found <= 1
    contract = model.contract()
    assert (contract.pooling, contract.dimension) == ("colbert", SIZE)
    assert {one.representations for one in model.functions().values()} == {(MULTI_VECTOR,)}
    assert model.multi_vector.dense.bias is None


def test_a_teacher_counts() -> None:
    config = dataclasses.replace(LOSSES, teacher="kl")
    model = objective(PLAIN, loss_config=config)
    assert "teacher_score" in model.batch_specs()[0]["passage"]
    value = float(model.loss(PLAIN, None)[0].value())
    assert np.isfinite(value) and value > float(objective(PLAIN).loss(PLAIN, None)[0].value())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 0}, "group_size"),
        ({"vector_size": 0}, "vector_size"),
        ({"cells": 0}, "cells"),
        ({"encode_chunks": 0}, "encode_chunks"),
        ({"exchange": "star"}, "ColBERT.exchange: expected one of .*'star'"),
        ({"punctuation": (7, 50)}, r"punctuation: expected ids below 50 .*found \[50\]"),
        ({"punctuation": (2,)}, r"of no special token, found \[2\]"),
        ({"loss_config": JointLossConfig({"dense": 1.0}, {"dense": 1.0})}, "'multi_vector'"),
        ({"embedding_config": dataclasses.replace(EMBEDDING, similarity="dot")}, "'cosine'"),
        ({"embedding_config": dataclasses.replace(EMBEDDING, normalise=False)}, "normalise True"),
        ({"embedding_config": dataclasses.replace(EMBEDDING, query_length=25)}, "query_length"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: Any, message: str) -> None:
    with pytest.raises((ValueError, RepresentationError), match=message):
        objective(PLAIN, **settings)


def tokenizer_of(folder: Path, texts: Sequence[str]) -> str:
    """Trained on these texts."""
    rows = [{"_id": f"p{number}", "text": text} for number, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = beir.BeirCorpus(str(folder), 1000)
    tokenization.train_tokenizer(str(folder), source, 120, 64, 1, True, True, 0, 0, 0)
    return str(folder / "tokenizer")


@needs_interop
def test_its_export_opens_in_sentence_transformers(tmp_path: Path) -> None:
    """As a MultiVectorEncoder with the same vectors and scores."""
    from sentence_transformers import MultiVectorEncoder

    texts, length = [f"{text}." for text in published_folders.TEXTS[1:4]], 16
    tokenizer = tokenizer_of(tmp_path, texts)
    vocabulary = Vocabulary.load(tokenizer)
    skipped = punctuation.token_ids(tokenizer)
    config = bert.BertConfig(
        vocabulary.size, 16, 2, 2, 32, 32, dropout=0.0, attention_dropout=0.0,
        initializer_range=0.3,
    )  # fmt: skip
    embedding = text_embedding.EmbeddingConfig("cls", True, "cosine", 1.0, length, length, "", "")
    shape = GroupShape(len(texts), length, 1)
    model = colbert.ColBERT(
        config, embedding, vocabulary, shape, shape, LOSSES, 1, skipped, vector_size=SIZE,
        rngs=nnx.Rngs(0),
    )  # fmt: skip

    (tmp_path / "stage").mkdir()
    model.contract().save(tmp_path / "stage")
    weights = parity_kit.Weights(model)
    written = export_hf.export(
        str(tmp_path / "out"), str(tmp_path / "stage"), weights, config, vocabulary, tokenizer
    )
    assert written == {"multi_vector": "multi_vector"}
    opened = MultiVectorEncoder(str(tmp_path / "out/multi_vector"), device="cpu")
    tokens = opened.tokenizer(texts, padding=True, return_tensors="np")
    assert np.isin(tokens["input_ids"], skipped).any()
    group = parity_kit.token_group(tokens["input_ids"], tokens["attention_mask"])
    theirs = {
        "query": opened.encode_query(texts, convert_to_numpy=True),
        "passage": opened.encode_document(texts, convert_to_numpy=True),
    }
    scores = np.zeros((len(texts), len(texts)))
    ours: dict[str, list[np.ndarray]] = {}
    for side, found in theirs.items():
        made = model.represent(side, group)[MULTI_VECTOR]
        kept = np.asarray(made["segments"]) == 1
        ours[side] = [np.asarray(made["vectors"])[row, kept[row]] for row in range(len(texts))]
        for one, other in zip(ours[side], found, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    for q, query in enumerate(ours["query"]):
        for p, passage in enumerate(ours["passage"]):
            scores[q, p] = (query @ passage.T).max(axis=1).sum()
    found = opened.similarity(theirs["query"], theirs["passage"]).numpy()
    np.testing.assert_allclose(found, scores, rtol=1e-4)
