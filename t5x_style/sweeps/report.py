"""The report of a sweep: a page, its tables and its picture.

`table.csv`, `configurations.csv` and `report.md` have the same bytes for the same values, whatever
the run took and however often it was interrupted. What varies between runs is in `times.csv`.
Values of axes are written as in gin files; empty cells are axes that do not apply.
"""

import csv
import io
import math
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from t5x_style.configuration.gin_reader import to_gin
from t5x_style.sweeps import figure, standings
from t5x_style.sweeps.standings import ALPHA, Best, Row, Summary
from t5x_style.sweeps.trials import DEFAULT, Configuration, Record, Results, Trial
from t5x_style.workflow import remote_store

PAGE, PICTURE = "report.md", "report.png"
TRIALS, CONFIGURATIONS, TIMES = "table.csv", "configurations.csv", "times.csv"
LISTED = 20  # failed or pruned trials on the page
WIDE = 40  # characters of a value in a table
LONG = 300  # characters of a reason on the page
MARK = "†"  # of configurations of an earlier file
Cells = Sequence[Any]


def write(results: Results, folder: Path, best_command: str) -> None:
    """Writes the page, its tables and its picture, each of them whole or not at all.

    Args:
      results: of the sweep.
      folder: of the sweep, which exists.
      best_command: reproduces the winner; "" where there is none.
    """
    for name, text in texts(results, best_command).items():
        write_text(folder / name, text)
    write_text(folder / TIMES, times(results))
    with whole(folder / PICTURE) as temporary:
        figure.draw(results, temporary)


def write_text(path: Path, text: str) -> None:
    """Writes so that a reader, or a crash, sees the old file or the new one, never a part."""
    with whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A temporary path; what is written there replaces the file, unless something fails.

    Where the path is the copy of one on object storage, the file is uploaded then.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    remote_store.publish_file(path)


def texts(results: Results, best_command: str) -> dict[str, str]:
    """File name -> its text, of the files that depend on values alone.

    Args:
      results: of the sweep.
      best_command: see `write`.
    """
    found = standings.rows(results)
    return {
        TRIALS: _trials(results),
        CONFIGURATIONS: _configurations(results, found),
        PAGE: "\n".join(_page(results, found, best_command)),
    }


def times(results: Results) -> str:
    """The text of `times.csv`: seconds of each trial, and in the last row of shared stages.

    `seconds` are by the clock, of all attempts; `device_seconds` those of the stages that are the
    trial's alone, times the number of devices.
    """
    lines: list[Cells] = [("trial", "seconds", "attempts", "device_seconds")]
    for trial in standings.ordered(results):
        record = results.record(trial)
        alone = results.seconds.alone.get(trial.name, 0.0)
        lines.append((trial.name, record.seconds, record.attempts, alone))
    return _csv([*lines, ("shared stages", None, None, results.seconds.shared)])


def _csv(lines: Iterable[Cells]) -> str:
    """Lines as CSV: floats by repr, so that nothing is lost, None as an empty cell."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(lines)
    return file.getvalue()


def _trials(results: Results) -> str:
    head = ("trial", "configuration", "seed", "status", "value", "step", "reason")
    lines: list[Cells] = [(*head, *_axis_columns(results, head))]
    for trial in standings.ordered(results):
        one, record = trial.configuration, results.record(trial)
        cells = (trial.name, one.name, trial.seed, record.status, record.value, record.step)
        lines.append((*cells, _one_line(record.reason), *_axis_cells(results, one)))
    return _csv(lines)


def _configurations(results: Results, found: Sequence[Row]) -> str:
    head = (
        *("rank", "configuration", "done", "trials", "mean", "sd", "low", "high", "common_seeds"),
        *("difference", "difference_sd", "difference_low", "difference_high", "p", "p_corrected"),
        *("verdict", "reason", "earlier"),
    )
    lines: list[Cells] = [(*head, *_axis_columns(results, head))]
    for rank, row in enumerate(found, start=1):
        lines.append((
            rank if row.is_complete else None, row.name, len(row.values), row.expected,
            *_statistics(row.summary)[1:], *_statistics(row.difference),
            row.p_value, row.corrected, row.verdict, row.reason, row.earlier,
            *_axis_cells(results, row.configuration),
        ))  # fmt: skip
    return _csv(lines)


def _statistics(summary: Summary | None) -> Cells:
    """Count, mean, deviation, low and high end of the interval."""
    if summary is None:
        return 0, None, None, None, None
    return summary.count, summary.mean, summary.deviation, *(summary.interval or (None, None))


def _axis_columns(results: Results, taken: Sequence[str]) -> list[str]:
    """Names of columns: those of the axes, but for names that are taken."""
    return [f"axis {axis}" if axis in taken else axis for axis in results.axes]


def _axis_cells(results: Results, one: Configuration) -> list[str]:
    return [to_gin(one.values[axis]) if axis in one.values else "" for axis in results.axes]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _page(results: Results, found: Sequence[Row], best_command: str) -> Iterator[str]:
    """The lines of the page."""
    yield from (f"# Sweep {results.title}", "", *_measured(results, found), "")
    yield from (f"**{sentence(results)}**", "", *_warnings(found), *_edges(results), "")
    yield from (*_table(results, found), "", f"![]({PICTURE})", "")
    yield from _listed(results, "failed", "Failed trials")
    yield from _listed(results, "pruned", "Pruned trials")
    if best_command:
        yield from ("This command reproduces the winner:", "", "```bash", best_command, "```", "")
    yield (
        f"`{TRIALS}` has every trial, `{CONFIGURATIONS}` all digits of this page, `{TIMES}` the "
        "seconds that trials and the stages that they share took.\n"
    )


def _measured(results: Results, found: Sequence[Row]) -> Iterator[str]:
    direction = "larger" if results.larger_is_better else "smaller"
    counts = standings.counts(results)
    seeds = f"seeds {', '.join(map(str, results.seeds))}" if results.seeds else "the recipe's seed"
    by_status = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    yield (
        f"Measured: `{results.metric}`, {direction} is better. Configurations: {len(found)}, with "
        f"{seeds}. Trials: {len(results.trials)}{f' ({by_status})' if by_status else ''}."
    )
    open_trials = counts["queued"] + counts["running"] + counts["preempted"]
    if open_trials:
        yield f"Trials that have not ended: {open_trials}. This page is preliminary."
    counted = {trial.name for row in found for trial in row.trials}
    left_out = [trial for trial in results.trials if trial.name not in counted]
    if left_out:
        yield (
            f"`{TRIALS}` has {len(left_out)} more trials, with seeds that are not in the sweep "
            "file any more; no mean includes them."
        )


def sentence(results: Results) -> str:
    """The winner, and whether it differs from the default and from the second, in a sentence."""
    winner = standings.best(results)
    if winner is None:
        return "There is no winner: no configuration has finished all of its trials."
    row = winner.row
    assert row.summary is not None  # it is complete
    of_axes = [
        f"{axis} = {standings.shown(row.configuration.values[axis], WIDE)}"
        for axis in results.axes
        if axis in row.configuration.values
    ]
    earlier = ", which is not in the sweep file any more" if row.earlier else ""
    seeds = f" over {row.summary.count} seeds" if row.summary.count > 1 else ""
    return (
        f"The best configuration is `{row.name}` ({', '.join(of_axes)}){earlier}, with "
        f"{'a mean of ' if seeds else ''}{_digits([row]).format(row.summary.mean)}{seeds}: "
        f"{_against_default(row)}, and {_against_second(winner)}."
    )


def _against_default(row: Row) -> str:
    if row.name == DEFAULT:
        return "it is the default"
    if row.corrected is None:
        return f"it was not tested against the default ({row.reason})"
    than = "from" if row.verdict == "not distinguishable" else "than"
    return f"it is {row.verdict} {than} the default (corrected p {_equals(row.corrected)})"


def _against_second(winner: Best) -> str:
    if winner.second is None:
        return "no other configuration is complete"
    second = f"the second, `{winner.second.name}`"
    if winner.p_value is None:
        return f"it was not tested against {second} (fewer than two common seeds)"
    differs = "differs" if winner.p_value < ALPHA else "is not distinguishable"
    return f"it {differs} from {second} (p {_equals(winner.p_value)}, not corrected)"


def _equals(p_value: float) -> str:
    return "< 0.0001" if p_value < 0.0001 else f"= {p_value:.4f}"


def _warnings(found: Sequence[Row]) -> Iterator[str]:
    if any(row.is_complete for row in found):
        yield (
            "The winner's value is optimistic, since the winner was chosen by the same numbers. "
            "Measure it again, with other seeds or other data, before you publish it."
        )
        yield ""
    tested = sum(row.p_value is not None for row in found)
    if not tested:
        yield "No configuration was tested against the default: a test needs two common seeds."
        return
    yield (
        "Intervals are 95 % intervals of the mean over seeds (Student's t). Verdicts are of paired "
        f"t-tests over seeds against `{DEFAULT}`. Holm's method corrects their p-values for "
        f"{tested} tests: a false verdict anywhere in the table has a chance of at most 5 %. Not "
        "distinguishable does not mean equal: few seeds show large differences only. Intervals are "
        "not corrected."
    )


def _edges(results: Results) -> Iterator[str]:
    """Axes whose largest or smallest number won: what lies beyond was not tried."""
    winner = standings.best(results)
    if winner is None:
        return
    for axis in results.axes:
        tried = [one.configuration.values.get(axis) for one in results.trials]
        numbers: list[float] = sorted({x for x in tried if isinstance(x, int | float)})
        value = winner.row.configuration.values.get(axis)
        if len(numbers) > 2 and axis not in results.drawn and value in (numbers[0], numbers[-1]):
            end = "largest" if value == numbers[-1] else "smallest"
            yield ""
            yield f"The winner has the {end} `{axis}` that was tried: add values beyond {value!r}."


def _table(results: Results, found: Sequence[Row]) -> Iterator[str]:
    digits = _digits(found)
    head = (
        *("rank", "configuration", *map(_cell, results.axes), "done", "mean", "sd"),
        *("95 % interval", "difference to default", "corrected p", "verdict"),
    )
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for rank, row in enumerate(found, start=1):
        values = row.configuration.values
        cells = [
            str(rank) if row.is_complete else "",
            f"`{row.name}`{f' {MARK}' if row.earlier else ''}",
            *(_cell(standings.shown(values[one], WIDE)) if one in values else ""
              for one in results.axes),
            f"{len(row.values)}/{row.expected}",
            *_summary_cells(row, digits),
            "" if row.corrected is None else _equals(row.corrected).removeprefix("= "),
            row.verdict + (f" ({row.reason})" if row.reason else ""),
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"
    if any(row.earlier for row in found):
        yield from ("", f"{MARK} not in the sweep file any more")


def _summary_cells(row: Row, digits: str) -> list[str]:
    """Mean, deviation, interval; difference with its interval."""
    if row.summary is None:
        return [""] * 4
    signed = digits.replace(":", ":+")
    deviation = "" if row.summary.deviation is None else digits.format(row.summary.deviation)
    cells = [digits.format(row.summary.mean), deviation, _interval(row.summary, digits)]
    if row.difference is None:
        return [*cells, ""]
    mean = signed.format(row.difference.mean)
    return [*cells, f"{mean} {_interval(row.difference, signed)}".rstrip()]


def _interval(summary: Summary, digits: str) -> str:
    return (
        "" if summary.interval is None else "[{}, {}]".format(*map(digits.format, summary.interval))
    )


def _digits(found: Sequence[Row]) -> str:
    """A format with four decimals, or more where all means are small, fewer where one is large."""
    means = [abs(row.summary.mean) for row in found if row.summary is not None]
    largest = max(means, default=1.0) or 1.0
    exponent = math.floor(math.log10(largest))
    return f"{{:.{min(max(4 - max(exponent, 0) - min(exponent + 1, 0), 0), 12)}f}}"


def _cell(text: str) -> str:
    """Text that neither ends a cell of Markdown nor reads as HTML."""
    return _one_line(text).replace("|", "\\|").replace("<", "&lt;")


def _listed(results: Results, status: str, title: str) -> Iterator[str]:
    """The trials with a status as a list, cut where it is long."""
    found = [(one, results.record(one)) for one in standings.ordered(results)]
    found = [(trial, record) for trial, record in found if record.status == status]
    if not found:
        return
    yield from (f"## {title}", "")
    yield from (_item(trial, record) for trial, record in found[:LISTED])
    if len(found) > LISTED:
        yield f"- and {len(found) - LISTED} more, see `{TRIALS}`"
    yield ""


def _item(trial: Trial, record: Record) -> str:
    reason = _one_line(record.reason).replace("<", "&lt;") or "no reason was recorded"
    step = "" if record.step is None else f"step {record.step}: "
    return f"- `{trial.name}`: {step}{reason[:LONG]}{'…' if len(reason) > LONG else ''}"
