"""Heads of M3 from states of tokens: plain computations, packing, a mesh, and what is kept."""

import collections
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import jax
import numpy as np
import pytest
from flax import nnx

from models.losses.joint_losses import JointLossConfig
from models.objectives import m3, m3_heads
from t5x_style.distributed import partitioning
from t5x_style.interfaces.objective import Group, GroupShape
from t5x_style.interfaces.texts import EncodeSource
from t5x_style.step import train_state
from t5x_style.training import model_folder
from tests.kits import tiny_models

HIDDEN, TEMPERATURE, RIDGE, K1, B = 16, 0.25, 1.0, 0.9, 0.4
EMBEDDING = dataclasses.replace(tiny_models.EMBEDDING, normalise=True, temperature=TEMPERATURE)
TEXTS = tiny_models.segments(40, seed=3, longest=12)
HEADS = ("sparse/dense/kernel", "sparse/dense/bias", "multi_vector/dense/kernel")
KINDS = ("dense", "sparse", "multi_vector")


@dataclasses.dataclass(frozen=True)
class Groups:
    """A source of texts in rows of some texts each; the last rows may be free."""

    texts: Sequence[tiny_models.Segment]
    each: int = 1
    rows: int = 8

    def batches(self) -> Iterator[Group]:
        filled = [self.texts[n : n + self.each] for n in range(0, len(self.texts), self.each)]
        filled += [[]] * (-len(filled) % self.rows)
        for n in range(0, len(filled), self.rows):
            yield tiny_models.group(filled[n : n + self.rows], 12 * self.each, self.each)


def source(**settings: Any) -> EncodeSource:
    return cast(EncodeSource, Groups(**{"texts": TEXTS, **settings}))


def partitioner(devices: int = 1) -> partitioning.Partitioner:
    shape = partitioning.MeshShape(*((1, 1, 1) if devices == 1 else (2, 2, 2)))
    return partitioning.Partitioner(shape, devices=jax.devices()[:devices])


def model(where: partitioning.Partitioner, kinds: Sequence[str] = KINDS, size: int = 8) -> m3.M3:
    config = JointLossConfig(dict.fromkeys(kinds, 1.0), dict.fromkeys(kinds, 1.0))
    shape = GroupShape(8, 12, 1)

    def make(rngs: nnx.Rngs) -> m3.M3:
        return m3.M3(
            tiny_models.CONFIG, EMBEDDING, tiny_models.VOCABULARY, shape, shape, config,
            group_size=1, vector_size=size, rngs=rngs,
        )  # fmt: skip

    definition, state, _ = train_state.create(make, model_folder.UNTRAINED, where, 0)
    return cast(m3.M3, definition.module(state.params, state.variables))


def fitted(devices: int = 1, fresh: Sequence[str] = HEADS, **settings: Any) -> m3.M3:
    where = partitioner(devices)
    made = model(where, settings.pop("kinds", KINDS), settings.pop("size", 8))
    m3_heads.FromStates(source(**settings), K1, B, RIDGE)(made, fresh, where)
    return made


def states_and_wanted() -> tuple[np.ndarray, np.ndarray]:
    """[n, D] and [n] of all tokens that are not special, text by text."""
    made = model(partitioner())
    made.eval()
    words = [tokens[1:-1] for _, tokens in TEXTS]
    containing = collections.Counter(word for text in words for word in set(text))
    mean = sum(map(len, words)) / len(words)
    states, wanted = [], []
    for (number, tokens), text in zip(TEXTS, words, strict=True):
        group = tiny_models.group([[(number, tokens)]], 12, 1)
        hidden = made.encoder(group["tokens"], group["positions"], group["segment_ids"], None)
        states.append(np.asarray(hidden)[0, 1 : len(tokens) - 1])
        for word in text:
            inside, count = containing[word], text.count(word)
            idf = math.log(1 + (len(TEXTS) - inside + 0.5) / (inside + 0.5))
            saturated = count * (K1 + 1) / (count + K1 * (1 - B + B * len(text) / mean))
            wanted.append(math.sqrt(idf) * saturated)
    return np.concatenate(states).astype(np.float64), np.array(wanted)


def parameters(made: m3.M3) -> dict[str, np.ndarray]:
    return {
        "weights": np.asarray(made.sparse.dense.kernel.get_value()),
        "bias": np.asarray(made.sparse.dense.bias.get_value()),
        "projection": np.asarray(made.multi_vector.dense.kernel.get_value()),
    }


def test_weights_of_words_are_the_ridge_regression_of_bm25s_terms() -> None:
    states, wanted = states_and_wanted()
    # With rows of sqrt(ridge) under the states, plain least squares is the ridge regression.
    x = np.concatenate([states, np.ones((len(states), 1))], 1)
    penalty = math.sqrt(RIDGE) * np.eye(HIDDEN, HIDDEN + 1)
    expected, *_ = np.linalg.lstsq(
        np.concatenate([x, penalty]), np.concatenate([wanted, np.zeros(HIDDEN)]), rcond=None
    )
    found = parameters(fitted())
    expected *= math.sqrt(TEMPERATURE)
    np.testing.assert_allclose(found["weights"][:, 0], expected[:-1], atol=1e-4)
    np.testing.assert_allclose(found["bias"], expected[-1:], atol=1e-4)


def test_the_projection_keeps_what_no_other_of_its_size_does() -> None:
    states, _ = states_and_wanted()
    found = parameters(fitted())["projection"].astype(np.float64)
    np.testing.assert_allclose(found.T @ found, np.eye(8), atol=1e-5)
    kept = np.square(states @ found).sum() / np.square(states).sum()
    singular = np.linalg.svd(states, compute_uv=False)
    assert kept == pytest.approx(np.square(singular[:8]).sum() / np.square(singular).sum())


@pytest.mark.parametrize("how", [{"each": 3}, {"devices": 8}, {"each": 2, "rows": 16}])
def test_packing_and_a_mesh_change_nothing(how: dict[str, int]) -> None:
    expected, found = parameters(fitted()), parameters(fitted(**how))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-4, err_msg=name)


def test_the_share_explained_is_that_of_the_predictions(capsys: Any) -> None:
    states, wanted = states_and_wanted()
    found = parameters(fitted())
    predicted = (states @ found["weights"][:, 0] + found["bias"]) / math.sqrt(TEMPERATURE)
    share = 1 - np.square(predicted - wanted).sum() / np.square(wanted - wanted.mean()).sum()
    assert f"{len(TEXTS)} passages show {share:.0%} of the variance" in capsys.readouterr().out


def test_heads_of_a_source_of_weights_are_kept(capsys: Any) -> None:
    before = parameters(model(partitioner()))
    after = parameters(fitted(fresh=HEADS[:2]))
    np.testing.assert_array_equal(after["projection"], before["projection"])
    assert np.any(after["weights"] != before["weights"])
    kept = parameters(fitted(fresh=()))
    for name, values in before.items():
        np.testing.assert_array_equal(kept[name], values)
    assert "no head starts fresh" in capsys.readouterr().out


@pytest.mark.parametrize("kinds", [("dense", "multi_vector"), ("dense", "sparse"), ("dense",)])
def test_of_some_kinds_those_that_are_there_begin_alike(kinds: Sequence[str]) -> None:
    fresh = [path for path in HEADS if path.split("/")[0] in kinds]
    expected, found = fitted(), fitted(kinds=kinds, fresh=fresh)
    for kind in kinds[1:]:
        for name in ("kernel", "bias"):
            one, other = (
                getattr(getattr(made, kind).dense, name).get_value() for made in (expected, found)
            )
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_vectors_longer_than_a_state_have_zeros_at_their_end() -> None:
    found = parameters(fitted(size=20))["projection"]
    assert not found[:, HIDDEN:].any()
    np.testing.assert_allclose(np.linalg.norm(found[:, :HIDDEN], axis=0), 1.0, atol=1e-5)


def test_texts_of_special_tokens_alone_are_refused() -> None:
    with pytest.raises(ValueError, match="tokens that are not special, found none in 2 passages"):
        fitted(texts=[(0, [2, 3]), (1, [2, 1, 3])])


def test_rows_that_do_not_divide_by_the_mesh_are_refused() -> None:
    with pytest.raises(partitioning.PartitioningError, match="FromStates.source: 6 rows"):
        fitted(devices=8, rows=6)
