"""Whether what resembles a chunk most is a translation of it, and targets with given evidence."""

import types

import numpy as np
import pytest
import scipy.sparse

from input_pipelines.given_evidence import GivenEvidence
from input_pipelines.token_store import StoreError, TokenStore
from t5x_style.evaluation import evidence
from tests import chunk_stores


def _table(names, languages, documents=None):
    codes = sorted(set(languages))
    return types.SimpleNamespace(
        name=np.asarray(names),
        languages=tuple(codes),
        language=np.array([codes.index(one) for one in languages]),
        document=np.arange(len(names)) if documents is None else np.asarray(documents),
        number=np.zeros(len(names), int),
    )


def _random(seed, count=60, names=12):
    rng = np.random.default_rng(seed)
    table = _table(
        rng.integers(0, names, count),
        rng.choice(["de", "en", "ru"], count).tolist(),
        rng.integers(0, 40, count),
    )
    return rng.normal(size=(count, 6)), table


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("block", [7, 1024])
def test_what_is_found_is_that_of_plain_loops(seed, block, monkeypatch):
    monkeypatch.setattr(evidence, "BLOCK", block)
    vectors, table = _random(seed)
    found = evidence.find(vectors, table)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for one in range(len(unit)):
        others = [n for n in range(len(unit)) if table.document[n] != table.document[one]]
        abroad = [n for n in others if table.language[n] != table.language[one]]
        for allowed, right in ((others, found.anywhere), (abroad, found.elsewhere)):
            best = max(allowed, key=lambda n: unit[one] @ unit[n])
            assert right[one] == (table.name[best] == table.name[one])
        spoken = {table.language[n] for n in range(len(unit)) if table.name[n] == table.name[one]}
        assert found.asked[one] == (len(spoken) > 1)


def test_sparse_vectors_are_compared_as_dense_ones():
    vectors, table = _random(0)
    one, other = (evidence.find(v, table) for v in (vectors, scipy.sparse.csr_matrix(vectors)))
    np.testing.assert_array_equal(one.anywhere, other.anywhere)
    np.testing.assert_array_equal(one.elsewhere, other.elsewhere)


def test_means_are_over_those_that_are_asked():
    found = evidence.Found(
        np.array([True, True, False]), np.array([True, False, True]), np.array([True] * 3)
    )
    assert found.means(np.ones(3, bool)) == {"accuracy_other_language": 1.0, "accuracy": 0.5}
    assert found.means(np.array([True, False, True]))["accuracy"] == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_chance_is_what_guesses_find(seed):
    _, table = _random(seed)
    shares = []
    for one in range(len(table.name)):
        abroad = table.language != table.language[one]
        right = abroad & (table.name == table.name[one])
        if right.any():
            shares.append(right.sum() / abroad.sum())
    assert evidence.by_chance(table) == pytest.approx(np.mean(shares))


def test_nothing_to_ask_is_refused():
    with pytest.raises(ValueError, match="found none among 3 chunks"):
        evidence.find(np.eye(3), _table([0, 1, 2], ["de", "en", "ru"]))


NAMES = 6
WORDS = {"de": "eins zwei drei vier fünf sechs", "en": "one two three four five six"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("given")
    told = {
        f"{code}/news/{n}": f"N{n} " + " ".join([words] * (1 + n % 3))
        for n in range(NAMES)
        for code, words in WORDS.items()
    }
    tokenizer = chunk_stores.make_tokenizer(folder / "t", told, WORDS)
    return chunk_stores.make_store(folder / "s", told, tokenizer), tokenizer


def _given(made, kind, **changes):
    store, tokenizer = made
    sizes = {"rows": 4, "length": 32, "segments": 2, "seed": 0} | changes
    return GivenEvidence(store, kind=kind, tokenizer=tokenizer, **sizes)


def test_the_same_targets_whatever_the_evidence(made):
    ids = np.array([*TokenStore.open(made[0]).ids, ""])
    kinds = {kind: _given(made, kind) for kind in ("true", "random", "none")}
    for step in range(kinds["true"].batches_in_all):
        batches = {kind: pipeline.batch(step) for kind, pipeline in kinds.items()}
        for kind, batch in batches.items():
            for name, array in batch["target"].items():
                np.testing.assert_array_equal(array, batches["true"]["target"][name], err_msg=kind)
        targets = ids[batches["true"]["target"]["example_id"][:, 0]]
        true, random = (ids[batches[k]["evidence"]["example_id"][:, 0]] for k in ("true", "random"))
        for target, translated, other in zip(targets, true, random, strict=True):
            assert target[:2] != translated[:2] == other[:2]
            assert target[2:] == translated[2:], "the same part of the same document"
            assert other.split("#")[0][2:] != target.split("#")[0][2:]
        assert (batches["none"]["evidence"]["segment_ids"] > 0).sum(1).tolist() == [2] * 4


def test_given_evidence_that_cannot_be_is_refused(made, tmp_path):
    with pytest.raises(ValueError, match=r"expected one of \('true', 'random', 'none'\)"):
        _given(made, "false")
    with pytest.raises(StoreError, match="expected 90 chunks that stand in another language"):
        _given(made, "true", rows=90)
    alone = {f"de/news/{n}": f"eins zwei {n}" for n in range(5)}
    store = chunk_stores.make_store(tmp_path, alone, made[1])
    with pytest.raises(StoreError, match="found 0"):
        _given((store, made[1]), "true")
