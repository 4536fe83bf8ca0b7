"""Gather the input of a report: trials, records, and the seconds of the stages they made."""

from collections.abc import Iterable, Mapping, Sequence

from t5x_style.sweeps import planning
from t5x_style.sweeps.planning import Planner
from t5x_style.sweeps.trial_records import TrialRecords
from t5x_style.sweeps.trials import Record, Results, Stages, Trial
from t5x_style.workflow.store import version_at


def gather(
    planner: Planner,
    trials: Sequence[Trial],
    view: Mapping[str, Record],
    devices: int,
) -> Results:
    """The results of a sweep.

    Args:
      planner: of the sweep.
      trials: that the sweep file describes.
      view: trial's name -> record, see `driver.Driver.view`.
      devices: of each trial.
    """
    sweep = planner.sweep
    kept = TrialRecords(sweep.folder)
    before = _earlier(planner, kept, {one.name for one in trials})
    records = dict(view) | {trial.name: record for trial, record in before}
    everything = (*trials, *(trial for trial, _ in before))
    return Results(
        title=sweep.title,
        metric=f"{sweep.stage}/{sweep.metric}",
        larger_is_better=sweep.larger_is_better,
        axes=tuple(axis.name for axis in sweep.axes),
        logarithmic=frozenset(axis.name for axis in sweep.axes if axis.is_logarithmic),
        drawn=frozenset(axis.name for axis in sweep.axes if not axis.is_list),
        seeds=sweep.seeds,
        trials=everything,
        records=records,
        earlier=frozenset(trial.name for trial, _ in before),
        seconds=stage_seconds(kept, [one.name for one in everything], devices),
    )


def _earlier(
    planner: Planner, kept: TrialRecords, present: Iterable[str]
) -> list[tuple[Trial, Record]]:
    """Finished trials that the file describes no more, and that would still come out the same."""
    found = []
    for name, one in kept.all().items():
        if name in present or one.record.status != "done":
            continue
        try:
            plan = planner.of(one.trial).last.fingerprint
        except planning.WRONG:
            continue  # the recipe has no such setting any more
        if plan == one.plan:
            found.append((one.trial, one.record))
    return found


def stage_seconds(kept: TrialRecords, names: Sequence[str], devices: int) -> Stages:
    """Device-seconds of the versions that the runs of trials lead to.

    Args:
      kept: where the runs are.
      names: of trials.
      devices: of each trial.
    """
    users: dict[str, set[str]] = {}
    seconds: dict[str, float] = {}
    for name in names:
        folder = kept.run_dir(name)
        for link in sorted(folder.iterdir()) if folder.is_dir() else ():
            version = version_at(link) if link.is_symlink() else None
            if version is not None:
                users.setdefault(version.id, set()).add(name)
                seconds[version.id] = devices * float(version.record.get("seconds", 0.0))
    alone: dict[str, float] = {}
    for version_id, by in users.items():
        if len(by) == 1:
            alone[min(by)] = alone.get(min(by), 0.0) + seconds[version_id]
    shared = sum(seconds[one] for one, by in users.items() if len(by) > 1)
    return Stages(round(shared, 1), {name: round(value, 1) for name, value in alone.items()})
