"""The plans of the recipes that Kennel ships: stages, jobs, inputs, the value of every parameter.

    python -m tests.recipe_plans [NAME...]  compare with tests/golden/plans.json, all or some
    python -m tests.recipe_plans --write    record the plans of today

A plan is what identifies the results of a recipe's stages. Moving code, renaming it or writing a
recipe in another way leaves all plans unchanged; what is renamed keeps its first name in plans,
see `t5x_style.configuration.renames`. Whoever changes a recipe on purpose records its new plan and
reads the difference.

Parameters that many stages share are listed once, under the hash of their text.
"""

import argparse
import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.configuration import gin_checks, gin_reader, parameters, signatures
from t5x_style.configuration.gin_reader import Macro
from t5x_style.workflow import recipe_planning, recipe_reader, stages

REPOSITORY = Path(__file__).resolve().parent.parent
RECIPES = REPOSITORY / "gin_configs/recipes"
GOLDEN = Path(__file__).parent / "golden/plans.json"
COMMAND = "python -m tests.recipe_plans --write"

# What recipes ask of the user; nothing is read from these folders.
MACROS = {
    "CORPUS": "corpus",
    "PUBLISHED": "published",
    "JUDGE": "judge",
    "RETRIEVER": "retriever",
    "OPUS": "opus",
    "DOCUMENTS": "documents",
    "BUCC": "bucc",
    "TOKENIZER": "tokenizer",
    "CHECKPOINT": "checkpoint",
    "LABSE": "labse",
    "QUESTION_STORE": "questions",
}
KINDS = "kinds"  # included by all recipes, and none itself; other parts are in a folder
Plan = dict[str, Any]
Plans = dict[str, dict[str, Plan]]  # recipe -> stage -> plan


def names() -> list[str]:
    """The recipes that run on their own."""
    return sorted(path.stem for path in RECIPES.glob("*.gin") if path.stem != KINDS)


def of_recipe(name: str, settings: Sequence[str] = ()) -> dict[str, Plan]:
    """Stage -> its plan, for one recipe; `settings` are NAME=VALUE."""
    return _asked(name, settings)[1]


def flags_of(name: str) -> gin_checks.Flags:
    """The command line of a recipe, with the macros that it asks of the user."""
    return _asked(name)[0]


def _asked(name: str, settings: Sequence[str] = ()) -> tuple[gin_checks.Flags, dict[str, Plan]]:
    argv = [f"--gin_file={RECIPES / name}.gin", "--gin.RUN_DIR=run"]
    argv += [f"--gin.{setting}" for setting in settings]
    while True:
        try:
            flags = gin_checks.parse_flags(argv)
            return flags, _of(flags)
        except gin_reader.GinError as error:
            asked = re.search(r"%(\w+) has no value", str(error))
            if asked is None or asked[1] not in MACROS:
                raise
            argv.append(f"--gin.{asked[1]}={MACROS[asked[1]]}")


def _of(flags: gin_checks.Flags) -> dict[str, Plan]:
    recipe = recipe_reader.load(flags)
    pending = recipe_planning.all_pending(recipe)
    plans = {}
    for item in recipe.stages:
        config = recipe_planning.stage_flags(recipe, item, flags, pending).read()
        inputs = stages.inputs_of(config)
        for macro in inputs:
            config.expand(Macro(macro), item.where)  # an error if it has no value
        gin_checks.check_names(config, (gin_reader.RUN, item.job))
        values = parameters.of_job(config, item.job, {macro: macro for macro in inputs})
        declared = signatures.job(item.job)
        plans[item.name] = {
            "entry": item.entry,
            "job": f"{declared.name} {declared.version}",
            "inputs": {macro: _text(item.inputs[macro]) for macro in sorted(item.inputs)},
            "parameters": values.semantic,
            "operational": values.operational,
        }
    return plans


def _text(value: Any) -> Any:
    """An input as JSON: `%stage.output`, or the path that the recipe says."""
    if isinstance(value, Mapping):
        return {str(key): _text(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_text(one) for one in value]
    return f"%{value.stage}.{value.name}" if isinstance(value, recipe_reader.Output) else value


def pack(plans: Plans) -> dict[str, Any]:
    """JSON in which equal groups of parameters are listed once."""
    groups: dict[str, dict[str, str]] = {}

    def packed(values: Mapping[str, str]) -> list[str]:
        by_head: dict[str, dict[str, str]] = defaultdict(dict)
        for path, text in values.items():
            by_head[path.partition(".")[0].partition("[")[0]][path] = text
        return [_add(groups, group) for _, group in sorted(by_head.items())]

    recipes = {
        recipe: {
            name: plan | {part: packed(plan[part]) for part in ("parameters", "operational")}
            for name, plan in stages.items()
        }
        for recipe, stages in plans.items()
    }
    return {"groups": groups, "recipes": recipes}


def _add(groups: dict[str, dict[str, str]], group: dict[str, str]) -> str:
    key = hashlib.sha256(json.dumps(group, sort_keys=True).encode()).hexdigest()[:12]
    groups[key] = dict(sorted(group.items()))
    return key


def read() -> Plans:
    """The recorded plans."""
    stored = json.loads(GOLDEN.read_text(encoding="utf-8"))

    def unpacked(keys: list[str]) -> dict[str, str]:
        return {path: text for key in keys for path, text in stored["groups"][key].items()}

    return {
        recipe: {
            name: plan | {part: unpacked(plan[part]) for part in ("parameters", "operational")}
            for name, plan in stages.items()
        }
        for recipe, stages in stored["recipes"].items()
    }


def differences(found: Mapping[str, Plan], recorded: Mapping[str, Plan]) -> Iterator[str]:
    """One line for each value of a recipe that differs."""
    new, old = (dict(_values(one)) for one in (found, recorded))
    for path in sorted(new.keys() | old.keys()):
        if new.get(path) != old.get(path):
            yield f"{path}: recorded {old.get(path)}, found {new.get(path)}"


def _values(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _values(one, f"{path} {key}".strip())
    else:
        yield path, value


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--write", action="store_true")
    options.add_argument("name", nargs="*", choices=[*names(), []], help="recipes to compare")
    given = options.parse_args()
    plans = {name: of_recipe(name) for name in names() if not given.name or name in given.name}
    if given.write and not given.name:
        text = json.dumps(pack(plans), ensure_ascii=False, indent=0, sort_keys=True)
        GOLDEN.write_text(text + "\n", encoding="utf-8")
        return
    recorded = read()
    if given.name:
        recorded = {name: recorded[name] for name in plans.keys() & recorded.keys()}
    wrong = [
        f"{name}: {line}"
        for name in sorted(plans.keys() | recorded.keys())
        for line in differences(plans.get(name, {}), recorded.get(name, {}))
    ]
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
