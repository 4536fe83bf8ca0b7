"""Order the stages of a recipe so that each runs after those that it reads."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from t5x_style.configuration import signatures
from t5x_style.configuration.gin_reader import closest
from t5x_style.workflow.recipe_stage import Companion, Recipe, RecipeError, Stage
from t5x_style.workflow.recipe_values import Output


def ordered(described: Sequence[Stage]) -> list[Stage]:
    """Stages in an order in which each one comes after those that it reads.

    Otherwise in the order of the recipe: the same recipe always runs in the same order.

    Raises:
      RecipeError: a stage or output that is not there, or stages that wait for each other.
    """
    for item in described:
        check_outputs(item.needs(), described, f"Stage {item.name} ({item.where})")
    found: list[Stage] = []
    waiting = list(described)
    while waiting:
        done = {item.name for item in found}
        ready = next(
            (item for item in waiting if {one.stage for one in item.needs()} <= done), None
        )
        if ready is None:
            raise RecipeError(f"Stages wait for each other: {_circle(waiting)}.")
        waiting.remove(ready)
        found.append(ready)
    return found


def next_to(companions: Iterable[Companion], stages: Sequence[Stage]) -> tuple[Companion, ...]:
    """Companions in the order of their stages.

    Args:
      companions: in the order of the recipe.
      stages: all of the recipe, ordered.

    Raises:
      RecipeError: no such stage, a stage of the same name, or an output that is not there before
        the stage runs.
    """
    numbers = {item.name: number for number, item in enumerate(stages)}
    found = sorted(companions, key=lambda one: numbers.get(one.stage, -1))
    for one in found:
        where = f"Companion {one.name} ({one.where})"
        if one.stage not in numbers:
            raise RecipeError(f"{where}: no stage {one.stage!r}{closest(one.stage, numbers)}")
        if one.name in numbers:
            raise RecipeError(f"{where}: a stage has the same name; choose another.")
        check_outputs(one.needs(), stages, where)
        late = [str(read) for read in one.needs() if numbers[read.stage] >= numbers[one.stage]]
        if late:
            raise RecipeError(
                f"{where}: it runs next to stage {one.stage}, and {', '.join(late)} is not made "
                f"before that one. Have {one.stage} read it, too."
            )
    return tuple(found)


def _circle(waiting: Sequence[Stage]) -> str:
    """Some stages that wait for each other, in words."""
    by_name = {item.name: item for item in waiting}
    path = [waiting[0].name]
    while path[-1] not in path[:-1]:
        path.append(next(one.stage for one in by_name[path[-1]].needs() if one.stage in by_name))
    return " reads ".join(path[path.index(path[-1]) :])


def until(recipe: Recipe, name: str | None) -> Recipe:
    """The recipe with one stage as its last, and those that it reads; None: all of it.

    Raises:
      RecipeError: no stage has that name.
    """
    if name is None:
        return recipe
    by_name = {item.name: item for item in recipe.stages}
    if name not in by_name:
        raise RecipeError(f"--until={name}: no such stage{closest(name, by_name)}")
    kept: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one not in kept:
            kept.add(one)
            readers = (by_name[one], *recipe.companions_of(one))
            waiting += [output.stage for item in readers for output in item.needs()]
    return replace(
        recipe,
        stages=tuple(item for item in recipe.stages if item.name in kept),
        publish={file: one for file, one in recipe.publish.items() if one.stage in kept},
        companions=tuple(one for one in recipe.companions if one.stage in kept),
    )


def check_outputs(outputs: Iterable[Output], described: Sequence[Stage], where: str) -> None:
    """Raises RecipeError unless each output is declared by the job of a stage of the recipe."""
    producers = {item.name: item for item in described}
    for output in outputs:
        if output.stage not in producers:
            hint = closest(output.stage, producers)
            raise RecipeError(f"{where}: {output}: no stage {output.stage!r}{hint}")
        declared = signatures.job(producers[output.stage].job).outputs
        if output.name not in declared:
            raise RecipeError(
                f"{where}: {output}: stage {output.stage} has no output {output.name!r}"
                f"{closest(output.name, declared)}"
            )
