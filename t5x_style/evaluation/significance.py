"""Uncertainty of means: bootstrap intervals and paired tests over queries or groups of queries.

Queries of one module or article are not independent: a system that handles one of them well tends
to handle the others well. Where queries have groups, the unit that is resampled, or whose sign is
flipped, is the group; otherwise it is the query.
"""

import dataclasses

import numpy as np

_BLOCK = 256  # resamples held at once, [256, G]


@dataclasses.dataclass(frozen=True)
class _Units:
    """Sums and sizes of the units that are resampled.

    Attributes:
      sums: [G] float64, the sum of the values of each unit.
      sizes: [G] float64, how many values each has.
    """

    sums: np.ndarray
    sizes: np.ndarray

    def means(self, chosen: np.ndarray) -> np.ndarray:
        """The mean over the values of the chosen units, a ratio of sums.

        Args:
          chosen: [S, G] int64, places of units, repeated as they were drawn.

        Returns:
          [S] float64.
        """
        means: np.ndarray = self.sums[chosen].sum(axis=1) / self.sizes[chosen].sum(axis=1)
        return means


def bootstrap_interval(
    values: np.ndarray,
    samples: int,
    seed: int,
    level: float = 0.95,
    groups: np.ndarray | None = None,
) -> tuple[float, float]:
    """The percentile interval of the mean over resampled queries (Efron 1979) or groups.

    Groups are resampled whole (cluster bootstrap: Davison and Hinkley 1997, section 3.8). The
    interval of a paired difference is that of the queries' differences.

    Args:
      values: [n], one for each query.
      samples: number of resamples.
      seed: the same seed gives the same interval.
      level: of confidence.
      groups: [n] integers, the group of each query; None: each query is one.

    Returns:
      low and high end.

    Raises:
      ValueError: no values, no samples, groups of another shape, or only one group.
    """
    units = _units(values, samples, groups)
    count = len(units.sums)
    generator = np.random.default_rng(seed)
    means = np.concatenate(
        [units.means(generator.integers(0, count, (size, count))) for size in _sizes(samples)]
    )
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def randomisation_p_value(
    differences: np.ndarray, samples: int, seed: int, groups: np.ndarray | None = None
) -> float:
    """Two-sided p-value of a paired randomisation test (Smucker et al. 2007).

    Under the null hypothesis the two systems are exchangeable, so each query's difference may have
    either sign; the differences of a group change their signs together.

    Args:
      differences: [n], of two systems on the same queries.
      samples: number of random sign patterns.
      seed: the same seed gives the same value.
      groups: [n] integers, the group of each query; None: each query is one.

    Raises:
      ValueError: as `bootstrap_interval`.
    """
    units = _units(differences, samples, groups)
    generator = np.random.default_rng(seed)
    observed = abs(units.sums.sum())
    extreme = 0
    for size in _sizes(samples):
        signs = generator.integers(0, 2, (size, len(units.sums))) * 2 - 1
        # Sums in another order differ in the last bits: without slack, ties would be missed.
        extreme += int((abs(signs @ units.sums) >= observed - 1e-9).sum())
    return (extreme + 1) / (samples + 1)


def _units(values: np.ndarray, samples: int, groups: np.ndarray | None) -> _Units:
    if values.ndim != 1 or len(values) == 0 or samples < 1:
        raise ValueError(
            f"expected one value for each of at least one query and at least one sample, "
            f"found shape {list(values.shape)} and {samples} samples"
        )
    if groups is None:
        return _Units(values, np.ones(len(values)))
    if groups.shape != values.shape or not np.issubdtype(groups.dtype, np.integer):
        raise ValueError(
            f"groups: expected one integer for each of {len(values)} queries, found "
            f"{groups.dtype.name}{list(groups.shape)}"
        )
    _, numbers = np.unique(groups, return_inverse=True)
    count = int(numbers.max()) + 1
    if count == 1:
        raise ValueError(
            f"groups: expected at least 2, found 1 with all {len(values)} queries: nothing can be "
            "resampled. Choose a finer rule for evaluate.group_of, or None"
        )
    return _Units(np.bincount(numbers, values), np.bincount(numbers).astype(np.float64))


def _sizes(samples: int) -> list[int]:
    full, rest = divmod(samples, _BLOCK)
    return [_BLOCK] * full + ([rest] if rest else [])
