"""One side of translations, for turning sentences into vectors."""

from collections.abc import Sequence

import numpy as np

from input_pipelines import layouts, packing, translation_rows
from input_pipelines.pipeline import EncodeSource
from input_pipelines.token_store import TokenStore
from input_pipelines.tokenization import Tokenizer

SIDES = ("source", "target")


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
        sample: int | None = None,
        always_include: Sequence[str] = (),
        seed: int = 0,
    ):
        """
        Args:
          store: a token store prepared with `translation_rows.Translations`.
          side: 'source' or 'target'.
          tokenizer: folder of the tokenizer that made it.
          length, segments, rows, segment_length, sample, always_include, seed: see `EncodeSource`.

        Raises:
          ValueError, StoreError: as there, or a store of other rows.
        """
        if side not in SIDES:
            raise ValueError(f"TranslationSide.side: expected one of {SIDES}, found {side!r}")
        self._side = SIDES.index(side)
        self._sep = int(Tokenizer(tokenizer).vocabulary["sep"])
        super().__init__(
            *(store, length, segments, rows),
            segment_length=segment_length,
            sample=sample,
            always_include=always_include,
            seed=seed,
            tokenizer=tokenizer,
        )

    @property
    def layout(self) -> str:
        """Of a side alone: a text."""
        return layouts.TEXT

    @property
    def fingerprint(self) -> str:
        """See `EncodeSource`."""
        return f"{super().fingerprint}-{SIDES[self._side]}"

    def texts(self) -> list[str]:
        """What stands there, whole, in the order of `ids`."""
        told = (self.store.text(row) for row in self.rows.tolist())
        return [one.text if self._side else one.title for one in told]

    def _sizes(self) -> np.ndarray:
        translation_rows.require(self.store)
        lengths = translation_rows.side_lengths(self.store)[self._side]
        return np.minimum(lengths[self.rows], self._segment_length)

    def _read(self, rows: np.ndarray) -> packing.Passages:
        return translation_rows.apart(self.store.read(rows), self._sep)[self._side]
