"""Intervals and paired tests over queries and over groups of queries."""

import math

import numpy as np
import pytest

from t5x_style.evaluation import ranking, significance


def test_intervals_cover_the_mean_and_repeat():
    values = np.random.default_rng(0).random(200)
    low, high = significance.bootstrap_interval(values, 2_000, seed=1)
    assert (low, high) == significance.bootstrap_interval(values, 2_000, seed=1)
    assert (low, high) != significance.bootstrap_interval(values, 2_000, seed=2)
    half = 1.96 * values.std() / math.sqrt(len(values))  # the normal approximation
    assert low == pytest.approx(values.mean() - half, abs=0.005)
    assert high == pytest.approx(values.mean() + half, abs=0.005)
    assert significance.bootstrap_interval(np.ones(3), 10, 0) == (1.0, 1.0)


def test_p_values_of_the_exact_test():
    # Five equal differences: 2 of the 32 sign patterns are as extreme, p = 1/16.
    assert significance.randomisation_p_value(np.ones(5), 20_000, 0) == pytest.approx(
        1 / 16, abs=0.01
    )
    assert significance.randomisation_p_value(np.zeros(5), 1_000, 0) == 1.0
    assert significance.randomisation_p_value(np.ones(100), 1_000, 0) == pytest.approx(1 / 1_001)


@pytest.mark.parametrize(
    "values,samples", [(np.zeros(0), 10), (np.zeros((2, 2)), 10), (np.ones(3), 0)]
)
def test_statistics_of_nothing_are_refused(values, samples):
    for statistic in (significance.bootstrap_interval, significance.randomisation_p_value):
        with pytest.raises(ValueError, match="at least one"):
            statistic(values, samples, 0)


def test_groups_of_one_query_are_queries():
    values = np.random.default_rng(0).random(50)
    alone = np.random.default_rng(1).permutation(50)
    for statistic in (significance.bootstrap_interval, significance.randomisation_p_value):
        plain = statistic(np.sort(values), 500, 3)
        grouped = statistic(np.sort(values), 500, 3, groups=np.arange(50))
        assert plain == pytest.approx(grouped, abs=1e-12)
        assert np.all(np.isfinite(statistic(values, 500, 3, groups=alone)))


def test_the_interval_over_groups_is_that_of_a_ratio_of_sums():
    """Against the delta method of a ratio estimator, for groups of unequal sizes."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 12, 300)
    groups = np.repeat(np.arange(300), sizes)
    values = generator.random(300)[groups] + 0.1 * generator.random(len(groups))
    low, high = significance.bootstrap_interval(values, 4_000, 1, groups=groups)
    mean = values.mean()
    residuals = np.bincount(groups, values - mean)
    half = 1.96 * math.sqrt((residuals**2).sum()) / len(values)
    assert low == pytest.approx(mean - half, abs=0.004)
    assert high == pytest.approx(mean + half, abs=0.004)
    alone = significance.bootstrap_interval(values, 4_000, 1)
    assert high - low > 2 * (alone[1] - alone[0])  # values of a group are alike


def test_names_of_groups_do_not_matter():
    values = np.random.default_rng(0).random(6)
    one, other = np.array([0, 0, 1, 1, 2, 2]), np.array([5, 5, 7, 7, 9, 9])
    for statistic in (significance.bootstrap_interval, significance.randomisation_p_value):
        found = statistic(values, 200, 0, groups=one)
        assert found == statistic(values, 200, 0, groups=other)


def test_the_test_flips_the_signs_of_whole_groups():
    """Ten queries in five groups of equal differences: 2 of 32 patterns are as extreme."""
    groups = np.repeat(np.arange(5), 2)
    p_value = significance.randomisation_p_value(np.ones(10), 20_000, 0, groups)
    assert p_value == pytest.approx(1 / 16, abs=0.01)


@pytest.mark.parametrize(
    "groups,message",
    [
        (np.zeros(4, np.int64), "expected at least 2, found 1 with all 4 queries"),
        (np.zeros(3, np.int64), r"expected one integer for each of 4 queries, found int64\[3\]"),
        (np.zeros(4), r"found float64\[4\]"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups, message):
    for statistic in (significance.bootstrap_interval, significance.randomisation_p_value):
        with pytest.raises(ValueError, match=message):
            statistic(np.arange(4.0), 10, 0, groups=groups)


def test_a_paired_comparison_has_an_interval_over_groups():
    queries = tuple(f"q{i}" for i in range(40))
    generator = np.random.default_rng(0)
    one, other = (ranking.Scores(queries, {"m": generator.random(40)}) for _ in range(2))
    groups = np.repeat(np.arange(8), 5)
    found = ranking.compare(one, other, 1000, 0, groups)["m"]
    differences = one.values["m"] - other.values["m"]
    assert found["difference"] == pytest.approx(differences.mean())
    ends = significance.bootstrap_interval(differences, 1000, 0, groups=groups)
    assert (found["low"], found["high"]) == ends and ends[0] < differences.mean() < ends[1]
    assert one.intervals(1000, 0, groups)["m"] != one.intervals(1000, 0)["m"]
