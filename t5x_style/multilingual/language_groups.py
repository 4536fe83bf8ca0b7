"""Averages over groups of languages."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

ALL, TRAINED, ZERO_SHOT = "all", "trained", "zero_shot"
Values = Mapping[str, Mapping[str, float]]  # language -> metric -> value


def grouped(
    values: Values, groups: Mapping[str, Sequence[str]], trained: Callable[[str], bool] | None
) -> dict[str, dict[str, float]]:
    """Means over the languages of each group, and how many these are.

    Args:
      values: language -> metric -> value.
      groups: name -> languages; those that have no values are left out.
      trained: whether a language was trained on; makes two more groups.

    Returns:
      Group -> metric, and 'languages' -> value; the group ALL is of all.
    """
    members = {ALL: list(values)} | {name: list(one) for name, one in groups.items()}
    if trained is not None:
        members[TRAINED] = [language for language in values if trained(language)]
        members[ZERO_SHOT] = [language for language in values if not trained(language)]
    means = {}
    for name, languages in members.items():
        there = [values[language] for language in languages if language in values]
        if there:
            means[name] = {key: float(np.mean([one[key] for one in there])) for key in there[0]}
            means[name]["languages"] = len(there)
    return means
