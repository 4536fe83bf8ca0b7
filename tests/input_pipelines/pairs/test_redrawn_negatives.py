"""Labelled pairs whose negatives are drawn from another file."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from input_pipelines.batches import packing_plan
from input_pipelines.batches.negatives import PairsError
from tests.kits.pair_mixtures import (
    PASSAGES,
    QUERIES,
    Files,
    make,
    mixture,
    texts_of,
    unpacked,
    write_files,
)
from tests.kits.pair_stores import some_texts

LISTED = 6


@pytest.fixture(scope="module", name="files")
def make_files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("pairs"))


def lists(files: Files) -> dict[str, dict]:
    """Lines by query, each with LISTED negatives and, among them, a positive."""
    lines = [json.loads(line) for line in Path(files.negatives).read_text().splitlines()]
    ids = [text.name for text in some_texts(PASSAGES)]
    found = {}
    for number, line in enumerate(lines):
        others = [name for name in ids if name not in line["positive_ids"]]
        order = np.random.default_rng(number).permutation(len(others))[:LISTED]
        names = [others[place] for place in order]
        found[line["query_id"]] = {
            "query_id": line["query_id"],
            "positive_ids": line["positive_ids"],
            "negative_ids": [*names, line["positive_ids"][1]],
        }
    return found


def write(folder: Path, lines: list[dict]) -> str:
    path = folder / "mined.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def groups(batch: dict) -> dict[int, tuple[int, list[int]]]:
    """Example -> the row of its positive, and those of its negatives, sorted."""
    found: dict[int, tuple[int, list[int]]] = {}
    texts = [text[:3] for text in texts_of(batch["passage"])]
    for example in {text[0] for text in texts}:
        own = [text for text in texts if text[0] == example]
        (positive,) = [row for _, relevant, row in own if relevant]
        found[example] = positive, sorted(row for _, relevant, row in own if not relevant)
    return found


def test_negatives_come_from_the_other_file_and_nothing_else_changes(files, tmp_path):
    pipeline = make(mixture(files))
    by_query = lists(files)
    mined = pipeline.other_negatives(write(tmp_path, list(by_query.values())[::-1]))
    row_of = pipeline.pairs.corpus.store.row_of
    labelled = set(range(QUERIES))  # the first kind of the mixture
    seen = []
    for step in range(12):
        before, after = groups(pipeline.batch(step)), groups(pipeline.redrawn(mined, step))
        assert before.keys() == after.keys()
        for example, (positive, negatives) in after.items():
            assert positive == before[example][0]
            if example not in labelled:
                assert not negatives
                continue
            line = by_query[f"q{example}"]
            allowed = {row_of[name] for name in line["negative_ids"]}
            barred = {row_of[name] for name in line["positive_ids"]}
            assert len(set(negatives)) == 2 and set(negatives) <= allowed - barred
            seen.append(tuple(negatives))
    assert len(set(seen)) > QUERIES, "a query gets others in other steps"


def test_what_is_drawn_is_a_plain_function_of_seed_step_and_list(files, tmp_path):
    """NumPy alone: the smallest hashes of a step choose among what is no positive."""
    pairs = mixture(files, weights={"labelled": 1}, batch=8)
    opened = pairs.open()
    mined = opened.other_negatives(write(tmp_path, list(lists(files).values())))
    choice = opened._parts["labelled"].choice
    for step in (0, 3, 11):
        picked, documents = choice.choose(step)
        found = choice.redrawn(step, picked, documents, mined)
        numbers = packing_plan.hashed(choice.seed, 1 << 30, step, 8 * mined.shape[1])
        for place, query in enumerate(picked):
            ours = numbers[place * mined.shape[1] : (place + 1) * mined.shape[1]]
            listed = [(n, row) for n, row in zip(ours, mined[query], strict=True) if row >= 0]
            expected = [row for _, row in sorted(listed)][:2]
            assert found[place].tolist() == [documents[place, 0], *expected]


def test_draws_are_uniform(files, tmp_path):
    opened = mixture(files, weights={"labelled": 1}, batch=14).open()
    mined = opened.other_negatives(write(tmp_path, list(lists(files).values())))
    choice = opened._parts["labelled"].choice
    count = np.zeros(PASSAGES)
    steps = 600
    for step in range(steps):
        picked, documents = choice.choose(step)
        drawn = choice.redrawn(step, picked, documents, mined)[picked == 0, 1:]
        np.add.at(count, drawn.reshape(-1), 1)
    listed = mined[0][mined[0] >= 0]
    assert len(listed) == LISTED and count.sum() == count[listed].sum() == 2 * steps
    expected = 2 * steps / LISTED
    assert (((count[listed] - expected) ** 2) / expected).sum() < 20  # chi squared, 5 degrees


def test_packed_and_unpacked_hold_the_same(files, tmp_path):
    packed, plain = make(mixture(files)), unpacked(mixture(files))
    path = write(tmp_path, list(lists(files).values()))
    for step in (0, 5):
        one, other = (
            pipeline.redrawn(pipeline.other_negatives(path), step) for pipeline in (packed, plain)
        )
        for group in ("query", "passage"):
            assert texts_of(one[group]) == texts_of(other[group])
    some = np.array([1, 0])
    few = packed.redrawn(packed.other_negatives(path), 0, some)
    whole = packed.redrawn(packed.other_negatives(path), 0)
    np.testing.assert_array_equal(few["query"]["tokens"], whole["query"]["tokens"][some])


def test_short_lists_are_filled_with_random_passages(files, tmp_path):
    by_query = lists(files)
    for line in by_query.values():
        line["negative_ids"] = line["negative_ids"][:1]
    by_query["q0"]["negative_ids"] = []
    pipeline = make(mixture(files, weights={"labelled": 1}, batch=14))
    row_of = pipeline.pairs.corpus.store.row_of
    found = groups(pipeline.redrawn(pipeline.other_negatives(
        write(tmp_path, list(by_query.values()))), 2))  # fmt: skip
    for example, (_, negatives) in found.items():
        line = by_query[f"q{example}"]
        assert len(set(negatives)) == 2
        assert {row_of[name] for name in line["negative_ids"]} <= set(negatives)
        assert not {row_of[name] for name in line["positive_ids"]} & set(negatives)


def test_a_file_may_have_more_queries_and_none_less(files, tmp_path):
    fewer = tmp_path / "fewer.jsonl"
    lines = list(lists(files).values())
    fewer.write_text("".join(json.dumps(line) + "\n" for line in lines[3:]))
    pairs = mixture(dataclasses.replace(files, negatives=str(fewer)))
    opened = pairs.open()
    assert opened.other_negatives(write(tmp_path, lines)).shape[0] == QUERIES - 3
    with pytest.raises(PairsError, match=f"found none for 3 of {QUERIES}, the first is 'q0'"):
        mixture(files).open().other_negatives(str(fewer))


@pytest.mark.parametrize(
    "changes,listed",
    [
        ({"group_size": 1}, 5),
        ({"group_size": 3}, 1),
        ({"teacher": True}, 5),
        ({"weights": {"crops": 1}}, 5),
    ],
)
def test_pairs_whose_negatives_cannot_be_replaced_are_refused(files, changes, listed):
    pipeline = make(mixture(files, **changes))
    with pytest.raises(ValueError, match="other negatives need one kind of labelled pairs"):
        pipeline.require_redrawn(listed)
    make(mixture(files)).require_redrawn(2)
