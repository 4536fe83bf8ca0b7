"""The check of a recipe's stages before the first one runs: `python -m ...stage_checks < stages`.

Reads a JSON list of the stages' command lines, and prints a JSON list of [stage, problem]. It
imports what the stages would import, compares every binding with the code as each of them would at
its start (`configuration.code_checks`), and tries the values (`trial`). One process for all stages:
most of its seconds are imports that they share. No device is touched.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from t5x_style.configuration import code_checks
from t5x_style.configuration.gin_checks import Flags
from t5x_style.preflight.trial import Trial
from t5x_style.workflow import stages


def problems(flags: Flags, job: str, is_stage: bool = True) -> Iterator[str]:
    """Errors of one stage.

    Args:
      flags: its command line; what it reads may not be there yet.
      job: dotted path of what it runs.
      is_stage: False: a companion, whose program declares no job.
    """
    config = flags.read()
    found = [*code_checks.problems(config), *code_checks.job_problems(config, job)]
    wrong = {
        binding.where
        for binding in config.bindings.values()
        if any(problem.startswith(f"{binding.where}: ") for problem in found)
    }
    trial = Trial(config, stages.inputs_of(config), wrong)
    if is_stage:
        trial.check_job(job)
    else:
        trial.arguments(job)
    yield from dict.fromkeys([*found, *trial.problems])


def of_stage(stage: Mapping[str, Any]) -> list[str]:
    """The problems of one element of what this program reads."""
    flags = Flags(
        files=tuple(stage["files"]),
        overrides=tuple((name, value) for name, value in stage["overrides"]),
        search_paths=tuple(stage["search_paths"]),
        allow=tuple(stage["allow"]),
    )
    try:
        return list(problems(flags, stage["job"], stage.get("is_stage", True)))
    except Exception as error:  # whatever an import of the user's code raises
        return [f"{type(error).__name__}: {error}"]


def main() -> None:
    """The program."""
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        found = [[stage["name"], problem] for stage in asked for problem in of_stage(stage)]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
