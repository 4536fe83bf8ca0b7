"""Padding share of packed batches: how it falls with segments a row and passages a block.

    python -m benchmarks.padding [--store=FOLDER]... [--length=256]

Without a store it makes two with the stages and gin files of the main job: the documentation corpus
of this installation, and SQuAD's paragraphs where ../shared has them.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks import code_hash, corpora
from input_pipelines.batches import packed_text, packing_plan, token_groups
from input_pipelines.batches.negatives import Pairs
from input_pipelines.pairs import pair_packing
from input_pipelines.store.token_store import TokenStore

_STORES = flags.DEFINE_multi_string("store", [], "Token store folders.")
_LENGTH = flags.DEFINE_integer("length", 256, "Tokens in a row.")
_ROWS = flags.DEFINE_integer("rows", 32, "Rows in a batch.")
_SEGMENTS = flags.DEFINE_list("segments", ["2", "4", "6", "8", "12", "16"], "Segments in a row.")
_BLOCKS = flags.DEFINE_list("blocks", ["64", "1024", "4096", "16384"], "Passages in a block.")

PASSAGE_LENGTH = 128  # tokens at which the main job cuts passages
QUERIES, GROUP_SIZE, STEPS = 64, 2, 200  # of a fine-tuning batch; how many batches are looked at


def stores(folders: Sequence[str] = ()) -> Iterator[tuple[str, TokenStore]]:
    """(name, store) of each folder; without folders, of two stores that are made here."""
    for folder in folders:
        yield folder, TokenStore.open(folder)
    if not folders:
        with tempfile.TemporaryDirectory() as scratch:
            makers = {"documentation": corpora.documentation, "SQuAD paragraphs": corpora.squad}
            if not corpora.SQUAD.is_file():
                del makers["SQuAD paragraphs"]
            for name, make in makers.items():
                at = Path(scratch, name)
                at.mkdir()
                store, _ = corpora.tokenized(make(at), at / "stages", PASSAGE_LENGTH)
                yield name, TokenStore.open(str(store))


def percent(share: float) -> str:
    """0.0437 -> ' 4.4 %'."""
    return f"{100 * share:5.1f} %"


def report(name: str, store: TokenStore) -> None:
    """Prints the table of one store."""
    lengths, length = store.lengths, _LENGTH.value
    quartiles = np.percentile(lengths, [10, 50, 90]).astype(int).tolist()
    print(f"\n{name}: {len(store)} passages, {lengths.mean():.1f} tokens (10/50/90 %: {quartiles})")
    print(f"  one passage a row of {store.max_length}: "
          f"{percent(1 - lengths.mean() / store.max_length)} padding")  # fmt: skip
    print(f"  packed, {_ROWS.value} rows of {length}:")
    print("  segments" + "".join(f"  block {block:>6}" for block in _BLOCKS.value) + "      encode")
    for segments in map(int, _SEGMENTS.value):
        cells = []
        for block in map(int, _BLOCKS.value):
            made = packing_plan.Plan(
                [lengths], [store.fingerprint], None, seed=0, rows=_ROWS.value, length=length,
                segments=segments, block=block,
            )  # fmt: skip
            cells.append(made.padding_share())
        source = packed_text.EncodeSource(
            store, length, segments, _ROWS.value, segment_length=min(length, store.max_length)
        )
        row = "".join(f"  {percent(cell):>12}" for cell in [*cells, source.padding_share])
        print(f"  {segments:8d}{row}")


def report_pairs(store: TokenStore) -> None:
    """Prints the passages of fine-tuning: a fixed number in a fixed number of rows."""
    ids, queries, group = np.arange(len(store)), QUERIES, GROUP_SIZE
    # Each passage answers one query of 2 tokens; its negative is another passage, at random.
    shift = np.random.default_rng(0).integers(1, len(ids), len(ids))
    pairs = Pairs(ids, ids[:, None], ((ids + shift) % len(ids))[:, None])
    query_rows = token_groups.Rows(queries, 2, 1)
    print(f"  fine-tuning, {queries} queries with {group} passages each, over {STEPS} steps:")
    for times, segments in ((1, 1), (1, 8), (2, 8), (4, 16)):
        length = times * store.max_length
        made = pair_packing.PairPlan(
            pairs, np.full(len(store), 2), store.lengths, batch=queries, group_size=group,
            query_rows=query_rows, seed=0,
            passage_rows=token_groups.Rows(queries * group, length, segments),
        )  # fmt: skip
        steps = range(STEPS)
        started = time.perf_counter()
        used = [(made.slots(step)[1] != token_groups.NONE).any(axis=1).sum() for step in steps]
        seconds = (time.perf_counter() - started) / STEPS
        share = 1 - (1 - made.padding_shares(steps)[1]) * queries * group / max(used)
        print(
            f"  {segments:8d} segments in rows of {length:4d}: {min(used)} to {max(used)} rows "
            f"needed, {percent(share)} padding with the most, {1e3 * seconds:.2f} ms a step to plan"
        )


def report_speed(lengths: np.ndarray, count: int) -> None:
    """Prints how long planning takes."""
    many = np.random.default_rng(0).choice(lengths, count)
    started = time.perf_counter()
    made = packing_plan.Plan(
        [many], ["speed"], None, seed=0, rows=512, length=_LENGTH.value, segments=8, block=8192
    )
    made.step(made.epoch_rows(0) // 1024)
    seconds = time.perf_counter() - started
    print(f"\nplanning an epoch of {count:,} passages, first step in its middle: {seconds:.2f} s")


def main(_: list[str]) -> None:
    """Prints a table for each store, then the speed of planning."""
    for name, store in stores(_STORES.value):
        report(name, store)
        report_pairs(store)
    for count in (1_000_000, 13_000_000):
        report_speed(store.lengths, count)


if __name__ == "__main__":
    code_hash.announce("padding")
    app.run(main)
