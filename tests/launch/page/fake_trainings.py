"""Made-up trainings, as /curves has them."""

import math
import random


def noisy(value, *parts):
    """A value with up to 7 % of noise, always the same for the same parts."""
    return round(value * (1 + random.Random(repr(parts)).uniform(-0.07, 0.07)), 6)


def curve(name, steps, value, logged=None):
    """A curve: `value` is a function of the step."""
    values = [value(step) for step in steps]
    return {"name": name, "logged": logged or len(values), "steps": [*steps], "values": values}


def training(name, last, served=True, seconds=600.0, splits=("dev",), gap=()):
    """A training of `last` steps; at those of `gap`, its loss is not finite."""
    steps = range(last // 300 or 1, last + 1, last // 300 or 1)
    measured = range(last // 12 or 1, last + 1, last // 12 or 1)

    def loss(step):
        return None if step in gap else noisy(0.35 + 7 * math.exp(-6 * step / last), name, step)

    curves = [
        curve("train/loss", steps, loss, 4 * len(steps)),
        curve("train/learning_rate", steps, lambda at: 5e-4 * min(at / 50, 1.04 - at / last)),
        curve("timing/tokens_per_second", steps, lambda at: noisy(94_000, name, at)),
    ]
    for split in splits:
        curves.append(evaluation(split, "loss", measured, lambda share: 0.6 + math.exp(-6 * share)))
        for metric, best in {"MRR@10": 0.58, "nDCG@10": 0.64, "Recall@100": 0.93}.items():
            curves.append(
                evaluation(split, metric, measured, lambda s, b=best: b * (1 - math.exp(-5 * s)))
            )
    finished = "2026-11-27 18:12:45"
    facts = {"name": name, "served": served, "finished": finished, "seconds": seconds}
    return {**facts, "curves": curves}


def evaluation(split, metric, steps, value):
    """A curve of an evaluation: `value` is a function of the share of the training."""
    return curve(
        f"eval/{split}/{metric}", steps, lambda at: noisy(value(at / steps[-1]), split, metric, at)
    )


TRAININGS = (
    training("bag_of_embeddings", 1500, served=False, seconds=562.1),
    training("pretrained", 12_000, seconds=5025, splits=()),
    training("retriever", 3000, seconds=2875.6, splits=("dev", "test"), gap=range(900, 990)),
)
