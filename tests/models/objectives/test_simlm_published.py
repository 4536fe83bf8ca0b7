"""SimLM and the re-ranker begin as published models, through the gin files that are shipped."""

import copy
import dataclasses
import functools
from pathlib import Path

import gin
import numpy as np
import pytest

from models.objectives import cross_encoder, simlm
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import GroupShape
from t5x_style.step import optimizers, train_state
from t5x_style.training import warm_start
from tests.kits import hf_folders, shipped_gin, tiny_models
from tests.parity import parity_kit

REPOSITORY = Path(__file__).resolve().parents[3]
TEXT = GroupShape(rows=8, length=16, segments=1)
OF_OTHERS = ("c_head.", "project.", "project_norm.")  # RetroMAE's decoder, REALM's projection


def without(tensors, *beginnings):
    return {name: array for name, array in tensors.items() if not name.startswith(beginnings)}


@pytest.fixture
def published(tmp_path):
    """A BERT with its MLM head and a generator of ELECTRA's layout."""
    folders = {}
    for family in ("bert", "electra"):
        folder = tmp_path / family
        folder.mkdir()
        tensors = without(hf_folders.official(family), *OF_OTHERS)
        hf_folders.write(folder, tensors, family)
        folders[family] = folder
    return folders


def initialisers(file, **macros):
    """What `train.train.initialise_from` is in a gin file."""
    with shipped_gin.parsed(file, **macros):
        return copy.deepcopy(gin.query_parameter("t5x_style.train.train.initialise_from"))


def begun(make, found):
    optimizer, partitioner = optimizers.AdamW(1e-3, 1, 2), partitioning.Partitioner()
    definition, state, shardings = train_state.create(make, optimizer, partitioner, 0)
    state = warm_start.apply(state, found, shardings)
    return parity_kit.parameters(definition.module(state.params, state.variables))


def test_simlm_takes_all_its_parts_from_published_folders(published):
    found = initialisers(
        "runs/initialise/simlm_published.gin",
        PUBLISHED=str(published["bert"]),
        PUBLISHED_GENERATOR=str(published["electra"]),
        **{"import_hf.HuggingFace.vocab_size": tiny_models.CONFIG.vocab_size},
    )
    make = functools.partial(
        simlm.SimLM,
        *(tiny_models.CONFIG, tiny_models.EMBEDDING, tiny_models.VOCABULARY, TEXT, 0.3, 0.5, 16),
        hf_folders.CONFIGS["electra"],
    )
    parameters = begun(make, found)
    bert, electra = (hf_folders.random_arrays(family) for family in ("bert", "electra"))
    size = tiny_models.CONFIG.vocab_size
    taken = 0
    for path, array in parameters.items():
        source = {"encoder": bert, "head": bert, "decoder": bert, "generator": electra}
        part, rest = path.split("/", 1)
        own = {"decoder": f"encoder/layers/{rest}", "generator": rest}.get(part, path)
        expected = source[part][own]
        if array.shape != expected.shape:  # a table padded for the mesh
            array = array[:size]
        np.testing.assert_array_equal(array, expected, err_msg=path)
        taken += 1
    assert taken == len(parameters) > 50


def test_a_reranker_takes_over_an_encoder_and_starts_its_head_fresh(published, capsys):
    found = initialisers(
        "runs/initialise/published.gin",
        PUBLISHED=str(published["bert"]),
        **{"import_hf.HuggingFace.vocab_size": tiny_models.CONFIG.vocab_size},
    )
    make = functools.partial(
        cross_encoder.CrossEncoder,
        dataclasses.replace(tiny_models.CONFIG, dropout=0.1),
        tiny_models.VOCABULARY,
        TEXT,
        *(8, 9, 2, 4, 4),
    )
    parameters = begun(make, found)
    expected = hf_folders.random_arrays("bert")["encoder/layers/mlp/wi/kernel"]
    np.testing.assert_array_equal(parameters["encoder/layers/mlp/wi/kernel"], expected)
    assert "so fresh: classifier (2 parameters), pooler" in capsys.readouterr().out
    assert np.asarray(parameters["classifier/kernel"]).any()
