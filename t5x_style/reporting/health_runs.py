"""Input of a health check: logs, settings, state and skipped records of a run's trainings."""

import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.goodput import attempts
from t5x_style.goodput.attempts import Attempt
from t5x_style.storage import places, records
from t5x_style.storage.latest import latest
from t5x_style.training import metric_writer
from t5x_style.workflow import collection, links
from t5x_style.workflow.lineage import lineage
from t5x_style.workflow.store import STAGE_FILE, STARTED_FILE, Version, store_of, version_at

LOSS, GRADIENT, RATE = "train/loss", "train/gradient_norm", "train/learning_rate"
PADDING = "train/padding_share"

Points = list[tuple[float, float]]


class HealthError(ValueError):
    """Something that is no run, or cannot be compared; the message says what to give instead."""


@dataclasses.dataclass(frozen=True)
class Skipped:
    """Records that a stage skipped.

    Attributes:
      stage: its name.
      reasons: reason -> number of records.
      kept: number of records that it kept; None where its report does not say.
    """

    stage: str
    reasons: Mapping[str, int]
    kept: int | None

    @property
    def total(self) -> int:
        """Records that were skipped."""
        return sum(self.reasons.values())


@dataclasses.dataclass(frozen=True)
class Training:
    """A training stage.

    Attributes:
      name: of the stage.
      folder: of its version.
      lines: of its log, in order.
      parameters: path -> value in words, as its manifest has them.
      ancestors: the finished versions that it was made from.
      finished: whether it is.
      holder: the process that is making it, in words; "" where there is none.
      attempts: of its account of time; none of a training that is older than accounts.
    """

    name: str
    folder: Path
    lines: Sequence[Mapping[str, Any]]
    parameters: Mapping[str, str]
    ancestors: Sequence[Version]
    finished: bool
    holder: str
    attempts: Sequence[Attempt] = ()

    def points(self, metric: str) -> Points:
        """(step, value) of a metric where it is finite."""
        found = [(line["step"], line[metric]) for line in self.lines if metric in line]
        return [(step, value) for step, value in found if math.isfinite(value)]

    def values(self, metric: str) -> list[float]:
        """The finite values of a metric, in the order of steps."""
        return [value for _, value in self.points(metric)]

    @property
    def step(self) -> int:
        """The last step of the log; 0 before there is one."""
        return max((int(line["step"]) for line in self.lines), default=0)

    def number(self, path: str) -> float | None:
        """A parameter, where the manifest holds a number; None where a function computes it."""
        try:
            return float(self.parameters[path])
        except (KeyError, ValueError):
            return None

    def state(self) -> str:
        """State of the run, in words."""
        if self.finished:
            return f"finished at step {self.step:,}"
        total = self.number("cadence.steps")
        of = f" of {total:,.0f}" if total is not None else ""
        if self.holder:
            return f"running, step {self.step:,}{of} ({self.holder})"
        return f"stopped at step {self.step:,}{of}; the command that started it continues it"

    def candidates(self) -> int | None:
        """Passages that a development query is searched in; None where that is not known."""
        store = self.parameters.get("evaluators[0].passages.store", "")
        if self.parameters.get("evaluators[0].passages.sample") != "None":
            return None
        found = re.match(r"input (\S+) ", store)
        versions = {one.id: one for one in self.ancestors}
        if found is None or found[1] not in versions:
            return None
        return (report_of(versions[found[1]]) or {}).get("count")


def report_of(version: Version) -> dict[str, Any] | None:
    """The report of a stage that prepared records; None where it has none."""
    return records.read_json(latest(version.folder / "report.json"))


def read(run: str) -> list[Training]:
    """The trainings of a run, in the order in which they started.

    Args:
      run: a folder of links to stages, or one training stage; on object storage, the former.

    Raises:
      HealthError: there is no such folder, or no training in it.
      errors.StorageError: object storage does not answer, or forbids it.
    """
    folder = links.run_here(run) if places.is_remote(run) else Path(run)
    if not folder.is_dir():
        raise HealthError(f"{run}: expected the folder of a run, such as runs/quickstart; no such")
    found = [one for place in _stages(folder) if (one := _training(place)) is not None]
    if not found:
        raise HealthError(
            f"{run}: expected a run with a training stage, found none. Where the recipe has not "
            "reached its first training yet, try again later; kennel runs lists all runs' stages."
        )
    return [training for _, training in sorted(found, key=lambda pair: pair[0])]


def _stages(folder: Path) -> Iterator[Path]:
    """The folder itself where it is a stage, else its stages."""
    if any((folder / name).is_file() for name in (STAGE_FILE, STARTED_FILE)):
        yield folder
        return
    for place in sorted(folder.iterdir()):
        if any((place / name).is_file() for name in (STAGE_FILE, STARTED_FILE)):
            yield place


def _training(place: Path) -> tuple[float, Training] | None:
    version = version_at(place)
    if version is None or version.record.get("job", {}).get("name") != "train":
        return None
    path = latest(version.folder / metric_writer.JSONL)
    try:
        lines = metric_writer.read_lines(path) if path.is_file() else []
        accounted = attempts.read(latest(version.folder / attempts.FILE))
    except attempts.GoodputError as error:
        raise HealthError(str(error)) from error
    except ValueError as error:
        raise HealthError(
            f"{error}. The log is damaged: make the stage again (--rerun)."
        ) from error
    record = version.record
    training = Training(
        str(record["name"]), version.folder, lines, record.get("parameters", {}),
        _ancestors(version), version.manifest is not None, _holder(version), accounted,
    )  # fmt: skip
    # a record that was copied here is as old as the copy
    begun = version.started.get("process_start")
    return begun or (version.folder / STARTED_FILE).stat().st_mtime, training


def _holder(version: Version) -> str:
    store = store_of(version.folder)
    if store is None or version.manifest is not None:
        return ""
    holder = store.leases.holder(collection.lease_name(version))
    return "" if holder is None else str(holder)


def _ancestors(version: Version) -> list[Version]:
    store = store_of(version.folder)
    made_from = version.record.get("made_from", ())
    return [] if store is None else lineage(store.versions / name for name in made_from)


def skipped(trainings: Sequence[Training]) -> list[Skipped]:
    """Records skipped by the stages that led to trainings; without those that read none."""
    found: dict[Path, Skipped] = {}
    for version in (one for training in trainings for one in training.ancestors):
        report = report_of(version)
        if report is None or version.folder in found:
            continue
        reasons = _reasons(report)
        if reasons is not None:
            kept = report.get("count")
            name = str(version.record["name"])
            found[version.folder] = Skipped(name, reasons, kept if type(kept) is int else None)
    return list(found.values())


def _reasons(report: Mapping[str, Any]) -> dict[str, int] | None:
    """Reason -> count; reports of jobs name it `dropped`, `bad_records` or `malformed`."""
    counts = [report[name] for name in ("dropped", "bad_records", "malformed") if name in report]
    tables = [one for one in counts if isinstance(one, dict)]
    if not tables:
        return None
    return {str(reason): int(count) for one in tables for reason, count in one.items() if count}


def settings(training: Training) -> dict[str, str]:
    """Settings that decide a training's curves, without seeds: its own and those of its inputs.

    A value is listed once under the last two parts of its path (`pairs.batch`): most paths are the
    same object seen from several places. Inputs count by the settings of the stage that made them,
    not by its code.

    Returns:
      `setting` of the training, and `stage: setting` of an ancestor -> values in words.
    """
    found = short(training.parameters, "")
    for version in training.ancestors:
        found |= short(version.record.get("parameters", {}), f"{version.record['name']}: ")
    return found


def short(parameters: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The settings among the parameters of one version, see `settings`; names get the prefix."""
    found: dict[str, dict[str, None]] = {}
    for path, value in parameters.items():
        name = ".".join(path.split(".")[-2:])
        if name.split(".")[-1] != "seed":
            found.setdefault(name, {})[_of_any_code(value)] = None
    return {prefix + name: json.dumps([*values])[1:-1] for name, values in found.items()}


def _of_any_code(value: str) -> str:
    """`input train_tokenizer-e110fa by code 684bc/tokenizer` -> `input train_tokenizer/tokenizer`.

    A file from outside keeps the hash of its content.
    """
    return re.sub(r"\binput ([\w.]+)-[0-9a-f]{16}(?:\.\d+)? by code [^/]*", r"input \1", value)


def seeds(training: Training) -> str:
    """The training's seed, in words."""
    return training.parameters.get("seed", "unknown")
