"""Find the macros that a configuration refers to."""

from collections.abc import Collection, Iterable

from t5x_style.configuration.gin_reader import RUN, Binding, Config, Macro, leaves


def in_use(config: Config) -> set[str]:
    """The names of all macros that something refers to, set or not."""
    return in_bindings((*_bindings_that_use(config), *config.macros.values()))


def needed(config: Config, given: Collection[str] = ()) -> set[str]:
    """The names of all macros that a binding leads to, but not through one of the given ones."""
    found: set[str] = set()
    todo = in_bindings(_bindings_that_use(config))
    while todo:
        name = todo.pop()
        found.add(name)
        if name in config.macros and name not in given:
            todo |= in_bindings([config.macros[name]]) - found
    return found


def _bindings_that_use(config: Config) -> list[Binding]:
    """All but the list of inputs, which names macros and uses none."""
    return [binding for key, binding in config.bindings.items() if key[1:] != (RUN, "inputs")]


def in_bindings(bindings: Iterable[Binding]) -> set[str]:
    """The names of the macros that the values of these refer to."""
    values = [leaf for binding in bindings for leaf in leaves(binding.value)]
    return {leaf.name for leaf in values if isinstance(leaf, Macro)}
