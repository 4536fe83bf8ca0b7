"""The attempts of a training, kept in its folder, and the sum of their seconds.

An attempt is one process that trained, from its start to the last time that it wrote its account. A
training that was never interrupted has one.

    goodput.json       {"attempts": [{"begun", "seen", "first", "step", "seconds", "lost"}, ...]}
    goodput.3.json     the same of process 3 of several
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.storage import records

FILE = "goodput.json"  # of process 0
LOST = "lost"
# Each second of a training belongs to one part. Names in words, in the order of tables.
PARTS = {
    "step": "step",
    "input": "input wait",
    "start": "start-up",
    "compile": "compile",
    "checkpoint": "checkpoint",
    "evaluation": "evaluation",
    "refresh": "refresh",
    LOST: "lost to restarts",
    "other": "other",
}


class GoodputError(ValueError):
    """A file that holds no account; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One process that trained.

    Attributes:
      begun, seen: wall clock, seconds since the epoch: its start, and its last record.
      first: updates before its first step; None where it had not restored or initialised yet.
      step: updates after its last recorded step.
      seconds: part -> seconds; those of `lost` are left out.
      lost: part -> seconds until its first step that no earlier attempt had done.
    """

    begun: float
    seen: float
    first: int | None
    step: int
    seconds: Mapping[str, float]
    lost: Mapping[str, float]


@dataclasses.dataclass(frozen=True)
class Spent:
    """Seconds of a training by part.

    Attributes:
      seconds: part of `PARTS` -> seconds.
      wall: seconds from its first start to its last record, on the wall clock.
      restarts: attempts after the first.
      away: the seconds of `lost` in which no process ran.
      repeated: steps that were done twice, as far as they were recorded before an attempt ended.
    """

    seconds: Mapping[str, float]
    wall: float
    restarts: int = 0
    away: float = 0.0
    repeated: int = 0

    @property
    def total(self) -> float:
        """Sum of the parts."""
        return sum(self.seconds.values())

    def share(self, part: str) -> float:
        """The share of a part; 0 where no time was spent at all."""
        return self.seconds.get(part, 0.0) / self.total if self.total else 0.0

    @property
    def goodput(self) -> float:
        """The share of steps."""
        return self.share("step")


def file_name(process: int) -> str:
    """The account's file of a process, in the training's folder."""
    return f"goodput.{process}.json" if process else FILE


def read(path: Path) -> list[Attempt]:
    """The attempts of an account, in their order; none where there is no file.

    Raises:
      GoodputError: the file holds something else.
    """
    content = records.read_json(path)
    if content is None:
        return []
    try:
        return [Attempt(**one) for one in content["attempts"]]
    except (KeyError, TypeError) as error:
        names = ", ".join(field.name for field in dataclasses.fields(Attempt))
        raise GoodputError(
            f"{path}: expected attempts with {names}, found {error}. Move the file away: the "
            "training does not need it, and starts another account of its time."
        ) from error


def write(path: Path, attempts: Sequence[Attempt]) -> None:
    """Replaces the account in a file, whole or not at all."""
    content: dict[str, Any] = {"attempts": [dataclasses.asdict(one) for one in attempts]}
    records.write_here(path, json.dumps(content, indent=1))


def total(attempts: Sequence[Attempt]) -> Spent:
    """The sum of at least one attempt."""
    seconds = dict.fromkeys(PARTS, 0.0)
    away, repeated, reached = 0.0, 0, 0
    for number, one in enumerate(attempts):
        for part, value in one.seconds.items():
            seconds[part] += value
        seconds[LOST] += sum(one.lost.values())
        if number:
            away += max(0.0, one.begun - attempts[number - 1].seen)
            if one.first is not None:
                repeated += max(0, min(reached, one.step) - one.first)
        reached = max(reached, one.step)
    seconds[LOST] += away
    wall = attempts[-1].seen - attempts[0].begun
    return Spent(seconds, wall, len(attempts) - 1, away, repeated)


def slowest_input(folder: Path) -> tuple[int, float] | None:
    """The process that waited longest for input, and its seconds; None where one process ran.

    Args:
      folder: of the training.
    """
    others = {int(path.name.split(".")[1]): path for path in folder.glob("goodput.*.json")}
    accounts = {number: read(path) for number, path in ({0: folder / FILE} | others).items()}
    waits = {number: total(one).seconds["input"] for number, one in accounts.items() if one}
    return max(waits.items(), key=lambda pair: pair[1]) if len(waits) > 1 else None
