"""Outcome of a trial: its record, and what its stages have written since."""

import re
from dataclasses import replace
from pathlib import Path

from t5x_style.storage import places
from t5x_style.sweeps import measures
from t5x_style.sweeps.launchers import NOT_RUN
from t5x_style.sweeps.measures import MeasureError
from t5x_style.sweeps.planning import Planner
from t5x_style.sweeps.remote_sweep import RemoteSweep
from t5x_style.sweeps.trial_records import FILE, LOG, TrialRecords
from t5x_style.sweeps.trials import Curve, Record, Trial
from t5x_style.workflow.store import Version

STOPPED = 143  # exit code of a recipe whose stage was stopped by somebody else, and saved


class Outcomes:
    """Reads records and runs of trials; writes nothing."""

    def __init__(self, planner: Planner, records: TrialRecords, remote: RemoteSweep):
        self._planner, self._records, self._remote = planner, records, remote
        self._sweep = planner.sweep

    def seen(self, trial: Trial) -> Record:
        """The record of a trial, with the curve so far where it has not ended.

        A record that was made with another plan is none: the recipe has changed since.
        """
        kept = self._records.read(trial.name)
        if kept is None or kept.plan != self._planner.of(trial).last.fingerprint:
            return Record()
        if kept.record.status not in ("running", "preempted"):
            return kept.record
        return self._with_curve(trial, kept.record)

    def _with_curve(self, trial: Trial, record: Record) -> Record:
        if not measures.is_training(self._planner.of(trial).last):
            return record
        curve, wrong = measures.curve(self._remote.log(self.stage(trial)), self._sweep.metric)
        if wrong:
            return replace(record, status="failed", curve=curve, reason=wrong)
        return replace(record, curve=curve or record.curve)

    def stage(self, trial: Trial) -> Path:
        """The link to the measured stage of a trial's run."""
        return self._records.run_dir(trial.name) / self._sweep.stage

    def of(self, trial: Trial, record: Record, code: int) -> Record:
        """Outcome of a trial whose recipe ended by itself.

        Args:
          trial: whose.
          record: from its start.
          code: the recipe's exit code, see `launch.recipe`; or `launchers.NOT_RUN`.
        """
        self._remote.look(now=True)
        seen = self._with_curve(trial, record)
        if code not in (0, STOPPED, NOT_RUN):
            return replace(seen, status="failed", reason=seen.reason or self._error(trial, code))
        self._remote.look_at_store()
        version = self._planner.made(trial, self._records.run_dir(trial.name))
        if version is None:
            return replace(seen, status="preempted", reason="")
        if seen.status == "failed":
            return seen
        try:
            step, value = self._measured(trial, version, seen.curve)
        except MeasureError as error:
            return replace(seen, status="failed", reason=str(error))
        return replace(seen, status="done", value=value, step=step)

    def _measured(self, trial: Trial, version: Version, curve: Curve) -> tuple[int | None, float]:
        sweep = self._sweep
        if measures.is_training(self._planner.of(trial).last):
            return measures.chosen(curve, sweep.at, sweep.larger_is_better)
        with self._remote.output(version, measures.OUTPUT) as path:
            return None, measures.number(path, sweep.metric)

    def unrecorded_seconds(self, trial: Trial) -> float:
        """Seconds of an attempt whose driver was killed, as far as its log says.

        It is 0 for a sweep on object storage: files here may be copies, whose times say when they
        were copied, and a trial on slices waited for them first.
        """
        if places.remote(self._sweep.folder):
            return 0.0
        folder = self._records.folder_of(trial.name)
        try:
            return max(0.0, (folder / LOG).stat().st_mtime - (folder / FILE).stat().st_mtime)
        except OSError:
            return 0.0

    def _error(self, trial: Trial, code: int) -> str:
        """Why a recipe failed: the first error of the last attempt that its log holds."""
        path = self._records.folder_of(trial.name) / LOG
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        last = re.split(r"(?m)^--- \d{4}-\d\d-\d\d .*\n", text)[-1]
        errors = re.findall(r"(?m)^(?:error: |\w*Error: )(.*)$", last)
        said = errors[0] if errors else f"its recipe ended with exit code {code}"
        return f"{said} ({path.parent.name}/{LOG})"
