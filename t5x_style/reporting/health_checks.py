"""Health checks that apply to every training, whatever it trains.

Each returns findings: `wrong` makes a run unhealthy, `note` is something to look at, `ok` says what
was checked. A check that has too little to judge by says so in a note, never `ok`. The thresholds
are the constants below; docs/healthy.md explains them.
"""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from t5x_style.evaluation import embedding_diagnostics as embeddings
from t5x_style.reporting.health_runs import GRADIENT, LOSS, RATE, Points, Training
from t5x_style.training import metric_writer

Level = Literal["ok", "note", "wrong"]

MIN_POINTS = 6  # logged steps, from which on a trend is judged
SURE_POINTS = 10  # and from which on a loss that does not fall is wrong
CLEAR = 2.0  # a fall of the loss in standard deviations of its noise
RISE = 3.0  # a rise of the loss over its lowest level, in the same
RISE_SHARE = 0.05  # and as a share of what it had fallen before
EXPLODED = 10.0  # gradient norm at the end over that after the warm-up
SPIKE = 20.0  # one gradient norm over the median
VANISHED = 1e-6  # gradient norm at the end over that at the start
LARGE_UPDATE = 0.1  # norm of an update over that of the parameters, the median
SOME_UPDATE = 0.05  # the same, the largest: a note
CHANCE = 5.0  # a development metric over its value for a random order
HALVED = 0.5  # a development metric over its best
RATE_TOLERANCE = 1e-3  # relative: what float32 leaves is 1e-7
LEAST_RANK = 2.0  # effective rank of vectors


@dataclasses.dataclass(frozen=True)
class Finding:
    """Finding of a check.

    Attributes:
      level: see above.
      check: one word for what was checked.
      text: in words, with numbers.
    """

    level: Level
    check: str
    text: str


Check = Callable[[Training], Iterator[Finding]]


def of(training: Training) -> list[Finding]:
    """The findings of all checks of this module."""
    checks: tuple[Check, ...] = (finite, loss, gradient, update, rate, development, vectors)
    return [found for check in checks for found in check(training)]


def finite(training: Training) -> Iterator[Finding]:
    """Whether loss, gradient norm and every other training metric are finite at all logged steps.

    A step that was not finite is in the log with `train/healthy` 0, whatever the interval is.
    """
    steps = 0
    for line in training.lines:
        broken = [
            name
            for name, value in line.items()
            if name.startswith("train/") and (not math.isfinite(value))
        ]
        if broken or line.get("train/healthy", 1.0) == 0.0:
            broken.sort(key=lambda name: name != LOSS)
            what = broken[0] if broken else "the loss or a gradient"
            yield Finding(
                "wrong", "finite",
                f"{what} is not finite at step {line['step']:,}. That update was not applied and "
                "nothing was saved; the training's last message names the rows of the batch. A "
                "lower LEARNING_RATE or a longer warm-up is the usual remedy.",
            )  # fmt: skip
            return
        steps += LOSS in line
    if steps:
        yield Finding("ok", "finite", f"loss and gradient norm are finite at {steps} logged steps")
    else:
        yield Finding("note", "finite", "no step is logged yet: nothing to judge")


def window(count: int) -> int:
    """Number of logged steps in a quarter of the training, at least three."""
    return max(3, count // 4)


def noise(values: Sequence[float]) -> float:
    """Standard deviation of values around a trend that is locally a line; spikes count little.

    From the median of the absolute second differences, which for normal noise is its standard
    deviation times sqrt(6) / 1.4826.
    """
    bends = [abs(a - 2 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return 1.4826 / math.sqrt(6) * statistics.median(bends) if bends else 0.0


def loss(training: Training) -> Iterator[Finding]:
    """Whether the loss falls, and does not rise again."""
    values = training.values(LOSS)
    if len(values) < MIN_POINTS:
        said = f"{len(values)} logged steps are too few to see a trend; {MIN_POINTS} are enough"
        yield Finding("note", "loss", said)
        return
    size, spread = window(len(values)), noise(values)
    start, end = statistics.median(values[:3]), statistics.median(values[-size:])
    level = min(
        statistics.median(values[place : place + size]) for place in range(len(values) - size + 1)
    )
    said = f"from {start:.4g} at the start to {end:.4g}, the median of the last {size} logged steps"
    risen = end - level
    if risen > max(RISE * spread, RISE_SHARE * abs(start - level), 1e-9):
        moves = training.parameters.get("replanning", "None") != "None"
        because = " Its batches are planned again with harder negatives: look at the metric."
        yield Finding(
            "note" if moves else "wrong", "loss",
            f"rises: {said}; its lowest level was {level:.4g}, and its noise is {spread:.2g}."
            + (because if moves else " A lower LEARNING_RATE is the usual remedy."),
        )  # fmt: skip
    elif start - end <= max(CLEAR * spread, 1e-3 * abs(start)):
        because = " Look at LEARNING_RATE, at what is frozen, at the pairs."
        early = len(values) < SURE_POINTS
        if early:
            because = f" {SURE_POINTS} logged steps are enough to be sure."
        warm = training.parameters.get("initialise_from", "[]") != "[]"
        if warm:
            because = " It started from trained weights, so that little may be left to learn."
        yield Finding(
            "note" if warm or early else "wrong", "loss",
            f"does not fall: {said}, with noise of {spread:.2g}.{because}",
        )  # fmt: skip
    else:
        yield Finding("ok", "loss", f"falls {said}")


def _after_warmup(training: Training, points: Points) -> list[float]:
    """Values past the warm-up, or past the first tenth where its length is not known."""
    steps = training.number("optimizer.warmup_steps")
    last = points[-1][0] if points else 0
    return [value for step, value in points if step > (last / 10 if steps is None else steps)]


def gradient(training: Training) -> Iterator[Finding]:
    """Whether the gradient norm, before it is clipped, explodes or vanishes."""
    values = _after_warmup(training, training.points(GRADIENT))
    if len(values) < MIN_POINTS:
        said = f"{len(values)} logged steps after the warm-up are too few to judge the gradient"
        yield Finding("note", "gradient", said)
        return
    size = window(len(values))
    start, end = statistics.median(values[:size]), statistics.median(values[-size:])
    said = f"norm {start:.3g} after the warm-up, {end:.3g} in the last {size} logged steps"
    if end > EXPLODED * start:
        yield Finding(
            "wrong", "gradient",
            f"explodes: {said}, more than {EXPLODED:g} times. A lower LEARNING_RATE, a longer "
            "warm-up, or a smaller optimizers.AdamW.clip_norm.",
        )  # fmt: skip
    elif end <= VANISHED * max(values):
        yield Finding("wrong", "gradient", f"vanished: {said}. Look at what is frozen or masked.")
    elif max(values) > SPIKE * statistics.median(values):
        yield Finding("note", "gradient", f"{said}; the largest, a spike, is {max(values):.3g}")
    else:
        yield Finding("ok", "gradient", said)


def update(training: Training) -> Iterator[Finding]:
    """Whether a step changes parameters by more than a small share of their norm."""
    shares = [
        (line["step"], line["train/update_norm"] / line["train/parameter_norm"])
        for line in training.lines
        if line.get("train/parameter_norm") and "train/update_norm" in line
    ]
    shares = [(step, share) for step, share in shares if math.isfinite(share)]
    if not shares:
        return
    middle = statistics.median(share for _, share in shares)
    step, most = max(shares, key=lambda point: point[1])
    said = f"a step changes the parameters by {middle:.2%} of their norm in the median"
    if middle > LARGE_UPDATE:
        yield Finding(
            "wrong", "update",
            f"{said}; expected below {LARGE_UPDATE:.0%}. LEARNING_RATE is too high.",
        )  # fmt: skip
    elif most > SOME_UPDATE:
        yield Finding(
            "note", "update",
            f"{said}, and by {most:.1%} at step {step:,}; above {SOME_UPDATE:.0%} LEARNING_RATE "
            "may be too high, or the warm-up too short",
        )  # fmt: skip
    else:
        yield Finding("ok", "update", f"{said}, {most:.2%} at most")


def expected_rate(training: Training, step: float) -> float | None:
    """The learning rate of the update that made `step`; None where its settings are computed.

    As `optimizers.AdamW.schedule`, which needs JAX.
    """
    peak, warmup, total = (
        training.number(f"optimizer.{name}")
        for name in ("learning_rate", "warmup_steps", "total_steps")
    )
    if peak is None or warmup is None or total is None:
        return None
    done, rest = step - 1, max(1.0, total - warmup)
    if done < warmup:
        return peak * (done + 1) / max(1.0, warmup)
    share = min(1.0, (done - warmup) / rest)
    decay = training.parameters.get("optimizer.decay", "").strip("'")
    if decay == "linear":
        return peak * (1 - share)
    if decay == "cosine":
        return peak * (1 + math.cos(math.pi * share)) / 2
    if decay == "constant":
        return peak
    length = training.number("optimizer.decay_steps")
    if decay != "warmup_stable_decay" or not length:
        return None
    return peak * (1 - max(0.0, min(1.0, (done - warmup - (rest - length)) / length)))


def rate(training: Training) -> Iterator[Finding]:
    """Whether the learning rate is that of the settings, or at least has their shape."""
    points, peak = training.points(RATE), training.number("optimizer.learning_rate")
    if not points or peak is None:
        return
    expected = [(step, value, expected_rate(training, step)) for step, value in points]
    for step, value, wanted in expected:
        if wanted is not None and abs(value - wanted) > RATE_TOLERANCE * peak:
            yield Finding(
                "wrong", "rate",
                f"learning rate {value:.4g} at step {step:,}; its settings give {wanted:.4g}. The "
                "log was written under other settings, or by other code: make the stage again "
                "(--rerun).",
            )  # fmt: skip
            return
    top = max(points, key=lambda point: point[1])
    falls = [value for step, value in points if step >= top[0]]
    rises = [value for step, value in points if step <= top[0]]
    if top[1] > peak * (1 + RATE_TOLERANCE) or falls != sorted(falls, reverse=True) or (
        rises != sorted(rises)
    ):  # fmt: skip
        yield Finding(
            "wrong", "rate",
            f"the learning rate does not rise to at most {peak:.4g} and then fall: its highest is "
            f"{top[1]:.4g} at step {top[0]:,}. The log mixes trainings: make the stage again "
            "(--rerun).",
        )  # fmt: skip
        return
    exact = expected[0][2] is not None
    how = "as set at every logged step" if exact else f"rises and falls, at most {peak:.4g} as set"
    yield Finding("ok", "rate", f"learning rate {how}; {points[-1][1]:.3g} at the last")


def development_metric(training: Training) -> str | None:
    """The metric that chooses checkpoints, or the first that was logged; None without any."""
    chosen = training.parameters.get("development_metric", "None").strip("'")
    if chosen != "None":
        return metric_writer.EVALUATIONS + chosen
    names = (name for line in training.lines for name in line)
    return next((name for name in names if name.startswith(metric_writer.EVALUATIONS)), None)


def chance(metric: str, candidates: int) -> float | None:
    """The metric for a random order of the candidates, one of them relevant; None if not known.

    Args:
      metric: such as 'eval/dev/MRR@10'.
      candidates: how many there are.
    """
    name, _, depth = metric.split("/")[-1].partition("@")
    if not depth.isdigit():
        return None
    places = range(1, min(int(depth), candidates) + 1)
    gain = {
        "MRR": lambda place: 1 / place,
        "nDCG": lambda place: 1 / math.log2(place + 1),
        "Recall": lambda place: 1.0,
    }
    return sum(gain[name](place) for place in places) / candidates if name in gain else None


def development(training: Training) -> Iterator[Finding]:
    """Whether the development metric is above chance, rises, and does not collapse."""
    metric = development_metric(training)
    points = [] if metric is None else [p for p in training.points(metric) if p[0] > 0]
    if metric is None or not points:
        yield Finding("note", "development", "no development metric is logged yet: none to judge")
        return
    name, (step, last) = metric.removeprefix(metric_writer.EVALUATIONS), points[-1]
    where, best = max(points, key=lambda point: point[1])
    count = training.candidates()
    random = None if count is None else chance(metric, count)
    said = f"{name} {last:.4f} at step {step:,}"
    if random is not None and last < CHANCE * random:
        yield Finding(
            "wrong", "development",
            f"{said} is at chance: a random order of {count:,} passages has {random:.5f}. Look at "
            "the pairs, the temperature and LEARNING_RATE.",
        )  # fmt: skip
    elif last <= 0:
        yield Finding("wrong", "development", f"{said}: nothing relevant is found")
    elif last < HALVED * best:
        yield Finding(
            "wrong", "development",
            f"{said}, less than half of the best, {best:.4f} at step {where:,}. That checkpoint is "
            "kept; train with a lower LEARNING_RATE.",
        )  # fmt: skip
    elif len(points) > 2 and where == points[0][0]:
        yield Finding(
            "note", "development",
            f"{said}; no later value is above the first, {best:.4f} at step {where:,}",
        )  # fmt: skip
    else:
        more = "" if random is None else f", {last / random:,.0f} times chance"
        yield Finding("ok", "development", f"{said}{more}; the best is {best:.4f} at {where:,}")


def vectors(training: Training) -> Iterator[Finding]:
    """Whether vectors of different texts still differ."""
    prefix = metric_writer.EMBEDDINGS
    cosines = training.points(f"{prefix}mean_cosine")
    if not cosines:
        return
    ranks, gains = training.values(f"{prefix}effective_rank"), training.values(
        f"{prefix}possible_gain"
    )  # fmt: skip
    step, cosine = cosines[-1]
    said = f"mean cosine of different texts {cosine:.3f} at step {step:,}"
    rank = f", effective rank {ranks[-1]:.3g}" if ranks else ""
    collapsed = cosine >= embeddings.NEARLY_EQUAL or (ranks and ranks[-1] < LEAST_RANK)
    if not collapsed and not (gains and gains[-1] < embeddings.LEAST_GAIN):
        yield Finding("ok", "vectors", f"{said}{rank}")
    elif gains and step > 0:
        yield Finding(
            "wrong", "vectors",
            f"all vectors are nearly equal: {said}{rank}. docs/contrastive.md names causes and "
            "remedies.",
        )  # fmt: skip
    else:  # fresh, or of an objective that compares no vectors, such as MLM
        why = "nothing is trained yet" if step == 0 else "this loss compares no vectors"
        yield Finding("note", "vectors", f"all vectors are nearly equal, and {why}: {said}{rank}")
