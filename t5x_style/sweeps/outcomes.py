"""What is known of a trial: its record, and what its stages have left since."""

import re
from dataclasses import replace
from pathlib import Path

from t5x_style.sweeps import measures
from t5x_style.sweeps.measures import MeasureError
from t5x_style.sweeps.planning import Planner
from t5x_style.sweeps.trial_records import LOG, TrialRecords
from t5x_style.sweeps.trials import Curve, Record, Trial
from t5x_style.workflow.store import Version, version_at

STOPPED = 143  # exit code of a recipe whose stage was stopped by somebody else, and saved


class Outcomes:
    """Reads records and runs of trials; writes nothing."""

    def __init__(self, planner: Planner, records: TrialRecords):
        self._planner, self._records = planner, records
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
        try:
            curve = self._curve(trial)
        except MeasureError as error:
            return replace(kept.record, status="failed", reason=str(error))
        return replace(kept.record, curve=curve or kept.record.curve)

    def _stage(self, trial: Trial) -> Path:
        return self._records.run_dir(trial.name) / self._sweep.stage

    def _curve(self, trial: Trial) -> Curve:
        if not measures.is_training(self._planner.of(trial).last):
            return ()
        return measures.curve(self._stage(trial), self._sweep.metric)

    def of(self, trial: Trial, code: int) -> Record:
        """What became of a trial whose recipe ended by itself.

        Args:
          trial: whose.
          code: its exit code, see `launch.recipe`.
        """
        seen = self.seen(trial)
        if seen.status == "failed":
            return seen
        if code not in (0, STOPPED):
            return replace(seen, status="failed", reason=self._error(trial, code))
        version = version_at(self._stage(trial))
        if version is None or version.manifest is None:
            return replace(seen, status="preempted")
        try:
            step, value = self._measured(trial, version, seen.curve)
        except MeasureError as error:
            return replace(seen, status="failed", reason=str(error))
        return replace(seen, status="done", value=value, step=step)

    def _measured(self, trial: Trial, version: Version, curve: Curve) -> tuple[int | None, float]:
        sweep = self._sweep
        if measures.is_training(self._planner.of(trial).last):
            return measures.chosen(curve, sweep.at, sweep.larger_is_better)
        return None, measures.number(version.output(measures.OUTPUT), sweep.metric)

    def _error(self, trial: Trial, code: int) -> str:
        """Why a recipe failed: the first error of the last attempt that its log holds."""
        path = self._records.folder_of(trial.name) / LOG
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        last = re.split(r"(?m)^--- \d{4}-\d\d-\d\d .*\n", text)[-1]
        errors = re.findall(r"(?m)^(?:error: |\w*Error: )(.*)$", last)
        said = errors[0] if errors else f"its recipe ended with exit code {code}"
        return f"{said} ({path.parent.name}/{LOG})"
