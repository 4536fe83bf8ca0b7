"""Packing plan: assigns passages to the rows of each step, as a pure function of (seed, step).

A plan is an endless list of rows. Epoch `e` orders its passages by a hash of (seed, e); that order
is cut into blocks of thousands of passages; each block is packed by itself, and its rows are
shuffled. A cumulative table of rows per block turns "row r of the run" into "row i of block b", so
any step is found without walking through those before it, and every process finds the same one.

Packing works on counts per length, not on passages (there are at most a few hundred lengths), so
the cost of a block hardly grows with its size, and millions of passages are planned in seconds.
Orders come from our own hash and not from a library's generator: a plan outlives upgrades.
"""

import bisect
import functools
import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from input_pipelines.store.mixing import mix64

# Part of every fingerprint: raise it when the same arguments would give other rows.
PLAN_VERSION = 1

# Streams of random numbers, so that no two uses of a seed share any.
_EPOCH = 0  # the order of an epoch
_PASS = 1  # + store: the order of a pass over one store
_ROWS = 1 << 32  # + block: the order of a block's rows


def hashed(seed: int, stream: int, epoch: int, count: int) -> np.ndarray:
    """`count` well mixed uint64 numbers that depend on nothing but the arguments (splitmix64)."""
    state = np.zeros(1, dtype=np.uint64)
    for part in (seed, stream, epoch):
        state = mix64(mix64(state) ^ np.uint64(part & 0xFFFFFFFFFFFFFFFF))
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return mix64(state + steps)


def permutation(seed: int, stream: int, epoch: int, count: int) -> np.ndarray:
    """A permutation of range(count), int64, the same on every machine and NumPy."""
    return np.argsort(hashed(seed, stream, epoch, count), kind="stable")


@dataclass
class RowGroup:
    """`rows` rows that are filled alike; `filled` lists (length, how many of that length)."""

    room: int
    free: int
    rows: int
    filled: tuple[tuple[int, int], ...] = ()

    def fill(self, length: int, times: int) -> None:
        """Puts `times` passages of `length` tokens into each of the rows."""
        self.room -= length * times
        self.free -= times
        self.filled += ((length, times),)


def pack_counts(counts: np.ndarray, row_length: int, segments: int) -> list[RowGroup]:
    """Best-fit decreasing on counts: `counts[l]` passages of `l` tokens, into rows.

    The longest passages first, each into the fullest row that still takes it. Rows that are filled
    alike are handled together, so the work depends on the number of lengths, not of passages.
    """
    groups: list[RowGroup] = []  # every row there is
    open_groups: list[RowGroup] = []  # those with free tokens and a free segment, the fullest first
    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            at = bisect.bisect_left(open_groups, length, key=_room)
            if at == len(open_groups):
                times = min(row_length // length, segments, left)
                group = RowGroup(row_length, segments, left // times)
                groups.append(group)
            else:
                group = open_groups.pop(at)
                times = min(group.room // length, group.free, left)
                rest = group.rows - left // times
                if rest > 0:  # only some of these rows are needed: the others stay unchanged
                    other = RowGroup(group.room, group.free, rest, group.filled)
                    groups.append(other)
                    bisect.insort(open_groups, other, key=_room)
                    group.rows -= rest
            group.fill(length, times)
            left -= group.rows * times
            if group.free:
                bisect.insort(open_groups, group, key=_room)
    return groups


def _room(group: RowGroup) -> int:
    return group.room


def pack_rows(lengths: np.ndarray, length: int, segments: int) -> np.ndarray:
    """Packs N passages into rows of `length` tokens.

    Args:
      lengths: int [N], each from 1 to `length`.

    Returns:
      int64 [R, segments]: which passage (0 .. N-1) is in which segment of which row; -1 where none.
      Every passage is there once. Within a row the segments that are used come first.
    """
    counts = np.bincount(lengths, minlength=length + 1)
    groups = pack_counts(counts, length, segments)
    by_length = np.argsort(lengths, kind="stable")
    taken = (np.cumsum(counts) - counts).tolist()  # where in by_length the next of a length is
    slots = np.full((sum(group.rows for group in groups), segments), -1, dtype=np.int64)
    row = 0
    for group in groups:
        column = 0
        for size, times in group.filled:
            end = taken[size] + group.rows * times
            block = by_length[taken[size] : end].reshape(group.rows, times)
            slots[row : row + group.rows, column : column + times] = block
            taken[size], column = end, column + times
        row += group.rows
    return slots


def mixture_weights(sizes: Sequence[int], temperature: float) -> list[float]:
    """Shares in proportion to size^(1/temperature): 1 follows the sizes, large evens them out."""
    check_temperature(temperature)
    scaled = np.asarray(sizes, dtype=np.float64) ** (1.0 / temperature)
    return (scaled / scaled.sum()).tolist()


def check_temperature(temperature: float) -> None:
    """Raises ValueError unless `mixture_weights` takes it."""
    if not temperature > 0:
        raise ValueError(f"mixture temperature: expected a number above 0, found {temperature}")


def temperature_of(exponent: float) -> float:
    """The temperature at which shares are sizes^exponent, for `mixture_weights`."""
    if not 0 < exponent <= 1:
        raise ValueError(f"exponent: expected above 0 and at most 1, found {exponent}")
    return 1.0 / exponent


class MixtureOrder:
    """Order of the passages of several stores, epoch after epoch.

    A passage has a global number: its row in its store plus the sizes of the stores before it. An
    epoch is as many passages as all stores hold together; store k gives its share of them, walking
    through passes over its rows, each pass in a new order. Shares that follow the sizes thus show
    every passage exactly once an epoch.

    Attributes:
      offsets: int64 [stores + 1], global number of each store's row 0.
      quotas: int64 [stores], passages that each store gives to an epoch.
    """

    def __init__(self, sizes: Sequence[int], weights: Sequence[float] | None, seed: int):
        """
        Args:
          sizes: of the stores.
          weights: their shares, any positive numbers; None follows the sizes.
          seed: another seed, another order.

        Raises:
          ValueError: a store without a share.
        """
        self.offsets = np.cumsum([0, *sizes])
        self.quotas = _quotas(np.diff(self.offsets), weights)
        self.seed = seed

    def epoch(self, epoch: int) -> np.ndarray:
        """Global passage numbers in the order of an epoch: int64 [passages of an epoch]."""
        draws = [
            self.offsets[store] + self._draws(store, epoch * int(quota), int(quota))
            for store, quota in enumerate(self.quotas)
        ]
        order = np.concatenate(draws)
        return order[permutation(self.seed, _EPOCH, epoch, len(order))]

    def _draws(self, store: int, first: int, count: int) -> np.ndarray:
        """Draws first .. first+count-1 of one store: rows, int64 [count]."""
        size = int(self.offsets[store + 1] - self.offsets[store])
        if first % size == 0 and count == size:
            return np.arange(size)  # one whole pass: the epoch's own order shuffles it
        parts = []
        while count:
            one_pass, start = divmod(first, size)
            part = permutation(self.seed, _PASS + store, one_pass, size)[start : start + count]
            parts.append(part)
            first, count = first + len(part), count - len(part)
        return np.concatenate(parts)


class Plan:
    """Assignment of passages to the rows of each step.

    Epochs, and the global numbers of passages, are those of `MixtureOrder`.

    Attributes:
      offsets, quotas: see there.
      blocks: blocks in an epoch.
      fingerprint: sha256 hex of everything that decides what is in a step.
    """

    def __init__(
        self,
        lengths: Sequence[np.ndarray],
        fingerprints: Sequence[str],
        weights: Sequence[float] | None,
        *,
        seed: int,
        rows: int,
        length: int,
        segments: int,
        block: int,
    ):
        """
        Args:
          lengths: for each store, int [N], tokens of each of its passages.
          fingerprints: of the stores.
          weights: shares of the stores, any positive numbers; None follows their sizes.
          seed: another seed, another order.
          rows: rows in a step.
          length: tokens in a row; no passage may be longer.
          segments: most passages in a row; 1 does not pack.
          block: passages that are packed together. Small blocks waste rows; thousands do not.

        Raises:
          ValueError: sizes out of range, a passage that fits no row, a store without a share.
        """
        check_sizes("Plan", rows=rows, length=length, segments=segments, block=block)
        _check_lengths(lengths, length)
        self.seed, self.rows, self.length, self.segments = seed, rows, length, segments
        mixture = MixtureOrder([len(sizes) for sizes in lengths], weights, seed)
        self.offsets, self.quotas = mixture.offsets, mixture.quotas
        self._lengths = np.concatenate([np.asarray(x, dtype=np.int32) for x in lengths])
        total = len(self._lengths)
        self.blocks = max(1, round(total / block))
        self._bounds = np.arange(self.blocks + 1) * total // self.blocks
        self.fingerprint = self._hash(fingerprints)
        # Rows before each epoch, and rows before each block of it; extended on demand.
        self._epoch_starts = [0]
        self._tables: list[np.ndarray] = []
        self._lock = threading.RLock()
        self._order = functools.lru_cache(maxsize=2)(mixture.epoch)
        self._block = functools.lru_cache(maxsize=4)(self._pack_block)

    def step(self, step: int) -> np.ndarray:
        """Global passage numbers of a step: int64 [rows, segments], -1 where a segment is free."""
        if step < 0:
            raise ValueError(f"plan: step: expected 0 or more, found {step}")
        return self.slots(step * self.rows, (step + 1) * self.rows)

    def slots(self, first: int, last: int) -> np.ndarray:
        """Rows first .. last-1 of the run, from its start on: int64 [last - first, segments]."""
        parts = []
        while first < last:
            epoch, block, row = self._locate(first)
            part = self._block(epoch, block)[row : row + last - first]
            parts.append(part)
            first += len(part)
        return np.concatenate(parts)

    def epoch_rows(self, epoch: int) -> int:
        """Rows that an epoch fills; a step has `rows` of them."""
        self._grow(lambda: len(self._tables) > epoch)
        return self._epoch_starts[epoch + 1] - self._epoch_starts[epoch]

    def padding_share(self, epoch: int = 0) -> float:
        """Share of an epoch's token positions that hold no token."""
        tokens = int(self._lengths[self._order(epoch)].sum(dtype=np.int64))
        return 1.0 - tokens / (self.epoch_rows(epoch) * self.length)

    def _locate(self, row: int) -> tuple[int, int, int]:
        """Row of the run -> (epoch, block of that epoch, row in that block)."""
        self._grow(lambda: self._epoch_starts[-1] > row)
        epoch = bisect.bisect_right(self._epoch_starts, row) - 1
        row -= self._epoch_starts[epoch]
        table = self._tables[epoch]
        block = int(np.searchsorted(table, row, side="right")) - 1
        return epoch, block, row - int(table[block])

    def _grow(self, enough: Callable[[], bool]) -> None:
        with self._lock:
            while not enough():
                sizes = self._lengths[self._order(len(self._tables))]
                counts = [
                    sum(group.rows for group in self._groups(sizes[start:end]))
                    for start, end in itertools.pairwise(self._bounds)
                ]
                self._tables.append(np.cumsum([0, *counts]))
                self._epoch_starts.append(self._epoch_starts[-1] + sum(counts))

    def _groups(self, lengths: np.ndarray) -> list[RowGroup]:
        return pack_counts(np.bincount(lengths), self.length, self.segments)

    def _pack_block(self, epoch: int, block: int) -> np.ndarray:
        """Global passage numbers of one block's rows, rows shuffled: int64 [R, segments]."""
        passages = self._order(epoch)[self._bounds[block] : self._bounds[block + 1]]
        slots = pack_rows(self._lengths[passages], self.length, self.segments)
        # Packing leaves the long passages in the first rows: without this, batches would differ.
        slots = slots[permutation(self.seed, _ROWS + block, epoch, len(slots))]
        return np.where(slots < 0, -1, passages[slots])

    def _hash(self, fingerprints: Sequence[str]) -> str:
        if len(fingerprints) != len(self.quotas):
            raise ValueError(
                f"plan: expected a fingerprint for each of {len(self.quotas)} stores, "
                f"found {len(fingerprints)}"
            )
        parts = {
            "version": PLAN_VERSION,
            "stores": list(fingerprints),
            "quotas": self.quotas.tolist(),
            "shape": [self.rows, self.length, self.segments],
            "blocks": self.blocks,
            "seed": self.seed,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _check_lengths(lengths: Sequence[np.ndarray], length: int) -> None:
    if not lengths:
        raise ValueError("plan: expected at least one store, found none")
    for number, sizes in enumerate(lengths):
        if not len(sizes):
            raise ValueError(f"plan: store {number} is empty: expected at least one passage")
        if sizes.min() < 1 or sizes.max() > length:
            raise ValueError(
                f"plan: store {number}: expected passages of 1 to {length} tokens (the length of a "
                f"row), found {int(sizes.min())} to {int(sizes.max())}. Make rows longer, or "
                "prepare the store with a smaller maximum length."
            )


def _quotas(sizes: np.ndarray, weights: Sequence[float] | None) -> np.ndarray:
    """Passages of each store in an epoch of sum(sizes): largest remainders, int64 [stores]."""
    if weights is None:
        return sizes
    check_weights(weights)
    shares = np.asarray(weights, dtype=np.float64)
    if shares.shape != sizes.shape:
        raise ValueError(
            f"plan: weights: expected {len(sizes)} numbers, one for each store, "
            f"found {list(weights)}"
        )
    total = int(sizes.sum())
    exact = total * shares / shares.sum()
    quotas = np.floor(exact).astype(np.int64)
    largest = np.argsort(quotas - exact, kind="stable")
    quotas[largest[: total - int(quotas.sum())]] += 1
    if not np.all(quotas):
        raise ValueError(
            f"plan: weights {list(weights)} give store {int(np.argmin(quotas))} not one passage in "
            f"an epoch of {total}; leave it out, or give it more"
        )
    return quotas


def check_weights(weights: Sequence[float]) -> None:
    """Raises ValueError unless all are finite and above 0."""
    if not all(0 < weight < float("inf") for weight in weights):
        raise ValueError(f"plan: weights: expected positive numbers, found {list(weights)}")


def check_sizes(where: str, **sizes: int) -> None:
    """Each of these has to be a whole number above 0."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ValueError(
                f"{where}.{name}: expected a whole number above 0, found {value!r}; it is bound in "
                "the gin file"
            )
