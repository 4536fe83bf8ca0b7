"""Initialisation x learning rate x pooling: how well a small encoder learns from random parameters.

    python -m benchmarks.initialisation --run=runs/quickstart --output=initialisation.jsonl

2 layers of width 128, 64 queries with a BM25 negative each, AdamW, a few steps, on the corpus of a
finished run folder of quickstart.gin. The first seed tunes the learning rate of every pair of
scales and pooling by MRR@10 of development queries, over their passages and others (2,000, or with
--sample=0 the whole corpus); the other seeds are trained at that rate alone. Prints one line for
each training of the first seed, then one for each pair: mean over seeds, and range. Writes what it
measures to --output at once, and does not measure again what is there, so that it can be stopped,
and two of them (--poolings=cls, --poolings=mean) can run at the same time.
"""

import dataclasses
import functools
import itertools
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from absl import app, flags, logging

from benchmarks import code_hash

_RUN = flags.DEFINE_string("run", "runs/quickstart", "A finished run folder of quickstart.gin.")
_SEEDS = flags.DEFINE_list("seeds", ["1", "2", "3"], "Of parameters and of the order of pairs.")
_POOLINGS = flags.DEFINE_list("poolings", ["cls", "mean"], "What a text's vector is.")
_SCALES = flags.DEFINE_list("scales", [], "Names of sets of scales; none given: all.")
_RATES = flags.DEFINE_list(
    "rates", ["2.5e-4", "5e-4", "1e-3", "2e-3", "4e-3"], "Learning rates that are tried."
)
_STEPS = flags.DEFINE_integer("steps", 120, "Of each training.")
_SAMPLE = flags.DEFINE_integer("sample", 2000, "Passages besides the relevant ones; 0: all.")
_OUTPUT = flags.DEFINE_string("output", "", "A jsonl file that lines are appended to.")

QUERY_LENGTH, PASSAGE_LENGTH, QUERIES, WIDTH = 32, 128, 64, 128
UNIT = WIDTH**-0.5  # keeps the length of what a square kernel multiplies


@dataclasses.dataclass(frozen=True)
class Scales:
    """Standard deviations of fresh parameters, as `BertConfig` names them."""

    table: float
    position: float
    kernel: float
    attention: float
    mlp: float


SCALES = {
    "0.02 everywhere": Scales(0.02, 0.02, 0.02, 0.02, 0.02),
    "D^-1/2 everywhere": Scales(UNIT, 0.02, UNIT, UNIT, UNIT),
    "small positions": Scales(0.02, 0.002, 0.02, 0.02, 0.02),
    "small positions and MLP": Scales(0.02, 0.002, UNIT, 2 * UNIT, 0.02),
    "large MLP": Scales(0.02, 0.002, UNIT, 2 * UNIT, UNIT),
    "large attention": Scales(0.02, 0.002, UNIT, 1.0, 0.02),
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What is varied."""

    pooling: str
    learning_rate: float
    scales: Scales


class Study:
    """The data of a run folder, opened once, and trainings on it."""

    def __init__(self, run: Path, sample: int):
        from input_pipelines.batches import packed_text, token_groups
        from input_pipelines.pairs import retriever_batches
        from input_pipelines.sources import beir
        from t5x_style.distributed import partitioning
        from t5x_style.evaluation.retrieval_evaluator import RetrievalEvaluator
        from t5x_style.interfaces import contract

        corpus = str(run / "collection/corpus")
        stores = {name: str(run / name / "store") for name in ("queries", "passages")}
        self.vocabulary = contract.Vocabulary.load(str(run / "tokenizer/tokenizer"))
        self.partitioner = partitioning.Partitioner()
        self.pipeline = functools.partial(
            retriever_batches.PairsPipeline,
            stores["queries"],
            stores["passages"],
            str(run / "negatives/negatives.jsonl"),
            batch=QUERIES,
            group_size=2,
            query_length=QUERY_LENGTH,
            passage_length=PASSAGE_LENGTH,
            query_rows=token_groups.Rows(16, 80, 8),
            passage_rows=token_groups.Rows(112, 128, 8),
        )
        source = functools.partial(packed_text.EncodeSource, segments=16, rows=32)
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
        from t5x_style.checkpoints import checkpointing
        from t5x_style.training import metric_writer, progress, trainer

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
            log = metric_writer.MetricLog(folder, 0)
            shown = progress.TrainingProgress("study", 0, steps, False)
            training.fit(log, shown, {})
            functions = training.functions(training.state)
            found = self.evaluator.evaluate(functions, steps)
            checkpointer.close()
        return found | {"seconds": time.perf_counter() - started}

    def _objective(self, setting: Setting) -> functools.partial[object]:
        from models.losses import contrastive
        from models.networks import bert, text_embedding
        from models.objectives import bi_encoder
        from t5x_style.interfaces.objective import GroupShape

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
            **{
                f"{name}_stddev": stddev
                for name, stddev in dataclasses.asdict(setting.scales).items()
            },
        )
        how = text_embedding.EmbeddingConfig(
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
    from t5x_style.step import optimizers

    return optimizers.AdamW(setting.learning_rate, steps // 10, steps)


class Measured:
    """What was measured, kept in a file where there is one."""

    def __init__(self, study: Study, output: Path | None):
        self._study, self._output = study, output
        self._known: dict[str, dict[str, float]] = {}
        if output is not None and output.is_file():
            for line in output.read_text(encoding="utf-8").splitlines():
                record = json.loads(line)
                self._known[record["key"]] = record["found"]

    def of(self, setting: Setting, seed: int) -> dict[str, float]:
        """Metrics of a training, which is run unless they are known."""
        key = json.dumps([dataclasses.asdict(setting), seed, _STEPS.value, _SAMPLE.value])
        if key not in self._known:
            self._known[key] = self._study.train(setting, seed, _STEPS.value)
            if self._output is not None:
                with open(self._output, "a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "found": self._known[key]}) + "\n")
        return self._known[key]


def _tuned(measured: Measured, name: str, pooling: str, seed: int) -> Setting:
    """The best learning rate of a pair of scales and pooling, by one seed."""
    settings = [Setting(pooling, rate, SCALES[name]) for rate in map(float, _RATES.value)]
    for setting in settings:
        found = measured.of(setting, seed)
        _line(name, setting, [found])
    return max(settings, key=lambda setting: measured.of(setting, seed)["MRR@10"])


def _line(name: str, setting: Setting, found: list[dict[str, float]]) -> None:
    mrr = np.array([one["MRR@10"] for one in found])
    recall = np.mean([one["Recall@100"] for one in found])
    print(
        f"{name:24}{setting.pooling:6}{setting.learning_rate:8g}   MRR@10 {mrr.mean():.4f} "
        f"({mrr.min():.3f} to {mrr.max():.3f})   Recall@100 {recall:.3f}   seeds {len(found)}",
        flush=True,
    )


def main(argv: list[str]) -> None:
    """Measures the grid."""
    del argv
    code_hash.announce("initialisation")
    logging.set_verbosity(logging.WARNING)  # orbax says much of each checkpoint
    names = _SCALES.value or list(SCALES)
    if unknown := sorted(set(names) - set(SCALES)):
        raise SystemExit(f"--scales: expected names of {list(SCALES)}, found {unknown}")
    output = Path(_OUTPUT.value) if _OUTPUT.value else None
    measured = Measured(Study(Path(_RUN.value), _SAMPLE.value), output)
    first, *others = map(int, _SEEDS.value)
    chosen = [
        (name, _tuned(measured, name, pooling, first))
        for name, pooling in itertools.product(names, _POOLINGS.value)
    ]
    print("\nat the rate that is best with the first seed")
    for name, setting in chosen:
        _line(name, setting, [measured.of(setting, seed) for seed in (first, *others)])


if __name__ == "__main__":
    app.run(main)
