"""Companions of a recipe's stages, as processes: next to their stage, or on a separate machine.

Next to a stage, a companion starts when the stage has begun its version, computes on the CPU, since
the stage has the devices, and is ended with it. A stage that waits for another process, which makes
the same version, has no companion yet. `--companions=only` runs companions alone:
each waits for its stage to begin on another machine, and has the devices of this one.
"""

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console

from launch.children import Children, Process, started
from t5x_style.configuration import gin_checks
from t5x_style.leases import holders
from t5x_style.storage import errors, places
from t5x_style.workflow import recipe_planning, remote_store
from t5x_style.workflow.plans import Decision, Plan
from t5x_style.workflow.recipe_problems import Problems
from t5x_style.workflow.recipe_reader import Recipe, Stage
from t5x_style.workflow.recipe_stage import Companion
from t5x_style.workflow.store import version_at

Command = tuple[Companion, gin_checks.Flags]
Found = tuple[recipe_planning.Known, dict[str, Decision]]
ON_CPU = {"JAX_PLATFORMS": "cpu"}
LOOK_SECONDS = 0.5  # at the processes of this machine
ASK_SECONDS = 5.0  # for a stage that another machine runs
REMIND_SECONDS = 60.0  # of what is waited for
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


def is_made_by(planned: Plan, process: int) -> bool:
    """Whether a process of this machine makes the version: the same command may run twice.

    Raises:
      errors.StorageError: of a store on object storage, which does not answer or forbids it.
    """
    if not has_begun(planned):
        return False
    return planned.store.leases.holder(planned.id) == holders.of(process)


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
        self._away = False
        self.failed: Failure | None = None

    def wait(self, stage: Process) -> int:
        """The exit code of the stage; a companion that fails has it stopped, and is noted."""
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return stage.wait(LOOK_SECONDS if self._waiting or self._running else None)
                self._look(stage)
        except BaseException:
            stage.terminate()  # else it is killed with us, and saves nothing
            stage.wait()
            raise
        finally:
            for one in self._running.values():
                _end(one)

    def _look(self, stage: Process) -> None:
        if self._waiting and self._may_start(stage):
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

    def _may_start(self, stage: Process) -> bool:
        try:
            return is_made_by(self._planned, stage.pid)
        except errors.Unreachable as error:  # the next look asks again; the stage continues
            if not self._away:
                print(f"companions of {self._planned.link.name}: {error}", file=sys.stderr)
            self._away = True
            return False


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


class Waiting:
    """Says what a companion waits for, once, and again from time to time."""

    def __init__(self, recipe: Recipe, item: Companion, console: Console):
        """Args:
        recipe: of the companion.
        item: the companion.
        console: prints the lines.
        """
        self._run_dir, self._name = places.shown(recipe.run_dir), item.name
        self._console = console
        self._said, self._at = "", 0.0

    def say(self, what: str) -> None:
        """A line, unless it was printed in the last minute."""
        now = time.monotonic()
        if what != self._said or now - self._at >= REMIND_SECONDS:
            self._console.print(
                f"companion {self._name}: waits for {what}, made by a recipe with RUN_DIR="
                f"{self._run_dir} and the same settings"
            )
            self._said, self._at = what, now


def _next_to_remote(
    recipe: Recipe,
    item: Companion,
    flags: gin_checks.Flags,
    children: Children,
    console: Console,
) -> int:
    """Runs a companion whenever its stage is being made, until that is done; an exit code."""
    stage = next(one for one in recipe.stages if one.name == item.stage)
    waiting, code = Waiting(recipe, item, console), 0
    process: Process | None = None
    try:
        for known, decisions in _looks(recipe, flags, children, console):
            if decisions[stage.name].status == "done":
                console.print(f"companion {item.name}: stage {stage.name} is done")
                return 0
            if code:  # a stage that ends may look like a failure to its companion
                return code
            if process is not None:
                code = process.poll() or 0
                process = process if process.returncode is None else None
            elif waits := _waits_for(recipe, item, stage, flags, known):
                waiting.say(waits)
            else:
                command = recipe_planning.companion_flags(recipe, item, flags, known)
                process = children.start(item.entry, command)
    finally:
        if process is not None:
            _end(process)
    return 0


def _look_up(recipe: Recipe, flags: gin_checks.Flags) -> Found:
    remote_store.refresh(recipe.store, recipe.run_dir)
    problems = Problems(flags.read_all())
    found = recipe_planning.look_up(recipe, flags, problems)
    problems.refuse()
    return found


def _looks(
    recipe: Recipe, flags: gin_checks.Flags, children: Children, console: Console
) -> Iterator[Found]:
    """What is known of the stages, looked up again and again until we are asked to stop."""
    pause = threading.Event()
    away = False
    while True:
        try:
            found = _look_up(recipe, flags)
        except errors.Unreachable as error:  # the training elsewhere survives this, too
            if not away:
                console.print(f"companions: {error}; looking again")
            away = True
        else:
            away = False
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
