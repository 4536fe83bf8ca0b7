"""Find impossible trials before anything runs: by recipe, length and memory."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from t5x_style.configuration.gin_reader import REPOSITORY, GinError
from t5x_style.storage import records
from t5x_style.sweeps import measures, planning
from t5x_style.sweeps.planning import Planned, Planner
from t5x_style.sweeps.trials import Configuration, Trial
from t5x_style.workflow import recipe_checks, recipe_planning
from t5x_style.workflow.recipe_problems import in_recipe

PREFLIGHT = "t5x_style.preflight"
Problems = dict[str, list[str]]  # trial's name -> what is wrong with it


def first_trials(configurations: Iterable[Configuration], seeds: Sequence[int]) -> list[Trial]:
    """Each configuration once: seeds change neither names nor types nor memory."""
    return [Trial(one, seeds[0] if seeds else None) for one in configurations]


def check_recipes(planner: Planner) -> None:
    """Refuses a sweep whose recipe does not fit together, or does not give the metric.

    Raises:
      GinError: the recipe, the measured stage or its metric; with the places of the sweep file.
    """
    try:
        planned = planner.bound({})
    except planning.WRONG as error:
        raise GinError(*(planner.in_words(str(text)) for text in error.args)) from error
    sweep = planner.sweep
    if wrong := measures.problem(planned.last, sweep.stage, sweep.metric):
        raise GinError(f"sweep.run.metric: {wrong}")
    made = {planner.bound({sweep.seed_macro: seed}).last.fingerprint for seed in sweep.seeds}
    if len(made) < len(sweep.seeds):
        raise GinError(
            f"sweep.run.seeds: {sweep.seed_macro} changes nothing of stage {sweep.stage}, so that "
            "all seeds would be one. Name what sets its seed: sweep.run.seed_macro = "
            f"'{sweep.stage}/SEED'"
        )


def impossible(planner: Planner, trials: Sequence[Trial]) -> Problems:
    """Errors of trials; those that can run are left out."""
    plans, wrong = planner.gathered(trials)
    for name, texts in _of_code(plans).items():
        wrong.setdefault(name, []).extend(map(planner.in_words, texts))
    for name, planned in plans.items():
        if text := _too_long(planner, planned):
            wrong.setdefault(name, []).append(text)
    if planner.sweep.topology is not None:
        fitting = {name: one for name, one in plans.items() if name not in wrong}
        wrong |= _of_memory(planner, fitting)
    return wrong


def _too_long(planner: Planner, planned: Planned) -> str:
    steps, limits = measures.steps(planned.last), planner.sweep.limits
    for name, limit in (("trial_steps", limits.trial_steps), ("steps", limits.steps)):
        if limit is not None and steps is None:
            return (
                f"sweep.run.{name} = {limit}: the steps of {planner.sweep.stage} are not known "
                "before it runs; limit the minutes"
            )
        if limit is not None and steps is not None and steps > limit:
            return (
                f"sweep.run.{name} = {limit} is less than one trial: {planner.sweep.stage} "
                f"trains for {steps} steps"
            )
    return ""


def _of_code(plans: Mapping[str, Planned]) -> Problems:
    """Results of the whole-recipe check, each stage that trials share checked once."""
    commands: dict[str, dict[str, Any]] = {}
    users: dict[str, list[tuple[str, str]]] = {}  # command -> trials and their stages
    for trial, one in plans.items():
        known = recipe_planning.all_pending(one.recipe)
        for item in one.recipe.stages:
            command = recipe_checks.command(one.recipe, item.name, one.flags, known)
            key = hashlib.sha256(json.dumps(command).encode()).hexdigest()
            commands[key] = command | {"name": key}
            users.setdefault(key, []).append((trial, item.name))
    found: Problems = {}
    for key, text in recipe_checks.problems_of(list(commands.values())) if commands else ():
        for trial, stage in users[key]:
            said = in_recipe(text, stage, plans[trial].flags.read_all())
            found.setdefault(trial, []).append(f"stage {stage}: {said}")
    return found


def _of_memory(planner: Planner, plans: Mapping[str, Planned]) -> Problems:
    """Trainings that do not fit into the memory of `sweep.run.topology`; results are kept."""
    topology = str(planner.sweep.topology)
    path = planner.sweep.folder / "preflight.json"
    known: dict[str, Any] = records.read_json(path) or {}
    found: Problems = {}
    for name, planned in plans.items():
        key = f"{topology} {planned.last.fingerprint}"
        if key not in known:
            known[key] = _preflight(planned, topology)
            path.parent.mkdir(parents=True, exist_ok=True)
            records.write_json(path, known)
        if not known[key]:
            found[name] = [f"preflight: its trainings do not fit into {topology}"]
    return found


def _preflight(planned: Planned, topology: str) -> bool:
    """Whether the trainings of a recipe fit into a slice.

    Raises:
      GinError: that could not be found out.
    """
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [
            *(sys.executable, "-m", PREFLIGHT, f"--topology={topology}", "--json"),
            *replace(planned.flags, traceback=False, until=None).arguments(),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    )
    try:
        return bool(json.loads(done.stdout.splitlines()[-1])["fits"])
    except (IndexError, ValueError, KeyError, TypeError) as error:
        said = "\n".join(done.stderr.splitlines()[-5:])
        raise GinError(f"sweep.run.topology = {topology!r}: preflight failed: {said}") from error


def refuse(problems: Problems, trials: Sequence[Trial]) -> None:
    """Raises GinError if there are problems, each with the trials that have it.

    What all of them have is wrong whatever the axes are set to, and is all that is said then.
    """
    if not problems:
        return
    by_name = {one.name: one for one in trials}
    by_text: dict[str, list[str]] = {}
    for name, texts in problems.items():
        for text in texts:
            by_text.setdefault(text, []).append(described(by_name[name]))
    if of_all := [text for text, names in by_text.items() if len(names) == len(trials)]:
        raise GinError(*of_all)
    lines = [
        f"{text}\n   in {len(names)} of {len(trials)} configurations: {_some(names)}"
        for text, names in by_text.items()
    ]
    raise GinError(
        f"{len(problems)} of {len(trials)} configurations are impossible; nothing was run. Take "
        "them out of the axes (`when` makes one depend on another), or bind "
        "sweep.run.skip_impossible = True.",
        *lines,
    )


def described(trial: Trial) -> str:
    """A configuration in words: what it binds."""
    named = trial.configuration.named
    return ", ".join(f"{name}={value}" for name, value in named.items()) or "the recipe's own"


def _some(names: Sequence[str]) -> str:
    rest = f"; and {len(names) - 5} more" if len(names) > 5 else ""
    return "; ".join(names[:5]) + rest
