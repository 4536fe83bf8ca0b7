"""Report on a model's vectors of sample texts: figures, problems, causes, remedies.

Letters: D vector size, N different texts, Q different queries.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from t5x_style.evaluation import embedding_diagnostics as diagnostics
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.representation import PASSAGE, QUERY, function_name


class Vectors(NamedTuple):
    """The texts that one function embedded.

    Attributes:
      vectors: [n, D] float32.
      texts: n token sequences, as bytes.
      ids: [n] int32, example ids.
      relevant: [n] bool, whether a passage answers the query with its example id.
    """

    vectors: np.ndarray
    texts: list[bytes]
    ids: np.ndarray
    relevant: np.ndarray


@dataclasses.dataclass(frozen=True)
class Report:
    """Findings at one step.

    Attributes:
      figures: by name; docs/contrastive.md says what they mean.
      problems: kind -> message with cause and remedy.
    """

    figures: dict[str, float]
    problems: dict[str, str]

    def line(self) -> str:
        """The figures in one line."""
        if not self.figures:
            return "embeddings: no figures"
        shown = (f"{name.replace('_', ' ')} {value:.4g}" for name, value in self.figures.items())
        return "embeddings: " + ", ".join(shown)


def report(sides: Mapping[str, Vectors], contract: Contract, candidates: int, step: int) -> Report:
    """The figures of vectors, and what is wrong with them.

    Args:
      sides: of queries, passages or both, by side.
      contract: similarity and temperature.
      candidates: that a query of the loss is compared with; 0 for a loss that compares none.
      step: of the training; after step 0 equal vectors have another cause.
    """
    problems = _equal_texts(sides)
    broken = [name for name, side in sides.items() if not np.isfinite(side.vectors).all()]
    if broken:
        problems["vectors"] = (
            f"{' and '.join(map(function_name, broken))}: vectors hold NaN or Inf at step {step}, "
            "so that no figures of the embeddings are computed. Look at the learning rate, and at "
            "the weights that training started from."
        )
        return Report({}, problems)
    figures = _figures(sides, contract)
    sigma = figures.get("score_std")
    if sigma is not None and candidates > 1 and len(sides) == 2:
        figures["possible_gain"] = diagnostics.possible_gain(sigma, candidates)
        if figures["possible_gain"] < diagnostics.LEAST_GAIN:
            problems["gradient"] = _no_gradient(figures, contract, candidates, step)
    return Report(figures, problems)


def _figures(sides: Mapping[str, Vectors], contract: Contract) -> dict[str, float]:
    """Of passages, or of queries where there are no passages; {} of fewer than two texts."""
    side = sides[PASSAGE] if PASSAGE in sides else sides[QUERY]
    rows = _distinct(side.texts)
    if len(rows) < 2:
        return {}
    texts = side.vectors[rows]
    queries, same = texts, np.arange(len(texts))
    figures = {
        "mean_cosine": diagnostics.mean_cosine(texts),
        "effective_rank": diagnostics.effective_rank(texts),
        "uniformity": diagnostics.uniformity(texts),
    }
    if len(sides) == 2:
        asked = _distinct(sides[QUERY].texts)
        queries = sides[QUERY].vectors[asked]
        same = _positives(sides[QUERY], asked, side, rows)
        if (same >= 0).any():
            pairs = queries[same >= 0], texts[same[same >= 0]]
            figures["alignment"] = diagnostics.alignment(*pairs)
    if len(texts) > 2:  # of two, one is left to compare with
        sigma = diagnostics.score_std(
            queries, texts, same, contract.temperature, contract.similarity
        )
        figures = {"score_std": sigma, **figures}
    return figures


def _distinct(texts: list[bytes]) -> np.ndarray:
    """First row of each distinct text, at most `MOST_TEXTS` of them: [N] int64."""
    first: dict[bytes, int] = {}
    for row, text in enumerate(texts):
        first.setdefault(text, row)
    return np.array([*itertools.islice(first.values(), diagnostics.MOST_TEXTS)], np.int64)


def _positives(
    queries: Vectors, asked: np.ndarray, passages: Vectors, rows: np.ndarray
) -> np.ndarray:
    """For each of the queries `asked`, the place in `rows` of its first positive, else -1: [Q].

    A positive with the query's own tokens is none: every model gives both the same vector.
    """
    place = {passages.texts[row]: number for number, row in enumerate(rows)}
    first: dict[int, bytes] = {}
    for text, owner, relevant in zip(passages.texts, passages.ids, passages.relevant, strict=True):
        if relevant:
            first.setdefault(int(owner), text)
    found = []
    for row in asked:
        text = first.get(int(queries.ids[row]), queries.texts[row])
        found.append(-1 if text == queries.texts[row] else place.get(text, -1))
    return np.array(found, np.int64)


def _equal_texts(sides: Mapping[str, Vectors]) -> dict[str, str]:
    equal = {
        name: len(side.texts)
        for name, side in sides.items()
        if len(side.texts) > 1 and len(set(side.texts)) == 1
    }
    if not equal:
        return {}
    said = " and ".join(f"the {count} {name} texts" for name, count in equal.items())
    message = (
        f"all texts equal: {said} of the first batch hold the same tokens, and no training can "
        "distinguish them. Cause: copies in the corpus, or texts that are cut to what they have in "
        "common (a long prefix, a small maximum length). Remedy: remove the copies, or allow "
        "longer texts."
    )
    return {"texts": message}


def _no_gradient(
    figures: Mapping[str, float], contract: Contract, candidates: int, step: int
) -> str:
    sigma, cosine = figures["score_std"], figures["mean_cosine"]
    found = (
        f"the contrastive loss has almost no gradient at step {step}: the scores of different "
        f"texts over temperature {contract.temperature:g} have a standard deviation of "
        f"{sigma:.2g}, so that the best order of {candidates} candidates gains about "
        f"{sigma:.2g} * sqrt(2 ln {candidates}) = {figures['possible_gain']:.2g} nats over "
        f"ln {candidates}; expected at least {diagnostics.LEAST_GAIN:g}."
    )
    if cosine < diagnostics.NEARLY_EQUAL:
        cause = (
            f"the temperature is large for vectors of this similarity ({contract.similarity}; mean "
            f"cosine {cosine:.4f})"
        )
        remedy = "a lower temperature (0.01 to 0.1 for cosines)"
    elif step:
        cause = f"the vectors of all texts became nearly equal, mean cosine {cosine:.4f}"
        remedy = "a lower learning rate, a longer warm-up, more or harder negatives"
    else:
        cause = (
            f"the vectors of all texts are nearly equal, mean cosine {cosine:.4f}, as those of "
            "[CLS] in a shallow, randomly initialised encoder"
        )
        remedy = "a start from a pre-trained encoder or from a trained word table (initialise_from)"
        if contract.pooling != "mean":
            remedy = (
                f"pooling 'mean'; {remedy}; or scales of fresh parameters that suit [CLS] "
                "(gin_configs/models/tiny_cls.gin, docs/results/initialisation.md)"
            )
    return f"{found} Cause: {cause}. Remedy: {remedy}. See docs/contrastive.md."
