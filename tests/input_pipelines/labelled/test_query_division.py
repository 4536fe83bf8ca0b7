"""Training, development and test queries: no leaks, whatever the data, in any order of rows."""

import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipelines.gather import near_duplicates
from input_pipelines.labelled import passage_overlap
from input_pipelines.labelled.division import PARTS, Division, SplitRules, divide
from input_pipelines.labelled.examples import UNDIVIDED, LayoutError

WORDS = st.sampled_from("a b c d e f g".split())
QUERIES = st.lists(st.lists(WORDS, min_size=1, max_size=5).map(" ".join), min_size=8, max_size=40)
PASSAGES = st.lists(st.integers(0, 30), min_size=50, max_size=50)


def data(texts: list[str], passages: list[int]) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Queries, which may repeat each other, with a passage each, which they may share."""
    queries = {f"q{i}": text for i, text in enumerate(texts)}
    return queries, {name: [f"p{passages[i]}"] for i, name in enumerate(queries)}


def undivided(queries: Mapping[str, str]) -> dict[str, dict[str, str]]:
    return {name: {UNDIVIDED: "file:1"} for name in queries}


def require_apart(queries: Mapping[str, str], made: Division, threshold: float) -> None:
    """No query is in two parts, and near duplicates are in one; compares all pairs."""
    parts = [made.parts[part] for part in PARTS]
    assert sum(map(len, parts)) == len(set().union(*parts)) == len(queries)
    part_of = {name: part for part, names in made.parts.items() for name in names}
    words = {name: frozenset(near_duplicates.words(text)) for name, text in queries.items()}
    for one, first in words.items():
        for other, second in words.items():
            if len(first & second) >= threshold * len(first | second):
                assert part_of[one] == part_of[other]


@settings(max_examples=100, deadline=None)
@given(QUERIES, PASSAGES, st.sampled_from([0.5, 0.8, 1.0]), st.integers(0, 5))
def test_near_duplicates_are_in_one_part(
    texts: list[str], passages: list[int], threshold: float, seed: int
) -> None:
    queries, relevant = data(texts, passages)
    rules = SplitRules(near_duplicate=threshold, seed=seed)
    made = divide(queries, relevant, undivided(queries), rules)
    require_apart(queries, made, threshold)
    if made.how == "by passage":
        for part in ("dev", "test"):
            found = passage_overlap.measure(
                made.parts[part], made.parts["train"], relevant, made.near
            )
            assert found.gold_in_training == found.near_duplicates == 0 == len(found.shared)


@settings(max_examples=50, deadline=None)
@given(QUERIES, PASSAGES, st.integers(0, 5))
def test_the_order_of_rows_does_not_matter(
    texts: list[str], passages: list[int], seed: int
) -> None:
    queries, relevant = data(texts, passages)
    rules = SplitRules(seed=seed, near_duplicate=0.7)
    made = divide(queries, relevant, undivided(queries), rules)
    names = list(queries)
    random.Random(seed).shuffle(names)
    mixed = {name: queries[name] for name in names}
    assert divide(mixed, relevant, undivided(mixed), rules) == made


@settings(max_examples=50, deadline=None)
@given(QUERIES, PASSAGES, st.integers(2, 5), st.integers(0, 3))
def test_each_query_is_tested_in_one_fold(
    texts: list[str], passages: list[int], folds: int, seed: int
) -> None:
    different = [f"only {i}" for i in range(10)]  # enough for each fold
    queries, relevant = data(texts + different, passages)
    tested: list[str] = []
    for fold in range(folds):
        rules = SplitRules(folds=folds, fold=fold, seed=seed, near_duplicate=0.8)
        made = divide(queries, relevant, undivided(queries), rules)
        require_apart(queries, made, 0.8)
        tested += made.parts["test"]
    assert sorted(tested) == sorted(queries)


def test_queries_that_all_repeat_each_other_have_no_folds() -> None:
    queries, relevant = data(["a b c"] * 8, list(range(8)))
    with pytest.raises(LayoutError, match="fold 0 of 2: expected test queries and others, found 8"):
        divide(queries, relevant, undivided(queries), SplitRules(folds=2))


def many(count: int) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Different queries, two for each passage."""
    queries = {f"q{i}": f"word{i} other{i}" for i in range(count)}
    return queries, {f"q{i}": [f"p{i // 2}"] for i in range(count)}


def test_shares_and_their_limit() -> None:
    queries, relevant = many(2000)
    made = divide(queries, relevant, undivided(queries), SplitRules())
    assert {part: len(names) for part, names in made.parts.items()} == {
        "train": 1400,
        "dev": 300,
        "test": 300,
    }
    assert made.how == "by passage" and not made.notes
    made = divide(queries, relevant, undivided(queries), SplitRules(most=100, test_share=0.0))
    assert [len(made.parts[part]) for part in PARTS] == [1900, 100, 0]
    assert made.notes == ["100 development queries, fewer than 200: too few for a verdict"]


def test_seeds_and_repetitions_differ() -> None:
    queries, relevant = many(200)
    tests = {
        frozenset(divide(queries, relevant, undivided(queries), rules).parts["test"])
        for rules in (
            SplitRules(),
            SplitRules(seed=1),
            SplitRules(folds=5),
            SplitRules(folds=5, seed=1),
        )
    }
    assert len(tests) == 4


def test_one_passage_for_most_queries_divides_by_query() -> None:
    queries, relevant = many(1000)
    relevant |= {f"q{i}": ["popular"] for i in range(900)}
    made = divide(queries, relevant, undivided(queries), SplitRules())
    assert made.how == "by query"
    assert "900 of 1000 queries are connected" in made.notes[0]
    found = passage_overlap.measure(made.parts["test"], made.parts["train"], relevant, made.near)
    assert (
        found.gold_in_training == 1 and set(found.shared) | set(found.apart) == made.parts["test"]
    )
    assert all(relevant[name] == ["popular"] for name in found.shared)


def given_splits(**counts: int) -> tuple[dict[str, str], dict[str, list[str]], dict]:
    names = [f"{split}{i}" for split, count in counts.items() for i in range(count)]
    queries = {name: f"{name} asks this" for name in names}
    where = {name: {name.rstrip("0123456789"): f"{name}:1"} for name in names}
    return queries, {name: [f"p-{name}"] for name in names}, where


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"train": 50, "dev": 3, "test": 4}, (50, 3, 4)),
        ({"train": 100, "test": 4}, (85, 15, 4)),
        ({"train": 100, "dev": 3}, (85, 3, 15)),
        ({"train": 100}, (70, 15, 15)),
    ],
)
def test_given_splits_are_kept(counts: dict[str, int], expected: tuple[int, ...]) -> None:
    queries, relevant, where = given_splits(**counts)
    made = divide(queries, relevant, where, SplitRules())
    assert tuple(len(made.parts[part]) for part in PARTS) == expected
    for split in {"dev", "test"} & counts.keys():
        assert made.parts[split] == {name for name in queries if name.startswith(split)}
    assert {split: len(names) for split, names in made.given.items()} == counts


def test_a_test_query_in_training_is_refused_or_dropped() -> None:
    queries, relevant, where = given_splits(train=100, test=4)
    queries["train7"] = "where is the large blue sea near the old town of Genoa?"
    queries["test2"] = "Where is the large, blue sea near the old town of Genoa"
    where["test0"]["train"] = "a.csv:9"
    with pytest.raises(LayoutError) as raised:
        divide(queries, relevant, where, SplitRules())
    for word in ("2 test queries", "(train7:1)", "(test2:1)", "(a.csv:9)", "LEAKS=drop"):
        assert word in str(raised.value)
    made = divide(queries, relevant, where, SplitRules(leaks="drop"))
    assert made.dropped == ["test0", "train7"]
    assert made.parts["test"] == {f"test{i}" for i in range(4)}
    assert "train7" not in made.parts["train"] | made.parts["dev"]
    again = divide(queries, relevant, where, SplitRules(keep_given=False))
    assert sum(map(len, again.parts.values())) == 104 and not again.given


def test_a_development_query_in_training_is_noted() -> None:
    queries, relevant, where = given_splits(train=20, dev=5, test=4)
    queries["dev0"] = queries["train3"]
    made = divide(queries, relevant, where, SplitRules())
    assert made.notes[0].startswith("1 development queries are training queries, too")
    found = passage_overlap.measure(made.parts["dev"], made.parts["train"], relevant, made.near)
    assert found.near_duplicates == 1
    assert divide(queries, relevant, where, SplitRules(leaks="drop")).dropped == ["train3"]


def test_no_training_queries_and_folds_of_given_splits() -> None:
    queries, relevant, where = given_splits(test=40)
    with pytest.raises(LayoutError, match=r"expected training queries, found \{'test': 40\}"):
        divide(queries, relevant, where, SplitRules())
    with pytest.raises(LayoutError, match="folds divide all queries.*KEEP_GIVEN=False"):
        divide(queries, relevant, where, SplitRules(folds=5))
    made = divide(queries, relevant, where, SplitRules(folds=5, keep_given=False))
    assert len(made.parts["test"]) == 8


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"dev_share": 0.6, "test_share": 0.4}, "below 1 together"),
        ({"dev_share": -0.1}, "0 or more"),
        ({"most": 0}, "most of 1"),
        ({"near_duplicate": 0.0}, r"near_duplicate in \(0, 1\]"),
        ({"leaks": "keep"}, "'refuse' or 'drop'"),
        ({"folds": 1}, "folds of 2"),
        ({"folds": 3, "fold": 3}, "fold from 0 to 2"),
        ({"fold": 1}, "fold from 0 to 0"),
    ],
)
def test_rules_that_make_no_sense(wrong: dict[str, float], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        SplitRules(**wrong)


def test_the_overlap_of_a_small_example() -> None:
    relevant = {"a": ["1", "2"], "b": ["2"], "c": ["3"], "x": ["1"], "y": ["4", "3"]}
    found = passage_overlap.measure({"a", "b", "c"}, {"x", "y"}, relevant, [("x", "b")])
    assert (found.queries, found.gold, found.gold_in_training, found.near_duplicates) == (
        3,
        3,
        2,
        1,
    )
    assert (found.shared, found.apart) == (("a", "c"), ("b",))
    assert found.text("test") == (
        "test: 3 queries; 2 of 3 relevant passages answer training queries, too (2 queries)"
    )
