"""Which texts of a shard resemble each other most: by all pairs, in tiles, on meshes."""

import jax
import numpy as np
import pytest

from t5x_style.distributed import partitioning
from t5x_style.model_dependent_data import neighbours
from t5x_style.model_dependent_data.neighbours import NONE, TextMetadata

MESHES = [(1, 1, 1), (8, 1, 1), (2, 2, 2)]


def _mesh(shape=(1, 1, 1)):
    devices = jax.devices()[: int(np.prod(shape))]
    return partitioning.Partitioner(partitioning.MeshShape(*shape), devices=devices)


def _texts(count, seed=0, shards=3, documents=None, languages=3):
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, 8)).astype(np.float32)
    facts = TextMetadata(
        rng.integers(0, shards, count),
        rng.integers(0, documents or count, count),
        rng.integers(0, languages, count),
    )
    return vectors, facts


def _by_hand(vectors, facts, same, other):
    """Each text's neighbours in plain loops."""
    unit = vectors.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    found = np.full((len(unit), same + other), NONE)
    for one in range(len(unit)):
        for begin, count, alike in ((0, same, True), (same, other, False)):
            possible = [
                n
                for n in range(len(unit))
                if facts.shard[n] == facts.shard[one]
                and facts.document[n] != facts.document[one]
                and (facts.language[n] == facts.language[one]) == alike
            ]
            best = sorted(possible, key=lambda n: -unit[one] @ unit[n])[:count]
            found[one, begin : begin + len(best)] = best
    return found


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize(("count", "tile"), [(60, 16), (300, 64)])  # above a shard's padding, too
def test_they_are_those_of_plain_loops_on_every_mesh(mesh, count, tile):
    vectors, facts = _texts(count, shards=2 if count < 100 else 1, documents=count // 2)
    found = neighbours.within_shards(vectors, facts, 3, 2, _mesh(mesh), tile)
    np.testing.assert_array_equal(found.rows, _by_hand(vectors, facts, 3, 2))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    known = found.rows != NONE
    cosines = np.einsum("nd,nkd->nk", unit, unit[np.where(known, found.rows, 0)])
    np.testing.assert_allclose(found.similarity[known], cosines[known], atol=1e-6)
    assert (found.similarity[~known] == -np.inf).all()


def test_the_length_of_a_vector_does_not_matter():
    vectors, facts = _texts(40)
    longer = vectors * np.linspace(0.1, 9, 40, dtype=np.float32)[:, None]
    one, other = (neighbours.within_shards(v, facts, 2, 2, _mesh(), 8) for v in (vectors, longer))
    np.testing.assert_array_equal(one.rows, other.rows)


@pytest.mark.parametrize("seed", range(5))
def test_a_document_is_never_its_own_neighbour_nor_one_of_another_shard(seed):
    vectors, facts = _texts(50, seed, shards=4, documents=6)
    rows = neighbours.within_shards(vectors, facts, 4, 4, _mesh(), 16).rows
    of, at = np.nonzero(rows != NONE)
    found = rows[of, at]
    assert len(found)
    assert (facts.document[of] != facts.document[found]).all()
    assert (facts.shard[of] == facts.shard[found]).all()
    same = facts.language[of] == facts.language[found]
    np.testing.assert_array_equal(same, at < 4)


def test_a_shard_with_one_document_has_no_neighbours():
    vectors, facts = _texts(5, shards=1)
    one = facts._replace(document=np.zeros(5, int))
    found = neighbours.within_shards(vectors, one, 2, 2, _mesh(), 8)
    assert (found.rows == NONE).all()
    alone = facts._replace(shard=np.arange(5))
    assert (neighbours.within_shards(vectors, alone, 2, 2, _mesh(), 8).rows == NONE).all()


def test_in_a_shard_of_identical_texts_the_first_are_taken():
    _, facts = _texts(6, shards=1, languages=1)
    same = facts._replace(document=np.arange(6))
    found = neighbours.within_shards(np.ones((6, 4), np.float32), same, 2, 0, _mesh(), 8)
    np.testing.assert_array_equal(found.rows[:3], [[1, 2], [0, 2], [0, 1]])
    np.testing.assert_allclose(found.similarity, 1.0, atol=1e-6)


def test_copies_take_no_places():
    vectors, facts = _texts(60, shards=1)
    vectors[:20] = vectors[0] + np.random.default_rng(1).normal(size=(20, 8)) * 1e-3
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    found = neighbours.within_shards(vectors, facts, 3, 2, _mesh(), 8, near_duplicate=0.99)
    of, at = np.nonzero(found.rows != NONE)
    other = found.rows[of, at]
    same = facts.language[of] == facts.language[other]
    cosines = (unit[of] * unit[other]).sum(1)
    assert cosines[same].max() <= 0.99 < cosines[~same].max(), "between languages copies are wanted"
    assert (found.rows[:, :3] != NONE).all(), "others are in their places"
    with_copies = neighbours.within_shards(vectors, facts, 3, 2, _mesh(), 8)
    far = ~np.isin(np.arange(60), np.arange(20))
    np.testing.assert_array_equal(found.rows[far], with_copies.rows[far])


def test_one_kind_of_neighbour_alone():
    vectors, facts = _texts(30)
    both = neighbours.within_shards(vectors, facts, 2, 3, _mesh(), 8)
    same = neighbours.within_shards(vectors, facts, 2, 0, _mesh(), 8)
    other = neighbours.within_shards(vectors, facts, 0, 3, _mesh(), 8)
    np.testing.assert_array_equal(both.rows, np.concatenate([same.rows, other.rows], axis=1))


@pytest.mark.parametrize(
    ("change", "counts", "message"),
    [
        (0.0, (1, 1), "finite and not 0, found that of text 7 with length 0.0"),
        (np.nan, (1, 1), "finite and not 0, found that of text 7 with length nan"),
        (1.0, (0, 0), "one of them above, found 0 of the same language and 0"),
        (1.0, (-1, 2), "found -1 of the same language and 2"),
    ],
)
def test_what_cannot_be_compared_is_refused(change, counts, message):
    vectors, facts = _texts(10)
    vectors[7] *= change
    with pytest.raises(ValueError, match=message):
        neighbours.within_shards(vectors, facts, *counts, _mesh(), 8)


def test_a_tile_divides_by_the_mesh():
    vectors, facts = _texts(10)
    with pytest.raises(partitioning.PartitioningError, match="tile"):
        neighbours.within_shards(vectors, facts, 1, 1, _mesh((8, 1, 1)), 12)
