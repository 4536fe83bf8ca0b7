"""Which test queries are answered by passages that training queries had as answers."""

from benchmarks.overlap import shares_answers


def test_queries_that_share_a_relevant_passage_are_found() -> None:
    train = {"a": {"1", "2"}, "b": {"3"}}
    test = {"same": {"2"}, "one of two": {"3", "9"}, "new": {"7"}}
    assert shares_answers(train, test) == {"same", "one of two"}
    assert shares_answers({}, test) == set()
