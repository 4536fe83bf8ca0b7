"""Estimate the cost of a sweep from the seconds that similar stages took before."""

from collections.abc import Iterable
from dataclasses import dataclass

from t5x_style.sweeps.planning import Planned, Planner
from t5x_style.workflow.plans import Plan
from t5x_style.workflow.store import Version


@dataclass(frozen=True)
class Shared:
    """A stage as trials share it.

    Attributes:
      stage: its name.
      fingerprint: of its plan.
      trials: number of trials that read it.
      done: whether it exists already.
      seconds: an estimate; None where the store holds nothing like it.
    """

    stage: str
    fingerprint: str
    trials: int
    done: bool
    seconds: float | None


def shared_stages(planner: Planner, plans: Iterable[Planned]) -> list[Shared]:
    """Every different stage of some trials, in the order of the recipe."""
    found: dict[str, tuple[str, Plan, bool]] = {}
    count: dict[str, int] = {}
    for planned in plans:
        decisions = planner.decisions(planned)
        for stage, plan in planned.chain.items():
            found.setdefault(plan.fingerprint, (stage, plan, decisions[stage].status == "done"))
            count[plan.fingerprint] = count.get(plan.fingerprint, 0) + 1
    versions: dict[str, list[Version]] = {}
    shared = []
    for fingerprint, (stage, plan, done) in found.items():
        root = str(plan.store.root)
        if root not in versions:
            versions[root] = plan.store.all()
        seconds = None if done else estimate(plan, versions[root])
        shared.append(Shared(stage, fingerprint, count[fingerprint], done, seconds))
    return sorted(shared, key=lambda one: -one.trials)


def estimate(plan: Plan, versions: Iterable[Version]) -> float | None:
    """Seconds of the most similar finished version of the same job, scaled by its length.

    Args:
      plan: of the stage.
      versions: of the store.
    """
    new = plan.values.semantic
    best: tuple[int, float] | None = None
    for version in versions:
        if version.manifest is None or version.manifest["job"]["name"] != plan.job.name:
            continue
        old = version.manifest["parameters"]
        differing = sum(old.get(name) != new.get(name) for name in {*old, *new})
        if best is None or differing < best[0]:
            seconds = float(version.manifest["seconds"])
            best = differing, seconds * _longer(plan, old)
    return None if best is None else best[1]


def _longer(plan: Plan, old: dict[str, str]) -> float:
    """Factor by which the planned stage is longer, by its job's measure of length."""
    if not plan.job.length:
        return 1.0
    measure = plan.job.length[0]
    try:
        return float(plan.values.semantic[measure]) / float(old[measure])
    except (KeyError, ValueError, ZeroDivisionError):
        return 1.0
