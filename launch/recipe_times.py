"""The page about the time of a recipe: RUN_DIR/time.md, and the same as a table on the terminal."""

import os
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from t5x_style.goodput import attempts, table
from t5x_style.goodput.table import StageTime
from t5x_style.storage import places
from t5x_style.workflow.store import Version

FILE = "time.md"
_NOTE = (
    "Seconds. `now` is of the last command, 0 for what was in the store; the other columns are the "
    "account of a training that ran in it, over all its attempts."
)


def of_stage(version: Version, now: float) -> StageTime:
    """The time of a stage that ran now.

    Args:
      version: that it made.
      now: seconds of its process.

    Raises:
      GoodputError: its account is damaged.
    """
    found = attempts.read(version.folder / attempts.FILE)
    return StageTime(now, attempts.total(found) if found else None)


def write(run_dir: Path, stages: Mapping[str, StageTime], console: Console) -> None:
    """Writes the page and prints its table.

    Args:
      run_dir: folder of the run.
      stages: name -> its time, in the order of the recipe.
      console: to print on.
    """
    head, *rows = table.of_stages(stages)
    lines = [
        f"# Time of {places.shown(run_dir)}",
        "",
        _NOTE,
        "",
        _row(head),
        "|---" * len(head) + "|",
    ]
    page = "\n".join([*lines, *map(_row, rows), ""])
    temporary = run_dir / f".{FILE}.tmp"
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, run_dir / FILE)
    shown = Table(title="seconds", title_justify="left")
    for number, name in enumerate(head):
        shown.add_column(name, justify="right" if number else "left")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
