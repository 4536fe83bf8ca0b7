"""Old names, which gin files, recipes and finished runs may hold, and the present ones.

After a rename, add the old name to `rename_tables` with the present one. Then

- gin files and recipes that use the old name are understood, and a note says the present one;
- finished versions stay valid: a fingerprint holds the name that a thing had first. Modules are in
  it without their package (`module.name`), so a move to another package does not change it.

After a parameter has become a wrapper of another one, add it to `WRAPPERS`: fingerprints hold what
the wrapper gets under the first names, and gin files that bind the old name are refused with what
to write instead.

After adding a parameter whose default means the old behaviour, add it to `ADDED` with that value:
while it has it, fingerprints leave it out.
"""

import sys
from collections.abc import Mapping

from t5x_style.configuration import python_sources, rename_tables

_noted: set[str] = set()
_presents: tuple[Mapping[str, str], dict[str, str]] = ({}, {})  # a table, and what it says
_inverse: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})


def present(path: str) -> str:
    """The present dotted path of what an old or present one names.

    A module may have become a package of the same name, so a path into a module that exists is
    never an old one. Each path is looked up once: a recipe asks ten thousand times.
    """
    global _presents
    if _presents[0] is not rename_tables.NAMES:
        _presents = (rename_tables.NAMES, {})
    if path not in _presents[1]:
        _presents[1][path] = _present(path)
    return _presents[1][path]


def _present(path: str) -> str:
    parts = path.split(".")
    for depth in range(len(parts), 0, -1):
        prefix = ".".join(parts[:depth])
        if prefix in rename_tables.NAMES:
            return present(".".join([rename_tables.NAMES[prefix], *parts[depth:]]))
        file = python_sources.path_of(parts[:depth])
        if file is not None and file.name != "__init__.py":
            return path
    return path


def first(path: str) -> str:
    """The dotted path that something had first, given its present one."""
    parts = path.split(".")
    for depth in range(len(parts), 0, -1):
        old = _inverted().get(".".join(parts[:depth]))
        if old is not None:
            return first(".".join([old, *parts[depth:]]))
    return path


def _inverted() -> Mapping[str, str]:
    """Present path -> the one before; kept for as long as the table is the same."""
    global _inverse
    if _inverse[0] is not rename_tables.NAMES:
        _inverse = (rename_tables.NAMES, {new: old for old, new in rename_tables.NAMES.items()})
    return _inverse[1]


def kind(target: str) -> str:
    """The name of a function or class in fingerprints: the last two parts of its first path.

    >>> kind("t5x_style.retrieval.exact.load")
    'exact.load'
    """
    return ".".join(first(target).split(".")[-2:])


def parameter(target: str, name: str) -> str:
    """The present name of a parameter of `target`."""
    prefix = f"{kind(target)}."
    for full, old in rename_tables.PARAMETERS.items():
        if full.startswith(prefix) and old == name:
            return full.removeprefix(prefix)
    return name


def wrappers(kind: str) -> dict[str, rename_tables.Wrapper]:
    """Old parameter -> its wrapper, of a function or class as fingerprints name it."""
    prefix = f"{kind}."
    return {
        full.removeprefix(prefix): wrapper
        for full, wrapper in rename_tables.WRAPPERS.items()
        if full.startswith(prefix)
    }


def instead(target: str, name: str) -> str:
    """Replacement for binding a parameter that became a wrapper; "" for any other."""
    wrapper = wrappers(kind(target)).get(name)
    if wrapper is None:
        return ""
    parent, _, cls = wrapper.target.rpartition(".")
    package, _, module = parent.rpartition(".")
    function = ".".join(target.split(".")[-2:])
    return (
        f"`from {package} import {module}`, `{function}.{wrapper.parameter} = @{module}.{cls}()` "
        f"and `{module}.{cls}.{wrapper.source} =` what {function}.{wrapper.parameter} was"
    )


def aliases(paths: Mapping[str, str]) -> dict[str, str]:
    """Old symbols of modules, for names that are written where nothing is imported.

    Args:
      paths: symbol -> present path of a module.

    Returns:
      The last part of each old path of these modules, or of the old module of what has moved to
      one of them -> that old path.
    """
    known, found = set(paths.values()), {}
    for old in rename_tables.NAMES:
        now, module = present(old), old.rpartition(".")[0]
        if now in known:
            found[old.rpartition(".")[2]] = old
        elif now.rpartition(".")[0] in known:  # a function or class
            found[module.rpartition(".")[2]] = module
    return found


def macro(name: str, where: str) -> str:
    """The present name of a macro; says so if it is another one."""
    found = rename_tables.MACROS.get(name, name)
    if found != name:
        note(where, name, found)
    return found


def gone(where: str, name: str, why: str) -> None:
    """Says once that something in a gin file has no effect any more."""
    if name not in _noted:
        _noted.add(name)
        text = f"note: {where}: {name} has no effect any more: {why}; remove it"
        print(text, file=sys.stderr, flush=True)


def note(where: str, old: str, new: str) -> None:
    """Says once in a process, on stderr, that a name has changed."""
    text = f"note: {where}: {old} is called {new} now; the old name still works"
    if text not in _noted:
        _noted.add(text)
        print(text, file=sys.stderr, flush=True)
