"""One side of translations, for turning sentences into vectors."""

import numpy as np

from input_pipelines.batches import packing_plan, token_groups, translation_rows
from input_pipelines.batches.packed_text import EncodeSource, open_stores
from input_pipelines.batches.translation_rows import SIDES
from input_pipelines.store import layouts
from input_pipelines.store.token_store import TokenStore
from input_pipelines.tokenizers.tokenization import Tokenizer


class TranslationSide(EncodeSource):
    """The sources or the targets of a store of translations, ids and order those of its rows."""

    def __init__(
        self,
        store: str | TokenStore,
        side: str,
        length: int,
        segments: int,
        rows: int,
        *,
        segment_length: int,
        tokenizer: str,
        each: int | None = None,
    ):
        """
        Args:
          store: a token store prepared with `translation_rows.Translations`.
          side: 'source' or 'target'.
          tokenizer: folder of the tokenizer that made it.
          length, segments, rows, segment_length: see `EncodeSource`.
          each: of each pair of languages, at most this many, from all over; None: all.

        Raises:
          ValueError, StoreError: as there, or a store of other rows.
        """
        if side not in SIDES:
            raise ValueError(f"TranslationSide.side: expected one of {SIDES}, found {side!r}")
        self._side = SIDES.index(side)
        self._sep = int(Tokenizer(tokenizer).vocabulary["sep"])
        (opened,) = open_stores([store], tokenizer)
        super().__init__(
            *(opened, length, segments, rows),
            # What was cut shorter stays shorter: this is what a contract is compared with.
            segment_length=min(segment_length, translation_rows.side_of(opened)),
            tokenizer=tokenizer,
        )
        if each is not None:
            self._take_each(each)

    def _take_each(self, each: int) -> None:
        packing_plan.check_sizes("TranslationSide", each=each)
        runs = translation_rows.language_runs(self.store)
        taken = [
            start + np.arange(end - start)[:: -(-(end - start) // each)] for _, start, end in runs
        ]
        self.rows = np.concatenate(taken)
        self.ids = [self.store.ids[row] for row in self.rows.tolist()]
        self._slots = self._pack()

    @property
    def layout(self) -> str:
        """Of a side alone: a text."""
        return layouts.TEXT

    @property
    def fingerprint(self) -> str:
        """See `EncodeSource`."""
        return f"{super().fingerprint}-{SIDES[self._side]}"

    def texts(self) -> list[str]:
        """Return the full texts of this side, in the order of `ids`."""
        records = (self.store.text(row) for row in self.rows.tolist())
        return [one.text if self._side else one.title for one in records]

    def _sizes(self) -> np.ndarray:
        lengths = translation_rows.side_lengths(self.store)[self._side]
        return np.minimum(lengths[self.rows], self._segment_length)

    def _read(self, rows: np.ndarray) -> token_groups.Passages:
        return translation_rows.apart(self.store.read(rows), self._sep)[self._side]
