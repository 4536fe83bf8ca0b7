"""Write the differences between two configurations below one reference as bindings in a scope."""

from collections.abc import Collection
from typing import Any

from t5x_style.configuration.gin_reader import Binding, Config, Macro, Reference, transform


def seen_by(config: Config, target: str, scope: str) -> dict[str, Binding]:
    """Parameter -> the binding that a call of `target` in `scope` sees, of the innermost scope."""
    found: dict[str, Binding] = {}
    for (outer, other, parameter), binding in config.bindings.items():
        inside = other == target and f"{scope}/".startswith(f"{outer}/" if outer else "")
        if inside and len(outer) >= len(found[parameter].scope if parameter in found else ""):
            found[parameter] = binding
    return found


class Differences:
    """Follows references of `own` and records where it differs from `base`.

    A binding that differs, or leads to one, is written with the scope added to its call's; macros
    that are not the same in both are replaced by their values. All else stays shared.

    Attributes:
      bindings: by key, what is to be added to `base`.
      macros: that only `own` has and all may share, likewise.
      met: names of the macros that were met, set or not.
      calls: (target, scope) that were met -> whether they differ.
    """

    def __init__(self, base: Config, own: Config, scope: str, where: str, local: Collection[str]):
        """Args:
        base: without the system; what it shares with others may come from their files.
        own: with what is different for the system.
        scope: that is added.
        where: file and line of what the system says.
        local: macros that it sets, whose values are nobody else's.
        """
        self.bindings: dict[tuple[str, str, str], Binding] = {}
        self.macros: dict[str, Binding] = {}
        self.met: set[str] = set()
        self.calls: dict[tuple[str, str], bool] = {}
        self._base, self._own, self._scope = base, own, scope
        self._where, self._local = where, local
        self._differs: dict[str, bool] = {}

    def targets(self) -> set[str]:
        """Dotted paths of all that was met."""
        return {target for target, _ in self.calls}

    def of(self, reference: Reference) -> Reference:
        """The reference to what differs, or the same one where nothing does."""
        return self._rewritten(reference, "")

    def _rewritten(self, value: Any, scope: str) -> Any:
        def leaf(item: Any) -> Any:
            if isinstance(item, Macro):
                self.met.add(item.name)
                if self._macro_differs(item.name, scope):
                    return self._rewritten(self._own.macros[item.name].value, scope)
            elif isinstance(item, Reference) and self._call_differs(item, item.scope or scope):
                return Reference(
                    item.text, self._inside(item.scope or scope), item.target, item.call
                )
            return item

        return transform(value, leaf)

    def _inside(self, scope: str) -> str:
        """Bindings of `scope` still hold in it."""
        return f"{scope}/{self._scope}" if scope else self._scope

    def _macro_differs(self, name: str, scope: str) -> bool:
        own, base = self._own.macros.get(name), self._base.macros.get(name)
        if own is None:
            return False
        if name not in self._differs:
            self._differs[name] = False  # macros that form a cycle: `check_names` says so
            same = self._rewritten(own.value, scope) == own.value
            if base is None and same and name not in self._local:
                base = self.macros[name] = own  # of a file of the system: a macro as any other
            self._differs[name] = not same or base is None or base.value != own.value
        return self._differs[name]

    def _call_differs(self, reference: Reference, scope: str) -> bool:
        call = (reference.target, scope)
        if call not in self.calls:
            self.calls[call] = False
            base = seen_by(self._base, *call)
            for parameter, binding in seen_by(self._own, *call).items():
                value = self._rewritten(binding.value, scope)
                known = base.get(parameter)
                if value != binding.value or known is None or known.value != binding.value:
                    self.calls[call] = True
                    inside = self._inside(scope)
                    where = binding.where if value == binding.value else self._where
                    self.bindings[inside, reference.target, parameter] = Binding(
                        inside, binding.text, reference.target, parameter, value, where
                    )
        return self.calls[call]
