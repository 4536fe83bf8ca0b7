"""Account of a training's time: goodput, waiting for input, padding."""

import statistics
from collections.abc import Iterator, Sequence

from t5x_style.goodput import table
from t5x_style.goodput.attempts import Spent, total
from t5x_style.reporting.health_checks import MIN_POINTS, Finding, window
from t5x_style.reporting.health_runs import PADDING, Skipped, Training
from t5x_style.training import metric_writer

SPEED = f"{metric_writer.TIMING}steps_per_second"
WAIT = f"{metric_writer.TIMING}input_wait_share"

WAIT_NOTE, WAIT_WRONG = 0.1, 0.5  # share of the time of the steps
PADDING_NOTE = 0.3  # as `report_advice`
START_NOTE, START_SECONDS = 0.25, 600.0  # share of a training that is longer than this
AROUND = ("start", "compile", "checkpoint", "other")  # what settings can shorten
SLOWED = 0.5  # steps per second at the end over the median
SKIPPED_WRONG = 0.01  # of the records


def seconds(training: Training) -> Spent:
    """Seconds of a training by part: its account, or for older ones an estimate from the log."""
    return total(training.attempts) if training.attempts else _estimate(training)


def _estimate(training: Training) -> Spent:
    """From the opening of the log to its last line; pauses between two runs are left out.

    `other` is everything but steps and evaluation: compiling, starting the input, saving, starting
    again.
    """
    steps = wait = evaluation = before = 0.0
    last = 0
    for line in training.lines:
        now = float(line.get(metric_writer.ELAPSED, before))
        passed, before = max(0.0, now - before), max(now, before)
        if SPEED in line:
            spent = min(passed, (int(line["step"]) - last) / line[SPEED]) if line[SPEED] else 0.0
            steps += spent
            wait += spent * line.get(WAIT, 0.0)
            last = int(line["step"])
        elif line["step"] > 0:
            evaluation += passed
    rest = max(0.0, before - steps - evaluation)
    parts = {"step": steps - wait, "input": wait, "evaluation": evaluation, "other": rest}
    return Spent(parts, before)


def of(training: Training) -> Iterator[Finding]:
    """Findings about time and padding."""
    spent = seconds(training)
    if not spent.seconds["step"]:
        return
    yield _goodput(spent)
    yield _wait(spent)
    shares = training.values(PADDING)
    if shares:
        mean = statistics.fmean(shares)
        said = f"{mean:.0%} of the positions of the batches are padding"
        advice = "; pack more texts into a row (docs/recipes.md)" if mean > PADDING_NOTE else ""
        yield Finding("note" if advice else "ok", "padding", said + advice)
    speeds = training.values(SPEED)
    if len(speeds) >= MIN_POINTS:
        end, middle = statistics.median(speeds[-window(len(speeds)) :]), statistics.median(speeds)
        if end < SLOWED * middle:
            yield Finding(
                "note", "speed",
                f"{end:.3g} steps/s at the end, {middle:.3g} in the median: something else uses "
                "the machine, or its disk, or it is throttled",
            )  # fmt: skip


def _goodput(spent: Spent) -> Finding:
    around = sum(spent.share(part) for part in AROUND)
    long = around > START_NOTE and spent.total > START_SECONDS
    advice = "; keep compiled programs with JAX_COMPILATION_CACHE_DIR, save less often"
    return Finding("note" if long else "ok", "goodput", table.line(spent) + advice * long)


def _wait(spent: Spent) -> Finding:
    wait = spent.seconds["input"]
    share = wait / (spent.seconds["step"] + wait)
    said = f"steps waited for input during {share:.1%} of their time"
    if share <= WAIT_NOTE:
        return Finding("ok", "input", said)
    return Finding(
        "wrong" if share > WAIT_WRONG else "note", "input",
        f"{said}; expected at most {WAIT_NOTE:.0%}. Other processes on the machine, a slow disk, "
        "or a corpus that is read over a network: benchmarks/input_pipeline.py measures it.",
    )  # fmt: skip


def skipped(stages: Sequence[Skipped]) -> Iterator[Finding]:
    """Findings about records that were left out, a stage each."""
    for stage in stages:
        if not stage.total:
            continue
        of_all = stage.total + (stage.kept or 0)
        why = ", ".join(f"{count:,} {reason}" for reason, count in sorted(stage.reasons.items()))
        share = f" of {of_all:,}" if stage.kept is not None else ""
        much = stage.kept is not None and stage.total > SKIPPED_WRONG * of_all
        yield Finding(
            "wrong" if much else "note", "records",
            f"stage {stage.stage} skipped {stage.total:,}{share} records ({why})"
            + (f"; expected at most {SKIPPED_WRONG:.0%}: correct the source" if much else ""),
        )  # fmt: skip
    if not any(stage.total for stage in stages):
        names = ", ".join(stage.stage for stage in stages)
        if names:
            yield Finding("ok", "records", f"no record was skipped ({names})")
