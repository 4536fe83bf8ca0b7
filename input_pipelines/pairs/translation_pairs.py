"""Translations in batches of pairs, languages in smoothed shares: the pipeline that LaBSE ranks."""

import dataclasses
import functools
import hashlib
import json

import numpy as np

from input_pipelines.batches import packing_plan, prefetch, token_groups, translation_rows
from input_pipelines.batches.packed_text import PREFETCH, open_stores
from input_pipelines.batches.translation_rows import SIDES
from input_pipelines.pairs.pair_packing import PROBE, fitted, require_rows
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers.tokenization import Tokenizer

VERSION = 2  # part of every fingerprint: raise it when the same arguments give other batches


class TranslationPairs:
    """Batches of B translations, sources and targets in separate rows, without end.

    A pair of languages with n translations has a share of n^exponent in an epoch, and walks through
    them in a new order each pass: small languages are shown more often than they are large, but
    never to the exclusion of one of their sentences. What is in a step does not depend on the rows.

    Attributes:
      languages: (pair of languages, translations, shown in an epoch) of each.
      fingerprint: of everything that decides what is in a step.
    """

    def __init__(
        self,
        store: str | TokenStore,
        *,
        batch: int,
        length: int,
        source_rows: token_groups.Rows,
        target_rows: token_groups.Rows,
        exponent: float,
        seed: int,
        tokenizer: str,
    ):
        """
        Args:
          store: token store folder, prepared with `translation_rows.Translations`.
          batch: B, pairs of the global batch.
          length: tokens of a side; a longer one is cut and keeps its [SEP].
          source_rows, target_rows: rows of the global batch; 1 segment switches packing off and
            takes B rows. One has to be a multiple of the other, so that both are cut alike.
          exponent: 1 keeps the languages' shares, 0 makes all equal; 0.3 in the paper's vocabulary.
          seed: decides the order.
          tokenizer: folder of the tokenizer that made the store.

        Raises:
          ValueError, StoreError: a size out of range, or a store that does not fit.
        """
        self.check_arguments(batch, length, exponent, source_rows, target_rows)
        (self.store,) = open_stores([store], tokenizer)
        if (side := translation_rows.side_of(self.store)) < length:
            raise StoreError(
                f"TranslationPairs.length: expected at most {side}, at which the sides of "
                f"{self.store.folder} were cut, found {length}"
            )
        if len(self.store) < batch:
            raise StoreError(
                f"token store {self.store.folder}: expected {batch} translations for a batch, "
                f"found {len(self.store)}; make the batch smaller"
            )
        self._batch, self._length = batch, length
        self._sep = int(Tokenizer(tokenizer).vocabulary["sep"])
        self._rows = dict(zip(SIDES, (source_rows, target_rows), strict=True))
        self._side_lengths = translation_rows.side_lengths(self.store)
        self._base = min(source_rows.rows, target_rows.rows)
        runs = translation_rows.language_runs(self.store)
        sizes = [end - start for _, start, end in runs]
        weights = [size**exponent for size in sizes]
        self._order = packing_plan.MixtureOrder(sizes, weights, seed)
        self.languages = list(
            zip((name for name, _, _ in runs), sizes, self._order.quotas.tolist(), strict=True)
        )
        self._epoch = functools.lru_cache(maxsize=2)(self._order.epoch)
        self.fingerprint = self._hash(exponent, seed)
        steps = range(min(PROBE, len(self.store) // batch))
        first = (self._lengths(self.chosen(step)) for step in steps)
        require_rows("TranslationPairs", self._rows, first, f"{batch} sentences")

    @staticmethod
    def check_arguments(
        batch: int,
        length: int,
        exponent: float,
        source_rows: token_groups.Rows,
        target_rows: token_groups.Rows,
    ) -> None:
        """Raises ValueError for sizes that no store would make right."""
        packing_plan.check_sizes("TranslationPairs", batch=batch)
        if batch < 2:
            raise ValueError(
                "TranslationPairs.batch: one pair alone has no negative, and its loss would be 0: "
                "expected 2 or more, found 1"
            )
        shortest = min(source_rows.length, target_rows.length)
        if not 2 <= length <= shortest:
            raise ValueError(
                f"TranslationPairs.length: expected 2 to {shortest}, the length of a row, found "
                f"{length}"
            )
        if not 0 <= exponent <= 1:
            raise ValueError(f"TranslationPairs.exponent: expected 0 to 1, found {exponent}")
        base, other = sorted((source_rows.rows, target_rows.rows))
        if other % base:
            raise ValueError(
                "TranslationPairs: expected rows of one group to be a multiple of the other's, "
                f"found {source_rows.rows} and {target_rows.rows}"
            )

    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        groups = {
            name: token_groups.group_spec(*dataclasses.astuple(rows))
            for name, rows in self._rows.items()
        }
        per_segment = (self._rows["target"].rows, self._rows["target"].segments)
        for feature in ("relevance", "document_id"):
            groups["target"][feature] = (per_segment, np.dtype(np.int32))
        return groups

    def chosen(self, step: int) -> np.ndarray:
        """Rows of the store that a step shows: int64 [B]."""
        if step < 0:
            raise ValueError(f"TranslationPairs: step: expected 0 or more, found {step}")
        first, parts, wanted = step * self._batch, [], self._batch
        while wanted:
            epoch, start = divmod(first, len(self.store))
            part = self._epoch(epoch)[start : start + wanted]
            parts.append(part)
            first, wanted = first + len(part), wanted - len(part)
        return np.concatenate(parts)

    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """These rows of the global batch of a step.

        Args:
          step: 0 or more.
          rows: int [n], rows of the group that has fewer; of the other, as many times more go with
            each as there are. None takes all.

        Returns:
          `source` and `target`; example_id is a pair's number in the step. `target` has relevance
          1, and document_id, equal where the sources say the same in the same words.
        """
        rows = prefetch.own_rows(rows, self._base)
        chosen = self.chosen(step)
        shapes = list(self._rows.values())
        placed = self._placed(chosen, f"TranslationPairs: step {step}")
        local = [
            slots.reshape(self._base, -1, shape.segments)[rows].reshape(-1, shape.segments)
            for slots, shape in zip(placed, shapes, strict=True)
        ]
        # Both sides of a pair are one row of the store, though perhaps of two processes' rows here.
        needed = np.unique(np.concatenate([slots[slots != token_groups.NONE] for slots in local]))
        both = translation_rows.apart(self.store.read(chosen[needed]), self._sep)
        groups = {}
        for name, slots, side, shape in zip(SIDES, local, both, shapes, strict=True):
            at = np.searchsorted(needed, slots[slots != token_groups.NONE])
            passages = token_groups.truncate(token_groups.reorder(side, at), self._length)
            groups[name] = token_groups.build_group(passages, slots, shape.length)
        target = groups["target"]  # whose slots the loop ended with
        target["relevance"] = target["segment_valid"].astype(np.int32)
        target["document_id"] = np.full(slots.shape, token_groups.NONE, np.int32)
        target["document_id"][target["segment_valid"]] = translation_rows.meanings(both[0])[at]
        return groups

    def batches(self, start_step: int, rows: np.ndarray | None = None) -> prefetch.Prefetched:
        """batch(start_step), batch(start_step + 1), ... without end, prefetched."""
        rows = prefetch.own_rows(rows, self._base)
        return prefetch.Prefetched(
            lambda step: self.batch(step, rows), self.specs(), start_step, None, PREFETCH
        )

    def _lengths(self, chosen: np.ndarray) -> list[np.ndarray]:
        """Tokens of the sources and targets of some rows, after truncation."""
        return [np.minimum(of_side[chosen], self._length) for of_side in self._side_lengths]

    def _placed(self, chosen: np.ndarray, where: str) -> list[np.ndarray]:
        """Place of each translation on both sides: int64 [rows, segments] each."""
        shapes = list(self._rows.values())
        equal = len({shape.rows for shape in shapes}) == 1 and shapes[0].rows >= len(chosen)
        if equal and all(shape.segments == 1 for shape in shapes):
            # Row n and row n, so that both sides of a pair are on one device.
            rows = np.full((shapes[0].rows, 1), token_groups.NONE)
            rows[: len(chosen), 0] = np.arange(len(chosen))
            return [rows, rows]
        return fitted(self._lengths(chosen), shapes, where, "translations")

    def _hash(self, exponent: float, seed: int) -> str:
        parts = {
            "version": VERSION,
            "store": self.store.fingerprint,
            "batch": self._batch,
            "length": self._length,
            "rows": [dataclasses.astuple(rows) for rows in self._rows.values()],
            "exponent": exponent,
            "seed": seed,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
