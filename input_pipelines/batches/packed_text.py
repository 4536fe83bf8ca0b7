"""Packed passages: the pre-training pipeline, and the source that feeds encoding.

Both give token groups (`token_groups.build_group` shows one). What is in a batch follows from the
plan alone; `batches` is `batch` read ahead by tf.data.
"""

import copy
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from input_pipelines.batches import packing_plan, prefetch, repeated_cls, token_groups
from input_pipelines.batches.translation_rows import language_runs
from input_pipelines.store.token_store import StoreError, TokenStore

PREFETCH = 4  # batches


def open_stores(
    stores: Sequence[str | TokenStore], tokenizer: str | None
) -> tuple[TokenStore, ...]:
    """Opens the folders among `stores`; all have to share a tokenizer.

    Args:
      stores: folders, or stores that are open.
      tokenizer: a tokenizer's folder to compare with; None compares the stores with each other.

    Raises:
      StoreError: as `TokenStore.open`, or stores of different tokenizers.
    """
    if isinstance(stores, str) or not stores:
        raise StoreError(f"stores: expected a list of token store folders, found {stores!r}")
    expected = None
    if tokenizer is not None:
        expected = _tokenizer_fingerprint(tokenizer)
    opened: list[TokenStore] = []
    for store in stores:
        if isinstance(store, TokenStore):
            store = store if expected is None else store.require_tokenizer(expected)
        else:
            store = TokenStore.open(store, expected)
        expected = store.tokenizer_fingerprint
        opened.append(store)
    return tuple(opened)


def _tokenizer_fingerprint(folder: str) -> str:
    path = os.path.join(folder, "vocabulary.json")
    try:
        with open(path, encoding="utf-8") as f:
            return str(json.load(f)["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"tokenizer folder {folder}: expected vocabulary.json with a fingerprint, found "
            f"{error!r}. Point to a folder that train_tokenizer or import_tokenizer wrote."
        ) from error


class Pipeline:
    """Passages of one or more stores, packed into rows, without end.

    Attributes:
      plan: which passages are in which rows.
      fingerprint: of the plan; two pipelines with the same one give the same batches.
    """

    def __init__(
        self,
        stores: Sequence[str | TokenStore],
        *,
        weights: Sequence[float] | None,
        temperature: float,
        seed: int,
        rows: int,
        length: int,
        segments: int,
        block: int,
        group: str = "text",
        by_language: bool = False,
        tokenizer: str | None = None,
    ):
        """
        Args:
          stores: token store folders.
          weights: share of each store in the passages seen; None takes sizes^(1/temperature).
          temperature: 1 keeps the proportions of the sizes, so that every passage is seen once an
            epoch; larger evens the stores out. Has to be 1 where weights are given.
          by_language: whether shares are those of each language, or pair of languages, in each
            store, whose ids begin with it: see `translation_rows.language_runs`.
          seed: decides the order.
          rows: rows of the global batch.
          length: tokens in a row; the longest passage has to fit.
          segments: most passages in a row; 1 switches packing off.
          block: passages that are packed together, thousands.
          group: the name of the token group.
          tokenizer: a tokenizer's folder that the stores have to fit.

        Raises:
          ValueError, StoreError: a size out of range, or a store that does not fit.
        """
        self.check_arguments(rows, length, segments, block, weights, temperature)
        self.stores = open_stores(stores, tokenizer)
        parts = _parts(self.stores, by_language)
        if weights is None and temperature != 1:
            weights = packing_plan.mixture_weights(
                [len(part.lengths) for part in parts], temperature
            )
        self.plan = packing_plan.Plan(
            [part.lengths for part in parts],
            [part.fingerprint for part in parts],
            weights,
            seed=seed,
            rows=rows,
            length=length,
            segments=segments,
            block=block,
        )
        self.group = group
        self.fingerprint = self.plan.fingerprint
        # The parts of a store are in its order, so that numbers count through stores and parts.
        self._offsets = np.cumsum([0, *map(len, self.stores)])

    @staticmethod
    def check_arguments(
        rows: int,
        length: int,
        segments: int,
        block: int,
        weights: Sequence[float] | None,
        temperature: float,
    ) -> None:
        """Raises ValueError for settings that no stores would make right."""
        packing_plan.check_sizes(
            "Pipeline", rows=rows, length=length, segments=segments, block=block
        )
        packing_plan.check_temperature(temperature)
        if weights is not None:
            packing_plan.check_weights(weights)
            if temperature != 1:
                raise ValueError(
                    f"Pipeline: expected temperature 1 where weights are given, found "
                    f"{temperature}: weights are final shares"
                )

    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        shape = (self.plan.rows, self.plan.length, self.plan.segments)
        return {self.group: token_groups.group_spec(*shape)}

    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """These rows of the global batch of a step; only their passages are read.

        Args:
          step: 0 or more.
          rows: int [n] from 0 to plan.rows - 1; None takes all.
        """
        slots = self.plan.step(step)[prefetch.own_rows(rows, self.plan.rows)]
        passages = _read(self.stores, self._offsets, slots[slots != token_groups.NONE])
        return {self.group: token_groups.build_group(passages, slots, self.plan.length)}

    def batches(self, start_step: int, rows: np.ndarray | None = None) -> prefetch.Prefetched:
        """batch(start_step), batch(start_step + 1), ... without end, prefetched."""
        rows = prefetch.own_rows(rows, self.plan.rows)
        return prefetch.Prefetched(
            lambda step: self.batch(step, rows), self.specs(), start_step, None, PREFETCH
        )


class _Part(NamedTuple):
    """Rows with a separate share in a mixture."""

    lengths: np.ndarray
    fingerprint: str


def _parts(stores: Sequence[TokenStore], by_language: bool) -> list[_Part]:
    if not by_language:
        return [_Part(store.lengths, store.fingerprint) for store in stores]
    return [
        _Part(store.lengths[start:end], f"{store.fingerprint}:{language}")
        for store in stores
        for language, start, end in language_runs(store)
    ]


def _read(
    stores: Sequence[TokenStore], offsets: np.ndarray, numbers: np.ndarray
) -> token_groups.Passages:
    """Passages of several stores by global number, in this order."""
    if len(stores) == 1:
        return stores[0].read(numbers)
    owner = np.searchsorted(offsets, numbers, side="right") - 1
    order = np.argsort(owner, kind="stable")
    parts = [stores[i].read(numbers[owner == i] - offsets[i]) for i in np.unique(owner).tolist()]
    joined = token_groups.Passages(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    return token_groups.reorder(joined, np.argsort(order, kind="stable"))


class EncodeSource:
    """Every passage of a store exactly once, packed, for turning passages into vectors.

    Attributes:
      ids: record ids; `example_id` of a segment is its place here. Without a sample that is the
        row of the store.
      rows: int64 [len(ids)], the row in the store of each of them.
      cls_every: tokens of a text from one [CLS] to the next; None: there is one [CLS].
    """

    cls_every: int | None = None

    def __init__(
        self,
        store: str | TokenStore,
        length: int,
        segments: int,
        rows: int,
        *,
        segment_length: int,
        sample: int | None = None,
        always_include: Sequence[str] = (),
        seed: int = 0,
        tokenizer: str | None = None,
        cls_every: int | None = None,
    ):
        """
        Args:
          store: a token store folder.
          length: tokens in a row.
          segments: most passages in a row.
          rows: rows of a batch.
          segment_length: longer passages are cut to it, as the contract says.
          sample: this many passages, chosen by `seed`, instead of all.
          always_include: ids that belong to the sample whatever the seed.
          tokenizer: a tokenizer's folder that the store has to fit.
          cls_every: tokens of a text after which there is another [CLS], for a model that pools
            by 'mcls'; truncation leaves space for these.

        Raises:
          ValueError: a size out of range, an id that the store does not have.
        """
        self.check_arguments(length, segments, rows, segment_length, sample, cls_every)
        (self.store,) = open_stores([store], tokenizer)
        self.rows = _sample(self.store, sample, always_include, seed)
        self.ids = [self.store.ids[row] for row in self.rows.tolist()]
        self._shape = (rows, length, segments)
        # What prepare cut shorter stays shorter: this is what a contract is compared with.
        self._segment_length = min(segment_length, int(self.store.manifest["max_length"]))
        self.cls_every = cls_every
        self._slots = self._pack()

    @staticmethod
    def check_arguments(
        length: int,
        segments: int,
        rows: int,
        segment_length: int,
        sample: int | None,
        cls_every: int | None = None,
    ) -> None:
        """Raises ValueError for sizes that no store would make right."""
        packing_plan.check_sizes("EncodeSource", length=length, segments=segments, rows=rows)
        if cls_every is not None and cls_every < 1:
            raise ValueError(
                f"EncodeSource.cls_every: expected 1 or more, or None, found {cls_every}"
            )
        if not 2 <= segment_length <= length:
            raise ValueError(
                f"EncodeSource.segment_length: expected 2 to {length}, the length of a row, found "
                f"{segment_length}"
            )
        if sample is not None and sample < 0:
            raise ValueError(f"EncodeSource.sample: expected 0 or more, found {sample}")

    def _pack(self) -> np.ndarray:
        """int64 [batches * rows, segments]: which passage is where, NONE where free."""
        rows, length, segments = self._shape
        slots = packing_plan.pack_rows(self._sizes(), length, segments)
        spare = np.full((-len(slots) % rows, segments), token_groups.NONE)
        return np.concatenate([slots, spare])

    def _sizes(self) -> np.ndarray:
        """Tokens of each encoded passage."""
        lengths = np.minimum(self.store.lengths[self.rows], self._cut)
        return repeated_cls.with_repeated(lengths, self.cls_every)

    @property
    def _cut(self) -> int:
        """Tokens that are kept of a passage."""
        return repeated_cls.longest(self._segment_length, self.cls_every)

    def part(self, start: int, end: int) -> "EncodeSource":
        """Passages start to end - 1 of `ids` alone, packed without regard to the others."""
        if not 0 <= start < end <= len(self.ids):
            raise ValueError(
                f"EncodeSource.part: expected passages among 0 to {len(self.ids)}, found {start} "
                f"to {end}"
            )
        found = copy.copy(self)
        found.rows, found.ids = self.rows[start:end], self.ids[start:end]
        found._slots = found._pack()
        return found

    @property
    def number_of_batches(self) -> int:
        """Number of batches that `batches` gives."""
        return len(self._slots) // self._shape[0]

    @property
    def fingerprint(self) -> str:
        """Of the passages, where they are cut, and the shape of batches, as hexadecimal."""
        digest = hashlib.sha256(self.rows.astype(np.int64).tobytes())
        cut = self._segment_length if self.cls_every is None else (self._cut, self.cls_every)
        digest.update(repr((self.store.fingerprint, self._shape, cut)).encode())
        return digest.hexdigest()

    def __len__(self) -> int:
        """Passages."""
        return len(self.ids)

    def texts(self) -> list[str]:
        """Tokenized texts, whole and without titles, in the order of `ids`."""
        return [self.store.text(row).text for row in self.rows.tolist()]

    @property
    def segment_length(self) -> int:
        """Tokens at which passages are cut, here or when the store was made."""
        return self._segment_length

    @property
    def prefix(self) -> str:
        """Text that was put before each passage when the store was made."""
        return str(self.store.manifest["prefix"])

    @property
    def layout(self) -> str:
        """Layout of titles in the passages, see `layouts.Layout.name`."""
        return str(self.store.manifest["layout"])

    @property
    def tokenizer_fingerprint(self) -> str:
        """Of the tokenizer that made the store."""
        return self.store.tokenizer_fingerprint

    @property
    def padding_share(self) -> float:
        """Share of token positions that hold no token, the last batch included."""
        return 1.0 - int(self._sizes().sum(dtype=np.int64)) / (len(self._slots) * self._shape[1])

    def specs(self) -> token_groups.GroupSpec:
        """Feature -> shape and dtype of one group."""
        return token_groups.group_spec(*self._shape)

    def group(self, number: int, rows: np.ndarray | None = None) -> token_groups.Group:
        """These rows of batch `number`."""
        count, length, _ = self._shape
        slots = self._slots[number * count : (number + 1) * count][prefetch.own_rows(rows, count)]
        passages = self._read(self.rows[slots[slots != token_groups.NONE]])
        passages = token_groups.truncate(passages, self._cut)
        passages = repeated_cls.repeat(passages, self.cls_every)
        return token_groups.build_group(passages, slots, length)

    def _read(self, rows: np.ndarray) -> token_groups.Passages:
        """What is encoded of these rows of the store."""
        return self.store.read(rows)

    def batches(self, rows: np.ndarray | None = None) -> Iterator[token_groups.Group]:
        """All groups in order, prefetched; the last one's free rows are padding."""
        groups = prefetch.Prefetched(
            lambda number: {"text": self.group(number, rows)},
            {"text": self.specs()},
            0,
            self.number_of_batches,
            PREFETCH,
        )
        return (batch["text"] for batch in groups)


def _sample(
    store: TokenStore, sample: int | None, always_include: Sequence[str], seed: int
) -> np.ndarray:
    """Rows to encode, ascending: int64 [n]."""
    unknown = [name for name in always_include if name not in store.row_of]
    if unknown:
        raise ValueError(
            f"EncodeSource.always_include: {len(unknown)} ids are not in {store.folder}, the first "
            f"is {unknown[0]!r}; the ids and the store have to come from one corpus"
        )
    if sample is None:
        return np.arange(len(store))
    kept = np.unique(np.array([store.row_of[name] for name in always_include], dtype=np.int64))
    others = packing_plan.permutation(seed, 0, 0, len(store))
    others = others[~np.isin(others, kept)]
    return np.sort(np.concatenate([kept, others[: max(0, sample - len(kept))]]))
