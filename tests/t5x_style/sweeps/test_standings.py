"""Rows of configurations: statistics, tests against the default, ranks, the winner."""

import dataclasses
import math
import random

import pytest
from scipy import stats

from t5x_style.sweeps import standings
from t5x_style.sweeps.trials import Record
from tests.t5x_style.sweeps import made_results as made

PRUNED = Record("pruned", 0.9, 10, ((10, 0.9),), "pruner median at step 10")
FAILED = Record("failed", reason="loss is nan")


def by_rate(found):
    return {row.configuration.values["RATE"]: row for row in standings.rows(found)}


def table(*rows):
    """Configurations with rates 1, 2, ...; the first is the default."""
    return [({"RATE": rate}, list(row)) for rate, row in enumerate(rows, start=1)]


def test_statistics_by_hand():
    # Differences 0.1, 0.2, 0.1: mean 0.4 / 3, standard error 0.1 / 3, t = 4 with 2 degrees of
    # freedom, so p = 1 - 4 / sqrt(18).
    row = by_rate(made.results(table([0.4, 0.4, 0.6], [0.5, 0.6, 0.7])))[2]
    assert row.summary.mean == pytest.approx(0.6)
    assert row.summary.deviation == pytest.approx(0.1)
    half = 4.30265273 * 0.1 / math.sqrt(3)
    assert row.summary.interval == pytest.approx((0.6 - half, 0.6 + half))
    assert row.difference.mean == pytest.approx(0.4 / 3)
    assert row.p_value == pytest.approx(1 - 4 / math.sqrt(18))
    assert row.corrected == row.p_value and row.verdict == "not distinguishable"
    assert row.reason == "" and (len(row.values), row.expected) == (3, 3)


def test_statistics_are_those_of_scipy():
    draw = random.Random(1)
    values = [[draw.gauss(rate, 1.0) for _ in range(5)] for rate in (0, 0.1, 1, 3, 9)]
    found = by_rate(made.results(table(*values), seeds=(1, 2, 3, 4, 5)))
    p_values = {}
    for rate, ones in enumerate(values[1:], start=2):
        test = stats.ttest_rel(ones, values[0])
        row, p_values[rate] = found[rate], test.pvalue
        assert row.p_value == pytest.approx(test.pvalue)
        assert row.difference.interval == pytest.approx(tuple(test.confidence_interval(0.95)))
        interval = stats.t.interval(0.95, 4, stats.tmean(ones), stats.sem(ones))
        assert row.summary.interval == pytest.approx(interval)
    # Holm: the smallest of four times 4, the next times 3, and never below the one before.
    ranked = sorted(p_values, key=p_values.get)
    for place, rate in enumerate(ranked):
        steps = [(4 - i) * p_values[one] for i, one in enumerate(ranked[: place + 1])]
        assert found[rate].corrected == pytest.approx(min(1.0, max(steps)))


@pytest.mark.parametrize("larger, verdict", [(True, "better"), (False, "worse")])
def test_a_constant_difference_is_certain_and_its_verdict_follows_the_direction(larger, verdict):
    found = made.results(table([0.1, 0.2, 0.4], [0.2, 0.3, 0.5]), larger_is_better=larger)
    row = by_rate(found)[2]
    assert (row.p_value, row.corrected, row.verdict) == (0.0, 0.0, verdict)
    low, high = row.difference.interval
    assert low == pytest.approx(0.1) and high == pytest.approx(0.1)


def test_equal_values_do_not_differ():
    row = by_rate(made.results(table([0.1, 0.2, 0.3], [0.1, 0.2, 0.1 + 0.2])))[2]
    assert (row.p_value, row.verdict) == (1.0, "not distinguishable")
    row = by_rate(made.results(table([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])))[2]
    assert (row.p_value, row.summary.interval) == (1.0, (0.0, 0.0))


def test_only_seeds_that_both_finished_are_paired():
    found = by_rate(made.results(table([0.4, FAILED, 0.6], [0.5, 0.9, 0.9], [FAILED, 0.3, None])))
    assert found[2].difference.count == 2
    assert found[2].difference.mean == pytest.approx(0.2)
    assert found[2].p_value == pytest.approx(stats.ttest_rel([0.5, 0.9], [0.4, 0.6]).pvalue)
    assert found[3].difference is None
    assert found[3].reason == "no seed that it and the default finished"


def test_why_a_configuration_was_not_tested():
    found = by_rate(made.results(table([0.1, 0.2, 0.3], [0.1, FAILED, FAILED], [PRUNED] * 3)))
    assert {row.verdict for row in found.values()} == {"not tested"}
    assert {rate: row.reason for rate, row in found.items()} == {
        1: "it is the default",
        2: "one seed that it and the default finished",
        3: "none of its trials is done",
    }
    assert found[2].difference.mean == 0 and found[2].difference.interval is None
    assert found[2].corrected is None and found[3].summary is None
    row = by_rate(made.results(table([0.1], [0.2]), seeds=()))[2]
    assert (row.reason, row.summary.deviation, row.summary.interval) == ("one seed", None, None)
    row = by_rate(made.results(table([FAILED] * 3, [0.1, 0.2, 0.3])))[2]
    assert row.reason == "no trial of the default is done"
    whole = made.results(table([0.1] * 3, [0.1, 0.2, 0.3]))
    row = by_rate(dataclasses.replace(whole, trials=whole.trials[3:]))[2]
    assert row.reason == "the default is not among the trials"


def test_untested_configurations_do_not_count_in_the_correction():
    values = ([0.4, 0.4, 0.6], [0.5, 0.6, 0.7], [FAILED] * 3, [FAILED, 0.4, FAILED])
    row = by_rate(made.results(table(*values)))[2]
    assert row.corrected == row.p_value


def test_complete_configurations_rank_first_and_ties_by_name():
    values = ([0.2] * 3, [0.3] * 3, [0.9, 0.9, FAILED], [0.3] * 3, [PRUNED] * 3)
    for larger in (True, False):
        found = standings.rows(made.results(table(*values), larger_is_better=larger))
        rates = [row.configuration.values["RATE"] for row in found]
        tied = sorted((one for one in found if one.configuration.values["RATE"] in (2, 4)),
                      key=lambda one: one.name)  # fmt: skip
        ties = [one.configuration.values["RATE"] for one in tied]
        assert rates == ([*ties, 1, 3, 5] if larger else [1, *ties, 3, 5])


def test_the_winner_is_complete_and_its_first_seed_names_the_run():
    values = ([0.2, 0.2, 0.3], [0.3, 0.4, 0.6], [0.9, 0.9, FAILED], [0.3, 0.41, 0.5])
    winner = standings.best(made.results(table(*values)))
    assert winner.row.configuration.values == {"RATE": 2}
    assert winner.trial.name == f"{winner.name}-seed1"
    assert winner.second.configuration.values == {"RATE": 4}
    expected = stats.ttest_rel(values[1], values[3]).pvalue
    assert winner.p_value == pytest.approx(expected)


def test_the_first_seed_is_the_first_of_the_sweep_file():
    winner = standings.best(made.results(table([0.1, 0.9]), seeds=(7, 3)))
    assert winner.trial.seed == 7


def test_there_may_be_no_winner_or_no_second():
    assert standings.best(made.results(table([0.1, 0.1, None], [PRUNED] * 3))) is None
    winner = standings.best(made.results(table([0.1] * 3, [FAILED] * 3)))
    assert winner.name == "default" and winner.second is None and winner.p_value is None
    winner = standings.best(made.results(table([0.1], [0.2]), seeds=()))
    assert winner.second.name == "default" and winner.p_value is None


def test_a_configuration_of_an_earlier_file_needs_all_seeds_of_this_one():
    found = made.results(table([0.1] * 3, [0.9, None, None], [0.5] * 3), earlier=(1, 2))
    left_out = {trial.name for trial in found.trials} - set(found.records)
    kept = [trial for trial in found.trials if trial.name not in left_out]
    found = dataclasses.replace(found, trials=tuple(kept))
    row = by_rate(found)[2]
    assert row.earlier and (len(row.values), row.expected) == (1, 3)
    assert standings.best(found).row.configuration.values == {"RATE": 3}


def test_seeds_that_the_file_lists_no_more_count_only_where_there_are_no_others():
    found = made.results(table([0.1, 0.2, 0.9], [0.1, 0.2, 0.3]))
    gone = {trial.name for trial in found.trials if trial.seed == 3}
    found = dataclasses.replace(found, seeds=(1, 2), earlier=frozenset(gone))
    row = by_rate(found)[1]
    assert not row.earlier and row.is_complete
    assert row.values == {1: 0.1, 2: 0.2}


def test_counts_by_status():
    found = standings.counts(made.results(table([0.1, FAILED, None], [PRUNED] * 3)))
    assert found == {
        "queued": 1, "running": 0, "preempted": 0, "failed": 1, "pruned": 3, "done": 1
    }  # fmt: skip


@pytest.mark.parametrize(
    "value, text",
    [("cls", "cls"), ("", "''"), ("a\nb", r"'a\nb'"), (None, "None"), ((1, 2), "(1, 2,)"),
     ("x" * 9 + "y" * 9, "xxxx…yyyyy"), ({"a": [1]}, "{'a': [1]}"), (1e-05, "1e-05")],
)  # fmt: skip
def test_values_as_they_are_shown(value, text):
    assert standings.shown(value, 10) == text
