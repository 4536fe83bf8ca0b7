"""Plan the stages of a recipe: their command lines, and which of them are done."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from t5x_style.configuration import gin_checks
from t5x_style.configuration.gin_reader import FOLDER_MACRO, Macro, closest, to_gin, transform
from t5x_style.storage import places
from t5x_style.workflow import links, stages
from t5x_style.workflow.plans import Decision
from t5x_style.workflow.recipe_problems import Problems
from t5x_style.workflow.recipe_stage import Companion, Recipe, RecipeError, Stage
from t5x_style.workflow.recipe_values import Output
from t5x_style.workflow.store import Version

Chain = dict[str, stages.Plan]
PlanOf = Callable[..., stages.Plan]


@dataclass(frozen=True)
class Known:
    """Known facts of stages while a recipe is planned or run.

    Attributes:
      done: stage -> the finished version that those after it read.
      pending: stages that have no finished version yet; their outputs have no path.
    """

    done: dict[str, Version] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)


def all_pending(recipe: Recipe) -> Known:
    """Before anything is looked up."""
    return Known({}, {item.name for item in recipe.stages})


def stage_flags(
    recipe: Recipe, item: Stage, flags: gin_checks.Flags, known: Known
) -> gin_checks.Flags:
    """The command line of one stage.

    Args:
      recipe: the whole recipe.
      item: the stage.
      flags: the recipe's own command line; search paths and allow-list are handed on.
      known: versions of the stages before it.
    """
    values = _values(recipe, item, lambda output: output_path(recipe, output, known))
    values[FOLDER_MACRO] = str(recipe.link(item.name))
    alone = replace(flags, files=item.gin_files, overrides=())
    inputs = dict.fromkeys([*stages.listed_inputs(alone.read()), *item.inputs])
    values[stages.INPUTS] = [Macro(name) for name in inputs]
    values[stages.STORE_SETTING] = str(recipe.store.root)
    if recipe.limit is not None:
        values[stages.LIMIT_SETTING] = recipe.limit
    overrides = tuple((name, to_gin(value)) for name, value in values.items())
    rerun = tuple(name for name in flags.rerun if name == item.name)
    return replace(
        flags,
        files=item.gin_files,
        overrides=overrides,
        dry_run=False,
        rerun=rerun,
        companions="here",
    )


def companion_flags(
    recipe: Recipe, item: Companion, flags: gin_checks.Flags, known: Known
) -> gin_checks.Flags:
    """The command line of a companion, whose paths are the same on every machine.

    Arguments as of `stage_flags`; what it reads is known.
    """
    values = _values(recipe, item, lambda output: places.shown(output_path(recipe, output, known)))
    values[item.watches] = places.shown(recipe.link(item.stage))
    overrides = tuple((name, to_gin(value)) for name, value in values.items())
    return gin_checks.Flags(
        item.gin_files, overrides, flags.search_paths, flags.allow, flags.traceback
    )


def command(recipe: Recipe, item: Stage, flags: gin_checks.Flags, known: Known) -> gin_checks.Flags:
    """The command line of a stage or a companion."""
    if isinstance(item, Companion):
        return companion_flags(recipe, item, flags, known)
    return stage_flags(recipe, item, flags, known)


def _values(recipe: Recipe, item: Stage, path: Callable[[Output], str]) -> dict[str, Any]:
    """Macros and parameters that a recipe sets for one item, outputs by `path`."""

    def leaf(value: Any) -> Any:
        return path(value) if isinstance(value, Output) else value

    scaled = {name: math.ceil(n * recipe.budget) for name, n in item.scaled.items()}
    return {**transform(dict(item.inputs), leaf), **item.bindings, **scaled}


def output_path(recipe: Recipe, output: Output, known: Known) -> str:
    """The path of an output; for a stage still to run, a placeholder that `plan` knows."""
    if output.stage in known.pending:
        return str(recipe.link(output.stage) / f"<{output.name}>")
    version = known.done[output.stage]
    outputs = version.record["outputs"]
    if output.name not in outputs:
        raise RecipeError(
            f"%{output.stage}.{output.name}: stage {output.stage} returned no output "
            f"{output.name!r}{closest(output.name, outputs)}"
        )
    return str(version.output(output.name))


def plan(recipe: Recipe, item: Stage, flags: gin_checks.Flags, known: Known) -> stages.Plan:
    """A stage's plan; what it reads from pending stages counts as `still to be made`."""
    command = stage_flags(recipe, item, flags, known)
    pending = {
        output_path(recipe, output, known): f"%{output.stage}.{output.name}, still to be made"
        for output in item.needs()
        if output.stage in known.pending
    }
    return stages.plan(command, known=pending)


def chained(recipe: Recipe, flags: gin_checks.Flags, plan_of: PlanOf = stages.plan) -> Chain:
    """Stage -> its plan as if nothing had been made yet: an identity of what it will make.

    What a stage reads of another counts by that one's fingerprint. Recipes whose plans of a stage
    have one fingerprint share its version, whatever their folders are called.

    Args:
      recipe: the whole recipe.
      flags: its command line.
      plan_of: `stages.plan`, or what remembers its results.
    """
    known = all_pending(recipe)
    found: Chain = {}
    for item in recipe.stages:
        identities = {
            output_path(recipe, one, known): f"{found[one.stage].fingerprint}/{one.name}"
            for one in item.needs()
        }
        found[item.name] = plan_of(stage_flags(recipe, item, flags, known), known=identities)
    return found


def look_up(
    recipe: Recipe, flags: gin_checks.Flags, problems: Problems
) -> tuple[Known, dict[str, Decision]]:
    """Find stages that are done, and what each of the others is waiting for; runs nothing.

    Every name, reference and link of the recipe is checked on the way. A stage with `problems`,
    to which they are added, counts as new.
    """
    known = Known()
    decisions: dict[str, Decision] = {}
    for item in recipe.stages:
        planned = problems.plan(item.name, functools.partial(plan, recipe, item, flags, known))
        waits_for = sorted({one.stage for one in item.needs()} & known.pending)
        if planned is None:
            decision = Decision("new", "has problems")
        elif waits_for:
            links.check(planned.store, planned.link)
            decision = Decision("new", f"after {', '.join(waits_for)}")
        else:
            decision = stages.decide(planned)
        if decision.status == "done" and decision.version is not None:
            known.done[item.name] = decision.version
        else:
            known.pending.add(item.name)
        decisions[item.name] = decision
    return known, decisions
