"""A training without a model: a log of a development metric, and a checkpoint of one number.

Its job is called `train`, so that sweeps take its log for that of a training. The metric follows
from the settings alone, so the curve is the same however often it was stopped.
"""

import dataclasses
import json
import math
import os

JOBS = {"learn": {"name": "train", "version": 1, "outputs": ["metrics", "model"], "check": "check"}}


@dataclasses.dataclass(frozen=True)
class Cadence:
    """How long, and how often what happens."""

    steps: int
    evaluate_every: int = 1


@dataclasses.dataclass(frozen=True)
class Evaluator:
    """What an evaluator of a training says of itself."""

    name: str = "dev"
    metrics: tuple[str, ...] = ("score",)


def check(rate: float) -> None:
    """Raises ValueError for a rate that the job refuses."""
    if rate < 0:
        raise ValueError(f"rate: expected 0 or more, found {rate}")


def score(rate: float, kind: str, seed: int, step: int, steps: int) -> float:
    """The metric at a step: a curve that rises to a plateau, highest for a rate near 1e-3."""
    plateau = 0.8 - 0.1 * abs(math.log10(max(rate, 1e-9)) + 3) - (0.05 if kind == "plain" else 0.0)
    return round(plateau * (1 - math.exp(-3 * (step + 1) / steps)) + 0.01 * (seed % 7) / 7, 6)


def learn(
    cadence: Cadence,
    evaluators: list[Evaluator],
    source: str,
    rate: float,
    seed: int,
    model_dir: str,
    kind: str = "plain",
    nan_at: int = -1,
    fails: bool = False,
) -> dict[str, str]:
    """Writes a line of metrics.jsonl at every evaluation, continuing where it was stopped."""
    del evaluators, source
    check(rate)
    log, state = (os.path.join(model_dir, name) for name in ("metrics.jsonl", "state.json"))
    first = 0
    if os.path.exists(state):
        with open(state, encoding="utf-8") as file:
            first = json.load(file)
    lines = []
    if first:
        with open(log, encoding="utf-8") as file:
            lines = file.read().splitlines(keepends=True)
        lines = [line for line in lines if json.loads(line)["step"] < first]
    with open(log, "w", encoding="utf-8") as file:
        file.writelines(lines)
        for step in range(first, cadence.steps):
            if fails:
                raise ValueError("this training fails, as it was asked to")
            if (step + 1) % cadence.evaluate_every == 0:
                value = math.nan if step == nan_at else score(rate, kind, seed, step, cadence.steps)
                file.write(json.dumps({"step": step, "eval/dev/score": value}) + "\n")
                file.flush()
                os.fsync(file.fileno())
            _save(state, step + 1)
            print(f"learned {os.path.basename(model_dir)} {step}", flush=True)
    return {"metrics": "metrics.jsonl", "model": "."}


def _save(path: str, step: int) -> None:
    with open(f"{path}.tmp", "w", encoding="utf-8") as file:
        json.dump(step, file)
    os.replace(f"{path}.tmp", path)
