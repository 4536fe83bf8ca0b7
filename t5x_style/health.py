"""Report whether a run is healthy, from the logs of its trainings; it may still be running.

    python -m t5x_style.health runs/quickstart
    python -m t5x_style.health runs/mine --reference=runs/before      # another run
    python -m t5x_style.health runs/mine --reference=mine.json --picture=curves.png
    python -m t5x_style.health --write=mine.json runs/seed1 runs/seed2 runs/seed3

Every training is checked for losses that are not finite or rise, for its gradient norm, learning
rate, development metric, vectors, lost time and skipped records. Where its settings are those of a
reference that comes with the package, seeds aside, its curves are compared with that, too; where a
few differ, what is outside is a note. `--reference` compares with something else, whatever the
settings are. docs/healthy.md explains the checks.

Exit code 0: nothing is wrong (notes do not count). 1: something is. 2: the command cannot be
carried out.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.configuration import command_flags
from t5x_style.reporting import (
    health_checks,
    health_picture,
    health_reference,
    health_runs,
    health_time,
)
from t5x_style.reporting.health_checks import Finding
from t5x_style.reporting.health_runs import HealthError, Training
from t5x_style.storage.errors import StorageError
from t5x_style.storage.paths import PathError

WIDTH = 12  # of the name of a check
Pair = tuple[Training, Mapping[str, Any] | None, str]  # a training, its reference, its name there


def paired(trainings: Sequence[Training], wanted: str | None) -> list[Pair]:
    """Each training with what it is compared with.

    Args:
      trainings: of a run.
      wanted: `--reference`; None looks for one with the same settings.

    Returns:
      (training, reference, name of its training); or (training, None, why there is none).

    Raises:
      HealthError: no training of the run is in the reference.
    """
    if wanted is None:
        return [(one, *health_reference.find(one)) for one in trainings]
    reference = health_reference.load(wanted)
    names = list(reference["trainings"])
    alone = len(names) == len(trainings) == 1
    found: list[Pair] = []
    for one in trainings:
        name = names[0] if alone else one.name
        known = name in names
        found.append((one, reference, name) if known else (one, None, f"not in {wanted}"))
    if all(reference is None for _, reference, _ in found):
        raise HealthError(
            f"--reference={wanted} has trainings {', '.join(names)}; the run has "
            f"{', '.join(one.name for one in trainings)}. Name folders of one training each."
        )
    return found


def judge(pair: Pair, asked: bool) -> Iterator[Finding]:
    """The findings about a training.

    Args:
      pair: of `paired`.
      asked: whether the user named the reference. If not, what other settings do is no mistake:
        curves outside the band of a reference that nearly fits are a note.
    """
    training, reference, name = pair
    yield from health_checks.of(training)
    yield from health_time.of(training)
    if reference is None:
        yield Finding("note", "reference", f"none for these settings: {name}")
        return
    differing = health_reference.differences(reference["trainings"][name], training)
    if differing:
        said = f"{reference['name']} has other settings: {health_reference.some(differing)}"
        yield Finding("note", "reference", said)
    for found in health_reference.compare(training, reference, name):
        lenient = differing and not asked and found.level == "wrong"
        yield dataclasses.replace(found, level="note") if lenient else found


def check(run: str, wanted: str | None, picture: str | None = None) -> int:
    """Prints the findings about a run; returns the exit code.

    Args:
      run: its folder.
      wanted: what to compare with, see `paired`.
      picture: PNG to draw, or None.

    Raises:
      HealthError: it is no run, or there is nothing to compare with.
    """
    trainings = health_runs.read(run)
    pairs = paired(trainings, wanted)
    count = {"ok": 0, "note": 0, "wrong": 0}
    for pair in pairs:
        print(f"{pair[0].name}: {pair[0].state()}")
        _print(judge(pair, wanted is not None), count)
    print("data:")
    _print(health_time.skipped(health_runs.skipped(trainings)), count)
    if picture is not None:
        health_picture.draw([(one, ref, name) for one, ref, name in pairs], Path(picture))
    verdict = "not healthy" if count["wrong"] else "healthy"
    print(f"{verdict}: {count['wrong']} wrong, {count['note']} notes, {count['ok']} checks passed")
    return 1 if count["wrong"] else 0


def _print(findings: Iterator[Finding], count: dict[str, int]) -> None:
    for one in findings:
        count[one.level] += 1
        mark = one.level.upper() if one.level == "wrong" else one.level
        print(f"  {mark:<6}{one.check:<{WIDTH}}{one.text}")


def act(options: argparse.Namespace) -> int:
    """Does what the command line says; returns the exit code."""
    if options.write is not None:
        path = Path(options.write)
        runs = [health_runs.read(run) for run in options.runs]
        reference = health_reference.make(path.stem, runs)
        health_reference.write(path, reference)
        names = ", ".join(reference["trainings"])
        print(f"{path}: curves of {names} from {len(runs)} runs")
        if len(runs) < health_reference.ENOUGH:
            print(
                f"note: {len(runs)} runs show little of how seeds differ; of {len(runs)} a healthy "
                f"run is often outside. Use {health_reference.ENOUGH} or more."
            )
        return 0
    if len(options.runs) > 1:
        raise HealthError(
            "name one run to check; a second is --reference=RUN_DIR, and --write=FILE makes a "
            "reference of several"
        )
    return check(options.runs[0], options.reference, options.picture)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code; 2 with a message where the command cannot be carried out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command_flags.add_health(parser)
    options = parser.parse_args(argv)
    try:
        return act(options)
    except (HealthError, PathError, StorageError, OSError) as error:
        if options.traceback:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
