"""Mix the weights of a tuned model and of its initial model, with a chosen share.

    weights = (1 - share) * original + share * tuned

A mixture often keeps most of what was learned, and most of what the original can do elsewhere
(WiSE-FT, https://arxiv.org/abs/2109.01903; LM-Cocktail, https://arxiv.org/abs/2311.13534).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from t5x_style.interfaces.objective import ModelFunction
from t5x_style.training import hooks, warm_start

Functions = Mapping[str, ModelFunction]


@dataclass(frozen=True)
class Mixture:
    """The weights of two sources, mixed; a `warm_start.Source`.

    Attributes:
      original, tuned: path -> array, of the same paths and shapes.
      share: of the tuned weights, from 0 to 1.
    """

    original: Mapping[str, np.ndarray]
    tuned: Mapping[str, np.ndarray]
    share: float

    def __post_init__(self) -> None:
        original, tuned = self.original, self.tuned
        problems = [f"{path}: in one of the two only" for path in original.keys() ^ tuned.keys()]
        problems += [
            f"{path}: original {original[path].shape}, tuned {tuned[path].shape}"
            for path in original.keys() & tuned.keys()
            if original[path].shape != tuned[path].shape
        ]
        if problems:
            raise warm_start.InitialiseError(
                "weights that cannot be mixed:\n  "
                + "\n  ".join(sorted(problems))
                + "\nGive the model that the tuned one started from."
            )

    def __str__(self) -> str:
        return f"mixture with {self.share:g} of the tuned weights"

    def arrays(self) -> dict[str, np.ndarray]:
        """Path -> array; those of shares 0 and 1 are the sources' bits."""
        if self.share in (0, 1):
            return dict(self.tuned if self.share else self.original)
        tuned_share, original_share = np.float32(self.share), np.float32(1 - self.share)
        return {
            path: original_share * self.original[path] + tuned_share * tuned
            for path, tuned in self.tuned.items()
        }


@dataclass(frozen=True)
class Choice:
    """Settings for choosing a share.

    Attributes:
      shares: that are tried.
      tolerance: how far below the best value of the metric a smaller share may be.
      evaluator: as of the training.
      metric: 'evaluator/metric', the larger, the better.
    """

    shares: Sequence[float]
    tolerance: float
    evaluator: hooks.Evaluator
    metric: str

    def __post_init__(self) -> None:
        if not self.shares or not all(0 <= one <= 1 for one in self.shares):
            raise ValueError(
                "Choice.shares: expected numbers from 0 (the original) to 1 (the tuned model), "
                f"found {list(self.shares)}"
            )
        if not self.tolerance >= 0:
            raise ValueError(f"Choice.tolerance: expected 0 or more, found {self.tolerance}")
        name, _, metric = self.metric.partition("/")
        known = getattr(self.evaluator, "metrics", None)
        if name != self.evaluator.name or (known and metric not in known):
            found = ", ".join(f"{self.evaluator.name}/{one}" for one in known or ("...",))
            raise ValueError(f"Choice.metric: expected one of {found}; found {self.metric!r}")

    def trials(self, functions: Callable[[float], Functions]) -> list[tuple[float, float]]:
        """Share and value of the metric, of each share; none where no query is judged.

        Args:
          functions: share -> the functions of the model with it.
        """
        if not getattr(self.evaluator, "metrics", True):
            return []
        metric, tried = self.metric.partition("/")[2], []
        for share in sorted(self.shares):
            value = float(self.evaluator.evaluate(functions(share), 0)[metric])
            tried.append((share, value))
            if jax.process_index() == 0:
                print(f"interpolate: {self.metric} {value:.4f} with share {share:g}", flush=True)
        return tried


def smallest_good(tried: Sequence[tuple[float, float]], tolerance: float) -> float:
    """The smallest share whose value is at most `tolerance` below the best.

    >>> smallest_good([(0.0, 0.60), (0.5, 0.698), (1.0, 0.70)], 0.005)
    0.5
    """
    best = max(value for _, value in tried)
    return min(share for share, value in tried if value >= best - tolerance)
