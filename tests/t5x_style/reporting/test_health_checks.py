"""Each symptom of an unhealthy training is found by the check for it, and a healthy one by none."""

import functools
import math
import random

import jax.numpy as jnp
import pytest

from t5x_style.evaluation import ranking
from t5x_style.reporting import health_checks, health_runs, health_time
from t5x_style.step import optimizers
from tests.kits import training_logs
from tests.kits.training_logs import METRIC, changed, healthy

LOSS, RATE = health_runs.LOSS, health_runs.RATE
GRADIENT, PADDING = health_runs.GRADIENT, health_runs.PADDING


def findings(folder, lines, **settings):
    """{check: finding} of all that is not ok."""
    training_logs.training(folder / "run", lines, **settings)
    trainings = health_runs.read(str(folder / "run"))
    (training,) = trainings
    found = [*health_checks.of(training), *health_time.of(training)]
    found += health_time.skipped(health_runs.skipped(trainings))
    return {one.check: one for one in found if one.level != "ok"}


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_training_has_nothing_to_remark(tmp_path, seed):
    assert findings(tmp_path, healthy(seed)) == {}


def test_every_check_says_what_it_found(tmp_path):
    training_logs.training(tmp_path / "run", healthy())
    trainings = health_runs.read(str(tmp_path / "run"))
    found = [*health_checks.of(trainings[0]), *health_time.of(trainings[0])]
    found += health_time.skipped(health_runs.skipped(trainings))
    assert [one.check for one in found] == [
        *("finite", "loss", "gradient", "update", "rate", "development", "vectors"),
        *("goodput", "input", "padding", "records"),
    ]


def noisy(level):
    """A loss that stays where it is."""
    draw = random.Random(0)
    return lambda step, old: level * draw.gauss(1, 0.07)


SYMPTOMS = {
    "loss is NaN": (LOSS, lambda step, old: math.nan if step > 600 else old, "finite"),
    "loss is infinite": (LOSS, lambda step, old: math.inf if step == 600 else old, "finite"),
    "gradient is NaN": (GRADIENT, lambda step, old: math.nan if step > 600 else old, "finite"),
    "update was refused": ("train/healthy", lambda step, old: float(step < 600), "finite"),
    "loss stays": (LOSS, noisy(6.0), "loss"),
    "loss rises": (LOSS, lambda step, old: old * (1 + max(0, step - 500) / 250), "loss"),
    "loss rises from the start": (LOSS, lambda step, old: 6 + step / 1000, "loss"),
    "gradient explodes": (GRADIENT, lambda step, old: old * (30 if step > 600 else 1), "gradient"),
    "gradient vanishes": (GRADIENT, lambda step, old: 1e-9 if step > 200 else old, "gradient"),
    "updates are huge": ("train/update_norm", lambda step, old: 30.0, "update"),
    "rate of other settings": (RATE, lambda step, old: old * 2, "rate"),
    "rate does not decay": (RATE, lambda step, old: 0.005, "rate"),
    "metric at chance": (METRIC, lambda step, old: 0.0004, "development"),
    "metric is zero": (METRIC, lambda step, old: 0.0, "development"),
    "metric collapses": (METRIC, lambda step, old: 0.1 if step > 600 else old, "development"),
    "vectors collapse": ("embeddings/mean_cosine", lambda step, old: 0.999, "vectors"),
    "one direction is left": ("embeddings/effective_rank", lambda step, old: 1.2, "vectors"),
    "no gradient": ("embeddings/possible_gain", lambda step, old: 0.001, "vectors"),
    "slow input": ("timing/input_wait_share", lambda step, old: 0.7, "input"),
}


@pytest.mark.parametrize("name", SYMPTOMS)
def test_a_symptom_is_wrong_in_its_own_check_only(tmp_path, name):
    metric, value, check = SYMPTOMS[name]
    found = findings(tmp_path, changed(healthy(), metric, value))
    assert {name: one.level for name, one in found.items()} == {check: "wrong"}


def test_shuffled_labels(tmp_path):
    """The loss learns what little frequencies give; nothing is found."""
    draw = random.Random(0)
    lines = changed(healthy(), LOSS, lambda step, old: (5.2 + 0.8 * math.exp(-step / 200))
                    * draw.gauss(1, 0.01))  # fmt: skip
    lines = changed(lines, METRIC, lambda step, old: 0.0009)
    found = findings(tmp_path, lines)
    assert {name: one.level for name, one in found.items()} == {"development": "wrong"}
    assert "is at chance: a random order of 10,000 passages has 0.00029" in found[
        "development"
    ].text  # fmt: skip


NOTES = {
    "large first updates": ("train/update_norm", lambda step, old: 160 / step, "update"),
    "a spike": (GRADIENT, lambda step, old: 50.0 if step == 600 else old, "gradient"),
    "first value was best": (METRIC, lambda step, old: 0.5 - step / 5000, "development"),
    "some input wait": ("timing/input_wait_share", lambda step, old: 0.2, "input"),
    "padding": (PADDING, lambda step, old: 0.5, "padding"),
    "slower": ("timing/steps_per_second", lambda step, old: 2.0 if step > 700 else old, "speed"),
}


@pytest.mark.parametrize("name", NOTES)
def test_what_may_be_meant_is_a_note(tmp_path, name):
    metric, value, check = NOTES[name]
    found = findings(tmp_path, changed(healthy(), metric, value))
    assert {name: one.level for name, one in found.items()} == {check: "note"}


def test_a_flat_loss_is_a_note_where_weights_were_trained_before(tmp_path):
    lines = changed(healthy(), LOSS, noisy(1.0))
    found = findings(tmp_path, lines, initialise_from="[Initialise]")
    assert found["loss"].level == "note" and "trained weights" in found["loss"].text


def test_a_rising_loss_is_a_note_where_negatives_become_harder(tmp_path):
    lines = changed(healthy(), LOSS, lambda step, old: old * (1 + max(0, step - 500) / 250))
    found = findings(tmp_path, lines, replanning="@replanning.Replanning()")
    assert found["loss"].level == "note" and "harder negatives" in found["loss"].text


def test_a_flat_loss_of_few_steps_is_a_note(tmp_path):
    found = findings(tmp_path, changed(healthy(steps=160), LOSS, noisy(6.0)))
    assert found["loss"].level == "note" and "10 logged steps are enough" in found["loss"].text


def test_equal_vectors_are_a_note_where_no_loss_compares_them(tmp_path):
    """As of a masked language model, and of every fresh encoder."""
    lines = changed(healthy(), "embeddings/mean_cosine", lambda step, old: 0.999)
    for line in lines:
        line.pop("embeddings/possible_gain", None)
    found = findings(tmp_path / "mlm", lines)
    assert found["vectors"].level == "note" and "compares no vectors" in found["vectors"].text
    fresh = [{"step": 0, "embeddings/mean_cosine": 0.999, "embeddings/possible_gain": 0.001}]
    found = findings(tmp_path / "fresh", [*fresh, *healthy(steps=100)])
    assert found["vectors"].level == "note" and "nothing is trained" in found["vectors"].text


def test_the_noise_of_a_falling_loss_is_known():
    draw = random.Random(0)
    values = [100 - step + draw.gauss(0, 0.5) for step in range(500)]
    assert health_checks.noise(values) == pytest.approx(0.5, rel=0.1)


def test_records_that_were_skipped(tmp_path):
    few = findings(tmp_path / "few", healthy(), dropped={"empty": 3})
    assert few["records"].level == "note" and "3 of 10,003 records (3 empty)" in few["records"].text
    many = findings(tmp_path / "many", healthy(), dropped={"empty": 3, "not_json": 200})
    assert many["records"].level == "wrong" and "203 of 10,203" in many["records"].text


def test_what_is_too_short_to_judge_is_not_called_good(tmp_path):
    found = findings(tmp_path, healthy(steps=100))
    assert {name: one.level for name, one in found.items()} == dict.fromkeys(
        ("loss", "gradient", "development"), "note"
    )


def test_time_is_accounted_for(tmp_path):
    training_logs.training(tmp_path / "run", healthy())
    (training,) = health_runs.read(str(tmp_path / "run"))
    spent = health_time.seconds(training)
    assert (spent.total, spent.wall) == pytest.approx((110, 110))
    parts = {"step": 95, "input": 5, "evaluation": 5, "other": 5}
    assert spent.seconds == pytest.approx(parts)
    assert spent.goodput == pytest.approx(95 / 110)


def test_a_long_start_is_a_note(tmp_path):
    late = [line | {"timing/elapsed_seconds": line["timing/elapsed_seconds"] + 900}
            for line in healthy()]  # fmt: skip
    found = findings(tmp_path, late)
    assert found["goodput"].level == "note" and "JAX_COMPILATION_CACHE_DIR" in found["goodput"].text


SCHEDULES = [
    {"decay": "linear"},
    {"decay": "cosine"},
    {"decay": "constant"},
    {"decay": "warmup_stable_decay", "decay_steps": 300},
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_learning_rate_is_that_of_the_optimizer(tmp_path, schedule):
    """The formula is a second one, because the optimizer's own needs JAX."""
    optimizer = optimizers.AdamW(0.005, 50, 1000, **schedule)
    lines = changed(
        healthy(), RATE, lambda step, old: float(optimizer.schedule(jnp.asarray(step - 1)))
    )
    settings = {f"optimizer.{name}": repr(value) for name, value in schedule.items()}
    assert "rate" not in findings(tmp_path / "same", lines, **settings)
    wrong = changed(lines, RATE, lambda step, old: old * 1.05 if step > 400 else old)
    assert findings(tmp_path / "other", wrong, **settings)["rate"].level == "wrong"


def test_a_schedule_of_computed_length_is_judged_by_its_shape(tmp_path):
    found = functools.partial(findings, **{"optimizer.total_steps": "@pair_steps.fitting_steps()"})
    assert "rate" not in found(tmp_path / "same", healthy())
    above = changed(healthy(), RATE, lambda step, old: old * 1.5)
    assert found(tmp_path / "above", above)["rate"].level == "wrong"
    again = changed(healthy(), RATE, lambda step, old: old * (2 if step == 900 else 1))
    assert found(tmp_path / "again", again)["rate"].level == "wrong"


@pytest.mark.parametrize("metric", ["MRR@10", "nDCG@10", "Recall@10", "Recall@100"])
def test_chance_is_that_of_random_rankings(metric):
    draw, names = random.Random(0), [str(number) for number in range(500)]
    run = {
        str(query): [(name, float(-place)) for place, name in enumerate(draw.sample(names, 100))]
        for query in range(3000)
    }
    qrels = {query: {"7": 1} for query in run}
    measured = ranking.score_run(run, qrels, [metric]).means()[metric]
    assert health_checks.chance(f"eval/dev/{metric}", 500) == pytest.approx(measured, rel=0.2)
    assert health_checks.chance("eval/dev/accuracy", 500) is None
