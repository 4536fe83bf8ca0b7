"""A verdict.json as the stage that compares a fine-tuned encoder writes it."""

import copy
import json
from pathlib import Path
from typing import Any

FIELDS: dict[str, Any] = {
    "line": "VERDICT better: nDCG@10 +.031 [.012, .050] on 240 test queries",
    "verdict": "better",
    "metric": "nDCG@10",
    "difference": 0.031,
    "low": 0.012,
    "high": 0.05,
    "p": 0.0012,
    "system": "finetuned",
    "baseline": "untouched",
    "queries": {"train": 2000, "dev": 200, "test": 240},
    "passages": 5183,
    "systems": {
        "bm25": {"nDCG@10": {"value": 0.5, "low": 0.45, "high": 0.55}},
        "untouched": {
            "nDCG@10": {"value": 0.61, "low": 0.56, "high": 0.66},
            "MRR@10": {"value": 0.58, "low": 0.53, "high": 0.63},
        },
        "finetuned": {
            "nDCG@10": {"value": 0.6412, "low": 0.59, "high": 0.69},
            "MRR@10": {"value": 0.6, "low": 0.55, "high": 0.65},
        },
    },
    "others": {
        "fiqa": {
            "queries": 100,
            "systems": {
                "untouched": {"nDCG@10": {"value": 0.3, "low": 0.25, "high": 0.35}},
                "finetuned": {"nDCG@10": {"value": 0.291, "low": 0.24, "high": 0.34}},
            },
            "difference": -0.009,
            "low": -0.02,
            "high": 0.002,
        }
    },
    "interpolation": 0.75,
    "data": {"name": "my_questions", "sha256": "ab" * 32},
}
WORSE = {
    "line": "VERDICT worse: nDCG@10 -.040 [-.060, -.020] on 240 test queries",
    "verdict": "worse",
    "difference": -0.04,
    "low": -0.06,
    "high": -0.02,
}


def write(path: Path, **changes: Any) -> str:
    """The file with some fields changed; its path."""
    path.write_text(json.dumps(copy.deepcopy(FIELDS) | changes), encoding="utf-8")
    return str(path)
