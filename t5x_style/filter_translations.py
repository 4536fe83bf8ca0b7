"""Stage: filter translations by the score of a model from an earlier round.

A pair of sentences is scored by margin (arXiv:1811.01136), among the other sentences of its pair of
languages: a good translation is nearer than what else is near.
"""

import dataclasses
import itertools
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5x_style.checkpoints import restored_model
from t5x_style.distributed import startup
from t5x_style.interfaces.representation import PASSAGE, QUERY
from t5x_style.multilingual import margin_scoring
from t5x_style.multilingual.translation_retrieval import TranslationSet
from t5x_style.retrieval import versioned_folder

_log = logging.getLogger(__name__)
FILE = "translations.jsonl"
EXAMPLES = 5  # of each pair of languages: the worst, and those that only just stay or go
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95)

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "filter_translations": {
        "name": "filter_translations",
        "version": 1,
        "outputs": ["report", "translations"],
        "program": True,
    }
}


@dataclasses.dataclass(frozen=True)
class QualityRule:
    """Rule for keeping translations.

    Attributes:
      min_score: score that is kept at least, in units of the margin; of 'ratio' 1 is as near as
        what else is near.
      share: of each pair of languages at most this share, the best, in (0, 1].
      margin, k: see `margin_scoring.mine`.
      block_size: sentences that are compared with each other at a time. More show better what is
        near; time grows with them.
    """

    min_score: float
    share: float = 1.0
    margin: str = "ratio"
    k: int = 4
    block_size: int = 65_536

    def __post_init__(self) -> None:
        if not (0 < self.share <= 1 and self.k >= 1 and self.block_size > self.k):
            raise ValueError(
                "QualityRule: expected share in (0, 1], k of at least 1 and block_size above k, "
                f"found {self}"
            )

    def kept(self, scores: np.ndarray) -> np.ndarray:
        """[n] bool of the scores of a pair of languages; of equal ones the first."""
        best = np.zeros(len(scores), bool)
        best[np.argsort(-scores, kind="stable")[: int(np.ceil(self.share * len(scores)))]] = True
        return best & (scores >= self.min_score)


def filter_translations(
    translations: str,
    translation_set: TranslationSet,
    model: restored_model.Trained,
    rule: QualityRule,
    model_dir: str,
) -> dict[str, str]:
    """Writes translations.jsonl, scores.npy and report.json.

    Args:
      translations: translations.jsonl, as `translation_set` was made from.
      translation_set: the same as tokens; ids and order are those of the file.
      model: of an earlier round; embeds sources as queries and targets as passages.
      rule: what is kept.
      model_dir: where the files go.

    Returns:
      {"translations": ..., "report": ...}, relative to model_dir. scores.npy is float32, one for
      each line of the file, in its order.

    Raises:
      ValueError: a file with other translations, a pair of languages with fewer than k, or nothing
        is left.
    """
    _require_neighbours(translation_set, rule)
    lines = _lines(translations, translation_set)
    scores = np.concatenate(list(_scores(translation_set, model, rule)))
    kept = np.zeros(len(scores), bool)
    for _, rows in translation_set.pairs():
        kept[rows] = rule.kept(scores[rows])
    if not kept.any():
        raise ValueError(
            f"filter_translations: none of {len(scores)} translations scores {rule.min_score} or "
            f"more, the best {scores.max():.3f}; lower QualityRule.min_score"
        )
    if jax.process_index() == 0:
        _write(Path(model_dir), lines, translation_set, scores, kept)
    if jax.process_count() > 1:  # no process reports an end that the writer has not reached
        multihost_utils.sync_global_devices("filter_translations: written")
    return {"translations": FILE, "report": "report.json"}


def _require_neighbours(translation_set: TranslationSet, rule: QualityRule) -> None:
    few = {pair: len(rows) for pair, rows in translation_set.pairs() if len(rows) < rule.k}
    if few:
        raise ValueError(
            f"filter_translations: expected at least k = {rule.k} translations of each pair of "
            f"languages to compare with, found {few}; lower QualityRule.k, or leave such pairs out "
            "by TranslationRules.min_pairs"
        )


def _lines(path: str, translation_set: TranslationSet) -> list[str]:
    """The lines of the file, one for each translation."""
    with open(path, encoding="utf-8", newline="\n") as file:
        lines = list(file)
    ids = [json.loads(line)["id"] for line in lines]
    if ids != list(translation_set.sources.ids):
        raise ValueError(
            f"{path}: expected the {len(translation_set.sources.ids)} translations of the token "
            f"store, in their order, found {len(ids)} that differ; prepare the store from this file"
        )
    return lines


def _scores(
    translation_set: TranslationSet, model: restored_model.Trained, rule: QualityRule
) -> Iterator[np.ndarray]:
    """Of each translation, pair of languages after pair; one part of a pair in memory at a time."""
    bounds = [bound for _, rows in translation_set.pairs() for bound in _parts(rows, rule)]
    sources = model.encode_parts(QUERY, translation_set.sources, bounds)
    targets = model.encode_parts(PASSAGE, translation_set.targets, bounds)
    for source, target in zip(sources, targets, strict=True):
        yield margin_scoring.own_scores(source, target, rule.margin, rule.k).astype(np.float32)


def _parts(rows: np.ndarray, rule: QualityRule) -> list[tuple[int, int]]:
    """Nearly equal parts of a pair of languages, none above `block_size`."""
    count = -(-len(rows) // rule.block_size)
    ends = np.linspace(rows[0], rows[-1] + 1, count + 1).astype(int).tolist()
    return list(itertools.pairwise(ends))


def _write(
    folder: Path,
    lines: Sequence[str],
    translation_set: TranslationSet,
    scores: np.ndarray,
    kept: np.ndarray,
) -> None:
    pairs = {
        pair: _told([lines[row] for row in rows.tolist()], scores[rows], kept[rows])
        for pair, rows in translation_set.pairs()
    }
    report = {
        "read": len(lines),
        "kept": int(kept.sum()),
        "dropped": int((~kept).sum()),
        "pairs": pairs,
    }
    text = "".join(line for line, one in zip(lines, kept.tolist(), strict=True) if one)
    versioned_folder.write_atomically(folder / FILE, text)
    np.save(folder / "scores.npy", scores)
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    versioned_folder.write_atomically(folder / "report.json", text)
    _log.info("kept %d of %d translations", kept.sum(), len(kept))


def _told(lines: Sequence[str], scores: np.ndarray, kept: np.ndarray) -> dict[str, Any]:
    """Report on the translations of a pair of languages."""
    order = np.argsort(scores, kind="stable")
    gone, stayed = order[~kept[order]], order[kept[order]]
    examples = {
        "worst": gone[:EXAMPLES],
        "last_dropped": gone[-EXAMPLES:],
        "first_kept": stayed[:EXAMPLES],
    }
    return {
        "read": len(scores),
        "kept": int(kept.sum()),
        "dropped": int((~kept).sum()),
        "scores": {str(q): round(float(np.quantile(scores, q)), 4) for q in QUANTILES},
        "examples": {
            name: [_quoted(lines[row], scores[row]) for row in rows.tolist()]
            for name, rows in examples.items()
        },
    }


def _quoted(line: str, score: float) -> str:
    row = json.loads(line)
    return f"{score:.3f} {row['source']!r} | {row['target']!r}"


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.filter_translations.filter_translations")
