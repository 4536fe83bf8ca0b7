"""Correlation of cosines with human judgements of similarity: STS."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from t5x_style.interfaces.texts import Texts
from t5x_style.multilingual import margin_scoring
from t5x_style.multilingual.sentence_embedders import RowSubset, SentenceSystem


@dataclasses.dataclass(frozen=True)
class SentenceSimilarity:
    """Correlation of cosines with judgements.

    Attributes:
      name: in tables.
      first, second: sentences of the pairs, ids equal and in the same order, 'LANGUAGE/...'.
      scores: id -> judgement, the higher the more alike.
    """

    name: str
    first: Texts
    second: Texts
    scores: Mapping[str, float]

    def __post_init__(self) -> None:
        if list(self.first.ids) != list(self.second.ids):
            raise ValueError(f"{self.name}: expected two sentences of each pair, found others")
        if missing := [name for name in self.first.ids if name not in self.scores]:
            raise ValueError(
                f"{self.name}: {len(missing)} pairs have no judgement, such as {missing[0]!r}"
            )

    def facts(self) -> dict[str, Any]:
        """As `Task.facts`."""
        return {"pairs": len(self.first.ids)}

    def measure(self, system: SentenceSystem) -> dict[str, dict[str, float]]:
        """As `Task.measure`, by language: spearman and pearson."""
        both = system.vectors(RowSubset.whole(self.first), RowSubset.whole(self.second))
        cosines = margin_scoring.row_cosines(*both)
        judged = np.array([self.scores[name] for name in self.first.ids])
        languages = np.array([name.partition("/")[0] for name in self.first.ids])
        return {
            language: {
                "spearman": float(stats.spearmanr(cosines[at], judged[at]).statistic),
                "pearson": float(stats.pearsonr(cosines[at], judged[at]).statistic),
            }
            for language in sorted(set(languages.tolist()))
            for at in [languages == language]
        }
