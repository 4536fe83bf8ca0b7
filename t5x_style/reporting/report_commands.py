"""The commands that a summary page ends with: search, serve, train longer, another folder."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

OWN_FOLDER = "gin_configs/recipes/beir.gin"


@dataclasses.dataclass(frozen=True)
class Run:
    """Facts of a run that its commands need.

    Attributes:
      recipe: gin file of the recipe; None: not known, and no command repeats it.
      folder: of the run; None: not known.
      settings: macros that the recipe cannot run without, with their values, as the collection.
      searchable: whether the run has a stage that `t5x_style.search` finds.
      budget: of the run.
    """

    recipe: str | None
    folder: str | None
    settings: Mapping[str, Any]
    searchable: bool
    budget: float


def commands(run: Run, longer: bool) -> Iterator[str]:
    """Yields lines for a shell.

    Args:
      run: what the page is about.
      longer: whether its trainings were still learning when they ended.
    """
    kennel = _kennel()
    if run.searchable and run.folder is not None:
        yield f'{kennel} search --run={shlex.quote(run.folder)} "your question"'
        yield f"{kennel} serve {shlex.quote(run.folder)}"
    if longer and run.recipe is not None and run.folder is not None:
        settings = {"RUN_DIR": run.folder, **run.settings, "BUDGET": f"{3 * run.budget:g}"}
        said = " ".join(f"{name}={shlex.quote(str(value))}" for name, value in settings.items())
        yield f"{kennel} run {shlex.quote(_named(run.recipe))} {said}"
    if (
        run.recipe is not None and "CORPUS" not in run.settings
    ):  # with it, the user's folder was used
        yield f"{kennel} run {_named(OWN_FOLDER)} CORPUS=path/to/your/folder RUN_DIR=runs/mine"


def _named(recipe: str) -> str:
    """A recipe as `kennel run` takes it: the name of one of ours, or its path."""
    path = Path(recipe)
    return path.stem if path.parent == Path(OWN_FOLDER).parent else recipe


def _kennel() -> str:
    """Call of the command from the current folder, as '.venv/bin/kennel'."""
    path = Path(os.path.abspath(sys.executable)).with_name("kennel")
    try:
        return shlex.quote(str(path.relative_to(Path.cwd())))
    except ValueError:
        return "kennel"
