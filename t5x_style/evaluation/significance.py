"""How sure a number is: bootstrap intervals and paired tests over queries."""

import numpy as np

_BLOCK = 256  # resamples held at once, [256, n]


def bootstrap_interval(
    values: np.ndarray, samples: int, seed: int, level: float = 0.95
) -> tuple[float, float]:
    """The percentile interval of the mean over resampled queries (Efron 1979).

    Args:
      values: [n], one for each query.
      samples: number of resamples.
      seed: the same seed gives the same interval.
      level: of confidence.

    Returns:
      low and high end.
    """
    _check(values, samples)
    generator = np.random.default_rng(seed)
    means = np.concatenate(
        [
            values[generator.integers(0, len(values), (size, len(values)))].mean(axis=1)
            for size in _sizes(samples)
        ]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def randomisation_p_value(differences: np.ndarray, samples: int, seed: int) -> float:
    """Two-sided p-value of a paired randomisation test (Smucker et al. 2007).

    Under the null hypothesis the two systems are exchangeable, so each query's difference may have
    either sign.

    Args:
      differences: [n], of two systems on the same queries.
      samples: number of random sign patterns.
      seed: the same seed gives the same value.
    """
    _check(differences, samples)
    generator = np.random.default_rng(seed)
    observed = abs(differences.sum())
    extreme = 0
    for size in _sizes(samples):
        signs = generator.integers(0, 2, (size, len(differences))) * 2 - 1
        # Sums in another order differ in the last bits: without slack, ties would be missed.
        extreme += int((abs(signs @ differences) >= observed - 1e-9).sum())
    return (extreme + 1) / (samples + 1)


def _check(values: np.ndarray, samples: int) -> None:
    if values.ndim != 1 or len(values) == 0 or samples < 1:
        raise ValueError(
            f"expected one value for each of at least one query and at least one sample, "
            f"found shape {list(values.shape)} and {samples} samples"
        )


def _sizes(samples: int) -> list[int]:
    full, rest = divmod(samples, _BLOCK)
    return [_BLOCK] * full + ([rest] if rest else [])
