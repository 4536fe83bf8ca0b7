"""Final records of trials, once the pruner has judged them: a pure function.

A trial is judged at each of its evaluations against the trials before it with the same seed, by
what they had at the same step, whether they have continued since or not. So a decision depends on
curves and on the order of trials, never on the time: not on the number of workers, nor on how often
a driver was stopped. A decision waits until all trials before have reached the step, or ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from t5x_style.sweeps import pruning
from t5x_style.sweeps.pruning import Pruner
from t5x_style.sweeps.trials import Record, Trial

ENDED = ("done", "failed", "pruned")
REASON = "pruner"  # how the reason of a trial begins that a pruner stopped


def settled(
    trials: Sequence[Trial],
    records: Mapping[str, Record],
    pruner: Pruner,
    larger_is_better: bool,
) -> dict[str, Record]:
    """Trial's name -> its record, `pruned` where the pruner says so.

    A configuration that is pruned with one seed is pruned with all that come after it.

    Args:
      trials: in order.
      records: name -> record, with the curve so far of those that run.
      pruner: judges.
      larger_is_better: which way the metric is compared.
    """
    found: dict[str, Record] = {}
    pruned: dict[str, Trial] = {}  # configuration -> the first trial of it that was
    for place, trial in enumerate(trials):
        record = records.get(trial.name, Record())
        first = pruned.get(trial.configuration.name)
        if first is not None:
            reason = f"{REASON}: its configuration was pruned with seed {first.seed}"
            record = replace(
                record, status="pruned", value=None, step=None, curve=(), reason=reason
            )
        elif record.status != "pruned" or by_pruner(record):
            before = [found[one.name] for one in trials[:place] if one.seed == trial.seed]
            record = _judged(record, before, pruner, larger_is_better)
            if record.status == "pruned":
                pruned[trial.configuration.name] = trial
        found[trial.name] = record
    return found


def by_pruner(record: Record) -> bool:
    """Whether a pruner stopped it, and not a limit of the sweep, which judges no curve."""
    return record.status == "pruned" and record.reason.startswith(REASON)


def _judged(
    record: Record, before: Sequence[Record], pruner: Pruner, larger_is_better: bool
) -> Record:
    known = tuple(
        point for point in record.curve if all(_has_reached(one, point[0]) for one in before)
    )
    if known:
        # of trials that were first measured later, the pruner would hear at one time or another
        curves = [one.curve for one in before if one.curve and one.curve[0][0] <= known[0][0]]
        step = pruning.pruned_at(pruner, tuple(curves), known, larger_is_better)
        if step is not None:
            seen = tuple(point for point in known if point[0] <= step)
            value = seen[-1][1]
            reason = f"{REASON} {pruner.name} at step {step}"
            return replace(
                record, status="pruned", value=value, step=step, curve=seen, reason=reason
            )
    if known != record.curve:
        return record
    if record.status != "pruned":
        return record
    # another pruner, or another order of trials, had stopped it: it may continue
    return replace(record, status="preempted", value=None, step=None, reason="")


def _has_reached(record: Record, step: int) -> bool:
    return record.status in ENDED or bool(record.curve and record.curve[-1][0] >= step)
