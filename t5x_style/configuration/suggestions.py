"""Suggest known names for an unknown one."""

import difflib
from collections.abc import Iterable

SHOWN = 12  # names to choose from in a message


def did_you_mean(word: str, known: Iterable[str], most: int = 3, least: float = 0.6) -> str:
    """Returns `; did you mean X or Y?`, the most similar first, or nothing.

    >>> did_you_mean("rn", ["runs", "run", "gc"])
    '; did you mean run or runs?'

    Args:
      word: what is not known.
      known: what there is.
      most: how many are named.
      least: of `difflib`'s ratio, from which a name is similar.
    """
    found = difflib.get_close_matches(word, sorted(set(known)), n=most, cutoff=least)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def closest(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean X?`, or what there is to choose from, the likest first, or nothing.

    >>> closest("STPES", ["STEPS", "SEED"])
    '; did you mean STEPS?'
    """
    names = sorted(set(known))
    if not names:
        return ""
    if meant := did_you_mean(name, names, most=1, least=0.5):
        return meant
    ranked = difflib.get_close_matches(name, names, n=len(names), cutoff=0.0)
    more = f" and {len(ranked) - SHOWN} more" if len(ranked) > SHOWN else ""
    return f"; known here: {', '.join(ranked[:SHOWN])}{more}"
