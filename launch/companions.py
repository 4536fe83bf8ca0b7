"""Companions of a recipe's stages, as processes: next to their stage, or on a machine of their own.

Next to a stage, a companion starts when the stage has begun its version, and is ended with it. It
computes on the CPU, since the stage has the devices. `--companions=only` runs companions alone:
each waits for its stage to begin on another machine, and has the devices of this one.
"""

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from launch.children import Children, Process, started
from t5x_style.configuration import gin_checks
from t5x_style.workflow import recipe_planning, remote_store
from t5x_style.workflow.plans import Decision, Plan
from t5x_style.workflow.recipe_problems import Problems
from t5x_style.workflow.recipe_reader import Recipe, Stage
from t5x_style.workflow.recipe_stage import Companion
from t5x_style.workflow.store import version_at

Command = tuple[Companion, gin_checks.Flags]
ON_CPU = {"JAX_PLATFORMS": "cpu"}
LOOK_SECONDS = 0.5  # at the processes of this machine
ASK_SECONDS = 5.0  # for a stage that another machine runs
KILL_SECONDS = 20.0  # after SIGTERM: what it was making does not count anyway


@dataclass(frozen=True)
class Failure:
    """A companion that failed while its stage ran.

    Attributes:
      name: of the companion.
      code: exit code of its process.
    """

    name: str
    code: int


def has_begun(planned: Plan) -> bool:
    """Whether the link of a stage leads to the planned version, which is being made."""
    version = version_at(planned.link)
    return (
        version is not None
        and version.manifest is None
        and version.record.get("fingerprint") == planned.fingerprint
    )


class Alongside:
    """The companions of one stage that runs on this machine."""

    def __init__(self, planned: Plan, commands: Sequence[Command]):
        """Args:
        planned: the stage.
        commands: its companions, each with its command line.
        """
        self._planned = planned
        self._waiting = list(commands)
        self._running: dict[str, Process] = {}
        self.failed: Failure | None = None

    def wait(self, stage: Process) -> int:
        """The exit code of the stage; a companion that fails has it stopped, and is noted."""
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return stage.wait(LOOK_SECONDS if self._waiting or self._running else None)
                self._look(stage)
        finally:
            for one in self._running.values():
                _end(one)

    def _look(self, stage: Process) -> None:
        if self._waiting and has_begun(self._planned):
            for item, flags in self._waiting:
                self._running[item.name] = started(item.entry, flags, ON_CPU)
            self._waiting = []
        for name, one in list(self._running.items()):
            code = one.poll()
            if code is None:
                continue
            del self._running[name]
            if code and self.failed is None:
                self.failed = Failure(name, code)
                stage.terminate()


def _end(companion: Process) -> None:
    companion.terminate()
    try:
        companion.wait(KILL_SECONDS)
    except subprocess.TimeoutExpired:
        companion.kill()
        companion.wait()


def alone(
    recipe: Recipe, flags: gin_checks.Flags, children: Children, console: Console
) -> Failure | None:
    """Runs all companions of a recipe, one after the other, each while its stage runs elsewhere.

    Returns:
      None when all these stages are done, or when it was asked to stop; else what failed.

    Raises:
      RecipeError: the recipe has problems.
    """
    for item in recipe.companions:
        if code := _next_to_remote(recipe, item, flags, children, console):
            return Failure(item.name, code)
        if children.stopping:
            break
    return None


def _next_to_remote(
    recipe: Recipe,
    item: Companion,
    flags: gin_checks.Flags,
    children: Children,
    console: Console,
) -> int:
    """Runs a companion whenever its stage is being made, until that is done; an exit code."""
    stage = next(one for one in recipe.stages if one.name == item.stage)
    said, code = "", 0
    process: Process | None = None
    try:
        for known, decisions in _looks(recipe, flags, children):
            if decisions[stage.name].status == "done":
                console.print(f"companion {item.name}: stage {stage.name} is done")
                return 0
            if code:  # a stage that ends may look like a failure to its companion
                return code
            if process is not None:
                code = process.poll() or 0
                process = process if process.returncode is None else None
            elif waits := _waits_for(recipe, item, stage, flags, known):
                if waits != said:
                    console.print(f"companion {item.name}: waits for {waits}")
                said = waits
            else:
                command = recipe_planning.companion_flags(recipe, item, flags, known)
                process = children.start(item.entry, command)
    finally:
        if process is not None:
            _end(process)
    return 0


def _looks(
    recipe: Recipe, flags: gin_checks.Flags, children: Children
) -> Iterator[tuple[recipe_planning.Known, dict[str, Decision]]]:
    """What is known of the stages, looked up again and again until we are asked to stop."""
    pause = threading.Event()
    while True:
        remote_store.refresh(recipe.store, recipe.run_dir)
        problems = Problems(flags.read_all())
        found = recipe_planning.look_up(recipe, flags, problems)
        problems.refuse()
        yield found
        again = time.monotonic() + ASK_SECONDS
        while time.monotonic() < again and not children.stopping:
            pause.wait(LOOK_SECONDS)
        if children.stopping:
            return


def _waits_for(
    recipe: Recipe,
    item: Companion,
    stage: Stage,
    flags: gin_checks.Flags,
    known: recipe_planning.Known,
) -> str:
    """What has to happen elsewhere before a companion can start, in words; or ""."""
    reads = {one.stage for one in (*stage.needs(), *item.needs())}
    if absent := sorted(reads & known.pending):
        return f"stage {', '.join(absent)}"
    if not has_begun(recipe_planning.plan(recipe, stage, flags, known)):
        return f"stage {stage.name} to begin"
    return ""


def commands_of(
    recipe: Recipe, stage: Stage, flags: gin_checks.Flags, known: recipe_planning.Known
) -> list[Command]:
    """The companions of a stage with their command lines."""
    return [
        (one, recipe_planning.companion_flags(recipe, one, flags, known))
        for one in recipe.companions_of(stage.name)
    ]
