"""The account of a training as a table and as a line, and a table of the stages of a run."""

import dataclasses
from collections.abc import Mapping

from t5x_style.goodput.attempts import LOST, PARTS, Spent

SHOWN = 0.005  # share from which a line names a part
DRIFT = 0.01  # of the sum: clocks that differ by more are reported


def markdown(spent: Spent, slowest: tuple[int, float] | None = None) -> list[str]:
    """Lines of Markdown: part, seconds, share; the sum and the wall time.

    Args:
      spent: the account of process 0.
      slowest: see `attempts.slowest_input`.
    """
    rows = [
        f"| {words} | {spent.seconds.get(part, 0.0):.1f} | {spent.share(part):.1%} |"
        for part, words in PARTS.items()
    ]
    said = [f"Goodput, the share of steps: {spent.goodput:.1%}. {_wall(spent)}"]
    if spent.restarts:
        said.append(f"{restarts(spent)}.")
    if slowest is not None:
        said.append(f"Process {slowest[0]} waited longest for input: {slowest[1]:.1f} s.")
    return [
        "| part | seconds | share |",
        "|---|---|---|",
        *rows,
        f"| **sum** | {spent.total:.1f} | {1 if spent.total else 0:.1%} |",
        "",
        " ".join(said),
        "",
    ]


def _wall(spent: Spent) -> str:
    said = f"Wall time {spent.wall:.1f} s"
    if abs(spent.wall - spent.total) > DRIFT * spent.total:
        said += ", which is not the sum: the machine slept, or its clock was set"
    return said + "."


def line(spent: Spent) -> str:
    """One line: goodput, then the other parts that are not nearly nothing."""
    shown = [part for part in PARTS if part != "step" and spent.share(part) >= SHOWN]
    said = ", ".join(f"{PARTS[part]} {spent.share(part):.0%}" for part in shown)
    text = f"{spent.goodput:.0%} of {spent.total:,.0f} s computed steps" + f" ({said})" * bool(said)
    return f"{text}; {restarts(spent)}" if spent.restarts else text


def restarts(spent: Spent) -> str:
    """Cost of restarts, in words."""
    back = spent.seconds.get(LOST, 0.0) - spent.away
    times = "1 restart" if spent.restarts == 1 else f"{spent.restarts} restarts"
    return (
        f"{times}: {spent.away:,.1f} s without a process, {back:,.1f} s to the first new step "
        f"({spent.repeated:,} steps twice)"
    )


@dataclasses.dataclass(frozen=True)
class StageTime:
    """Time of a stage in one command.

    Attributes:
      now: seconds of its process; 0 where its result was there already.
      spent: the account of a training that ran now, all its attempts; None for other stages.
    """

    now: float
    spent: Spent | None = None


def of_stages(stages: Mapping[str, StageTime]) -> list[list[str]]:
    """Rows of cells: a head, a row for each stage, their sum; without parts that no training has.

    Args:
      stages: name -> its time.
    """
    accounts = [one.spent for one in stages.values() if one.spent is not None]
    parts = [part for part in PARTS if any(one.seconds[part] for one in accounts)]
    width = 2 + len(parts) if accounts else 0
    head = ["goodput", "training", *(PARTS[part] for part in parts)][:width]
    rows = [["stage", "now", *head]]
    for name, one in stages.items():
        cells = [""] * width
        if one.spent is not None:
            seconds = [one.spent.wall, *(one.spent.seconds[part] for part in parts)]
            cells = [f"{one.spent.goodput:.0%}", *(f"{value:.1f}" for value in seconds)]
        rows.append([name, f"{one.now:.1f}", *cells])
    whole = sum(one.now for one in stages.values())
    return [*rows, ["sum", f"{whole:.1f}", *[""] * width]]
