"""What a user may have meant by a name that is not known."""

import difflib
from collections.abc import Iterable

SHOWN = 12  # names to choose from in a message


def closest(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean X?`, or what there is to choose from, the likest first, or nothing.

    >>> closest("STPES", ["STEPS", "SEED"])
    '; did you mean STEPS?'
    """
    names = sorted(set(known))
    ranked = difflib.get_close_matches(name, names, n=len(names) or 1, cutoff=0.0)
    if difflib.get_close_matches(name, ranked, n=1, cutoff=0.5):
        return f"; did you mean {ranked[0]}?"
    more = f" and {len(ranked) - SHOWN} more" if len(ranked) > SHOWN else ""
    return f"; known here: {', '.join(ranked[:SHOWN])}{more}" if names else ""
