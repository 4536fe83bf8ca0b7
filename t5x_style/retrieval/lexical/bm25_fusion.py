"""Search by a model and by BM25 as one: what evaluations call a fusion, for whoever searches.

Both list their best passages of a question. The scores of each list are scaled to [0, 1] and added
with a weight that an evaluation chose on development queries, or ranks are added; see
`evaluation.fusion`, whose lists these are. A re-ranker's list is BM25's best hits in its own order
(`bm25_reranking`).
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.index import NO_ROW
from t5x_style.retrieval import analysis, hybrid
from t5x_style.retrieval.bm25 import Bm25Search

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"keep": {"name": "search_fusion", "version": 1, "outputs": ["fusion"]}}
FILE = "fusion.json"
ALONE, SUMMED = "alone", "summed"  # how a re-ranker's scores count: BM25's are added, or not


class FusionError(ValueError):
    """An evaluation that says nothing of a search with BM25, or a file that is none."""


@dataclasses.dataclass(frozen=True)
class Fusion:
    """How two lists become one.

    Attributes:
      weight: of the model's scores; 1 - weight is that of BM25's. None: ranks are added.
      depth: passages of each list.
      language: of the texts, which decides what BM25's words are.
      reranked: ALONE or SUMMED where the model is a re-ranker, which scores the passages of BM25's
        list; None where it searches by an index.
    """

    weight: float | None
    depth: int
    language: str = "en"
    reranked: str | None = None

    def __post_init__(self) -> None:
        analysis.require_known(self.language)
        if self.reranked not in (None, ALONE, SUMMED):
            raise FusionError(
                f"expected reranked to be {ALONE!r}, {SUMMED!r} or none, found {self.reranked!r}"
            )
        if (
            not isinstance(self.depth, int)
            or self.depth < 1
            or not (self.weight is None or 0 <= self.weight <= 1)
        ):
            raise FusionError(
                "expected a whole depth of at least 1, and a weight in [0, 1] or none, found "
                f"{self.depth} and {self.weight}"
            )

    def save(self, folder: Path) -> None:
        """Writes FILE."""
        fields = dataclasses.asdict(self)
        if self.reranked is None:  # as it was written before there were re-rankers
            del fields["reranked"]
        text = json.dumps(fields, indent=1, sort_keys=True)
        (folder / FILE).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Fusion | None":
        """Of FILE; None where there is none.

        Raises:
          FusionError: it is not what `save` writes.
        """
        try:
            return cls(**json.loads((folder / FILE).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (TypeError, ValueError) as error:
            raise FusionError(f"{folder / FILE}: expected how BM25 is added: {error}") from error


def keep(metrics: str, system: str | None, model_dir: str, language: str = "en") -> dict[str, str]:
    """Stage: writes how an evaluation added BM25's scores, for searches; nothing without a system.

    A search that read the evaluation itself would need its lists of hits, which are large.

    Args:
      metrics, system, language: see `of_evaluation`.
      model_dir: gets FILE.

    Raises:
      FusionError: see `of_evaluation`.
    """
    found = of_evaluation(metrics, system, language)
    if found is not None:
        found.save(Path(model_dir))
    return {"fusion": "."}


def load(folder: str) -> Fusion | None:
    """What `keep` wrote; None where BM25 is not added.

    Args:
      folder: that it wrote to.

    Raises:
      FusionError: see `Fusion.load`.
    """
    return Fusion.load(Path(folder))


def of_evaluation(metrics: str, system: str | None, language: str = "en") -> Fusion | None:
    """What an evaluation chose; None: BM25 is not added.

    Args:
      metrics: metrics.json of the evaluation.
      system: its fusion of a model with BM25, or its re-ranker of BM25's hits; None to add
        nothing.
      language: of the texts.

    Raises:
      FusionError: there is no such system, it is another kind of sum, or its BM25 counts words of
        another language.
    """
    if system is None:
        return None
    facts = json.loads(Path(metrics).read_text(encoding="utf-8"))["facts"]
    fused = {name: words for name in facts if (words := _bm25_of(name, facts)) is not None}
    if system not in fused:
        raise FusionError(
            f"{metrics}: expected a system {system!r} that adds BM25's scores to those of a model, "
            f"or puts BM25's hits in order, found {[*fused] or 'none'}. Name one of these "
            "(FUSION_SYSTEM; JUDGED_SYSTEM of recipes/finetune_reranker.gin), or evaluate one "
            "(gin_configs/runs/evaluation/fusion.gin). A model with an index is searched alone "
            "where FUSION_SYSTEM is None"
        )
    found = facts[system]
    counted = {name: facts[fused[system]].get(name) for name in ("stemmer", "words")}
    wanted = dict.fromkeys(counted) | dict(analysis.LanguageAnalyzer(language).facts)
    if counted != wanted:
        raise FusionError(
            f"{metrics}: BM25 of {system!r} was evaluated with other words than those of language "
            f"{language!r}: {counted}, not {wanted}. Set LANGUAGE as for the evaluation; where its "
            "words are tokens of a model, FUSION_SYSTEM=None searches by a model with an index "
            "alone."
        )
    if "method" not in found:  # a re-ranker alone
        return Fusion(1.0, found["reranked"], language, ALONE)
    weight = found["weight_of_first"] if found["method"] == "linear" else None
    depth = found.get("reranked", found["list_depth"])
    return Fusion(weight, depth, language, SUMMED if "reranked" in found else None)


def _bm25_of(system: str, facts: Mapping[str, Any]) -> str | None:
    """The BM25 that a system adds to a model's scores, or whose hits it puts in order; or None."""
    found = facts[system]
    if isinstance(found.get("of"), str):  # a re-ranker of that system's hits
        return found["of"] if _is_bm25(found["of"], facts) else None
    if not {"method", "of", "list_depth"} <= found.keys():
        return None
    first, second = found["of"]
    if _is_bm25(first, facts) or not _is_bm25(second, facts):
        return None
    model = facts.get(first, {})
    if isinstance(model.get("of"), str):  # a re-ranker, whose hits are those of `second`
        same = model["of"] == second and model["reranked"] == found.get("reranked")
    else:
        same = "reranked" not in found
    return second if same else None


def _is_bm25(system: str, facts: Mapping[str, Any]) -> bool:
    return "k1" in facts.get(system, {})


class Bm25Fusion:
    """Implements the fusion over one set of passages; from any thread.

    Attributes:
      fusion: how lists are added.
      words: BM25 of the passages.
    """

    def __init__(self, fusion: Fusion, words: Bm25Search) -> None:
        self.fusion, self.words = fusion, words

    @property
    def depth(self) -> int:
        """Passages of each list, at most all that there are."""
        return min(self.fusion.depth, len(self.words.ids))

    def add(
        self, question: str, scores: np.ndarray, rows: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """A model's list and BM25's as one.

        Args:
          question: what was asked.
          scores: [depth] float32, the model's, the best first.
          rows: [depth] int32 of the passages, NO_ROW where there are fewer.
          k: at least 1.

        Returns:
          [k] float32 and [k] int32, as of a search; ties by id.
        """
        by_words = self.words.search([question], self.depth)
        lists = (scores, rows), (by_words[0][0], by_words[1][0])
        return added(self.fusion, *lists, self.words.ids, k)

    def within(
        self, question: str, scores: np.ndarray, rows: np.ndarray, passages: np.ndarray, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `add`, of some passages alone.

        Args:
          question: what was asked.
          scores, rows: [n] of those that the model compared, in any order, NO_ROW where it found
            nothing.
          passages: [m] int32, rows of all of them.
          k: at least 1.
        """
        words = self.words.score(question)[passages]
        lists = (scores, rows), (np.where(words > 0, words, -np.inf), passages)
        model, lexical = (
            index_lib.padded(found[None], listed[None], self.depth) for found, listed in lists
        )
        lists = (model[0][0], model[1][0]), (lexical[0][0], lexical[1][0])
        return added(self.fusion, *lists, self.words.ids, k)


def added(
    fusion: Fusion,
    one: tuple[np.ndarray, np.ndarray],
    other: tuple[np.ndarray, np.ndarray],
    ids: Sequence[str],
    k: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Two lists as one.

    Args:
      fusion: how they are added.
      one, other: scores [n] float32, the best first, and rows [n] int32 of each, NO_ROW where there
        are fewer.
      ids: of all rows; of equal sums the one with the lower id is first.
      k: at least 1.

    Returns:
      [k] float32 and [k] int32, as of a search.
    """
    weights = (1.0, 1.0) if fusion.weight is None else (fusion.weight, 1 - fusion.weight)
    total: dict[int, float] = {}
    for (scores, rows), weight in zip((one, other), weights, strict=True):
        there = rows != NO_ROW
        parts = weight * _comparable(scores[there], ranks=fusion.weight is None)
        for row, part in zip(rows[there].tolist(), parts.tolist(), strict=True):
            total[row] = total.get(row, 0.0) + part
    # In float64, as an evaluation has them
    best = sorted(total, key=lambda row: (-total[row], ids[row]))[:k]
    sums, found = np.full(k, -np.inf, np.float32), np.full(k, NO_ROW, np.int32)
    sums[: len(best)] = [total[row] for row in best]
    found[: len(best)] = best
    return sums, found


def _comparable(scores: np.ndarray, ranks: bool) -> np.ndarray:
    """Scores of a list, the best first, on a scale that both lists have; float64."""
    if ranks:
        return 1 / (hybrid.RRF_K + np.arange(1, len(scores) + 1))
    if not len(scores):
        return np.zeros(0)
    exact = scores.astype(np.float64)
    low, width = exact.min(), exact.max() - exact.min()
    return (exact - low) / width if width else np.ones(len(scores))


def over(texts: Iterable[str], ids: Sequence[str], fusion: Fusion) -> Bm25Fusion:
    """The fusion over passages: their texts, and their ids in the order of the model's rows."""
    return Bm25Fusion(fusion, Bm25Search.of(texts, ids, analysis.LanguageAnalyzer(fusion.language)))
