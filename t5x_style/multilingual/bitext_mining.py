"""Translations mined from sentences most of which have none: BUCC."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from t5x_style.interfaces.texts import Texts
from t5x_style.multilingual import margin_scoring
from t5x_style.multilingual.sentence_embedders import RowSubset, SentenceSystem


class Gold(Protocol):
    """Gold pairs of translations."""

    def translations(self, pair: str, split: str) -> Sequence[tuple[str, str]]:
        """Ids of sources and targets."""
        ...


@dataclasses.dataclass(frozen=True)
class MineTranslations:
    """Precision, recall and F1 of mining, at the threshold that is best on another split.

    Attributes:
      name: in tables.
      sources, targets: ids 'PAIR/SPLIT/...'.
      gold: which of them are translations.
      pivot: the language that every pair's name has, 'de-en'.
      tuned, judged: splits, that the threshold is chosen on and that is reported.
      margin, k, way: see `margin_scoring.mine`.
    """

    name: str
    sources: Texts
    targets: Texts
    gold: Gold
    pivot: str
    tuned: str
    judged: str
    margin: str = "ratio"
    k: int = 4
    way: str = "max"

    def facts(self) -> dict[str, Any]:
        """As `Task.facts`."""
        return {
            "sentences": len(self.sources.ids) + len(self.targets.ids),
            "mining": f"{self.margin}, k = {self.k}, {self.way}",
        }

    def measure(self, system: SentenceSystem) -> dict[str, dict[str, float]]:
        """As `Task.measure`, by the other language of each pair: f1, precision, recall, threshold.

        A system none of whose pairs is right on `tuned` has an F1 of 0 and the largest threshold.
        """
        values = {}
        for pair in dict.fromkeys(name.partition("/")[0] for name in self.sources.ids):
            mined, gold = self._mined(system, pair, self.tuned)
            # A system that finds nothing on the one split has no threshold, and proposes nothing.
            finds = margin_scoring.are_right(mined, gold).any()
            threshold = margin_scoring.best_threshold(mined, gold) if finds else sys.float_info.max
            found = margin_scoring.quality(*self._mined(system, pair, self.judged), threshold)
            values[self._beside(pair)] = {
                "f1": found.f1,
                "precision": found.precision,
                "recall": found.recall,
                "threshold": found.threshold,
            }
        return values

    def _beside(self, pair: str) -> str:
        others = [code for code in pair.split("-") if code != self.pivot]
        if len(others) != 1:
            raise ValueError(
                f"{self.name}: expected {self.pivot!r} and another language, found {pair!r}"
            )
        return others[0]

    def _mined(
        self, system: SentenceSystem, pair: str, split: str
    ) -> tuple[margin_scoring.Mined, np.ndarray]:
        """Pairs mined for a pair of languages, and [G, 2] gold pairs."""
        parts = [self._part(side, f"{pair}/{split}/") for side in (self.sources, self.targets)]
        mined = margin_scoring.mine(*system.vectors(*parts), self.margin, self.k, self.way)
        place = [
            {part.source.ids[row]: at for at, row in enumerate(part.rows.tolist())}
            for part in parts
        ]
        gold = self.gold.translations(pair, split)
        unknown = [one for one in gold if one[0] not in place[0] or one[1] not in place[1]]
        if unknown:
            raise ValueError(
                f"{self.name}: {len(unknown)} of {len(gold)} translations of {pair}/{split} are of "
                f"sentences that are not there, such as {unknown[0]}"
            )
        return mined, np.array([[place[0][one], place[1][other]] for one, other in gold])

    def _part(self, side: Texts, prefix: str) -> RowSubset:
        rows = [row for row, name in enumerate(side.ids) if name.startswith(prefix)]
        if not rows:
            raise ValueError(f"{self.name}: expected sentences called {prefix}..., found none")
        return RowSubset(side, np.array(rows))
