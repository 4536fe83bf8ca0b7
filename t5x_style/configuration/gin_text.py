"""Writes a configuration that was read and checked as one gin text, for gin itself to parse.

So gin gets exactly what was checked, whatever files, command line and old names it came from.
"""

from typing import Any

from t5x_style.configuration.gin_reader import RUN, Binding, Config, Reference, to_gin, transform

HEADER = "from __gin__ import dynamic_registration"


def text_of(config: Config, job: str = "") -> str:
    """All imports, macros and bindings; parsing the text gives the same configuration again.

    Args:
      config: what was read.
      job: dotted path that is bound to `stage.run.job` where no file does.
    """
    symbols = _Symbols()
    for item in config.imports:
        symbols.add(item.path, item.symbol, item.module)
    bindings = [*config.macros.values(), *config.bindings.values()]
    lines = [_statement(binding, symbols) for binding in bindings]
    if job and ("", RUN, "job") not in config.bindings:
        lines.append(f"{symbols.name(RUN)}.job = @{symbols.name(job)}")
    return "\n".join([HEADER, *symbols.statements, *lines]) + "\n"


class _Symbols:
    """The name that each imported module gets in the text."""

    def __init__(self) -> None:
        self.paths: dict[str, str] = {"gin": "gin"}  # path -> symbol
        self.statements: list[str] = []

    def add(self, path: str, symbol: str, module: str) -> None:
        """Imports a module unless it is imported already; a symbol that is taken gets a number."""
        known = self.paths.get(path)
        if path == module:  # from a.b import c, or import a.b as c
            if known is None:
                parent, _, last = path.rpartition(".")
                start = f"from {parent} import {last}" if parent else f"import {last}"
                self.paths[path] = self._free(symbol)
                alias = "" if self.paths[path] == last else f" as {self.paths[path]}"
                self.statements.append(start + alias)
        elif (statement := f"import {module}") not in self.statements:
            self.paths[path] = path
            self.statements.append(statement)

    def _free(self, symbol: str) -> str:
        taken, number, free = set(self.paths.values()), 2, symbol
        while free in taken:
            free, number = f"{symbol}_{number}", number + 1
        return free

    def name(self, target: str) -> str:
        """A dotted path as the text writes it, with the longest import that leads to it."""
        parts = target.split(".")
        for depth in range(len(parts), 0, -1):
            symbol = self.paths.get(".".join(parts[:depth]))
            if symbol is not None:
                return ".".join([symbol, *parts[depth:]])
        module = ".".join(parts[:-1])  # a class that has moved to another module
        self.add(module, parts[-2], module)
        return self.name(target)


def _statement(binding: Binding, symbols: _Symbols) -> str:
    def leaf(item: Any) -> Any:
        if isinstance(item, Reference):
            return Reference(symbols.name(item.target), item.scope, item.target, item.call)
        return item

    scope = f"{binding.scope}/" if binding.scope else ""
    target = f"{symbols.name(binding.target)}." if binding.target else ""
    value = to_gin(transform(binding.value, leaf))
    return f"{scope}{target}{binding.parameter} = {value}"
