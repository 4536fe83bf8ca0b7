"""Passages that hold the same text under several ids: all of them answer what one of them does."""

import hashlib
from collections.abc import Mapping

from input_pipelines.sources.text_sources import Record


class Copies:
    """Ids of passages by their text; a hash of each text and its first id are in memory."""

    def __init__(self) -> None:
        self._first: dict[bytes, str] = {}
        self._text_of: dict[str, str] = {}  # of copies alone
        self._copies: dict[str, list[str]] = {}

    def add(self, record: Record) -> None:
        """Remembers a passage; case and white space make no other text."""
        text = " ".join(f"{record.title} {record.text}".split()).casefold()
        key = hashlib.sha256(text.encode()).digest()[:16]
        first = self._first.setdefault(key, record.id)
        if first != record.id:
            self._text_of[record.id] = first
            self._copies.setdefault(first, []).append(record.id)

    def text_of(self, name: str) -> str:
        """The first passage of the same text."""
        return self._text_of.get(name, name)

    def with_copies(self, judged: Mapping[str, int]) -> dict[str, int]:
        """Passage -> degree of relevance, with the copies of each; the highest degree counts.

        Args:
          judged: the same, without copies.
        """
        found = dict(judged)
        for name, degree in judged.items():
            first = self.text_of(name)
            for copy in (first, *self._copies.get(first, ())):
                found[copy] = max(degree, found.get(copy, degree))
        return found
