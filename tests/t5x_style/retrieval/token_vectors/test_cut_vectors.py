"""Vectors of tokens cut to their first dimensions: a trained model's, from encoding to search."""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from models.losses.joint_losses import JointLossConfig
from models.networks import bert, text_embedding
from models.objectives import colbert, m3
from t5x_style.checkpoints import restored_model
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.encode_corpus import encode_corpus
from t5x_style.evaluation import hybrid_search, hybrid_weights, retrieval_systems
from t5x_style.interfaces.contract import Combination, Contract, ContractError
from t5x_style.interfaces.objective import GroupShape, Objective
from t5x_style.interfaces.representation import KINDS, MULTI_VECTOR, SIDES, Entries
from t5x_style.retrieval import embedding_shards, exact_index, hybrid
from t5x_style.retrieval.token_vectors import compact, cutting
from t5x_style.serving import saved_model
from t5x_style.step import train_state
from t5x_style.training import model_folder
from tests.kits.toys import three_kinds
from tests.kits.toys.random_entries import plain_scores

WHOLE, SIZES, SIZE = 8, (4, 2), 4
TEXTS = three_kinds.texts(21)
LENGTH = 8  # tokens of a text
SHAPE = GroupShape(8, three_kinds.LENGTH, 2)
WEIGHTS = dict.fromkeys(KINDS, 1.0)
CONFIG = bert.BertConfig(
    vocab_size=100, hidden=16, layers=1, heads=2, mlp=32, max_positions=LENGTH, vocab_multiple=1,
    initializer_range=0.3,
)  # fmt: skip
EMBEDDING = text_embedding.EmbeddingConfig("cls", True, "cosine", 0.05, LENGTH, LENGTH, "", "")
MESH, ONE_DEVICE = MeshShape(8, 1, 1), MeshShape(1, 1, 1)
PASSAGES = {"source": three_kinds.Texts(TEXTS), "function": "embed_passage"}


def of_colbert(size: int | None = None, sizes: tuple[int, ...] = (), *, rngs: nnx.Rngs) -> Any:
    return colbert.ColBERT(
        CONFIG, EMBEDDING, three_kinds.VOCABULARY, SHAPE, SHAPE,
        JointLossConfig({MULTI_VECTOR: 1.0}, {MULTI_VECTOR: 1.0}), group_size=1, punctuation=(7,),
        vector_size=WHOLE, matryoshka=sizes, token_vector_size=size, rngs=rngs,
    )  # fmt: skip


def of_m3(
    size: int | None = None,
    sizes: tuple[int, ...] = (),
    weights: Mapping[str, float] = WEIGHTS,
    *,
    rngs: nnx.Rngs,
) -> Any:
    return m3.M3(
        CONFIG, EMBEDDING, three_kinds.VOCABULARY, SHAPE, SHAPE, JointLossConfig(weights, weights),
        group_size=1, vector_size=WHOLE, matryoshka=sizes, token_vector_size=size, rngs=rngs,
    )  # fmt: skip


MODELS: dict[str, Callable[..., Objective]] = {"colbert": of_colbert, "m3": of_m3}


@pytest.fixture(name="name", scope="module", params=MODELS)
def each_model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def written(folder: Path, *settings: Any, name: str = "colbert") -> str:
    """A folder like a training's."""
    partitioner = Partitioner(ONE_DEVICE, devices=jax.devices()[:1])
    objective = functools.partial(MODELS[name], *settings)
    definition, state, _ = train_state.create(objective, model_folder.UNTRAINED, partitioner, 0)
    model_folder.write(folder, definition, state)
    return str(folder)


@pytest.fixture(scope="module")
def folder(name: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return written(tmp_path_factory.mktemp("train"), None, SIZES, name=name)


@pytest.fixture(scope="module")
def opened(name: str, folder: str) -> Callable[..., restored_model.Trained]:
    """The trained model, used with vectors of a size."""

    @functools.cache
    def load(size: int | None, mesh: MeshShape = MESH) -> restored_model.Trained:
        devices = jax.devices()[: mesh.data * mesh.fsdp * mesh.tensor]
        objective = functools.partial(MODELS[name], size)
        return restored_model.load(objective, folder, Partitioner(mesh, devices=devices))

    return load


def cut(texts: Entries, size: int = SIZE) -> Entries:
    """The first dimensions of each vector, as long as the whole one."""
    vectors = texts.arrays["vectors"]
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    short = vectors[:, :size]
    short = short / np.linalg.norm(short, axis=1, keepdims=True) * lengths
    return Entries(texts.offsets, {"vectors": short})


def same(found: Entries, expected: Entries, atol: float = 1e-5) -> None:
    np.testing.assert_array_equal(found.offsets, expected.offsets)
    np.testing.assert_allclose(found.arrays["vectors"], expected.arrays["vectors"], atol=atol)


def encoded(model: restored_model.Trained, folder: Path, **storage: Any) -> Path:
    kept = embedding_shards.Storage(**{"shard_size": 8, "dtype": "float32"} | storage)
    encode_corpus(
        model, storage=kept, kinds=[MULTI_VECTOR], model_dir=str(folder), **PASSAGES
    )  # fmt: skip
    return folder


def read(folder: Path) -> Entries:
    found: Entries = embedding_shards.read(folder, [MULTI_VECTOR])[0][MULTI_VECTOR][:]
    return found


@pytest.mark.parametrize("side", SIDES)
def test_vectors_are_the_first_dimensions_at_their_length(opened, name, side):
    source = three_kinds.Texts(TEXTS)
    whole, short = (opened(size).encode(side, source, MULTI_VECTOR) for size in (None, SIZE))
    assert whole.arrays["vectors"].shape[1] == WHOLE and short.arrays["vectors"].shape[1] == SIZE
    same(short, cut(whole))
    same(short, cutting.cut(whole, SIZE))
    lengths = np.linalg.norm(short.arrays["vectors"], axis=1)
    mean = name == "m3" and side == "query"  # MaxSim is then a mean over the query's vectors
    np.testing.assert_allclose(
        lengths, 1 / np.diff(short.offsets)[short.owners()] if mean else 1, 1e-5
    )


def test_search_is_max_sim_of_whole_vectors_that_are_cut(opened, tmp_path):
    folder, short = encoded(opened(SIZE), tmp_path), opened(SIZE)
    source = three_kinds.Texts(TEXTS[::-1])
    queries, passages = (
        cut(opened(None).encode(side, texts, MULTI_VECTOR))
        for side, texts in (("query", source), ("passage", three_kinds.Texts(TEXTS)))
    )
    expected = plain_scores(MULTI_VECTOR, queries, passages)
    scores, rows = exact_index.load(str(folder), MULTI_VECTOR).search(
        short.encode("query", source, MULTI_VECTOR), 5
    )
    listed = np.take_along_axis(expected, np.maximum(rows, 0), axis=1)
    there = rows >= 0
    np.testing.assert_allclose(scores[there], listed[there], rtol=1e-4)
    best = -np.sort(-np.where(np.isfinite(expected), expected, -np.inf), axis=1)[:, :5]
    np.testing.assert_allclose(scores[there], best[there], rtol=1e-4)
    assert there.sum() > 50
    assert Contract.load(folder).token_vector_size == SIZE


def test_cut_vectors_are_pooled_and_rounded_after_the_cut(opened, tmp_path):
    made = encoded(opened(SIZE), tmp_path, pool_factor=2, token_dtype="int8")
    whole = opened(None).encode("passage", three_kinds.Texts(TEXTS), MULTI_VECTOR)
    expected = compact.compact(cut(whole), compact.facts(2, "int8"))
    same(read(made), expected[:], atol=1.01 / 127)  # a number may be rounded either way


class OneARow(three_kinds.Texts):
    """Texts that are not packed."""

    def batches(self) -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, len(TEXTS), 8):
            rows = [[n] for n in range(start, min(start + 8, len(TEXTS)))]
            yield three_kinds.group(rows, TEXTS, 2, 8)


@pytest.mark.parametrize("side", SIDES)
def test_rows_and_meshes_do_not_count(opened, side):
    expected = opened(SIZE, ONE_DEVICE).encode(side, OneARow(TEXTS), MULTI_VECTOR)
    same(opened(SIZE).encode(side, three_kinds.Texts(TEXTS), MULTI_VECTOR), expected)


def test_whole_and_cut_vectors_never_meet(opened, tmp_path):
    whole, short = opened(None), opened(SIZE)
    folders = {None: encoded(whole, tmp_path / "whole"), SIZE: encoded(short, tmp_path / "cut")}
    queries = [three_kinds.Texts(TEXTS[:3])]
    weights = {MULTI_VECTOR: 1.0}
    for model, other in ((whole, SIZE), (short, None)):
        index = exact_index.load(str(folders[other]), MULTI_VECTOR)
        message = f"token_vector_size: expected {model.contract.token_vector_size}, found {other}"
        with pytest.raises(ContractError, match=message):
            retrieval_systems.IndexSearch("ours", model, index, queries)
        searched = hybrid.load(str(folders[other]), [index], [MULTI_VECTOR])
        swapped = f"token_vector_size: expected {other}, found {model.contract.token_vector_size}"
        with pytest.raises(ContractError, match=swapped):
            hybrid_search.HybridSearch(
                "ours", model, searched, queries, method="weighted", prior=weights, weights=weights
            )
        fitting = exact_index.load(str(folders[model.contract.token_vector_size]), MULTI_VECTOR)
        with pytest.raises(ContractError, match="token_vector_size"):
            hybrid.load(str(folders[other]), [fitting], [MULTI_VECTOR])


def test_shards_of_whole_vectors_are_not_mixed_in(opened, tmp_path, capsys):
    encoded(opened(None), tmp_path)
    same(read(encoded(opened(SIZE), tmp_path)), cut(read(encoded(opened(None), tmp_path / "all"))))
    assert "it is of another checkpoint, contract or corpus" in capsys.readouterr().err


def test_exports_have_cut_vectors(name, folder):
    host = Partitioner(ONE_DEVICE, devices=jax.devices()[:1])
    made = restored_model.restore(functools.partial(MODELS[name], SIZE), folder, host)
    portable = saved_model.portable(made)
    assert portable.contract.token_vector_size == SIZE
    tokens = jax.ShapeDtypeStruct((3, LENGTH), np.int32)
    for function in portable.functions.values():
        found = jax.eval_shape(function, portable.arrays, tokens, tokens)
        assert found["multi_vector_vectors"].shape[2] == SIZE


@pytest.mark.parametrize("size", [0, -1, WHOLE + 1])
def test_sizes_that_no_vector_has_are_refused(name, size):
    message = rf"\.token_vector_size: expected 1 to {WHOLE} dimensions.*found {size}$"
    with pytest.raises(ValueError, match=message):
        MODELS[name](size, rngs=nnx.Rngs(0))


def test_the_whole_size_is_no_cut(name):
    found = MODELS[name](WHOLE, rngs=nnx.Rngs(0)).contract()
    assert found == MODELS[name](rngs=nnx.Rngs(0)).contract() and found.token_vector_size is None


def test_an_m3_without_vectors_of_tokens_has_none_to_cut():
    with pytest.raises(ValueError, match="expected 'multi_vector' in JointLossConfig.weights"):
        of_m3(SIZE, weights={"dense": 1.0}, rngs=nnx.Rngs(0))


def test_sizes_that_were_not_trained_are_refused(name, folder, opened, tmp_path):
    with pytest.raises(ContractError, match=re.escape("one of [4, 2], found 3. Train it with")):
        opened(3)
    assert opened(2).contract.token_vector_size == 2
    plain = written(tmp_path, None, (), name=name)
    assert "trained_token_vector_sizes" not in json.loads((tmp_path / "contract.json").read_text())
    host = Partitioner(ONE_DEVICE, devices=jax.devices()[:1])
    with pytest.raises(ContractError, match=re.escape(f"one of [], found {SIZE}")):
        restored_model.load(functools.partial(MODELS[name], SIZE), plain, host)


def test_a_cut_model_is_neither_trained_nor_written(tmp_path):
    message = f"initialised with all dimensions.*expected None here, found {SIZE}"
    with pytest.raises(ContractError, match=message):
        of_colbert(SIZE, SIZES, rngs=nnx.Rngs(0)).contract().require_trainable()
    with pytest.raises(ContractError, match=message):
        written(tmp_path, SIZE, SIZES)
    assert not list(tmp_path.iterdir())


def test_contracts_say_it_only_where_there_is_something_to_say(tmp_path):
    whole = of_colbert(rngs=nnx.Rngs(0)).contract()
    trained = of_colbert(None, SIZES, rngs=nnx.Rngs(0)).contract()
    short = trained.cut_to(SIZE, "a model")
    assert not [field for field in whole.facts() if "token_vector" in field]
    assert trained == whole and trained.of_texts() == whole.of_texts() == whole.facts()
    assert short != whole and short.of_texts() == whole.facts() | {"token_vector_size": SIZE}
    for one in (whole, trained, short):
        one.save(tmp_path)
        found = Contract.load(tmp_path)
        assert dataclasses.astuple(found) == dataclasses.astuple(one)
    (tmp_path / "contract.json").write_text(json.dumps(short.facts() | {"token_size": 4}))
    with pytest.raises(ContractError, match="expected the fields .*'token_size'"):
        Contract.load(tmp_path)


def test_weights_of_kinds_are_kept_for_the_size_that_was_evaluated(tmp_path):
    trained = of_m3(None, SIZES, rngs=nnx.Rngs(0)).contract()
    trained.save(tmp_path)
    weights = {"dense": 0.5, MULTI_VECTOR: 0.5}
    metrics = tmp_path / "metrics.json"
    for size, outcome in ((SIZE, None), (None, None), (3, "one of [4, 2], found 3")):
        evaluated = dataclasses.replace(trained, token_vector_size=size)
        facts = {
            "candidates_by": ["dense"], "candidates": 9, "kinds": [*weights], "weights": weights,
            "method": "weighted", "contract": evaluated.of_texts(),
        }  # fmt: skip
        metrics.write_text(json.dumps({"facts": {"all": facts}}))
        kept = tmp_path / f"{size}"
        kept.mkdir()
        if outcome:
            with pytest.raises(ContractError, match=re.escape(outcome)):
                hybrid_weights.keep(str(tmp_path), str(metrics), "all", str(kept))
            continue
        hybrid_weights.keep(str(tmp_path), str(metrics), "all", str(kept))
        found = evaluated.combined(kept, KINDS)
        assert found.combination == Combination(tuple(weights), weights, 9)
        with pytest.raises(ContractError, match="token_vector_size"):
            trained.cut_to(2, "a model").combined(kept, KINDS)
