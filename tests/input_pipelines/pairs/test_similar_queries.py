"""Queries whose answers are hard negatives of each other meet in a batch."""

import numpy as np
import pytest

from input_pipelines.batches import packing_plan
from input_pipelines.batches.negatives import Pairs
from input_pipelines.pairs import pair_sampler, similar_queries

TOPICS, EACH = 12, 10  # passage n is of topic n // EACH, and answers query n


def topical(answers: int = 1) -> Pairs:
    """Each query's negatives are the other passages of its topic, in an order of chance."""
    random, count = np.random.default_rng(3), TOPICS * EACH
    rows = np.arange(count)
    others = [random.permutation(np.setdiff1d(rows[rows // EACH == n // EACH], [n])) for n in rows]
    positives = np.stack([rows, *[np.full(count, -1)] * (answers - 1)], axis=1)
    return Pairs(rows, positives, np.stack(others))


def choice(pairs: Pairs, batch: int, **changes) -> pair_sampler.PairChoice:
    lengths = np.random.default_rng(5).integers(5, 50, TOPICS * EACH)
    sizes = {"group_size": 1, "seed": 7} | changes
    return pair_sampler.PairChoice(pairs, np.zeros(0), lengths, batch=batch, **sizes)


@pytest.mark.parametrize("group_size", [1, 3])
def test_an_epoch_shows_each_query_once_next_to_those_of_its_topic(group_size):
    found = choice(topical(), 20, similar=5, group_size=group_size)
    for epoch in range(3):
        steps = [found.choose(epoch * 6 + n) for n in range(6)]
        picked = np.stack([picked for picked, _ in steps])
        assert sorted(picked.reshape(-1)) == list(range(TOPICS * EACH))
        topics = picked.reshape(-1, 5) // EACH
        assert (topics == topics[:, :1]).all()
        assert all((documents[:, 0] == picked).all() for picked, documents in steps)
    first = np.stack([found.choose(number)[0] for number in range(6)])
    assert (picked != first).any()  # epochs differ
    again = choice(topical(), 20, similar=5, group_size=group_size)
    for number in (17, 2):  # in any order, after a restart
        for one, other in zip(found.choose(number), again.choose(number), strict=True):
            np.testing.assert_array_equal(one, other)


def test_steps_hold_nearly_as_many_tokens():
    found = choice(topical(), 20, similar=5)
    lengths = found._passage_lengths
    sums = [lengths[found.choose(step)[0]].sum() for step in range(120)]
    random = np.random.default_rng(1)
    by_chance = [lengths[random.choice(TOPICS * EACH, 20)].sum() for _ in range(120)]
    assert np.std(sums) < 0.6 * np.std(by_chance)


@pytest.mark.parametrize(("asked", "taken"), [(1, 1), (8, 6), (12, 12), (100, 12)])
def test_groups_divide_the_batch(asked, taken):
    picked, _ = choice(topical(), 12, similar=asked).choose(0)
    if taken == 6:
        topics = picked.reshape(-1, taken) // EACH
        assert (topics == topics[:, :1]).all()
    assert choice(topical(), 12, similar=asked)._similar == taken


def test_one_is_the_order_of_chance():
    one, other = choice(topical(), 20, similar=1), choice(topical(), 20)
    for step in range(8):
        np.testing.assert_array_equal(one.choose(step)[0], other.choose(step)[0])


def test_queries_with_one_answer_are_apart_and_the_rest_is_not_lost():
    order = np.random.default_rng(0).permutation(24)
    positives = np.arange(24) // 2  # two queries ask for each passage
    negatives = np.stack([np.setdiff1d(np.arange(12), [n // 2]) for n in range(24)])
    negatives[20:] = -1  # these ask for no one; others ask for them
    groups = similar_queries.grouped(order, positives, negatives, 4)
    assert sorted(groups.reshape(-1)) == list(range(24))
    assert (
        sum(len(set(positives[group])) == 4 for group in groups) >= 4
    )  # the last are what is left


def test_what_fills_no_group_waits_for_another_epoch():
    order = packing_plan.permutation(1, 0, 0, 10)
    negatives = np.full((10, 3), -1)
    groups = similar_queries.grouped(order, np.arange(10), negatives, 4)
    np.testing.assert_array_equal(groups.reshape(-1), order[:8])
