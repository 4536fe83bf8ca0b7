"""Records of trials, as files: SWEEP_DIR/trials/NAME/trial.json.

A record is written whole or not at all, by the driver that holds the trial's lease. Nothing here
deletes one: a trial that the sweep file describes no more stays, and counts again when it comes
back.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5x_style.configuration.gin_reader import parse_value, to_gin
from t5x_style.storage import places, records
from t5x_style.sweeps.trials import Configuration, Record, Trial

FORMAT = 1
FILE = "trial.json"
LOG = "log.txt"  # what the trial's recipe printed
RUN = "run"  # the run's folder of a trial, with links to its stages
EARLIER = 10**6  # number of configurations that the sweep file does not describe


class RecordError(ValueError):
    """A record that is damaged; the message says what to do."""


@dataclass(frozen=True)
class Kept:
    """A record as its file holds it.

    Attributes:
      trial: what was run.
      plan: fingerprint of the stage that is measured, see `planning`.
      record: what became of it.
    """

    trial: Trial
    plan: str
    record: Record


class TrialRecords:
    """The records of a sweep's folder."""

    def __init__(self, folder: Path):
        self.folder = folder / "trials"

    def folder_of(self, name: str) -> Path:
        """Of a trial's record, log and run."""
        return self.folder / name

    def file_of(self, name: str) -> Path:
        """The record of a trial."""
        return self.folder / name / FILE

    def run_dir(self, name: str) -> Path:
        """RUN_DIR of a trial's recipe."""
        return self.folder / name / RUN

    def read(self, name: str) -> Kept | None:
        """The record of a trial; None where it was never started.

        Raises:
          RecordError: the file is damaged.
        """
        path = self.file_of(name)
        value = records.read_json(path)
        if value is None:
            if path.exists():
                raise RecordError(f"{path}: not JSON. Move it away: the trial is queued again.")
            return None
        try:
            return _read(value)
        except (KeyError, TypeError, ValueError, SyntaxError) as error:
            raise RecordError(
                f"{path}: expected a record of format {FORMAT}: {type(error).__name__}: {error}. "
                "Move it away: the trial is queued again."
            ) from error

    def all(self) -> dict[str, Kept]:
        """Name -> record, in the order of names."""
        names = sorted(path.parent.name for path in self.folder.glob(f"*/{FILE}"))
        found = {name: self.read(name) for name in names}
        return {name: kept for name, kept in found.items() if kept is not None}

    def write(self, kept: Kept) -> None:
        """Replaces the record of a trial."""
        folder = self.folder / kept.trial.name
        folder.mkdir(parents=True, exist_ok=True)
        records.write_json(folder / FILE, _value(kept))


def _value(kept: Kept) -> dict[str, Any]:
    configuration, record = kept.trial.configuration, kept.record
    return {
        "format": FORMAT,
        "values": _as_gin(configuration.values),
        "bindings": _as_gin(configuration.bindings),
        "named": _as_gin(configuration.named),
        "seed": kept.trial.seed,
        "plan": kept.plan,
        **vars(record),
        "curve": [list(point) for point in record.curve],
    }


def _as_gin(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as text: JSON has no tuples."""
    return {name: to_gin(value) for name, value in values.items()}


def _read(value: Mapping[str, Any]) -> Kept:
    if value["format"] != FORMAT:
        raise ValueError(f"found format {value['format']}")
    parts = [
        {name: parse_value(text) for name, text in value[part].items()}
        for part in ("values", "bindings", "named")
    ]
    fields = {name: value[name] for name in Record.__dataclass_fields__ if name != "curve"}
    curve = tuple((int(step), float(one)) for step, one in value["curve"])
    trial = Trial(Configuration(EARLIER, *parts), value["seed"])
    return Kept(trial, value["plan"], Record(curve=curve, **fields))


def folder_key(folder: Path) -> str:
    """Twelve digits that identify a sweep's folder in the names of leases."""
    name = places.remote(folder) or str(folder.resolve())
    return hashlib.sha256(name.encode()).hexdigest()[:12]
