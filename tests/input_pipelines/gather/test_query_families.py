"""Queries that share a relevant passage stay in one part of a division."""

import logging

from hypothesis import given
from hypothesis import strategies as st

from input_pipelines.gather import query_families

SHARES = {"train": 0.5, "dev": 0.2, "test": 0.3}


def test_queries_are_connected_through_passages() -> None:
    relevant = [("a", "1"), ("b", "2"), ("c", "1"), ("c", "3"), ("d", "3"), ("e", "4")]
    assert query_families.families(relevant) == [["a", "c", "d"], ["b"], ["e"]]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 80)), min_size=1, max_size=120),
    st.integers(0, 3),
)
def test_every_query_is_in_one_part(edges, seed) -> None:
    relevant = [(f"q{query}", f"p{passage}") for query, passage in edges]
    parts = query_families.divide(relevant, SHARES, seed)
    assert sorted(query for part in parts.values() for query in part) == sorted(
        {query for query, _ in relevant}
    )
    assert parts == query_families.divide(reversed(relevant), SHARES, seed)


@given(
    st.lists(st.integers(1, 3), min_size=60, max_size=90),
    st.lists(st.integers(0, 2), min_size=60, max_size=60),
    st.integers(0, 3),
)
def test_small_families_stay_in_one_part(sizes, shared, seed) -> None:
    """Families of one to three queries, connected through one passage or through a chain."""
    relevant = []
    for family, size in enumerate(sizes):
        chain = shared[family % len(shared)]
        for number in range(size):
            passage = f"p{family}.{min(number, chain)}"
            relevant += [(f"q{family}.{number}", passage), (f"q{family}.{number}", f"p{family}.0")]
    parts = query_families.divide(relevant, SHARES, seed)
    where = {query: part for part, queries in parts.items() for query in queries}
    for family, size in enumerate(sizes):
        assert len({where[f"q{family}.{number}"] for number in range(size)}) == 1
    assert all(parts.values())


def test_without_shared_passages_the_parts_have_their_shares() -> None:
    relevant = [(f"q{n}", f"p{n}") for n in range(1000)]
    parts = query_families.divide(relevant, SHARES, 0)
    assert {part: len(queries) for part, queries in parts.items()} == {
        "train": 500,
        "dev": 200,
        "test": 300,
    }
    assert parts != query_families.divide(relevant, SHARES, 1)


def test_one_family_of_nearly_all_queries_is_broken_up_and_said(caplog) -> None:
    relevant = [(f"q{n}", "p") for n in range(90)] + [(f"r{n}", f"p{n}") for n in range(10)]
    query_families._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        parts = query_families.divide(relevant, SHARES, 0)
        assert query_families.divide(relevant, SHARES, 0) == parts
    assert len(caplog.records) == 1
    assert {part: len(queries) for part, queries in parts.items()} == {
        "train": 50,
        "dev": 20,
        "test": 30,
    }
    assert "90 of 100 queries are connected" in caplog.text and "'dev'" in caplog.text
