"""Pairs of texts with a class, as rows of a token store and in batches.

    tokens        CLS  a  ##a SEP  b  SEP
    token_types    0   0   0   0   1   1

A store's row is such a pair, and its table `label` has the number of each row's class. Ids may
begin with a language, "de/17": metrics by language use it.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from input_pipelines.batches import prefetch, token_groups, translation_rows
from input_pipelines.batches.packed_text import EncodeSource, Pipeline, open_stores
from input_pipelines.sources.text_sources import Record
from input_pipelines.store import layouts
from input_pipelines.store.layouts import Rows
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers.tokenization import Tokenizer

NAME = "labelled_pairs"
LABEL = "label"  # table [rows] int32: number of a row's class
GROUP = "pair"


# --- in a store -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class LabelledPairs(translation_rows.Translations):
    """A layout (`layouts.Layout`): a pair a row, each text cut by itself at `side` tokens.

    The record's source is its class.

    Attributes:
      classes: their names, in the order of their numbers, without '|' and white space.
    """

    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = "".join(self.classes)
        if (
            len(set(self.classes)) < max(len(self.classes), 2)
            or "|" in names
            or names.split() != [names]
        ):
            raise ValueError(
                "LabelledPairs.classes: expected two or more different names without '|' and white "
                f"space, found {self.classes!r}"
            )

    @property
    def name(self) -> str:
        """See `Layout`; says where sides are cut, and the classes."""
        return f"{NAME}:{self.side}:{'|'.join(self.classes)}"

    def rows(
        self, records: Sequence[Record], tokenizer: Tokenizer, length: int, prefix: str
    ) -> Rows:
        """See `Layout`.

        Raises:
          ValueError: a prefix, rows that do not hold two such sides, or a record whose source is
            no class.
        """
        layouts.require_no_prefix(self, prefix)
        unknown = [record for record in records if record.source not in self.classes]
        if unknown:
            raise ValueError(
                f"record {unknown[0].id!r}: expected its class, one of {list(self.classes)}, as "
                f"its source, found {unknown[0].source!r}"
            )
        made = super().rows(records, tokenizer, length, prefix)
        labels = np.array([self.classes.index(record.source) for record in records], np.int32)
        return Rows(made.records, made.truncated, {**made.tables, LABEL: labels})


def classes_of(store: TokenStore) -> tuple[str, ...]:
    """Names of the classes of a store's pairs.

    Raises:
      StoreError: its rows are no such pairs.
    """
    return _layout(store)[1]


def _layout(store: TokenStore) -> tuple[int, tuple[str, ...]]:
    """Tokens at which texts were cut, and names of classes."""
    name, _, rest = str(store.manifest["layout"]).partition(":")
    if name != NAME:
        raise StoreError(
            f"token store {store.folder}: expected pairs with classes, prepared with "
            f"runs/stores/labelled_pairs.gin, found rows of layout {store.manifest['layout']!r}"
        )
    side, _, classes = rest.partition(":")
    return int(side), tuple(classes.split("|"))


def _require(store: TokenStore, classes: Sequence[str], side: int) -> None:
    found = _layout(store)
    if found != (side, tuple(classes)):
        raise StoreError(
            f"token store {store.folder}: expected texts cut at {side} tokens and the classes "
            f"{list(classes)}, in this order; it was made with {found[0]} and {list(found[1])}. "
            "Bind SIDE_LENGTH and CLASSES to what the store was prepared with, or prepare it again."
        )


# --- in batches -----------------------------------------------------------------------------------


class LabelledPairsPipeline(Pipeline):
    """Pairs of one or more stores with their classes, packed into rows or one a row, without end.

    Plan, order and resuming are `Pipeline`'s: the batch of a step is a function of it alone.
    """

    def __init__(
        self,
        stores: Sequence[str | TokenStore],
        *,
        classes: Sequence[str],
        side: int,
        seed: int,
        rows: int,
        length: int,
        segments: int,
        block: int = 4096,
        temperature: float = 1.0,
        by_language: bool = False,
        tokenizer: str | None = None,
    ):
        """
        Args:
          stores: token store folders, prepared with `LabelledPairs`.
          classes: that the objective was built for.
          side: tokens at which texts were cut.
          seed, rows, length, segments, block, temperature, by_language, tokenizer: see `Pipeline`;
            1 segment gives each pair a separate row.

        Raises:
          ValueError, StoreError: as `Pipeline`; stores of other rows or classes; a class of which
            no pair is, since nothing could be learned of it.
        """
        opened = open_stores(stores, tokenizer)
        for store in opened:
            _require(store, classes, side)
        self._labels = np.concatenate([np.asarray(one.table(LABEL)) for one in opened])
        counts = np.bincount(self._labels, minlength=len(classes))
        if not counts.all():
            pairs_of = dict(zip(classes, counts.tolist(), strict=True))
            raise StoreError(
                f"token stores {[store.folder for store in opened]}: expected pairs of every "
                f"class, found {pairs_of}. Take away the classes that do not occur, or fix the "
                "labels."
            )
        self._first = _first_lengths(opened)
        super().__init__(
            opened,
            weights=None,
            temperature=temperature,
            seed=seed,
            rows=rows,
            length=length,
            segments=segments,
            block=block,
            group=GROUP,
            by_language=by_language,
            tokenizer=tokenizer,
        )

    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        label = {"label": ((self.plan.rows, self.plan.segments), np.dtype(np.int32))}
        return {GROUP: _with_types(super().specs()[GROUP]) | label}

    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """See `Pipeline.batch`; `pair` has `token_types` [B, L] and `label` [B, S] int32, too."""
        group = super().batch(step, rows)[GROUP]
        numbers = group["example_id"]  # those of the plan: rows, counted through the stores
        group["label"] = token_groups.at(self._labels, numbers)
        return {GROUP: _typed(group, token_groups.at(self._first, numbers, 0))}


class PairSource(EncodeSource):
    """Every pair of a store exactly once, packed, for classification.

    Attributes:
      classes: their names.
      labels: int32 [N], the number of each pair's class, in the order of `ids`.
    """

    def __init__(
        self,
        store: str | TokenStore,
        length: int,
        segments: int,
        rows: int,
        *,
        classes: Sequence[str],
        side: int,
        max_pairs: int | None = None,
        tokenizer: str | None = None,
    ):
        """
        Args:
          store: a token store prepared with `LabelledPairs`.
          length, segments, rows, tokenizer: see `EncodeSource`.
          classes, side: that the objective was built for.
          max_pairs: pairs, chosen at random but the same ones each time; None: all.

        Raises:
          ValueError, StoreError: as there, or a store of other rows or classes.
        """
        (opened,) = open_stores([store], tokenizer)
        _require(opened, classes, side)
        if length < opened.max_length:
            raise ValueError(
                f"PairSource.length: expected at least {opened.max_length}, tokens of the longest "
                f"pair of {opened.folder}, found {length}"
            )
        sample = None if max_pairs is None or max_pairs >= len(opened) else max_pairs
        super().__init__(opened, length, segments, rows, segment_length=length, sample=sample)
        self.classes = tuple(classes)
        self._first = _first_lengths([opened])

    @property
    def labels(self) -> np.ndarray:
        """See the class."""
        return np.asarray(self.store.table(LABEL))[self.rows]

    def specs(self) -> token_groups.GroupSpec:
        """Feature -> shape and dtype of one group."""
        return _with_types(super().specs())

    def group(self, number: int, rows: np.ndarray | None = None) -> token_groups.Group:
        """These rows of batch `number`, with `token_types`."""
        group = super().group(number, rows)
        return _typed(group, token_groups.at(self._first[self.rows], group["example_id"], 0))


def _first_lengths(stores: Sequence[TokenStore]) -> np.ndarray:
    """int64 [rows of all stores], tokens of each row's first text, [CLS] and [SEP] included."""
    return np.concatenate([translation_rows.side_lengths(store)[0] for store in stores])


def _with_types(spec: token_groups.GroupSpec) -> token_groups.GroupSpec:
    return spec | {"token_types": (spec["tokens"][0], np.dtype(np.int32))}


def _typed(group: token_groups.Group, ends: np.ndarray) -> token_groups.Group:
    """`group` with `token_types`: 1 after the first text, which has `ends` [B, S] tokens."""
    segment = np.maximum(group["segment_ids"] - 1, 0)
    behind = group["positions"] >= np.take_along_axis(ends, segment, axis=1)
    return group | {"token_types": (behind & (group["segment_ids"] > 0)).astype(np.int32)}
