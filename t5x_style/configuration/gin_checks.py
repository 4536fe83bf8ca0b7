"""Strict gin: flags in T5X's habits, and every name, type and import checked before gin runs.

`--gin_file=FILE` (repeatable, later files win), `--gin.NAME=VALUE` (wins over files; strings need
no quotes), `--gin_search_paths=a,b`, `--gin_allow=module` to let gin files import other code, and
the flags of several processes, which `processes` reads.

Order of a run: `gin_reader.read` (static), `check_names` (static), `check_code` (imports the
modules and compares names, parameters and types), `parse` (gin itself, then locked).
"""

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gin import config as gin_config

from t5x_style.configuration import (
    code_checks,
    command_flags,
    compared_systems,
    conventions,
    gin_macros,
    gin_text,
    module_names,
    reach,
)
from t5x_style.configuration.gin_reader import (
    COMMAND_LINE,
    FOLDER_MACRO,
    Binding,
    Config,
    GinError,
    Macro,
    Reference,
    closest,
    find_file,
    leaves,
    read,
    search_folders,
    to_gin,
)
from t5x_style.storage import places

REQUIRED = "gin.REQUIRED"


@dataclass(frozen=True)
class Flags:
    """The command line of a stage or a recipe."""

    files: tuple[str, ...]
    overrides: tuple[tuple[str, str], ...]
    search_paths: tuple[str, ...] = (".",)
    allow: tuple[str, ...] = ()
    traceback: bool = False
    dry_run: bool = False
    strict_code: bool = False
    rerun: tuple[str, ...] = ()
    until: str | None = None
    companions: str = "here"

    def read(self) -> Config:
        """Reads the gin files and overrides of a stage, statically, systems to compare expanded.

        See `compared_systems` and `_drop_overridden`.
        """
        config = self.read_all()
        compared_systems.expand(config, self._with)
        _drop_overridden(config)
        return config

    def _with(self, files: Sequence[str], overrides: Sequence[tuple[str, str]]) -> Config:
        """The same stage with further files and overrides, unchanged."""
        more = replace(self, files=(*self.files, *files), overrides=(*self.overrides, *overrides))
        return more.read_all()

    def read_all(self) -> Config:
        """The same with every macro: those of a recipe reach its stages.

        What files leave to conventions is bound in both.
        """
        config = read(self.files, self.overrides, search_paths=self.search_paths, allow=self.allow)
        conventions.add(config)
        return config

    def arguments(self) -> list[str]:
        """The flags as command-line arguments again."""
        return [
            *(f"--gin_file={name}" for name in self.files),
            *(f"--gin.{name}={value}" for name, value in self.overrides),
            f"--gin_search_paths={','.join(self.search_paths)}",
            *(f"--gin_allow={name}" for name in self.allow),
            *(["--traceback"] if self.traceback else []),
            *(["--strict_code"] if self.strict_code else []),
            *(f"--rerun={name}" for name in self.rerun),
            *([f"--until={self.until}"] if self.until else []),
            *([f"--companions={self.companions}"] if self.companions != "here" else []),
        ]

    def without_links(self) -> "Flags":
        """The same flags, with gin files where links lead now: a run changes links."""
        folders = search_folders(self.search_paths)
        found = [find_file(name, folders, COMMAND_LINE) for name in self.files]
        real = [str(path.resolve()) for path in found]
        linked = [os.path.abspath(path) != where for path, where in zip(found, real, strict=True)]
        files = zip(self.files, real, linked, strict=True)
        return replace(self, files=tuple(real if link else name for name, real, link in files))

    def with_macros(self, values: Mapping[str, Any]) -> "Flags":
        """The same flags, with these values for macros in place of those they have."""
        kept = tuple(pair for pair in self.overrides if pair[0] not in values)
        return replace(self, overrides=(*kept, *((k, to_gin(v)) for k, v in values.items())))


def parse_flags(argv: Sequence[str], description: str = "") -> Flags:
    """Splits the command line into flags; `--gin.NAME` without `=VALUE` is a `GinError`."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    command_flags.add_stage(parser)
    parser.epilog = "--gin.NAME=VALUE binds a macro or a parameter; it wins over every file."
    bindings = [word.removeprefix("--gin.") for word in argv if word.startswith("--gin.")]
    options = parser.parse_args([word for word in argv if not word.startswith("--gin.")])
    for binding in bindings:
        if "=" not in binding:
            raise GinError(f"--gin.{binding}: write --gin.{binding}=VALUE, with no space.")
    return Flags(
        files=tuple(options.gin_file),
        overrides=tuple((name, value) for name, _, value in (b.partition("=") for b in bindings)),
        search_paths=tuple(options.gin_search_paths.split(",")),
        allow=tuple(options.gin_allow),
        traceback=options.traceback,
        dry_run=options.dry_run,
        strict_code=options.strict_code,
        rerun=tuple(options.rerun),
        until=options.until,
        companions=options.companions,
    )


def _drop_overridden(config: Config) -> None:
    """Removes macros of files where all that referred to them was overridden.

    `alphabet_size = 999` in place of `alphabet_size = %ALPHABET` leaves ALPHABET without a use,
    which is no mistake, unless the command line sets both.
    """
    used = gin_macros.in_bindings((*config.bindings.values(), *config.macros.values()))
    lost = [
        binding
        for name, binding in config.macros.items()
        if name not in used
        and _overridden(config, name)
        and not binding.where.startswith(COMMAND_LINE)
    ]
    for binding in lost:
        config.overridden.append(config.macros.pop(binding.name))
    if lost:  # what they referred to may have no use either
        _drop_overridden(config)


def check_names(config: Config, roots: Iterable[str]) -> None:
    """Refuses unknown, unused and required-but-unset names; imports nothing.

    Args:
      config: what `read` returned.
      roots: absolute dotted paths of what the program calls by itself, e.g.
        `t5x_style.train.train`; a binding that no root leads to is unused.

    Raises:
      GinError: with file, line and the closest known name of each, a line for each.
    """
    check_resolved(config)
    _refuse(config.problems)
    _refuse(_without_value(config))
    _refuse((*_without_use(config), *_out_of_reach(config, roots), *_required(config)))


def _out_of_reach(config: Config, roots: Iterable[str]) -> Iterator[str]:
    reached = reachable(config, roots)
    names = sorted({binding.text for key, binding in config.bindings.items() if key in reached})
    for key, binding in config.bindings.items():
        if key not in reached:
            hint = closest(binding.text, names)
            yield (
                f"{binding.where}: {binding.name} is bound, but nothing in this run leads to "
                f"{binding.scope + '/' if binding.scope else ''}{binding.text}{hint} "
                "Remove the binding, or refer to it with @."
            )


def _required(config: Config) -> Iterator[str]:
    for binding in config.bindings.values():
        if Macro(REQUIRED) in leaves(config.expand(binding.value, binding.where)):
            name = _required_name(config, binding)
            yield f"{binding.where}: {name} has no value yet: pass --gin.{name}=VALUE."


def _required_name(config: Config, binding: Binding) -> str:
    """The macro that was left at gin.REQUIRED, or else the binding itself."""
    for leaf in leaves(binding.value):
        if isinstance(leaf, Macro) and leaf.name != REQUIRED:
            inside = config.expand(leaf, binding.where)
            if Macro(REQUIRED) in leaves(inside):
                return _required_name(config, config.macros[leaf.name])
    return binding.name


def check_resolved(config: Config) -> None:
    """Raises GinError for names whose first part is no module's and that no file imports."""
    _refuse(_unresolved(config))


def _unresolved(config: Config) -> Iterator[str]:
    symbols = [item.symbol for item in config.imports]
    for binding in (*config.bindings.values(), *config.macros.values()):
        names = [binding.text] if binding.text and not binding.target else []
        names += [
            leaf.text
            for leaf in leaves(binding.value)
            if isinstance(leaf, Reference) and not leaf.target
        ]
        for name in names:
            yield f"{binding.where}: {_why_unresolved(name, symbols)}"
        if binding.target == "gin.macro":
            yield f"{binding.where}: write NAME = value instead of gin.macro.value."


def _why_unresolved(name: str, symbols: Iterable[str]) -> str:
    head = name.split(".")[0]
    several = module_names.all_modules().get(head, ())
    if len(several) > 1:
        imports = " or ".join(f"from {path.rpartition('.')[0]} import {head}" for path in several)
        return f"{head!r} in {name!r} is the name of {len(several)} modules; write {imports}."
    known = {*symbols, *module_names.paths()}
    return f"{head!r} in {name!r} is no module of Kennel, nor imported{closest(head, known)}"


def _without_value(config: Config) -> Iterator[str]:
    """Yield macros that nothing sets, each at its first use, and cycles of macros."""
    said: set[str] = set()
    for binding in (*config.bindings.values(), *config.macros.values()):
        try:
            config.expand(binding.value, binding.where)
        except GinError as error:
            text = str(error).removeprefix(binding.where)
            if text not in said:
                said.add(text)
                yield str(error)


def _without_use(config: Config) -> Iterator[str]:
    used = gin_macros.in_use(config)
    for name, binding in config.macros.items():
        if name not in used and name != FOLDER_MACRO:
            referred = ", ".join(f"{one.name} at {one.where}" for one in _overridden(config, name))
            why = f": {referred} was overridden" if referred else closest(name, used - {REQUIRED})
            yield f"{binding.where}: macro {name} is set, but nothing refers to %{name}{why}"


def _overridden(config: Config, name: str) -> list[Binding]:
    """The bindings and macros that lost, of those that refer to a macro."""
    return [binding for binding in config.overridden if name in gin_macros.in_bindings([binding])]


def reachable(config: Config, roots: Iterable[str]) -> set[tuple[str, str, str]]:
    """Keys of the bindings that a call of the roots can reach, see `reach.from_calls`."""
    return reach.from_calls(config, [(root, "") for root in roots])[0]


def targets(config: Config, roots: Iterable[str]) -> set[str]:
    """Dotted paths of what a call of the roots can reach, bound or not."""
    return {target for target, _ in reach.from_calls(config, [(root, "") for root in roots])[1]}


def check_code(config: Config) -> None:
    """Imports what the bindings name and compares parameters and types with the code.

    Raises:
      GinError: all that `code_checks.problems` finds.
    """
    _refuse(code_checks.problems(config))


def check_job(config: Config, job: str) -> None:
    """Refuses a stage's job with a parameter that has neither a default nor a binding.

    Raises:
      GinError: naming every such parameter.
    """
    _refuse(code_checks.job_problems(config, job))


def _refuse(problems: Iterable[str]) -> None:
    found = list(dict.fromkeys(problems))
    if found:
        raise GinError(*found)


def parse(config: Config, job: str = "", more: str = "") -> None:
    """Hands a checked configuration to gin itself, then locks it.

    Args:
      config: what `read` returned.
      job: dotted path that is bound to `stage.run.job` when no file does.
      more: gin text of the caller's own that wins over everything.
    """
    gin_config.parse_config(gin_text.text_of(config, job))
    gin_config.parse_config(more)
    gin_config.finalize()


def configured(function: Callable[..., Any] | str) -> Callable[..., Any]:
    """The version of a function, or of what has a dotted path, that gin fills with bindings."""
    return gin_config.get_configurable(function)


def save_config(folder: Path) -> None:
    """Writes `config.gin` (all that was bound: feed it to --gin_file to repeat the run)."""
    text = places.shown_in(gin_config.config_str())
    (folder / "config.gin").write_text(text, encoding="utf-8")


def save_operative_config(folder: Path) -> None:
    """Writes `operative_config.gin`: the values, defaults included, of what was called so far."""
    text = places.shown_in(gin_config.operative_config_str())
    (folder / "operative_config.gin").write_text(text, encoding="utf-8")
