"""Golden cases of random masks: many draws of ours against those of an official collator.

Not exact: two samples of the same distribution. The tolerance of a rate is five standard errors of
the difference plus one draw; a histogram passes if chi-square has p > 1e-4.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from t5x_style.interfaces.objective import Objective
from tests.parity import parity_kit
from tests.parity.parity_kit import Quantity

DRAWS = 8192  # at least 6,000
ROWS = 512  # drawn at a time
SMALLEST_P = 1e-4


def corrupted(
    objective: Objective, tokens: np.ndarray, starts: np.ndarray, features: Sequence[str]
) -> list[np.ndarray]:
    """What `corrupt` makes of DRAWS examples that are all one text: a feature [DRAWS, ...] each.

    Args:
        objective: for ROWS rows of the text's length.
        tokens: [L] int, specials included.
        starts: [L] bool, where words start.
        features: names in the corrupted group `text`.
    """
    group = parity_kit.token_group(np.tile(tokens, (ROWS, 1)), np.ones((ROWS, len(tokens)), int))
    group["word_starts"] = jnp.asarray(np.tile(starts, (ROWS, 1)))

    @jax.jit
    def corrupt(example_id: jax.Array) -> list[jax.Array]:
        text = group | {"example_id": example_id[:, None]}
        drawn = objective.corrupt({"text": text}, jax.random.key(2))["text"]
        return [drawn[name] for name in features]

    parts = [corrupt(jnp.arange(at, at + ROWS)) for at in range(0, DRAWS, ROWS)]
    return [np.concatenate([np.asarray(a) for a in arrays]) for arrays in zip(*parts, strict=True)]


def rate(name: str, ours: Any, theirs: Any, our_n: float, their_n: float) -> Quantity:
    """Rates cell by cell; the error is in units of the tolerance."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    variance = np.clip(theirs * (1 - theirs), 0, None)
    allowed = 5 * np.sqrt(variance * (1 / their_n + 1 / our_n)) + 1 / our_n
    return Quantity(name, float(np.max(np.abs(ours - theirs) / allowed)), 1.0, f"n={our_n:.0f}")


def histogram(name: str, ours: np.ndarray, theirs: dict[str, int]) -> Quantity:
    """Chi-square of homogeneity; the error is -log10 p."""
    theirs_by_value = {int(value): count for value, count in theirs.items()}
    values = sorted(set(theirs_by_value) | set(np.unique(ours).tolist()))
    table = [[theirs_by_value.get(v, 0) for v in values], [int((ours == v).sum()) for v in values]]
    p = 1.0 if len(values) == 1 else stats.chi2_contingency(table, correction=False).pvalue
    return Quantity(name, float(-np.log10(max(p, 1e-300))), -np.log10(SMALLEST_P), f"p={p:.3g}")
