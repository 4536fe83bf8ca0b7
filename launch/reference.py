"""The reference of macros: docs/reference.md, made from the gin files and the code that they bind.

python -m launch.reference            # says whether the page is up to date
python -m launch.reference --write
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t5x_style.configuration import conventions, gin_reader, signatures
from t5x_style.configuration.gin_reader import REPOSITORY, Macro, leaves, to_gin
from t5x_style.workflow.recipe_reader import COMPANION, KIND, STAGE
from t5x_style.workflow.recipe_reader import RUN as RECIPE

GIN, PAGE = REPOSITORY / "gin_configs", REPOSITORY / "docs/reference.md"
HEAD = """# Reference of macros

Made by `python -m launch.reference --write` from `gin_configs/` and the code; a test compares it.
Set a macro in a recipe, or on the command line of a recipe or stage: `--gin.LEARNING_RATE=1e-4`.
Any parameter can be bound as well: `--gin.optimizers.AdamW.weight_decay=0.1`.

"""
STAGES = """## Of stages

`type` and `sets` are of the parameter that the macro is bound to; `default` is what gin files say,
more than one where they differ. A macro without a default has to be set.

| macro | type | default | sets | files |
|---|---|---|---|---|
"""
RECIPES = """
## Of recipes alone

No gin file of a stage refers to these: they name gin files, scale a length, or give a value to a
macro of stages.

| macro | values | recipes |
|---|---|---|
"""
UNIONS = re.compile(r"\s*\|\s*")


@dataclass
class Use:
    """One parameter that a macro is bound to.

    Attributes:
      parameter: module.name.parameter.
      type: its annotation, '' where it has none, or where the macro is inside of a value.
      about: the first sentence of its documentation.
      file: below gin_configs.
    """

    parameter: str
    type: str
    about: str
    file: str


@dataclass
class Entry:
    """What is known of a macro: where it is used, and value -> files that set it."""

    uses: list[Use] = field(default_factory=list)
    defaults: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    recipes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))


def entries() -> dict[str, Entry]:
    """Macro -> its entry, of all gin files."""
    found: dict[str, Entry] = defaultdict(Entry)
    for path in sorted(GIN.rglob("*.gin")):
        config = gin_reader.read([str(path)])
        conventions.add(config)
        file = str(path.relative_to(GIN))
        here = f"{path}:"
        own = [b for b in config.bindings.values() if b.where.startswith(here)]
        is_recipe = any(
            b.target in (RECIPE, STAGE, COMPANION, KIND) for b in config.bindings.values()
        )
        for binding in own:
            if binding.target not in (RECIPE, STAGE, COMPANION, KIND, gin_reader.RUN):
                for name in {leaf.name for leaf in _macros(binding.value)}:
                    found[name].uses.append(_use(binding, file))
        for name, macro in config.macros.items():
            if macro.where.startswith(here):
                entry = found[name]
                values = entry.recipes if is_recipe else entry.defaults
                values[to_gin(macro.value)].append(file)
    return found


def _macros(value: Any) -> Iterator[Macro]:
    return (leaf for leaf in leaves(value) if isinstance(leaf, Macro) and "." not in leaf.name)


def _use(binding: gin_reader.Binding, file: str) -> Use:
    text = f"{binding.text}.{binding.parameter}"
    parameter = signatures.signature(binding.target).parameters.get(binding.parameter)
    whole = isinstance(binding.value, Macro)
    annotation = parameter.annotation if parameter is not None and whole else ""
    annotation = re.sub(r"^Annotated\[(.*), '.*'\]$", r"\1", annotation)
    return Use(text, annotation, _about(binding.target, binding.parameter), file)


def _about(target: str, parameter: str) -> str:
    """The first sentence about a parameter in the docstring of a function, class or `__init__`."""
    found = signatures.define(target)
    if found is None:
        return ""
    nodes: list[Any] = [found[0]]
    nodes += [one for one in found[0].body if getattr(one, "name", "") == "__init__"]
    for node in nodes:
        text = ast.get_docstring(node) or ""
        item = re.search(
            rf"^\s*(?:\w+, )*{parameter}(?:, \w+)*: (.*(?:\n(?!\s*\w+(?:, \w+)*: ).+)*)", text, re.M
        )
        if item is not None:
            words = " ".join(item[1].split())
            return re.split(r"[.;:](?:\s|$)", words)[0]
    return ""


def conflicts(found: dict[str, Entry]) -> dict[str, list[str]]:
    """Macros with two meanings: macro -> types of parameters that have no type in common."""
    wrong = {}
    for name, entry in found.items():
        types = {use.type for use in entry.uses if use.type and "Any" not in use.type}
        kinds = [{_kind(part) for part in UNIONS.split(one)} - {"None"} for one in sorted(types)]
        if kinds and not set.intersection(*kinds):
            wrong[name] = sorted(types)
    return wrong


def _kind(annotation: str) -> str:
    """A type without its module and its elements; whatever holds a path or a text is a text."""
    name = annotation.partition("[")[0].rpartition(".")[2]
    return {"Path": "str", "tuple": "Sequence", "list": "Sequence", "float": "int"}.get(name, name)


def page(found: dict[str, Entry]) -> str:
    """The text of docs/reference.md."""
    of_stages = {name: entry for name, entry in sorted(found.items()) if entry.uses}
    others = {name: entry for name, entry in sorted(found.items()) if not entry.uses}
    rows = [_row(name, entry) for name, entry in of_stages.items()]
    more = [
        f"| `{name}` | {_values(entry.recipes | entry.defaults)} | {_files(_all(entry))} |\n"
        for name, entry in others.items()
    ]
    return HEAD + STAGES + "".join(rows) + RECIPES + "".join(more)


def _row(name: str, entry: Entry) -> str:
    first = next((use for use in entry.uses if use.type), entry.uses[0])
    about = next((use.about for use in entry.uses if use.about), "")
    sets = f"`{first.parameter}`" + (f": {about}" if about else "")
    types = f"`{first.type}`" if first.type else ""
    used = sorted({use.file for use in entry.uses})
    cells = (f"`{name}`", types, _values(entry.defaults), sets, _files(used))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _all(entry: Entry) -> list[str]:
    return sorted(
        {file for files in (*entry.recipes.values(), *entry.defaults.values()) for file in files}
    )


def _values(defaults: dict[str, list[str]]) -> str:
    shown = [value if len(value) <= 40 else f"{value[:37]}..." for value in sorted(defaults)]
    return ", ".join(f"`{value}`" for value in shown[:4]) + (", ..." if len(shown) > 4 else "")


def _files(files: list[str]) -> str:
    names = [file.removesuffix(".gin") for file in files]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def main() -> int:
    """Writes the page, or compares it; returns the exit code."""
    text = page(entries())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        return 0
    if Path(PAGE).is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print("docs/reference.md is not what the gin files say: python -m launch.reference --write")
    return 1


if __name__ == "__main__":
    sys.exit(main())
