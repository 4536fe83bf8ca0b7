"""Passages that hold the same text under several ids: all of them answer what one of them does."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping

from input_pipelines.sources.text_sources import Record


class Copies:
    """Ids of passages by their text; 16 bytes of a hash for each text are in memory."""

    def __init__(self) -> None:
        self._ids: defaultdict[bytes, list[str]] = defaultdict(list)
        self._key: dict[str, bytes] = {}

    def add(self, record: Record) -> None:
        """Remembers a passage; case and white space make no other text."""
        text = " ".join(f"{record.title} {record.text}".split()).casefold()
        key = hashlib.sha256(text.encode()).digest()[:16]
        self._ids[key].append(record.id)
        self._key[record.id] = key

    def with_copies(self, judged: Mapping[str, int]) -> dict[str, int]:
        """Passage -> degree of relevance, with the copies of each; the highest degree counts.

        Args:
          judged: the same, without copies.
        """
        found = dict(judged)
        for name, degree in judged.items():
            for copy in self._ids[self._key[name]]:
                found[copy] = max(degree, found.get(copy, degree))
        return found
