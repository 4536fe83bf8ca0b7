"""The account of a training as a table and as a line."""

from collections.abc import Mapping

from t5x_style.goodput.attempts import LOST, PARTS, Spent

SHOWN = 0.005  # share from which a line names a part
DRIFT = 0.01  # of the sum: clocks that differ by more are reported


def markdown(spent: Spent) -> list[str]:
    """Lines of Markdown: part, seconds, share; the sum and the wall time."""
    rows = [
        f"| {words} | {spent.seconds.get(part, 0.0):.1f} | {spent.share(part):.1%} |"
        for part, words in PARTS.items()
    ]
    said = [f"Goodput, the share of steps: {spent.goodput:.1%}. {_wall(spent)}"]
    if spent.restarts:
        said.append(f"{restarts(spent)}.")
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
    """One line: goodput, then the other parts by size."""
    others = {part: spent.share(part) for part in PARTS if part != "step"}
    shown = sorted((p for p in others if others[p] >= SHOWN), key=lambda p: -others[p])
    said = ", ".join(f"{PARTS[part]} {others[part]:.0%}" for part in shown)
    text = f"{spent.goodput:.0%} of {spent.total:,.0f} s computed steps" + f" ({said})" * bool(said)
    return f"{text}; {restarts(spent)}" if spent.restarts else text


def restarts(spent: Spent) -> str:
    """What restarts cost, in words."""
    back = spent.seconds.get(LOST, 0.0) - spent.away
    times = "1 restart" if spent.restarts == 1 else f"{spent.restarts} restarts"
    return (
        f"{times}: {spent.away:,.1f} s without a process, {back:,.1f} s to the first new step "
        f"({spent.repeated:,} steps twice)"
    )


def compact(rows: Mapping[str, Spent]) -> tuple[list[str], list[list[str]]]:
    """A table of several trainings: column names, and a row of cells each; empty columns left out.

    Args:
      rows: name -> account.
    """
    parts = [part for part in PARTS if any(one.seconds.get(part, 0.0) for one in rows.values())]
    head = ["training", "wall s", "goodput", *(PARTS[part] for part in parts)]
    cells = [
        [name, f"{one.wall:.1f}", f"{one.goodput:.0%}"]
        + [f"{one.seconds.get(part, 0.0):.1f}" for part in parts]
        for name, one in rows.items()
    ]
    return head, cells
