"""Whether what resembles a chunk most is a translation of it, and targets with given evidence."""

import types

import numpy as np
import pytest
import scipy.sparse

from input_pipelines.marge.oracle_evidence import GivenEvidence
from input_pipelines.store.token_store import StoreError, TokenStore
from t5x_style.multilingual import cross_lingual_neighbours
from tests.kits import chunk_stores


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
    monkeypatch.setattr(cross_lingual_neighbours, "BLOCK", block)
    vectors, table = _random(seed)
    found = cross_lingual_neighbours.find(vectors, table)
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
    one, other = (
        cross_lingual_neighbours.find(v, table) for v in (vectors, scipy.sparse.csr_matrix(vectors))
    )
    np.testing.assert_array_equal(one.anywhere, other.anywhere)
    np.testing.assert_array_equal(one.elsewhere, other.elsewhere)


def test_means_are_over_those_that_are_asked():
    found = cross_lingual_neighbours.Found(
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
    assert cross_lingual_neighbours.by_chance(table) == pytest.approx(np.mean(shares))


def test_nothing_to_ask_is_refused():
    with pytest.raises(ValueError, match="found none among 3 chunks"):
        cross_lingual_neighbours.find(np.eye(3), _table([0, 1, 2], ["de", "en", "ru"]))


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
    sizes = {"rows": 2, "length": 32, "segments": 3, "seed": 0, "max_targets": 1000} | changes
    return GivenEvidence(store, kind=kind, tokenizer=tokenizer, **sizes)


def test_the_same_targets_whatever_the_evidence(made):
    ids = np.array([*TokenStore.open(made[0]).ids, ""])
    kinds = {kind: _given(made, kind) for kind in ("true", "random", "none")}
    for step in range(kinds["true"].batches_in_all):
        batches = {kind: pipeline.batch(step) for kind, pipeline in kinds.items()}
        for kind, batch in batches.items():
            for name, array in batch["target"].items():
                np.testing.assert_array_equal(array, batches["true"]["target"][name], err_msg=kind)
        filled = batches["true"]["target"]["segment_valid"]
        assert (filled == [True, True, False]).all(), "two chunks of 16 tokens fit a row"
        targets = ids[batches["true"]["target"]["example_id"][filled]]
        for batch in batches.values():
            np.testing.assert_array_equal(batch["evidence"]["sub_batch"], [[0, 1, -1]] * 2)
        true, random = (
            ids[batches[kind]["evidence"]["example_id"][filled]] for kind in ("true", "random")
        )
        for target, translated, other in zip(targets, true, random, strict=True):
            assert target[:2] != translated[:2] == other[:2]
            assert target[2:] == translated[2:], "the same part of the same document"
            assert other.split("#")[0][2:] != target.split("#")[0][2:]
        assert (batches["none"]["evidence"]["segment_ids"] > 0).sum(1).tolist() == [4] * 2


def test_evidence_that_cannot_be_anothers_is_left_out_of_every_kind(tmp_path):
    told = {f"{code}/news/{n}": f"{words} {n}" for n in range(3) for code, words in WORDS.items()}
    told["ru/news/0"] = "один два"  # nothing else is in Russian
    tokenizer = chunk_stores.make_tokenizer(tmp_path / "t", told, [*WORDS, "ru"])
    made = chunk_stores.make_store(tmp_path / "s", told, tokenizer), tokenizer
    ids = TokenStore.open(made[0]).ids
    targets = set()
    for seed in range(6):
        sizes = {"rows": 1, "length": 16, "segments": 1, "seed": seed}
        kinds = [_given(made, kind, **sizes) for kind in ("true", "random", "none")]
        assert len({kind.batches_in_all for kind in kinds}) == 1
        for step in range(kinds[0].batches_in_all):
            batches = [kind.batch(step) for kind in kinds]
            of_step = {ids[batch["target"]["example_id"][0, 0]] for batch in batches}
            assert len(of_step) == 1
            targets |= of_step
            for batch in batches:
                assert not ids[batch["evidence"]["example_id"][0, 0]].startswith("ru")
    assert any(name.startswith("ru") for name in targets)


def test_given_evidence_that_cannot_be_is_refused(made, tmp_path):
    with pytest.raises(ValueError, match=r"expected one of \('true', 'random', 'none'\)"):
        _given(made, "false")
    with pytest.raises(StoreError, match="expected 180 chunks for a batch that exist in another"):
        _given(made, "true", rows=90)
    with pytest.raises(
        ValueError, match="max_targets: expected 4 or more, the targets of a batch of 2"
    ):
        _given(made, "true", max_targets=3)
    with pytest.raises(ValueError, match="rows for chunks of up to 16 tokens, found length 12"):
        _given(made, "true", length=12)
    alone = {f"de/news/{n}": f"eins zwei {n}" for n in range(5)}
    store = chunk_stores.make_store(tmp_path, alone, made[1])
    with pytest.raises(StoreError, match="found 0"):
        _given((store, made[1]), "true")
