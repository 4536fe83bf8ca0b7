"""Initialisation x learning rate x pooling: how well a small encoder learns from random parameters.

    python -m benchmarks.initialisation --run=runs/quickstart [--grid=coarse] [--seeds=1,2,3]

2 layers of width 128, 64 queries with a BM25 negative each, AdamW, a few steps, on the corpus of a
finished run folder of quickstart.gin. Prints one line for each setting: MRR@10 and Recall@100 of
development queries, over their passages and others (2,000, or with --sample=0 the whole corpus):
mean over seeds, and range. Writes what it measures to --output at once, and does not measure again
what is there, so that it can be stopped.
"""

import dataclasses
import functools
import itertools
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from absl import app, flags, logging

from benchmarks import code_hash

_RUN = flags.DEFINE_string("run", "runs/quickstart", "A finished run folder of quickstart.gin.")
_GRID = flags.DEFINE_string("grid", "coarse", "One of the grids in GRIDS.")
_SEEDS = flags.DEFINE_list("seeds", ["1"], "Of parameters and of the order of pairs.")
_STEPS = flags.DEFINE_integer("steps", 120, "Of each training.")
_SAMPLE = flags.DEFINE_integer("sample", 2000, "Passages besides the relevant ones; 0: all.")
_OUTPUT = flags.DEFINE_string("output", "", "A jsonl file that lines are appended to.")

QUERY_LENGTH, PASSAGE_LENGTH, QUERIES, WIDTH = 32, 128, 64, 128
UNIT = WIDTH**-0.5  # keeps the length of what a square kernel multiplies


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is varied; standard deviations of fresh parameters."""

    pooling: str
    learning_rate: float
    table: float
    kernel: float
    residual: float


def _grid(
    poolings: tuple[str, ...],
    rates: tuple[float, ...],
    scales: tuple[tuple[float, float, float], ...],
) -> list[Setting]:
    return [
        Setting(pooling, rate, *scale)
        for scale, pooling, rate in itertools.product(scales, poolings, rates)
    ]


OLD = (0.02, 0.02, 0.02)
GRIDS = {
    "coarse": _grid(
        ("cls", "mean"),
        (1e-3, 3e-3),
        (
            OLD,
            (UNIT, UNIT, UNIT),
            (0.02, UNIT, UNIT),
            (0.02, 0.02, 0.2),
            (0.02, 0.02, 1.0),
            (0.02, UNIT, 0.35),
            (0.02, UNIT, 1.0),
        ),
    ),
    "cls": _grid(
        ("cls",), (1e-3, 3e-3), ((0.02, UNIT, 0.35), (0.02, UNIT, 1.0), (UNIT, UNIT, 0.35))
    ),
    "old": _grid(("cls", "mean"), (1e-3,), (OLD,)),
    "final": _grid(
        ("cls", "mean"),
        (5e-4, 1e-3, 2e-3, 4e-3),
        (OLD, (UNIT, UNIT, UNIT), (0.02, UNIT, 0.35), (0.02, UNIT, 1.0)),
    ),
}


class Study:
    """The data of a run folder, opened once, and trainings on it."""

    def __init__(self, run: Path, sample: int):
        from input_pipelines import beir, packing, pairs, pipeline
        from t5x_style import contract, partitioning
        from t5x_style.evaluation.evaluator import RetrievalEvaluator

        corpus = str(run / "collection/corpus")
        stores = {name: str(run / name / "store") for name in ("queries", "passages")}
        self.vocabulary = contract.Vocabulary.load(str(run / "tokenizer/tokenizer"))
        self.partitioner = partitioning.Partitioner()
        self.pipeline = functools.partial(
            pairs.PairsPipeline,
            stores["queries"],
            stores["passages"],
            str(run / "negatives/negatives.jsonl"),
            batch=QUERIES,
            group_size=2,
            query_length=QUERY_LENGTH,
            passage_length=PASSAGE_LENGTH,
            query_rows=packing.Rows(16, 80, 8),
            passage_rows=packing.Rows(112, 128, 8),
        )
        source = functools.partial(pipeline.EncodeSource, segments=16, rows=32)
        queries = source(
            store=stores["queries"],
            length=128,
            segment_length=QUERY_LENGTH,
            sample=0,
            always_include=beir.query_ids(corpus, "dev"),
        )
        passages = source(
            store=stores["passages"],
            length=PASSAGE_LENGTH,
            segment_length=PASSAGE_LENGTH,
            sample=sample or None,
            always_include=beir.gold_ids(corpus, "dev"),
        )
        self.evaluator = RetrievalEvaluator("dev", queries, passages, corpus, "dev")

    def train(self, setting: Setting, seed: int, steps: int) -> dict[str, float]:
        """Development metrics after `steps`, and `seconds`."""
        from t5x_style import checkpointing, metric_log, progress, trainer

        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            checkpointer = checkpointing.Checkpointer(
                Path(folder) / "checkpoints", checkpointing.Checkpointing(keep=1)
            )
            training = trainer.Trainer(
                self._objective(setting),
                self.pipeline(seed=seed),
                _optimizer(setting, steps),
                self.partitioner,
                checkpointer,
                trainer.Cadence(steps, log_every=steps, evaluate_every=steps, save_every=steps),
                seed,
            )
            training.start()
            log = metric_log.MetricLog(folder, 0)
            shown = progress.TrainingProgress("study", 0, steps, False)
            training.fit(log, shown, {})
            functions = training.functions(training.state)
            found = self.evaluator.evaluate(functions, steps)
            checkpointer.close()
        return found | {"seconds": time.perf_counter() - started}

    def _objective(self, setting: Setting) -> functools.partial[object]:
        from models import bert, bi_encoder, embedding
        from models.losses import contrastive
        from t5x_style.objective import GroupShape

        config = bert.BertConfig(
            vocab_size=self.vocabulary.size,
            hidden=WIDTH,
            layers=2,
            heads=2,
            mlp=4 * WIDTH,
            max_positions=PASSAGE_LENGTH,
            dropout=0.0,
            attention_dropout=0.0,
            unroll=2,
            table_stddev=setting.table,
            kernel_stddev=setting.kernel,
            residual_stddev=setting.residual,
        )
        how = embedding.EmbeddingConfig(
            setting.pooling, True, "cosine", 0.05, QUERY_LENGTH, PASSAGE_LENGTH, "", ""
        )
        return functools.partial(
            bi_encoder.BiEncoder,
            config,
            how,
            self.vocabulary,
            GroupShape(16, 80, 8),
            GroupShape(112, 128, 8),
            contrastive.ContrastiveConfig(),
        )


def _optimizer(setting: Setting, steps: int) -> object:
    from t5x_style import optim

    return optim.AdamW(setting.learning_rate, steps // 10, steps)


def _known(output: Path | None) -> Iterator[tuple[str, dict[str, float]]]:
    """What an earlier call has measured."""
    if output is not None and output.is_file():
        for line in output.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            yield record["key"], record["found"]


def main(argv: list[str]) -> None:
    """Measures a grid."""
    del argv
    code_hash.announce("initialisation")
    logging.set_verbosity(logging.WARNING)  # orbax says much of each checkpoint
    output = Path(_OUTPUT.value) if _OUTPUT.value else None
    known = dict(_known(output))
    study = Study(Path(_RUN.value), _SAMPLE.value)
    print(f"{'pooling':8}{'rate':>8}{'table':>8}{'kernel':>8}{'residual':>9}   MRR@10   range")
    for setting in GRIDS[_GRID.value]:
        values = []
        for seed in map(int, _SEEDS.value):
            about = [dataclasses.astuple(setting), seed, _STEPS.value, _SAMPLE.value]
            key = json.dumps(about)
            if key not in known:
                known[key] = study.train(setting, seed, _STEPS.value)
                if output is not None:
                    with open(output, "a", encoding="utf-8") as file:
                        file.write(json.dumps({"key": key, "found": known[key]}) + "\n")
            values.append(known[key])
        mrr = np.array([value["MRR@10"] for value in values])
        recall = np.mean([value["Recall@100"] for value in values])
        print(
            f"{setting.pooling:8}{setting.learning_rate:8.0e}{setting.table:8.3f}"
            f"{setting.kernel:8.3f}{setting.residual:9.3f}   {mrr.mean():.4f}   {mrr.min():.3f} to "
            f"{mrr.max():.3f}   Recall@100 {recall:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    app.run(main)
