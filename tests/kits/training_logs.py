"""Logs of trainings for health checks: curves with noise, of which tests spoil one thing each."""

import json
import math
import random

from t5x_style.training import metric_writer
from tests.kits import store_kit

METRIC = "eval/dev/MRR@10"
PASSAGES = 10_000
SETTINGS = {
    "seed": 1,
    "cadence.steps": 1000,
    "optimizer.learning_rate": 0.005,
    "optimizer.warmup_steps": 50,
    "optimizer.total_steps": 1000,
    "optimizer.decay": "'linear'",
    "development_metric": "'dev/MRR@10'",
    "initialise_from": "[]",
    "replanning": "None",
    "evaluators[0].passages.sample": "None",
    "objective.embedding_config.temperature": 0.07,
}


def rate(step):
    """Learning rate of SETTINGS."""
    done = step - 1
    return 0.005 * ((done + 1) / 50 if done < 50 else (1000 - done) / 950)


def healthy(seed=1, steps=1000, every=20):
    """Lines of a log that every check accepts."""
    draw, lines, seconds = random.Random(seed), [], 5.0
    for step in range(every, steps + 1, every):
        seconds += every / 10
        share = step / 1000
        lines.append(
            {
                "step": step,
                "train/loss": (1 + 5 * math.exp(-8 * share)) * draw.gauss(1, 0.07),
                "train/gradient_norm": (0.5 + math.exp(-5 * share)) * draw.gauss(1, 0.1),
                "train/parameter_norm": 100.0,
                "train/update_norm": 0.5,
                "train/learning_rate": rate(step),
                "train/padding_share": 0.1,
                "train/healthy": 1.0,
                "timing/steps_per_second": 10.0,
                "timing/input_wait_share": 0.05,
                metric_writer.ELAPSED: seconds,
            }
        )
        if step % 200 == 0:
            seconds += 1.0
            value = 0.5 * (1 - math.exp(-10 * share)) + draw.gauss(0, 0.005)
            lines.append({"step": step, METRIC: value, metric_writer.ELAPSED: seconds})
            figures = {
                "embeddings/mean_cosine": 0.01,
                "embeddings/effective_rank": 90.0,
                "embeddings/possible_gain": 4.0,
            }
            lines.append({"step": step, **figures, metric_writer.ELAPSED: seconds})
    return lines


def changed(lines, metric, value, after=0):
    """Lines with `value(step, old)` in place of a metric, at steps above `after`."""
    return [
        line | {metric: value(line["step"], line[metric])}
        if metric in line and line["step"] > after
        else line
        for line in lines
    ]


def text(lines):
    """The content of a metrics.jsonl."""
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def stores(folder, dropped=None, count=PASSAGES):
    """A finished stage `passages` with a report; returns its version."""
    planned = store_kit.plan(folder / "passages", "prepare", length=192)
    report = json.dumps({"count": count, "dropped": dropped or {}})
    return store_kit.finished(planned, {"report.json": report, "store/": ""}, {"store": "store"})


def training(folder, lines, name="retriever", dropped=None, count=PASSAGES, **settings):
    """A finished training `name` of a run, made from a token store of `count` passages."""
    passages = stores(folder, dropped, count)
    parameters = SETTINGS | settings
    store = f"input {passages.identity}/store"
    parameters["evaluators[0].passages.store"] = store
    planned = store_kit.plan(folder / name, "train", passages.output("store"), **parameters)
    files = {metric_writer.JSONL: text(lines)}
    return store_kit.finished(planned, files, {"model": "."})


def unfinished(folder, lines, name="retriever", **settings):
    """A training that was begun; returns its folder."""
    planned = store_kit.plan(folder / name, "train", **SETTINGS | settings)
    place = store_kit.started(planned)
    if lines:
        (place / metric_writer.JSONL).write_text(text(lines), encoding="utf-8")
    return place
