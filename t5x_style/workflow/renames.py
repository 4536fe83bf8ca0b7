"""Old names, which gin files, recipes and finished runs may hold, and the present ones.

After a rename, add the old name here with the present one. Then

- gin files and recipes that use the old name are understood, and a note says the present one;
- finished versions stay valid: a fingerprint holds the name that a thing had first. Modules are in
  it without their package (`module.name`), so a move to another package leaves it as it is.

After adding a parameter whose default means the old behaviour, add it to `ADDED` with that value:
while it has it, fingerprints leave it out.
"""

import sys
from collections.abc import Mapping

from t5x_style.workflow import sources

# Dotted path of a module, function or class -> the present one
NAMES: Mapping[str, str] = {}
# "module.name.parameter" as in fingerprints, with the present parameter -> its first name
PARAMETERS: Mapping[str, str] = {}
# macro of gin files -> the present one
MACROS: Mapping[str, str] = {}
# path of a gin file -> the present one
FILES: Mapping[str, str] = {}
# "module.name.parameter" as in fingerprints -> the value that means what was done without it
ADDED: Mapping[str, str] = {
    "tokenization.train_tokenizer.split_case": "False",
    "bert.BertConfig.table_stddev": "None",
    "bert.BertConfig.position_stddev": "None",
    "bert.BertConfig.kernel_stddev": "None",
    "bert.BertConfig.attention_stddev": "None",
    "bert.BertConfig.mlp_stddev": "None",
}

_noted: set[str] = set()


def present(path: str) -> str:
    """The present dotted path of what an old or present one names.

    A module may have become a package of the same name, so a path into a module that exists is
    never an old one.
    """
    parts = path.split(".")
    for depth in range(len(parts), 0, -1):
        prefix = ".".join(parts[:depth])
        if prefix in NAMES:
            return present(".".join([NAMES[prefix], *parts[depth:]]))
        file = sources.path_of(parts[:depth])
        if file is not None and file.name != "__init__.py":
            return path
    return path


def first(path: str) -> str:
    """The dotted path that something had first, given its present one."""
    old = {new: old for old, new in NAMES.items()}
    parts = path.split(".")
    for depth in range(len(parts), 0, -1):
        prefix = ".".join(parts[:depth])
        if prefix in old:
            return first(".".join([old[prefix], *parts[depth:]]))
    return path


def kind(target: str) -> str:
    """The name of a function or class in fingerprints: the last two parts of its first path.

    >>> kind("t5x_style.retrieval.exact.load")
    'exact.load'
    """
    return ".".join(first(target).split(".")[-2:])


def parameter(target: str, name: str) -> str:
    """The present name of a parameter of `target`."""
    prefix = f"{kind(target)}."
    for full, old in PARAMETERS.items():
        if full.startswith(prefix) and old == name:
            return full.removeprefix(prefix)
    return name


def aliases(paths: Mapping[str, str]) -> dict[str, str]:
    """Old symbols of modules, for names that are written where nothing is imported.

    Args:
      paths: symbol -> present path of a module.

    Returns:
      The last part of each old path of these modules -> that old path.
    """
    known = set(paths.values())
    return {old.rpartition(".")[2]: old for old in NAMES if present(old) in known}


def macro(name: str, where: str) -> str:
    """The present name of a macro; says so if it is another one."""
    found = MACROS.get(name, name)
    if found != name:
        note(where, name, found)
    return found


def entry(module: str, where: str) -> str:
    """The present path of a module that a recipe runs; says so if it is another one."""
    found = present(module)
    if found != module:
        note(where, module, found)
    return found


def note(where: str, old: str, new: str) -> None:
    """Says once in a process, on stderr, that a name has changed."""
    text = f"note: {where}: {old} is called {new} now; the old name still works"
    if text not in _noted:
        _noted.add(text)
        print(text, file=sys.stderr, flush=True)
