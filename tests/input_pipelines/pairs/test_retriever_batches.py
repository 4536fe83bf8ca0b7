"""Pairs for the bi-encoder: which texts are paired, and what a wrong file says."""

import hashlib
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from input_pipelines.batches import token_groups
from input_pipelines.batches.negatives import PairsError
from input_pipelines.pairs import pair_sampler
from input_pipelines.pairs.retriever_batches import PairsPipeline
from input_pipelines.store.token_store import StoreError, TokenStore
from tests.kits.tiny_stores import SEP, make_record, write_store

QUERY_LENGTHS = [6, 4, 9, 5, 7, 12, 3]
PASSAGE_LENGTHS = [9, 20, 7, 14, 31, 8, 6, 25, 10, 12, 16, 5]
# query -> (positives, negatives); q4 has too few negatives, q5 none, q6 is no training query.
LINES = {
    "q0": (["p0"], ["p1", "p2", "p3", "p4", "p5"]),
    "q1": (["p1", "p7"], ["p0", "p2", "p7", "p3", "p3"]),
    "q2": (["p2"], ["p9", "p10", "p11", "p8"]),
    "q3": (["p3"], ["p5", "p6", "p7"]),
    "q4": (["p4"], ["p0"]),
    "q5": (["p5", "p6", "gone"], []),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("pairs")
    queries = write_store(root / "queries", QUERY_LENGTHS, prefix="q")
    return str(queries), str(write_store(root / "passages", PASSAGE_LENGTHS))


def write_lines(path: Path, lines: dict[str, tuple[list[str], list[str]]]) -> str:
    with path.open("w", encoding="utf-8") as f:
        for name, (positives, negatives) in lines.items():
            record = {"query_id": name, "positive_ids": positives, "negative_ids": negatives}
            f.write(json.dumps({**record, "negative_scores": [1.0] * len(negatives)}) + "\n")
    return str(path)


@pytest.fixture
def negatives(tmp_path: Path) -> str:
    return write_lines(tmp_path / "negatives.jsonl", LINES)


def make(stores: tuple[str, str], negatives: str, **changes: Any) -> PairsPipeline:
    """Unpacked unless rows are given."""
    arguments = {"batch": 3, "group_size": 4, "query_length": 8, "passage_length": 16, "seed": 5}
    arguments |= changes
    batch, group = max(1, arguments["batch"]), max(1, arguments["group_size"])
    arguments.setdefault("query_rows", token_groups.Rows(batch, 8, 1))
    arguments.setdefault("passage_rows", token_groups.Rows(batch * group, 16, 1))
    return PairsPipeline(*stores, negatives, **arguments)


def groups(pipeline: PairsPipeline, step: int) -> dict[int, list[int]]:
    """Query row -> passage rows, positive first."""
    batch = pipeline.batch(step)
    names = batch["query"]["example_id"][:, 0].tolist()
    documents = batch["passage"]["document_id"].reshape(len(names), -1).tolist()
    return dict(zip(names, documents, strict=True))


def test_each_query_stands_with_its_positive_and_its_negatives(
    stores: tuple[str, str], negatives: str
) -> None:
    pipeline = make(stores, negatives)
    for step in range(8):
        for query, (positive, *others) in groups(pipeline, step).items():
            positives, listed = LINES[f"q{query}"]
            assert f"p{positive}" in positives
            assert len(set(others)) == 3 and not {f"p{row}" for row in others} & set(positives)
            usable = set(listed) - set(positives)
            taken = {f"p{row}" for row in others} & usable
            assert len(taken) == min(3, len(usable))


def test_tokens_are_those_of_the_rows_cut_to_length(
    stores: tuple[str, str], negatives: str
) -> None:
    batch = make(stores, negatives).batch(0)
    for group, prefix, sizes, length, key in (
        ("query", "q", QUERY_LENGTHS, 8, "example_id"),
        ("passage", "p", PASSAGE_LENGTHS, 16, "document_id"),
    ):
        for i, row in enumerate(batch[group][key][:, 0].tolist()):
            whole = make_record(f"{prefix}{row}", sizes[row], row).tokens
            expected = [*whole[: length - 1], SEP] if len(whole) > length else whole
            tokens = batch[group]["tokens"][i]
            assert tokens[: len(expected)].tolist() == list(expected)
            assert not batch[group]["segment_ids"][i, len(expected) :].any()


def test_passages_carry_the_example_of_their_query(stores: tuple[str, str], negatives: str) -> None:
    batch = make(stores, negatives).batch(1)
    np.testing.assert_array_equal(
        batch["passage"]["example_id"], np.repeat(batch["query"]["example_id"], 4, axis=0)
    )
    assert batch["passage"]["relevance"][:, 0].tolist() == [1, 0, 0, 0] * 3
    assert batch["passage"]["segment_valid"].all()


def test_batches_are_as_the_specs_say(stores: tuple[str, str], negatives: str) -> None:
    pipeline = make(stores, negatives)
    batch = pipeline.batch(0)
    found = {g: {f: (x.shape, x.dtype) for f, x in batch[g].items()} for g in batch}
    assert found == pipeline.specs()
    assert found["passage"]["tokens"] == ((12, 16), np.dtype(np.int32))


def test_an_epoch_shows_every_query_once_in_a_new_order(
    stores: tuple[str, str], negatives: str
) -> None:
    pipeline = make(stores, negatives)
    assert pipeline.plan.steps_per_epoch == 2
    epochs = [[*groups(pipeline, 2 * e), *groups(pipeline, 2 * e + 1)] for e in range(4)]
    assert all(sorted(epoch) == list(range(6)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_positives_take_turns_and_the_window_of_negatives_slides(
    stores: tuple[str, str], negatives: str
) -> None:
    pipeline = make(stores, negatives)
    seen = [groups(pipeline, 2 * e) | groups(pipeline, 2 * e + 1) for e in range(3)]
    assert [epoch[1][0] for epoch in seen] == [1, 7, 1]
    assert [epoch[0][1:] for epoch in seen] == [[1, 2, 3], [4, 5, 1], [2, 3, 4]]


def test_iteration_resume_and_processes_agree_with_random_access(
    stores: tuple[str, str], negatives: str
) -> None:
    whole = [make(stores, negatives).batch(step) for step in range(6)]
    for step, batch in enumerate(itertools.islice(make(stores, negatives).batches(2), 4), 2):
        assert_same(batch, whole[step])
    parts = [next(make(stores, negatives).batches(3, np.array([row]))) for row in range(3)]
    joined = {
        g: {f: np.concatenate([part[g][f] for part in parts]) for f in parts[0][g]}
        for g in parts[0]
    }
    assert_same(joined, whole[3])


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for group in a:
        for feature in b[group]:
            np.testing.assert_array_equal(a[group][feature], b[group][feature], err_msg=feature)


def test_a_process_reads_only_its_queries_and_their_passages(
    stores: tuple[str, str], negatives: str
) -> None:
    pipeline = make(stores, negatives)
    pipeline.batch(0, np.array([2]))
    assert (pipeline.query_store.records_read, pipeline.passage_store.records_read) == (1, 4)


def test_the_fingerprint_follows_everything_that_decides_a_step(
    stores: tuple[str, str], negatives: str, tmp_path: Path
) -> None:
    base = make(stores, negatives).fingerprint
    assert make(stores, negatives).fingerprint == base
    changes = [{"seed": 6}, {"batch": 2}, {"group_size": 3}, {"query_length": 7}]
    assert all(make(stores, negatives, **change).fingerprint != base for change in changes)
    other = write_lines(tmp_path / "other.jsonl", {**LINES, "q5": (["p5"], ["p1"])})
    assert make(stores, other).fingerprint != base
    assert not np.array_equal(
        make(stores, negatives, seed=6).batch(0)["passage"]["tokens"],
        make(stores, negatives).batch(0)["passage"]["tokens"],
    )


def test_random_fill_works_where_there_is_hardly_a_choice(
    stores: tuple[str, str], negatives: str
) -> None:
    pipeline = make(stores, negatives, group_size=11)
    for query, documents in groups(pipeline, 0).items():
        assert len(set(documents)) == 11
        assert not {f"p{row}" for row in documents[1:]} & set(LINES[f"q{query}"][0])
    with pytest.raises(ValueError, match="holds 12 passages: expected 13 or more"):
        make(stores, negatives, group_size=12)


def test_a_group_of_one_has_no_negatives(stores: tuple[str, str], negatives: str) -> None:
    batch = make(stores, negatives, group_size=1).batch(0)
    assert batch["passage"]["relevance"].tolist() == [[1]] * 3


def test_negatives_that_are_left_out_are_told(
    stores: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pair_sampler._warn_once.cache_clear()
    lines = {**LINES, "q0": (["p0"], ["p1", "gone", "lost", "p0"])}
    with caplog.at_level("WARNING"):
        pipeline = make(stores, write_lines(tmp_path / "n.jsonl", lines))
    assert "2 negatives are not in the passage store" in caplog.text
    assert "2 negatives are positives of the same query" in caplog.text  # q1 has one, too
    assert re.search("3 of 6 queries have fewer .*, 1 of them none: .* 38.9%", caplog.text)
    row = int(np.flatnonzero(pipeline.pairs.queries == 0)[0])
    assert pipeline.pairs.negatives[row].max() == 1  # p1 alone


def test_negatives_that_were_all_filtered_away(stores: tuple[str, str], tmp_path: Path) -> None:
    path = write_lines(tmp_path / "n.jsonl", {name: (p, []) for name, (p, _) in LINES.items()})
    with pytest.raises(ValueError, match="not one of 6 queries has a negative, .* set group_size"):
        make(stores, path)
    assert make(stores, path, group_size=1).batch(0)["passage"]["relevance"].all()


def test_groups_whose_loss_would_be_nothing(stores: tuple[str, str], negatives: str) -> None:
    with pytest.raises(ValueError, match="one query with one passage .* loss would be 0"):
        make(stores, negatives, batch=1, group_size=1)
    with pytest.raises(ValueError, match="loss of one alone would be 0: expected 2 or more"):
        make(stores, negatives, group_size=1, teacher=True)


def scored(path: Path, leave_out: str = "", **scores: Any) -> str:
    """LINES with a teacher that gives passage pN the score N, but for these."""
    with path.open("w", encoding="utf-8") as f:
        for name, (positives, negatives) in LINES.items():
            record = {"query_id": name, "positive_ids": positives, "negative_ids": negatives}
            known = [passage for passage in positives + negatives if passage != "gone"]
            teacher = {passage: float(passage[1:]) for passage in known} | scores
            teacher.pop(leave_out, None)
            f.write(json.dumps({**record, "teacher_scores": teacher}) + "\n")
    return str(path)


def test_a_teachers_scores_go_with_their_passages(stores: tuple[str, str], tmp_path: Path) -> None:
    pipeline = make(stores, scored(tmp_path / "s.jsonl"), teacher=True)
    scores = pipeline.batch(0)["passage"]["teacher_score"]
    assert (scores.shape, scores.dtype) == pipeline.specs()["passage"]["teacher_score"]
    for step in range(4):
        passage = pipeline.batch(step)["passage"]
        named = {int(name[1:]): set(p) | set(n) for name, (p, n) in LINES.items()}
        for document, owner, score in zip(
            *(passage[f].reshape(-1) for f in ("document_id", "example_id", "teacher_score")),
            strict=True,
        ):
            expected = document if f"p{document}" in named[int(owner)] else -np.inf
            assert score == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leave_out": "p2"}, "query 'q0': .* missing for 1 of 6 passages, the first is 'p2'"),
        ({"p3": float("nan")}, "teacher_scores of 'p3': expected a finite number"),
        ({"p3": "high"}, "teacher_scores of 'p3': expected a finite number"),
    ],
)
def test_a_teachers_scores_that_are_missing(
    stores: tuple[str, str], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(PairsError, match=message):
        make(stores, scored(tmp_path / "s.jsonl", **changes), teacher=True)


def test_scores_that_are_too_few(stores: tuple[str, str], negatives: str) -> None:
    with pytest.raises(PairsError, match="the teacher's score is missing for 6 of 6"):
        make(stores, negatives, teacher=True)
    with pytest.raises(ValueError, match="asks for 6 negatives .* has scored 5 at most"):
        make(stores, scored(Path(negatives)), teacher=True, group_size=7)


def test_a_mined_file_of_other_texts_or_another_model(
    stores: tuple[str, str], negatives: str
) -> None:
    store = TokenStore.open(stores[1])
    text = store.text(1)
    digest = hashlib.sha256(
        json.dumps([text.title, text.text], ensure_ascii=False).encode()
    ).hexdigest()[:16]
    origin = Path(negatives).with_suffix(".origin.json")
    record = {"made_by": "abc", "settings": {}, "queries": {}, "passages": {"p1": digest}}
    origin.write_text(json.dumps(record))
    make(stores, negatives, made_by="abc")
    with pytest.raises(PairsError, match="made by the model abc, expected def"):
        make(stores, negatives, made_by="def")
    origin.write_text(json.dumps(record | {"passages": {"p1": "0" * 16}}))
    with pytest.raises(PairsError, match="made from other passages than .*'p1' has another text"):
        make(stores, negatives)
    origin.unlink()
    with pytest.raises(PairsError, match="not found: expected it to say that the model abc"):
        make(stores, negatives, made_by="abc")


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        (
            "q0",
            (["gone"], ["p1"]),
            r":1: query 'q0' has no positive in .*at least one of \['gone'\]",
        ),
        ("q0", ([], ["p1"]), ":1: query 'q0' has no positive"),
        ("q99", (["p1"], []), r":7: query 'q99' is not in .*queries"),
    ],
)
def test_a_query_that_cannot_be_trained_on_is_named(
    stores: tuple[str, str], tmp_path: Path, name: str, line: Any, message: str
) -> None:
    path = write_lines(tmp_path / "n.jsonl", {**LINES, name: line})
    with pytest.raises(PairsError, match=message):
        make(stores, path)


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b'{"query_id": "q0", "positive_ids": ["p0"]}',
        b'{"query_id": 3, "positive_ids": ["p0"], "negative_ids": []}',
        b'{"query_id": "q0", "positive_ids": "p0", "negative_ids": []}',
        b'{"query_id": "q0", "positive_ids": [0], "negative_ids": []}',
        b'["q0"]',
        b'{"query_id": "\xff"}',
    ],
)
def test_a_malformed_line_is_quoted_with_its_number(
    stores: tuple[str, str], negatives: str, line: bytes
) -> None:
    with open(negatives, "ab") as f:
        f.write(line + b"\n")
    with pytest.raises(PairsError, match=r":7: expected an object with query_id"):
        make(stores, negatives)


def test_an_empty_file_and_a_query_with_two_lines_are_refused(
    stores: tuple[str, str], negatives: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(PairsError, match="is empty: expected a line"):
        make(stores, str(tmp_path / "empty.jsonl"))
    text = Path(negatives).read_text()
    Path(negatives).write_text(text + text.splitlines()[2] + "\n")
    with pytest.raises(PairsError, match="query 'q2' has 2 lines"):
        make(stores, negatives)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0}, r"PairsPipeline\.batch: expected a whole number above 0"),
        ({"group_size": 0}, r"PairsPipeline\.group_size: expected a whole number above 0"),
        ({"query_length": 1}, r"query_length: expected room for \[CLS\] and \[SEP\]"),
        ({"passage_length": 0}, r"passage_length: expected room"),
        ({"batch": 7}, "a batch of 7 queries needs as many different ones, found 6"),
    ],
)
def test_nonsense_sizes_are_refused(
    stores: tuple[str, str], negatives: str, change: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(stores, negatives, **change)


def test_both_stores_have_to_share_a_tokenizer(
    stores: tuple[str, str], negatives: str, tmp_path: Path
) -> None:
    strange = str(write_store(tmp_path / "strange", PASSAGE_LENGTHS, fingerprint="e" * 64))
    with pytest.raises(StoreError, match="another tokenizer"):
        make((stores[0], strange), negatives)


def test_steps_start_at_zero(stores: tuple[str, str], negatives: str) -> None:
    with pytest.raises(ValueError, match="step: expected 0 or more, found -1"):
        make(stores, negatives).batch(-1)


def test_a_query_names_all_that_answers_it(stores: tuple[str, str], negatives: str) -> None:
    pipeline = make(stores, negatives, known_positives=4)
    assert pipeline.specs()["query"]["known"] == ((3, 1, 4), np.dtype(np.int32))
    seen = set()
    for step in range(4):
        query = pipeline.batch(step)["query"]
        for name, known in zip(query["example_id"][:, 0], query["known"][:, 0], strict=True):
            assert known.dtype == np.int32
            expected = [int(p[1:]) for p in LINES[f"q{name}"][0] if p != "gone"]
            assert known.tolist() == expected + [-1] * (4 - len(expected))
            seen.add(int(name))
    assert {1, 5} <= seen, "queries of several positives"
    assert pipeline.fingerprint != make(stores, negatives).fingerprint
    assert "known" not in make(stores, negatives).batch(0)["query"]


@pytest.mark.parametrize("known", [-1, 1])
def test_too_little_room_for_what_is_known(
    stores: tuple[str, str], negatives: str, known: int
) -> None:
    with pytest.raises(ValueError, match=f"negatives.jsonl has, 2, or more; found {known}"):
        make(stores, negatives, known_positives=known)
