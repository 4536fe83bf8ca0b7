"""Queries that share a relevant passage, kept together when judged queries are divided.

A model that has learned a training query remembers its passage. A development or test query with
the same passage then measures memory (docs/results/collections.md has the figures of SciFact). So
a family is a connected component of the graph of queries and their relevant passages, and a family
goes into one part whole.
"""

import functools
import hashlib
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping

_log = logging.getLogger(__name__)

LEAST_FILLED = 0.5  # of the queries that a part should have; with fewer, families are broken up


def families(relevant: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Queries by family.

    Args:
      relevant: (query, passage) of every relevant judgement.

    Returns:
      The families, each sorted, sorted by their first query.
    """
    parent: dict[str, str] = {}

    def root(query: str) -> str:
        while parent[query] != query:
            parent[query] = parent[parent[query]]
            query = parent[query]
        return query

    first: dict[str, str] = {}  # passage -> the first query that it answers
    for query, passage in relevant:
        parent.setdefault(query, query)
        one, other = sorted((root(query), root(first.setdefault(passage, query))))
        parent[other] = one
    found: dict[str, list[str]] = defaultdict(list)
    for query in sorted(parent):
        found[root(query)].append(query)
    return list(found.values())


def divide(
    relevant: Iterable[tuple[str, str]], shares: Mapping[str, float], seed: int
) -> dict[str, set[str]]:
    """Divides queries into parts that have no relevant passage in common, where that is possible.

    Families are taken from the largest to the smallest, in an order by hash among equals, and each
    goes where most queries are missing. Where one family holds so many queries that a part would
    get less than half of its share, queries are divided one by one, with a warning.

    Args:
      relevant: (query, passage) of every relevant judgement.
      shares: part -> its share of the queries; they add up to 1.
      seed: another one gives another division.

    Returns:
      Part -> its queries; the same on every machine.
    """
    whole = families(relevant)
    parts = fill(whole, shares, seed)
    short = short_parts(parts, shares)
    if not short:
        return parts
    total = sum(map(len, whole))
    _warn_once(max(map(len, whole)), total, " and ".join(map(repr, short)))
    return fill([[query] for family in whole for query in family], shares, seed)


@functools.cache  # the same judgements are divided once for each of the splits that are written
def _warn_once(connected: int, total: int, short: str) -> None:
    _log.warning(
        "%d of %d queries are connected by passages that answer several of them, so that %s would "
        "get less than half of the queries meant for it if they stayed together: queries are "
        "divided one by one, and queries of different parts have relevant passages in common",
        *(connected, total, short),
    )


def short_parts(parts: Mapping[str, set[str]], shares: Mapping[str, float]) -> list[str]:
    """The parts that got less than half of their share, because groups are too large."""
    total = sum(map(len, parts.values()))
    return [
        part
        for part, queries in parts.items()
        if len(queries) < LEAST_FILLED * round(shares[part] * total)
    ]


def fill(groups: list[list[str]], shares: Mapping[str, float], seed: int) -> dict[str, set[str]]:
    """Divides groups, each of which stays whole.

    Args:
      groups: sorted lists of queries.
      shares: part -> its share of the queries; they add up to 1.
      seed: another one gives another division.

    Returns:
      Part -> its queries; the same on every machine.
    """
    total = sum(map(len, groups))
    parts: dict[str, set[str]] = {part: set() for part in shares}
    for group in sorted(groups, key=lambda one: (-len(one), _digest(f"{seed}:{one[0]}"))):
        part = max(shares, key=lambda name: shares[name] * total - len(parts[name]))
        parts[part].update(group)
    return parts


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
