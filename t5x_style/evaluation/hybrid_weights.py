"""The weights that an evaluation chose for a hybrid, for those who search it afterwards."""

import json
from collections.abc import Mapping
from pathlib import Path

from t5x_style.retrieval.hybrid import HybridError


def load(metrics: str, system: str) -> Mapping[str, float] | None:
    """Kind -> weight of a system of kind `hybrid`; None where it goes by reciprocal ranks.

    Args:
      metrics: the metrics.json that an evaluation wrote.
      system: its name there.

    Raises:
      HybridError: the evaluation has no such system, or it is no hybrid.
    """
    facts = json.loads(Path(metrics).read_text(encoding="utf-8"))["facts"]
    hybrids = [name for name, one in facts.items() if "candidates_by" in one]
    if system not in hybrids:
        raise HybridError(
            f"{metrics}: expected a system {system!r} that searches several kinds, found "
            f"{hybrids or 'none'}. Name one of these (HYBRID_SYSTEM), or evaluate one "
            "(gin_configs/runs/evaluation/hybrid.gin)"
        )
    found: Mapping[str, float] | None = facts[system].get("weights")
    return found
