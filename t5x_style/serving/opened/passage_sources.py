"""Which passages are of a source: 'python/csv.py:95' is of 'python/csv.py', and of 'python/'."""

import bisect
import re
from collections.abc import Sequence

import numpy as np

from t5x_style.serving.service import RequestError, shown

LISTED = 200  # sources that are offered for a choice, at most
_PART = re.compile(r"^[^/:#]*[/:#]?")


class Sources:
    """Of N passages.

    Attributes:
      listed: what to offer for a choice: each source, or, of more than LISTED, each beginning up to
        the first of '/', ':' and '#'; none where even these are more. In alphabetical order.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        """sources: N, '' of a passage without one."""
        self._order = np.argsort(np.asarray(sources, dtype=object), kind="stable").astype(np.int64)
        self._sorted = [sources[row] for row in self._order.tolist()]
        self.listed = _listed(sorted({source for source in sources if source}))
        self._known = frozenset(self.listed)

    def listed_of(self, source: str) -> str:
        """The one of `listed` that a source is of; '' where there is none."""
        if source in self._known:
            return source
        found = _PART.match(source)
        return found[0] if found and found[0] in self._known else ""

    def rows(self, beginning: str) -> np.ndarray:
        """int64 [n], ascending: the passages whose source begins so."""
        start = bisect.bisect_left(self._sorted, beginning)
        end = bisect.bisect_right(
            self._sorted, beginning, lo=start, key=lambda source: source[: len(beginning)]
        )
        return np.sort(self._order[start:end])

    def required(self, beginning: str) -> np.ndarray:
        """int32 [n], as `rows`, at least one.

        Raises:
          RequestError: no source begins so.
        """
        rows = self.rows(beginning).astype(np.int32)
        if not rows.size:
            raise RequestError(
                f"source: expected the beginning of a passage's source, found {shown(beginning)}, "
                f"with which none begins; GET /info lists some"
            )
        return rows


def _listed(sources: Sequence[str]) -> tuple[str, ...]:
    if len(sources) <= LISTED:
        return tuple(sources)
    beginnings = sorted({found[0] for source in sources if (found := _PART.match(source))})
    return tuple(beginnings) if len(beginnings) <= LISTED else ()
