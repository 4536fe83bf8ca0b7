"""A checkpoint as the trainer writes it, loaded for use: the same vectors, or a refusal."""

import dataclasses
import shutil

import numpy as np
import pytest
from flax import nnx

from models.losses.contrastive import ContrastiveConfig
from models.networks.bert import BertConfig
from models.networks.text_embedding import EmbeddingConfig
from models.objectives.bi_encoder import BiEncoder
from t5x_style.checkpoints import checkpointing, restored_model
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.encode_corpus import encode_corpus
from t5x_style.interfaces.contract import Contract, ContractError, Vocabulary
from t5x_style.interfaces.objective import GroupShape, embedder
from t5x_style.interfaces.representation import RepresentationError
from t5x_style.retrieval import embedding_shards, encoding
from t5x_style.step import jitted_functions, optimizers, train_state
from tests.kits import retrieval_helpers as helpers

IDS = [f"p{i}" for i in range(21)]
VOCABULARY = Vocabulary(100, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), "fingerprint")
SHAPE = GroupShape(rows=8, length=2, segments=2)
STORAGE = embedding_shards.Storage(shard_size=8, dtype="float32")
MESHES = [pytest.param(MeshShape(8, 1, 1), marks=pytest.mark.slow), MeshShape(2, 2, 2)]


def make_objective(hidden: int = 16, pooling: str = "cls", normalise: bool = True):
    config = BertConfig(
        vocab_size=100, hidden=hidden, layers=1, heads=2, mlp=32, max_positions=8, vocab_multiple=1
    )
    embedding = EmbeddingConfig(pooling, normalise, "cosine", 0.05, 8, 8, "", "")

    def objective(*, rngs: nnx.Rngs) -> BiEncoder:
        return BiEncoder(
            config=config,
            embedding_config=embedding,
            vocabulary=VOCABULARY,
            query=SHAPE,
            passage=SHAPE,
            contrastive_config=ContrastiveConfig(),
            rngs=rngs,
        )

    return objective


@pytest.fixture(scope="module")
def stage_folder(tmp_path_factory):
    """What a training stage leaves, and the embeddings of the objective that was saved."""
    folder = tmp_path_factory.mktemp("train")
    partitioner = Partitioner(MeshShape(8, 1, 1))
    optimizer = optimizers.AdamW(learning_rate=1e-3, warmup_steps=1, total_steps=2)
    definition, state, _ = train_state.create(make_objective(), optimizer, partitioner, 3)
    checkpointer = checkpointing.Checkpointer(
        folder / "checkpoints", checkpointing.Checkpointing(keep=1)
    )
    checkpointer.save(state, {})
    checkpointer.close()
    module = definition.module(state.params, state.variables)
    module.contract().save(folder)
    jitted = jitted_functions.jitted_functions(definition.graphdef, module.functions())
    functions = jitted_functions.bound(jitted, state.params, state.variables)
    return folder, encoding.encode(embedder(functions, "passage"), helpers.Source(IDS))


@pytest.mark.parametrize("mesh", MESHES)
def test_encodes_as_the_objective_that_was_saved(stage_folder, tmp_path, mesh):
    folder, expected = stage_folder
    model = restored_model.load(make_objective(), str(folder), Partitioner(mesh))
    assert restored_model.fingerprint(str(folder)) == model.fingerprint
    outputs = encode_corpus(model, helpers.Source(IDS), "embed_passage", STORAGE, str(tmp_path))
    assert outputs == {"embeddings": "."}
    stored = encoding.load_embeddings(tmp_path)
    np.testing.assert_allclose(stored.passages[:], expected, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(stored.passages[:], axis=1), 1, atol=1e-5)
    assert stored.ids == IDS and stored.contract == Contract.load(folder)


@pytest.mark.parametrize("mesh", MESHES)
def test_an_untrained_model_is_the_same_on_every_mesh_and_for_every_seed_another(mesh):
    encoded = []
    for seed in (0, 1):
        model = restored_model.untrained(make_objective(), Partitioner(mesh), seed)
        assert model.contract == make_objective()(rngs=nnx.Rngs(0)).contract()
        assert model.fingerprint == f"untrained, seed {seed}"
        encoded.append(model.encode("passage", helpers.Source(IDS)))
    module = make_objective()(rngs=nnx.Rngs(0))
    graph, *states = nnx.split(module, nnx.Param, ...)
    jitted = jitted_functions.jitted_functions(graph, module.functions())
    functions = jitted_functions.bound(jitted, *states)
    expected = encoding.encode(embedder(functions, "passage"), helpers.Source(IDS))
    np.testing.assert_allclose(encoded[0], expected, atol=1e-5)
    assert np.abs(encoded[1] - encoded[0]).max() > 0.1


def test_another_objective_is_refused(stage_folder):
    folder, _ = stage_folder
    with pytest.raises(ContractError, match="pooling: expected 'mean', found 'cls'"):
        restored_model.load(make_objective(pooling="mean"), str(folder), Partitioner())
    with pytest.raises(ContractError, match="dimension: expected 32, found 16"):
        restored_model.load(make_objective(hidden=32), str(folder), Partitioner())


def test_several_cls_may_be_pooled_of_a_model_that_was_trained_with_one(stage_folder):
    folder, expected = stage_folder
    model = restored_model.load(make_objective(pooling="mcls"), str(folder), Partitioner())
    assert model.contract.pooling == "mcls"
    source = helpers.Source(IDS)
    source.cls_every = 256  # no text is as long: each still has one [CLS]
    np.testing.assert_allclose(model.encode("passage", source), expected, atol=1e-5)
    with pytest.raises(ContractError, match="for embed_passage: expected several"):
        model.encode("passage", helpers.Source(IDS))


def test_vectors_that_are_compared_by_cosine_may_get_unit_length(stage_folder, tmp_path):
    folder, expected = stage_folder
    with pytest.raises(ContractError, match="normalise: expected False, found True"):
        restored_model.load(make_objective(normalise=False), str(folder), Partitioner())
    shutil.copytree(folder, tmp_path / "trained")
    dataclasses.replace(Contract.load(folder), normalise=False).save(tmp_path / "trained")
    model = restored_model.load(make_objective(), str(tmp_path / "trained"), Partitioner())
    assert model.contract.normalise
    np.testing.assert_allclose(model.encode("passage", helpers.Source(IDS)), expected, atol=1e-5)
    other = dataclasses.replace(Contract.load(folder), normalise=False, similarity="dot")
    other.save(tmp_path / "trained")
    with pytest.raises(ContractError, match="True, found False\n  similarity: expected 'cosine'"):
        restored_model.load(make_objective(), str(tmp_path / "trained"), Partitioner())


def test_a_folder_without_a_model_is_refused(stage_folder, tmp_path):
    with pytest.raises(checkpointing.CheckpointError, match=r"no checkpoint of step 7; .*\[0\]"):
        restored_model.load(make_objective(), str(stage_folder[0]), Partitioner(), step=7)
    with pytest.raises(FileNotFoundError, match="nowhere: not found"):
        restored_model.load(make_objective(), str(tmp_path / "nowhere"), Partitioner())
    with pytest.raises(FileNotFoundError, match=r"contract\.json"):
        restored_model.load(make_objective(), str(tmp_path), Partitioner())


def test_texts_of_another_tokenizer_and_unknown_functions_are_refused(stage_folder):
    model = restored_model.load(make_objective(), str(stage_folder[0]), Partitioner())
    source = helpers.Source(IDS)
    source.tokenizer_fingerprint = "another"
    with pytest.raises(ContractError, match="tokenizer_fingerprint"):
        model.encode("passage", source)
    source = helpers.Source(IDS)
    offers = r"offers \['embed_passage', 'embed_query'\]; .* a 'score' as \['dense'\], found .*"
    with pytest.raises(RepresentationError, match=offers + r"a query as \['dense'\]"):
        model.encode("score", source)
    other = offers.replace("score", "query").replace("dense", "sparse")
    with pytest.raises(RepresentationError, match=other + r"a passage as \['dense'\]"):
        next(model.represent_parts("query", source, [(0, 2)], ["sparse"]))
    without = dataclasses.replace(model, functions={})
    with pytest.raises(ValueError, match=r"offers \[\]"):
        without.encode("query", source)
