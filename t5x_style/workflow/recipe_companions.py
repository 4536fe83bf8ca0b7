"""Companions of a recipe's stages: processes that run next to a stage, and end with it.

    index/recipe.Companion:
      stage = 'realm'                        # that it runs next to
      program = @watch_index.watch           # what `python -m` of its module calls
      gin_files = ['runs/indexes/watch.gin', %MODEL, 'objectives/realm.gin']
      watches = 'TRAINING'                   # its macro for the link to the stage's version
      shares = 'INDEX_VERSIONS'              # a macro of both, for the folder RUN_DIR/index

`kind`, `files`, `inputs`, `bindings` and `scaled` are as those of a stage. A companion has no
version: what a stage makes may depend on a companion only in ways that the stage itself records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from t5x_style.configuration.gin_reader import GinError, Reference
from t5x_style.storage import places
from t5x_style.workflow.recipe_stage import Companion, Recipe, RecipeError, Stage

PARAMETERS = ("stage", "program", "watches", "shares")  # that a stage has not


def refuse_parameters(name: str, where: str, said: Mapping[str, Any]) -> None:
    """Raises GinError if a stage, or its kind, sets what is for companions alone."""
    if wrong := [one for one in PARAMETERS if said[one] is not None]:
        raise GinError(
            f"{where}: stage {name}: {', '.join(wrong)}: for companions alone. Describe it by "
            f"{name}/recipe.Companion, or choose another kind."
        )


def described(name: str, where: str, said: Mapping[str, Any], values: dict[str, Any]) -> Companion:
    """A companion.

    Args:
      name: of the companion.
      where: file and line of its first binding.
      said: the parameters that a stage has not.
      values: those that a stage has, too.

    Raises:
      GinError: one that is not set, or of another type.
    """
    program = said["program"]
    if not isinstance(program, Reference) or not program.target:
        raise GinError(
            f"{where}: {name}/recipe.Companion.program must be a reference, such as "
            f"@watch_index.watch, found {program!r}."
        )
    for one in ("stage", "watches", "shares"):
        if not isinstance(said[one], str) or not said[one]:
            raise GinError(
                f"{where}: {name}/recipe.Companion.{one} must be a name, found {said[one]!r}."
            )
    names = {one: said[one] for one in ("stage", "watches", "shares")}
    entry = program.target.rpartition(".")[0]
    return Companion(name, where=where, job=program.target, entry=entry, **names, **values)


def joined(
    stages: Iterable[Stage], companions: Sequence[Companion], run_dir: Path
) -> tuple[list[Stage], list[Companion]]:
    """Both with the folder in which they meet, unless the recipe says where that is.

    Args:
      stages: all of a recipe.
      companions: likewise.
      run_dir: folder of the run.
    """
    found = {item.name: item for item in stages}
    met = []
    for one in companions:
        stage = found.get(one.stage)
        said = {**(stage.bindings if stage else {}), **one.bindings}
        shared = {one.shares: said.get(one.shares, places.shown(run_dir / one.name))}
        met.append(replace(one, bindings={**one.bindings, **shared}))
        if stage is not None:
            found[stage.name] = replace(stage, bindings={**stage.bindings, **shared})
    return list(found.values()), met


def require_shared(recipe: Recipe) -> None:
    """Raises RecipeError unless a stage and its companion meet in the same folder.

    Args:
      recipe: with what its file and the command line set for stages by their names.
    """
    stages = {item.name: item for item in recipe.stages}
    for one in recipe.companions:
        ours, theirs = (_value(item, one.shares) for item in (one, stages[one.stage]))
        if ours != theirs:
            raise RecipeError(
                f"{one.shares}: expected one value for stage {one.stage} and its companion "
                f"{one.name}, which meet there, found {theirs!r} and {ours!r}: set {one.shares} "
                "without a stage's name."
            )


def _value(item: Stage, name: str) -> Any:
    """Of a macro; None where something else is set in its place."""
    return {**item.inputs, **item.scaled, **item.bindings}.get(name)
