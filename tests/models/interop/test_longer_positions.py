"""Published tables of positions with more rows: the rule, import, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from models.interop import hf_config, import_hf, longer_positions
from models.networks import text_embedding
from t5x_style.interfaces.contract import Vocabulary
from tests.kits.hf_folders import CONFIG, CONFIGS, official, random_arrays, write

TABLE = longer_positions.TABLE
MODERN = {"model_type": "modernbert", "max_position_embeddings": 24}


def by_rows(table: np.ndarray, rows: int) -> np.ndarray:
    """The rule, a row at a time."""
    share, count = 0.4, len(table)
    u = [(row - share * table[0]) / (1 - share) for row in table.astype(float)]
    return np.stack([share * u[i // count] + (1 - share) * u[i % count] for i in range(rows)])


@pytest.mark.parametrize(("count", "rows"), [(4, 4), (4, 5), (4, 16), (514, 8194)])
def test_longer_tables_are_those_of_the_rule(count: int, rows: int) -> None:
    table = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
    found = longer_positions.lengthened(table, rows)
    assert found.shape == (rows, 3) and found.dtype == np.float32
    np.testing.assert_array_equal(found[:count], table)
    np.testing.assert_allclose(found, by_rows(table, rows), atol=1e-5)


@pytest.mark.parametrize("rows", [3, 17])
def test_a_table_that_is_too_short_or_too_long_is_refused(rows: int) -> None:
    with pytest.raises(ValueError, match=f"4 positions can have 4 to 16 rows, found {rows}"):
        longer_positions.lengthened(np.zeros((4, 3), np.float32), rows)


@pytest.mark.parametrize("family", CONFIGS)
def test_weights_and_configuration_have_as_many_positions(tmp_path: Path, family: str) -> None:
    write(tmp_path, official(family), family)
    expected, positions = random_arrays(family), 100
    found = import_hf.HuggingFace(str(tmp_path), 50, positions=positions).arrays()
    config = hf_config.config_from_hf(str(tmp_path), "float32", "none", 1, positions=positions)
    rows = positions + CONFIGS[family].position_offset
    assert config.max_positions == positions and len(found[TABLE]) == rows
    np.testing.assert_allclose(found[TABLE], by_rows(expected[TABLE], rows), atol=1e-5)
    for path in found.keys() - {TABLE}:
        np.testing.assert_array_equal(found[path], expected[path], err_msg=path)


@pytest.mark.parametrize("positions", [CONFIG.max_positions - 1, CONFIG.max_positions**2 + 1])
def test_positions_that_the_table_cannot_have_are_refused(tmp_path: Path, positions: int) -> None:
    write(tmp_path, official())
    message = f"positions of .*expected 24 positions.*up to 576, found {positions}"
    with pytest.raises(ValueError, match=message):
        import_hf.HuggingFace.check_arguments(str(tmp_path), positions=positions)
    with pytest.raises(ValueError, match=message):
        hf_config.config_from_hf(str(tmp_path), "float32", "none", 1, positions=positions)


def test_an_encoder_without_a_table_of_positions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODERN))
    layout = hf_config.layout(MODERN, tmp_path)
    with pytest.raises(ValueError, match="expected an encoder with a table of positions"):
        longer_positions.require(layout, MODERN, 48, "positions")


def test_texts_longer_than_the_positions_are_refused(tmp_path: Path) -> None:
    write(tmp_path, official())
    config = hf_config.config_from_hf(str(tmp_path), "float32", "none", 1, positions=100)
    names = ("pad", "unk", "cls", "sep", "mask")
    special = {name: number for number, name in enumerate(names)}
    vocabulary = Vocabulary(size=50, special_ids=(0, 1, 2, 3, 4), fingerprint="made", **special)
    for length in (100, 101):
        embedding = text_embedding.EmbeddingConfig("cls", True, "dot", 1.0, 32, length, "", "")
        if length == 100:
            text_embedding.require_fit(config, embedding, vocabulary)
            continue
        with pytest.raises(ValueError, match="passage_length must be at most .*100, found 101"):
            text_embedding.require_fit(config, embedding, vocabulary)
