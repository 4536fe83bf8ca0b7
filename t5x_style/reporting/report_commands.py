"""The commands that a summary page ends with: search, train longer, use another folder."""

import dataclasses
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

OWN_FOLDER = "gin_configs/recipes/beir.gin"


@dataclasses.dataclass(frozen=True)
class Run:
    """What a command needs to know of the run that a page is about.

    Attributes:
      recipe: gin file of the recipe; None: not known, and no command repeats it.
      folder: of the run; None: not known.
      settings: macros that the recipe cannot run without, with their values, as the collection.
      searchable: whether the run has a stage that `t5x_style.search` finds.
      budget: of the run.
    """

    recipe: str | None
    folder: str | None
    settings: Mapping[str, str]
    searchable: bool
    budget: float


def commands(run: Run, longer: bool) -> Iterator[str]:
    """Yields lines for a shell.

    Args:
      run: what the page is about.
      longer: whether its trainings were still learning when they ended.
    """
    python = _python()
    if run.searchable and run.folder is not None:
        yield f'{python} -m t5x_style.search --run={shlex.quote(run.folder)} "your question"'
    if longer and run.recipe is not None and run.folder is not None:
        flags = {"RUN_DIR": run.folder, **run.settings, "BUDGET": f"{3 * run.budget:g}"}
        said = " ".join(f"--gin.{name}={shlex.quote(value)}" for name, value in flags.items())
        yield f"{python} -m launch.recipe --gin_file={shlex.quote(run.recipe)} {said}"
    if run.recipe is not None and run.recipe != OWN_FOLDER:
        yield (
            f"{python} -m launch.recipe --gin_file={OWN_FOLDER} --gin.CORPUS=path/to/your/folder "
            "--gin.RUN_DIR=runs/mine"
        )


def _python() -> str:
    """How to call this interpreter from the current folder, as '.venv/bin/python'."""
    path = Path(os.path.abspath(sys.executable))
    try:
        return shlex.quote(str(path.relative_to(Path.cwd())))
    except ValueError:
        return "python"
