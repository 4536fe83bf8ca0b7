"""Runs a recipe: stages, each reading what others wrote.

    python -m launch.recipe --gin_file=gin_configs/recipes/quickstart.gin [--dry_run] [--gin.X=...]

A recipe is a gin file that is read, never executed, so this program starts in a blink:

    include 'gin_configs/recipes/kinds.gin'                   # kinds of stages

    RUN_DIR = 'runs/quickstart'                               # where links to results are
    BUDGET = 1.0                                              # of the full length of trainings
    CORPUS = 'data/corpus'
    STEPS = 1000

    tokenizer/recipe.Stage.kind = 'tokenizer'                 # the scope is the stage's name
    passages/recipe.Stage.kind = 'passages'

    pretrain/recipe.Stage:
      kind = 'training'
      gin_files = ['gin_configs/objectives/retromae.gin']     # after those of the kind
      inputs = {'STORE': %passages.store}                     # output `store` of stage passages
      bindings = {'SEED': 1, 'train.train.name': 'tiny'}      # macros, or any parameter
      scaled = {'STEPS': 1000}                                # times the budget, at least 1
      publish = {'curves.png': 'curves'}                      # copied into RUN_DIR at the end

    evaluation/recipe.Stage:
      kind = 'comparison'
      systems = {'mine': %retriever.model}                    # see workflow.recipe_systems

What the gin files of a stage refer to, and the stage does not set, has the recipe's value: that of
`recipe.run.macros` or, for paths, of `recipe.run.inputs`, or else the recipe's macro of this name,
or else that of `recipe.run.defaults`, outputs of stages that most recipes have. Stages run in the
order in which they read of each other.

What a stage and its kind both set, the stage decides: `inputs`, `bindings`, `scaled` and `publish`
are dictionaries, or lists of them of which later ones win. `files = {'BI_ENCODER': 'x.gin'}`
replaces a macro among the kind's gin files, for one stage. A kind is described as a stage is,
`NAME/recipe.Kind`, in any recipe. `recipe.run.publish = {'curves.png': %pretrain.curves}` publishes
outputs, too.

A stage may have companions, processes that run next to it: `workflow.recipe_companions`, and
`--companions=here|elsewhere|only`, see `launch.companions`.

`RUN_DIR/<name>` is a link to the version of the stage that this configuration describes, in the
store that all runs share (`--gin.STORE=PATH`, by default `.store` next to RUN_DIR; at most
`--gin.STORE_LIMIT=200GB`). A changed parameter or input makes a new version of the stages that it
concerns, next to the old ones; changing it back makes nothing. A changed source file is reported in
one line: `--rerun=STAGE` makes that stage again, `--strict_code` all that other code made. Stop it
anywhere (Ctrl-C, SIGTERM): the running stage saves if it can, and the same command continues.
`--dry_run` says what would run. Either way all that can be known to be wrong is said before the
first stage, of all stages at once: `workflow.recipe_checks`. `--gin.NAME=VALUE` of a name that only
stages know goes to them: `workflow.recipe_overrides`.

Exit code: 0 done, or stopped as asked; 1 an error; 143 the running stage was stopped by a signal
that did not come through the recipe, or other processes did not come in time; 128 + N signal N
killed the stage, as in a shell (134: JAX lost another process, 137: no memory). Flags of several
processes (see `t5x_style.distributed.launch_flags`) go to every stage; the same recipe is started
once for each process. With `--processes=auto` the hosts of a TPU slice need no others: the recipe
finds out its number once, for all stages.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table

from launch import companions, recipe_times
from launch.children import Children
from t5x_style.configuration import gin_checks
from t5x_style.configuration.gin_reader import GinError, closest
from t5x_style.distributed import pod
from t5x_style.goodput.table import StageTime
from t5x_style.storage import places
from t5x_style.workflow import (
    files,
    fingerprints,
    links,
    making,
    plans,
    recipe_checks,
    recipe_planning,
    recipe_reader,
    remote_store,
    stage_runner,
    stages,
)
from t5x_style.workflow.plans import Decision
from t5x_style.workflow.recipe_reader import Recipe, Stage
from t5x_style.workflow.store import Version

STOPPED = 128 + signal.SIGTERM  # exit code: someone else stopped the stage; see `_run`
CONSOLE = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Row:
    """One stage's line in the table."""

    name: str
    status: str
    reason: str
    seconds: float | None = None


def survey(recipe: Recipe, flags: gin_checks.Flags) -> list[Row]:
    """What would run, and why."""
    decisions = recipe_checks.survey(recipe, flags)
    rows = []
    for name, decision in decisions.items():
        if flags.companions != "only":
            rows.append(_row(name, decision))
        for one in recipe.companions_of(name):
            done = ", which is done" if decision.status == "done" else ""
            rows.append(Row(one.name, "companion", f"next to {name}{done}"))
    return rows


def show(rows: list[Row], title: str) -> None:
    """Prints the table of stages."""
    table = Table(title=title, title_justify="left")
    for column in ("stage", "status", "seconds", "why"):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    for row in rows:
        seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
        table.add_row(row.name, row.status, seconds, row.reason)
    CONSOLE.print(table)


def execute(recipe: Recipe, flags: gin_checks.Flags) -> int:
    """Runs the stages that are not done; returns the exit code."""
    for folder in (recipe.run_dir, recipe.store.root):
        links.require_writable(folder)
    recipe_checks.survey(recipe, flags)  # all that can be known before the first stage
    described = pod.read(sys.argv[1:], os.environ)
    children = Children(described, recipe.cpu_devices)
    children.watch()
    if flags.companions == "only":
        return _alone(recipe, flags, children)
    rows: list[Row] = []
    times: dict[str, StageTime] = {}
    known = recipe_planning.Known()
    for number, item in enumerate(recipe.stages, start=1):
        planned = recipe_planning.plan(recipe, item, flags, known)
        decision = stages.decide(planned)
        CONSOLE.rule(
            f"stage {number}/{len(recipe.stages)}: {item.name}, {decision.status}: "
            f"{decision.reason}",
            align="left",
        )
        if decision.note:
            CONSOLE.print(decision.note)
        version = decision.version
        if decision.status == "done" and version is not None:
            making.use(planned, version)
            times[item.name] = StageTime(0.0)
        else:
            begun = time.monotonic()
            commands = companions.commands_of(recipe, item, flags, known)
            if commands and (described is not None or flags.companions == "elsewhere"):
                CONSOLE.print(_elsewhere(item, [one.name for one, _ in commands]))
                commands = []
            found = _run(children, recipe, item, flags, planned, known, commands)
            if isinstance(found, int):
                return found
            version = found
            times[item.name] = recipe_times.of_stage(version, time.monotonic() - begun)
        known.done[item.name] = version
        rows.append(_row(item.name, decision, version))
    if described is None or not described.number:  # one of several is enough
        publish(recipe, known)
        recipe_times.write(recipe.run_dir, times, CONSOLE)
        remote_store.publish_file(recipe.run_dir / recipe_times.FILE)
    show(rows, f"{places.shown(recipe.run_dir)}: all {len(rows)} stages done")
    return 0


def _check_rerun(recipe: Recipe, flags: gin_checks.Flags) -> None:
    names = [item.name for item in recipe.stages]
    for name in flags.rerun:
        if name not in names:
            raise recipe_reader.RecipeError(f"--rerun={name}: no such stage{closest(name, names)}")


def _row(name: str, decision: Decision, made: Version | None = None) -> Row:
    """A stage's line; seconds are those of the run that made its version."""
    version = made or (decision.version if decision.status == "done" else None)
    seconds = None if version is None else float(version.record["seconds"])
    status: str = decision.status
    reason = decision.reason
    if status == "done" and decision.note:
        reason += "; its code has changed since"
    if made is not None:
        status = "skipped" if decision.status == "done" else "ran"
    return Row(name, status, reason, seconds)


def _run(
    children: Children,
    recipe: Recipe,
    item: Stage,
    flags: gin_checks.Flags,
    planned: stages.Plan,
    known: recipe_planning.Known,
    commands: Sequence[companions.Command] = (),
) -> Version | int:
    """Runs one stage as planned; its version when it is done, else the exit code to stop with.

    0 if the recipe was asked to stop, for then it did what it was asked; 143 if the stage alone
    was, by a separate signal or with another process, and saved, or if other processes did not
    come in time: the recipe is not done, and whoever waits for it must not take it for done;
    128 + N if signal N killed it, which the same command may survive; 1 for an error. The same of a
    companion that failed before the stage was done.
    """
    alongside = companions.Alongside(planned, commands)
    code = 0
    if not children.stopping:
        command = recipe_planning.stage_flags(recipe, item, flags, known)
        code = children.call(item.entry, command, alongside.wait)
    failed = alongside.failed  # which had the stage stopped
    if children.stopping:
        pass
    elif code == STOPPED:
        CONSOLE.print(f"stage {item.name}: other processes did not come in time")
    elif code and failed is None:
        return _failed(f"stage {item.name}", code)
    else:
        remote_store.refresh(recipe.store)  # another machine may have made it
        now = recipe_planning.plan(recipe, item, replace(flags, rerun=()), known)
        decision = stages.decide(now)
        if decision.status == "done" and decision.version is not None:
            return decision.version
        if changes := _changes_meanwhile(planned, now):
            CONSOLE.print(
                f"error: while stage {item.name} ran, what it is made from changed ({changes}); "
                "the same command runs it again."
            )
            return 1
    if failed is not None and not children.stopping:
        return _failed(f"companion {failed.name} of stage {item.name}, now stopped,", failed.code)
    CONSOLE.print(f"stopped in stage {item.name}; the same command continues there.")
    return 0 if children.stopping else STOPPED


def _alone(recipe: Recipe, flags: gin_checks.Flags, children: Children) -> int:
    """Runs the companions of a recipe alone, see `companions.alone`."""
    if children.described is not None:
        raise recipe_reader.RecipeError(
            "--companions=only: expected one process, found --processes or KENNEL_PROCESSES: a "
            "companion runs on one host. Leave them out."
        )
    failed = companions.alone(recipe, flags, children, CONSOLE)
    return 0 if failed is None else _failed(f"companion {failed.name}", failed.code)


def _elsewhere(item: Stage, names: list[str]) -> str:
    """What to start on another machine, in words."""
    command = f"kennel run RECIPE ... --companions=only ({', '.join(names)})"
    return f"stage {item.name} needs its companion, which is not started here: {command}"


def _failed(what: str, code: int) -> int:
    """Says how a process failed; the exit code of the recipe."""
    CONSOLE.print(f"error: {what} {_ending(code)}; {_advice(code)}.")
    return 128 - code if code < 0 else 1


def _changes_meanwhile(before: stages.Plan, now: stages.Plan) -> str:
    changes = plans.changes_between(before.record(), now)
    code = fingerprints.differences(before.code, now.code) if now.strict else []
    return plans.in_words(changes | ({"code": code} if code else {}))


def _ending(code: int) -> str:
    """How a process ended, in words.

    >>> _ending(-9)
    'was killed by SIGKILL (out of memory?)'
    """
    if code < 0:
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
    return f"failed with exit code {code}"


def _advice(code: int) -> str:
    """What to do about a stage that ended with that code."""
    if code == -signal.SIGKILL:
        return (
            "the same command tries again; if memory was short, make its batches smaller "
            "(docs/troubleshooting.md says how)"
        )
    if code < 0:
        return "the same command tries again"
    return "correct what its message says; the same command then continues with it"


def publish(recipe: Recipe, known: recipe_planning.Known) -> None:
    """Copies the files of `recipe.run.publish` into the run's folder."""
    for name, output in recipe.publish.items():
        target = recipe.run_dir / name
        target.parent.mkdir(parents=True, exist_ok=True)
        source = recipe_planning.output_path(recipe, output, known)
        version = known.done[output.stage]
        inside = os.path.relpath(source, version.folder)
        if files.changed_files(version, inside):
            raise recipe_reader.RecipeError(
                f"recipe.run.publish: {inside} changed since {version.folder} was finished. Put "
                f"the file back, or make the version again: --rerun={output.stage}"
            )
        temporary = target.with_name(f".{target.name}.tmp")
        with remote_store.fetched([version]):
            shutil.copyfile(source, temporary)
        os.replace(temporary, target)
        remote_store.publish_file(target)


def run(flags: gin_checks.Flags) -> int:
    """Runs a recipe, or with `--dry_run` says what would run; returns the exit code."""
    recipe = recipe_reader.load(flags)
    if remote_store.has_run_file(recipe.run_dir):  # it says where the store is
        recipe = recipe_reader.load(flags)
    if places.remote(recipe.run_dir) and not recipe.store.url:
        raise GinError(
            f"RUN_DIR is {places.shown(recipe.run_dir)}, and STORE {recipe.store.root} is on this "
            "machine: expected both on object storage. Leave STORE out: it is next to RUN_DIR."
        )
    remote_store.refresh(recipe.store, recipe.run_dir)
    _check_rerun(recipe, flags)
    CONSOLE.print(f"store: {places.shown(recipe.store.root)}")
    if note := recipe_checks.budget_note(recipe):
        CONSOLE.print(note)
    if flags.dry_run:
        show(survey(recipe, flags), f"{places.shown(recipe.run_dir)}: what would run (nothing was)")
        return 0
    return execute(recipe, flags)


def main() -> None:
    """The command `python -m launch.recipe`."""
    stage_runner.die_with_parent()
    sys.exit(stage_runner.guarded(run, sys.argv[1:]))


if __name__ == "__main__":
    main()
