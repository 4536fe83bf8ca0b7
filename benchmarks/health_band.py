"""How often `kennel health` calls a healthy run wrong: each run against a reference of the others.

    python -m benchmarks.health_band runs/seed1 runs/seed2 runs/seed3 runs/seed4

The runs differ in their seed only. Also reports at which logged step each other run, named by
`--unhealthy`, first leaves the band of a reference that all of them make.
"""

from collections.abc import Sequence

from absl import app, flags

from t5x_style.reporting import health_reference, health_runs
from t5x_style.reporting.health_runs import Training

_UNHEALTHY = flags.DEFINE_multi_string("unhealthy", [], "Runs with other settings.")


def left_out(runs: Sequence[Training]) -> list[tuple[str, list[str]]]:
    """(folder, level of each curve) of each run against the reference of all others."""
    found = []
    for one in runs:
        others = [[other] for other in runs if other is not one]
        reference = health_reference.make("others", others)
        levels = [each.level for each in health_reference.compare(one, reference, one.name)]
        found.append((str(one.folder), levels))
    return found


def first_outside(training: Training, reference: dict) -> dict[str, float | None]:
    """Metric -> the first step outside the band, if there are `OUTSIDE` (of evaluations one)."""
    found: dict[str, float | None] = {}
    for metric, steps in health_reference.outside(training, reference, training.name).items():
        wanted = 1 if metric.startswith("eval/") else health_reference.OUTSIDE
        found[metric] = steps[0] if len(steps) >= wanted else None
    return found


def main(argv: Sequence[str]) -> None:
    """Prints a line for each run, then the share of curves that were called wrong."""
    runs = [health_runs.read(folder)[0] for folder in argv[1:]]
    levels = []
    for folder, each in left_out(runs):
        print(f"{folder}: {', '.join(each)}")
        levels += each
    wrong, notes = levels.count("wrong"), levels.count("note")
    print(f"{len(levels)} curves of {len(runs)} healthy runs: {wrong} wrong, {notes} notes")
    reference = health_reference.make("all", [[one] for one in runs])
    for folder in _UNHEALTHY.value:
        print(f"{folder}: {first_outside(health_runs.read(folder)[0], reference)}")


if __name__ == "__main__":
    app.run(main)
