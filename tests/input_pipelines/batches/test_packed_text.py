"""The pre-training pipeline and the encode source, on real files."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from input_pipelines.batches import packing_plan, token_groups
from input_pipelines.batches.packed_text import EncodeSource, Pipeline
from input_pipelines.store.token_store import Passages, StoreError, TokenStore
from tests.kits.tiny_stores import (
    CLS,
    FINGERPRINT,
    SEP,
    make_record,
    realistic_lengths,
    write_store,
)

SIZES = (70, 41)
LENGTHS = [realistic_lengths(n, seed=n, longest=32) for n in SIZES]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("stores")
    return [
        str(write_store(root / f"s{i}", LENGTHS[i], prefix="ab"[i], shards=2)) for i in range(2)
    ]


def make(folders: list[str], **changes: Any) -> Pipeline:
    arguments = {
        "weights": None, "temperature": 1.0, "seed": 3, "rows": 8, "length": 64, "segments": 5,
        "block": 50,
    }  # fmt: skip
    return Pipeline(folders, **{**arguments, **changes})


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for group in a:
        assert a[group].keys() == b[group].keys()
        for feature in a[group]:
            np.testing.assert_array_equal(a[group][feature], b[group][feature], err_msg=feature)
            assert a[group][feature].dtype == b[group][feature].dtype


def test_a_group_as_the_docstring_draws_it() -> None:
    passages = Passages(
        np.array([2, 10, 11, 3, 2, 12, 3], np.int32),
        np.array([1, 1, 0, 1, 1, 1, 1], bool),
        np.array([4, 3]),
    )
    slots = np.array([[17, 5, -1], [-1, -1, -1]])
    group = token_groups.build_group(passages, slots, 8)
    assert group["tokens"].tolist() == [[2, 10, 11, 3, 2, 12, 3, 0], [0] * 8]
    assert group["positions"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 0], [0] * 8]
    assert group["segment_ids"].tolist() == [[1, 1, 1, 1, 2, 2, 2, 0], [0] * 8]
    assert group["word_starts"].astype(int).tolist() == [[1, 1, 0, 1, 1, 1, 1, 0], [0] * 8]
    assert group["cls_at"].tolist() == [[0, 4, 0], [0, 0, 0]]
    assert group["segment_valid"].tolist() == [[True, True, False], [False] * 3]
    assert group["example_id"].tolist() == [[17, 5, -1], [-1, -1, -1]]


def test_a_row_given_too_much_is_an_error() -> None:
    passages = Passages(np.zeros(7, np.int32), np.ones(7, bool), np.array([4, 3]))
    with pytest.raises(
        ValueError, match=r"given 7 tokens \(passages \[17, 5\]\), expected at most"
    ):
        token_groups.build_group(passages, np.array([[17, 5]]), 6)


def test_truncation_keeps_the_last_token() -> None:
    passages = Passages(
        np.array([2, 10, 11, 3, 2, 12, 3], np.int32),
        np.array([1, 1, 0, 1, 1, 1, 1], bool),
        np.array([4, 3]),
    )
    cut = token_groups.truncate(passages, 3)
    assert cut.tokens.tolist() == [2, 10, 3, 2, 12, 3] and cut.lengths.tolist() == [3, 3]
    assert cut.word_starts.all()
    assert token_groups.truncate(passages, 4) is passages
    with pytest.raises(ValueError, match=r"room for \[CLS\] and \[SEP\], found length 1"):
        token_groups.truncate(passages, 1)


def test_batches_hold_the_passages_that_their_numbers_name(folders: list[str]) -> None:
    batch = make(folders).batch(2)["text"]
    for row, segment in zip(*np.nonzero(batch["segment_valid"]), strict=True):
        number = int(batch["example_id"][row, segment])
        store, at = (0, number) if number < SIZES[0] else (1, number - SIZES[0])
        record = make_record(f"{'ab'[store]}{at}", int(LENGTHS[store][at]), at)
        mine = batch["segment_ids"][row] == segment + 1
        np.testing.assert_array_equal(batch["tokens"][row][mine], record.tokens)
        np.testing.assert_array_equal(batch["word_starts"][row][mine], record.word_starts)
        np.testing.assert_array_equal(batch["positions"][row][mine], np.arange(mine.sum()))
        assert batch["tokens"][row, batch["cls_at"][row, segment]] == CLS
        assert batch["tokens"][row][mine][-1] == SEP


def test_batches_are_as_the_specs_say(folders: list[str]) -> None:
    pipeline = make(folders, group="passage")
    batch = pipeline.batch(0)
    found = {g: {f: (x.shape, x.dtype) for f, x in batch[g].items()} for g in batch}
    assert found == pipeline.specs() and list(found) == ["passage"]


def test_iteration_equals_random_access_across_epochs(folders: list[str]) -> None:
    pipeline, other = make(folders), make(folders)
    steps = 2 * pipeline.plan.epoch_rows(0) // 8 + 2
    for step, batch in enumerate(itertools.islice(pipeline.batches(0), steps)):
        assert_same(batch, other.batch(step))
    assert_same(other.batch(1), pipeline.batch(1))


def test_resuming_at_a_step_continues_what_was_interrupted(folders: list[str]) -> None:
    whole = list(itertools.islice(make(folders).batches(0), 7))
    resumed = list(itertools.islice(make(folders).batches(4), 3))
    for a, b in zip(whole[4:], resumed, strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_together_have_the_batch_of_one(folders: list[str], processes: int) -> None:
    whole = make(folders).batch(5)["text"]
    rows = np.array_split(np.arange(8), processes)
    parts = [next(make(folders).batches(5, own))["text"] for own in rows]
    assert_same(
        {"text": {f: np.concatenate([part[f] for part in parts]) for f in whole}}, {"text": whole}
    )


def test_a_process_reads_only_the_passages_of_its_rows(folders: list[str]) -> None:
    pipeline = make(folders)
    expected = int((pipeline.plan.step(3)[4:6] >= 0).sum())
    pipeline.batch(3, np.array([4, 5]))
    assert sum(store.records_read for store in pipeline.stores) == expected


def test_rows_may_come_in_any_order(folders: list[str]) -> None:
    pipeline = make(folders)
    whole, some = pipeline.batch(1)["text"], pipeline.batch(1, np.array([6, 0, 3]))["text"]
    for feature in whole:
        np.testing.assert_array_equal(some[feature], whole[feature][[6, 0, 3]])


def test_another_seed_differs_and_the_same_arguments_do_not(folders: list[str]) -> None:
    assert_same(make(folders).batch(0), make(folders).batch(0))
    assert make(folders).fingerprint == make(folders).fingerprint
    other = make(folders, seed=4)
    assert other.fingerprint != make(folders).fingerprint
    assert not np.array_equal(
        other.batch(0)["text"]["tokens"], make(folders).batch(0)["text"]["tokens"]
    )


def test_packed_and_unpacked_hold_the_same_passages(folders: list[str]) -> None:
    packed, unpacked = make(folders), make(folders, segments=1, length=32)
    assert sorted(epoch_passages(packed)) == sorted(epoch_passages(unpacked))


def epoch_passages(pipeline: Pipeline) -> list[tuple[int, ...]]:
    """(number, tokens...) of every segment of epoch 0."""
    out = []
    rows = pipeline.plan.epoch_rows(0)
    for first in range(0, rows, 8):
        group = pipeline.batch(first // 8, np.arange(min(rows - first, 8)))["text"]
        for row, segment in zip(*np.nonzero(group["segment_valid"]), strict=True):
            mine = group["segment_ids"][row] == segment + 1
            out.append(
                (int(group["example_id"][row, segment]), *group["tokens"][row][mine].tolist())
            )
    return out


def test_a_damaged_store_is_reported_as_itself_through_tf_data(tmp_path: Path) -> None:
    folder = write_store(tmp_path / "s", LENGTHS[0])
    pipeline = make([TokenStore.open(str(folder), verify="sizes")])
    for shard in folder.glob("*.array_record-*"):
        content = shard.read_bytes()
        shard.write_bytes(bytes(len(content)))
    with pytest.raises(StoreError, match="is damaged, or changed since it was opened"):
        list(itertools.islice(pipeline.batches(0), 2))


def test_closing_stops_the_reading(folders: list[str]) -> None:
    pipeline = make(folders)
    batches = pipeline.batches(0)
    next(batches)
    batches.close()
    read = [store.records_read for store in pipeline.stores]
    assert next(batches, None) is None
    assert [store.records_read for store in pipeline.stores] == read


@pytest.mark.slow
def test_a_process_that_ends_while_batches_are_made_does_not_hang(folders: list[str]) -> None:
    code = (
        "from input_pipelines.batches.packed_text import Pipeline; "
        f"p = Pipeline([{folders[0]!r}], weights=None, temperature=1.0, seed=0, rows=32, "
        "length=64, segments=2, block=50); b = p.batches(0); next(b); raise SystemExit(3)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 3


def test_the_tokenizer_of_all_stores_is_compared(folders: list[str], tmp_path: Path) -> None:
    strange = str(write_store(tmp_path / "other", [5, 6], fingerprint="e" * 64))
    with pytest.raises(StoreError, match="other was made with another tokenizer"):
        make([folders[0], strange])
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "vocabulary.json").write_text(json.dumps({"fingerprint": FINGERPRINT}))
    assert make(folders, tokenizer=str(tokenizer)).stores[0].ids[0] == "a0"
    (tokenizer / "vocabulary.json").write_text(json.dumps({"fingerprint": "d" * 64}))
    with pytest.raises(StoreError, match=r"expected fingerprint ddd.*found fff"):
        make([TokenStore.open(folders[0])], tokenizer=str(tokenizer))


@pytest.mark.parametrize("content", [None, "{", "{}"])
def test_a_folder_that_is_no_tokenizer_is_refused(
    folders: list[str], tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "vocabulary.json").write_text(content)
    with pytest.raises(StoreError, match=r"expected vocabulary\.json with a fingerprint"):
        make(folders, tokenizer=str(tmp_path))


@pytest.mark.parametrize("name", ["rows", "length", "segments", "block"])
def test_nonsense_sizes_are_refused_where_they_are_bound(folders: list[str], name: str) -> None:
    with pytest.raises(ValueError, match=f"Pipeline.{name}: expected a whole number above 0"):
        make(folders, **{name: 0})


def test_rows_shorter_than_a_passage_are_refused(folders: list[str]) -> None:
    with pytest.raises(ValueError, match=r"expected passages of 1 to 16 tokens .* to 32"):
        make(folders, length=16)


def test_stores_are_a_list_of_at_least_one(folders: list[str]) -> None:
    for stores in ([], folders[0]):
        with pytest.raises(StoreError, match="expected a list of token store folders"):
            make(stores)  # type: ignore[arg-type]


def test_a_temperature_beside_weights_is_refused(folders: list[str]) -> None:
    with pytest.raises(ValueError, match="expected temperature 1 where weights are given, found 2"):
        make(folders, weights=[1.0, 1.0], temperature=2.0)
    assert make(folders, temperature=1e9).plan.quotas.tolist() == [56, 55]


@pytest.mark.parametrize("rows", [[8], [-1], [], [[1]], [0.5]])
def test_rows_that_the_batch_does_not_have_are_refused(folders: list[str], rows: list) -> None:
    with pytest.raises(ValueError, match="expected a list of numbers from 0 to 7"):
        make(folders).batch(0, np.array(rows))


def test_planning_needs_neither_tensorflow_nor_jax(folders: list[str]) -> None:
    code = (
        "import sys; from input_pipelines.batches.packed_text import Pipeline; "
        f"Pipeline([{folders[0]!r}], weights=None, temperature=1.0, seed=0, rows=4, length=64, "
        "segments=2, block=50).plan.step(9); assert not {'tensorflow', 'jax'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def encode(folder: str, **changes: Any) -> EncodeSource:
    arguments = {"length": 64, "segments": 4, "rows": 8, "segment_length": 32}
    return EncodeSource(folder, **{**arguments, **changes})


def test_encoding_shows_every_passage_once_in_full_batches(folders: list[str]) -> None:
    source = encode(folders[0])
    groups = list(source.batches())
    assert len(groups) == source.number_of_batches and len(source) == SIZES[0]
    for group in groups:
        assert {f: (x.shape, x.dtype) for f, x in group.items()} == source.specs()
    numbers = np.concatenate([group["example_id"][group["segment_valid"]] for group in groups])
    assert sorted(numbers.tolist()) == list(range(SIZES[0]))
    assert source.ids == [f"a{row}" for row in range(SIZES[0])]
    tokens = sum(int((group["segment_ids"] > 0).sum()) for group in groups)
    assert source.padding_share == pytest.approx(1 - tokens / (len(groups) * 8 * 64))


def test_a_part_is_packed_as_if_it_were_alone(folders: list[str]) -> None:
    source, part = encode(folders[0]), encode(folders[0]).part(10, 25)
    assert part.ids == source.ids[10:25] and len(part) == 15
    groups = list(part.batches())
    numbers = np.concatenate([group["example_id"][group["segment_valid"]] for group in groups])
    assert sorted(numbers.tolist()) == list(range(15))
    (first,) = np.argwhere(groups[0]["example_id"] == 3).tolist()
    at = groups[0]["cls_at"][tuple(first)]
    passage = source.store.read(np.array([13]))
    found = groups[0]["tokens"][first[0], at : at + len(passage.tokens)]
    np.testing.assert_array_equal(found, passage.tokens)
    for start, end in ((5, 5), (-1, 3), (0, len(source) + 1)):
        with pytest.raises(ValueError, match=f"found {start} to {end}"):
            source.part(start, end)


def test_the_fingerprint_of_a_source_follows_texts_and_shapes(folders: list[str]) -> None:
    same = encode(folders[0]).fingerprint
    assert encode(folders[0]).fingerprint == same
    others = [
        encode(folders[1]),
        encode(folders[0], rows=16),
        encode(folders[0], segment_length=16),
        encode(folders[0], sample=20, seed=1),
        encode(folders[0]).part(0, 20),
    ]
    assert len({same, *(source.fingerprint for source in others)}) == 6


def test_encoding_cuts_passages_to_the_contracts_length(folders: list[str]) -> None:
    for group in encode(folders[0], segment_length=10).batches():
        assert group["positions"].max() < 10
        last = np.sort(np.nonzero(group["segment_valid"])[0])
        assert len(last) == (group["tokens"] == SEP).sum()


def test_encoding_tells_the_length_that_texts_were_really_cut_to(folders: list[str]) -> None:
    assert encode(folders[0], segment_length=10).segment_length == 10
    assert encode(folders[0], segment_length=64).segment_length == 32


def test_a_sample_holds_what_has_to_be_in_it(folders: list[str]) -> None:
    source = encode(folders[0], sample=12, always_include=["a5", "a66", "a5"], seed=1)
    assert len(source) == 12 and {"a5", "a66"} <= set(source.ids)
    group = next(iter(source.batches()))
    for row, segment in zip(*np.nonzero(group["segment_valid"]), strict=True):
        at = int(source.rows[group["example_id"][row, segment]])
        mine = group["segment_ids"][row] == segment + 1
        expected = make_record(f"a{at}", int(LENGTHS[0][at]), at).tokens
        np.testing.assert_array_equal(group["tokens"][row][mine], expected)
    assert encode(folders[0], sample=12, seed=1).ids == encode(folders[0], sample=12, seed=1).ids
    assert encode(folders[0], sample=12, seed=1).ids != encode(folders[0], sample=12, seed=2).ids
    assert len(encode(folders[0], sample=10_000)) == SIZES[0]


def test_processes_share_the_encoding(folders: list[str]) -> None:
    whole = list(encode(folders[0]).batches())
    halves = [list(encode(folders[0]).batches(rows)) for rows in (np.arange(4), np.arange(4, 8))]
    for number, group in enumerate(whole):
        for feature in group:
            both = np.concatenate([half[number][feature] for half in halves])
            np.testing.assert_array_equal(both, group[feature])


def test_encode_source_refuses_nonsense(folders: list[str]) -> None:
    with pytest.raises(ValueError, match=r"1 ids are not in .*, the first is 'zz'"):
        encode(folders[0], always_include=["zz"])
    with pytest.raises(ValueError, match=r"segment_length: expected 2 to 64.*found 65"):
        encode(folders[0], segment_length=65)
    with pytest.raises(ValueError, match=r"EncodeSource\.sample: expected 0 or more, found -1"):
        encode(folders[0], sample=-1)


def test_an_encode_source_may_be_empty(folders: list[str]) -> None:
    """As that of the development queries of a collection that has none."""
    source = encode(folders[0], sample=0)
    assert source.ids == [] and list(source.batches()) == []


def test_orders_of_the_plan_are_those_of_the_pipeline(folders: list[str]) -> None:
    alone = packing_plan.Plan(
        LENGTHS, ["x", "y"], None, seed=3, rows=8, length=64, segments=5, block=50
    )
    np.testing.assert_array_equal(make(folders).batch(4)["text"]["example_id"], alone.step(4))
