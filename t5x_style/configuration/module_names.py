"""Names of Kennel's modules in gin files: the last part of the dotted path, without an import.

`optimizers.AdamW.decay = 'cosine'` needs no `from t5x_style.training import optimizers`. An import
is for modules of others (`--gin_allow`), and for a name that two of Kennel's modules have.
"""

import functools
import os
from collections.abc import Mapping

from t5x_style.configuration import renames
from t5x_style.configuration.python_sources import REPOSITORY

PACKAGES = ("t5x_style", "models", "input_pipelines", "launch")


@functools.cache
def all_modules() -> Mapping[str, tuple[str, ...]]:
    """Last part of a name -> dotted paths of the modules that have it; imports nothing.

    >>> all_modules()["optimizers"]
    ('t5x_style.training.optimizers',)
    """
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for folder, folders, files in os.walk(REPOSITORY / package):
            folders[:] = sorted(name for name in folders if name.isidentifier())
            parts = os.path.relpath(folder, REPOSITORY).split(os.sep)
            for name, kind in map(os.path.splitext, sorted(files)):
                if kind == ".py" and name.isidentifier() and not name.startswith("__"):
                    found.setdefault(name, []).append(".".join([*parts, name]))
    return {name: tuple(paths) for name, paths in found.items()}


@functools.cache
def paths() -> Mapping[str, str]:
    """Name in gin files -> dotted path, of names that one module has or had before a renaming."""
    unique = {name: found[0] for name, found in all_modules().items() if len(found) == 1}
    return renames.aliases(unique) | unique
