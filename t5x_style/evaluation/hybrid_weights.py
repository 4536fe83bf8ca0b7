"""What an evaluation chose for a hybrid, for those who search it afterwards."""

import json
from pathlib import Path

from t5x_style.retrieval.hybrid import Combined, Hybrid, HybridError


def combined(searched: Hybrid, metrics: str, system: str) -> Combined:
    """The hybrid, with the weights or the ranked kinds of a system of kind `hybrid`.

    Args:
      searched: indexes and passages.
      metrics: the metrics.json that an evaluation wrote.
      system: its name there.

    Raises:
      HybridError: the evaluation has no such system, it is no hybrid, it was asked for another
        number of candidates, or its weights are not recorded.
    """
    facts = json.loads(Path(metrics).read_text(encoding="utf-8"))["facts"]
    hybrids = [name for name, one in facts.items() if "candidates_by" in one]
    if system not in hybrids:
        raise HybridError(
            f"{metrics}: expected a system {system!r} that searches several kinds, found "
            f"{hybrids or 'none'}. Name one of these (HYBRID_SYSTEM), or evaluate one "
            "(gin_configs/runs/evaluation/hybrid.gin)"
        )
    one = facts[system]
    if one["candidates"] != searched.candidates:
        raise HybridError(
            f"{metrics}: {system!r} was evaluated with {one['candidates']} candidates of each "
            f"index, found {searched.candidates} here. Set CANDIDATES to the first"
        )
    if one["method"] == "reciprocal_rank":
        return Combined(searched, None, tuple(one["kinds"]))
    if not one.get("weights"):
        raise HybridError(f"{metrics}: {system!r} is weighted, but its weights are not recorded")
    return Combined(searched, one["weights"])
