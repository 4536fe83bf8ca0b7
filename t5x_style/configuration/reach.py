"""Find the bindings that a call reaches through `@` references."""

from collections.abc import Iterable, Iterator
from typing import Any

from t5x_style.configuration.gin_reader import Config, Macro, Reference, leaves

Key = tuple[str, str, str]  # of a binding: scope, target, parameter
Call = tuple[str, str]  # target, scope


def from_calls(config: Config, calls: Iterable[Call]) -> tuple[set[Key], set[Call]]:
    """Keys of the bindings, and the calls, that some calls can reach.

    A call in scope `a/b` sees the bindings of scopes ``, `a` and `a/b`. A reference with a scope
    replaces the scope, one without keeps it; inside a macro, gin sets the macro's name as scope. A
    macro without a value leads nowhere.
    """
    todo = list(calls)
    states: set[Call] = set()
    keys: set[Key] = set()
    while todo:
        state = todo.pop()
        if state in states:
            continue
        states.add(state)
        target, scope = state
        for key, binding in config.bindings.items():
            if key[1] == target and f"{scope}/".startswith(f"{key[0]}/" if key[0] else ""):
                keys.add(key)
                for leaf in through_macros(config, binding.value):
                    if isinstance(leaf, Reference):
                        todo += [(leaf.target, leaf.scope or scope)]
                        # a bare @function is called later, perhaps outside of this scope
                        todo += [] if leaf.call or leaf.scope else [(leaf.target, "")]
    return keys, states


def through_macros(config: Config, value: Any, inside: tuple[str, ...] = ()) -> Iterator[Any]:
    """Literals, references and macros in a value, and in the values of its macros."""
    for leaf in leaves(value):
        yield leaf
        if isinstance(leaf, Macro) and leaf.name in config.macros and leaf.name not in inside:
            further = config.macros[leaf.name].value
            yield from through_macros(config, further, (*inside, leaf.name))
