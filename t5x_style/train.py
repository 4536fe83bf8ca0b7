"""Trains an objective: `python -m t5x_style.train --gin_file=... --gin.MODEL_DIR=...`.

Leaves in MODEL_DIR: `checkpoints/`, `contract.json`, `metrics.jsonl`, `tensorboard/`, `curves.png`,
`goodput.json`, `summary.md` and the operative configuration. Run again, it resumes where it was;
the result is the same, bit for bit, as if it had never stopped. If a shorter training with the same
settings has finished, this one continues from it where the learning rate allows that: see
`longer_training`.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
from absl import logging

from t5x_style.checkpoints import checkpoint_directory
from t5x_style.checkpoints.agreement import together
from t5x_style.checkpoints.checkpointing import Checkpointer, Checkpointing
from t5x_style.configuration.suggestions import did_you_mean
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.goodput import attempts, table
from t5x_style.goodput.account import Account
from t5x_style.interfaces.batch_source import BatchSource, ModelDependentSource, as_model_dependent
from t5x_style.step.optimizers import AdamW
from t5x_style.step.train_state import MakeObjective
from t5x_style.training import compile_events, hooks, longer_training, metric_writer, warm_start
from t5x_style.training.progress import TrainingProgress
from t5x_style.training.trainer import Cadence, Trainer
from t5x_style.workflow import stages

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "train": {
        "name": "train",
        "version": 1,
        "knows_size": True,
        # A training that differs from a shorter, finished one in these alone continues from it.
        "length": ("cadence.steps", "optimizer.total_steps", "optimizer.decay_steps"),
        "outputs": ["checkpoint", "metrics", "model"],
        "program": True,
        "check": "check",
    }
}


def train(
    model_dir: str,
    objective: MakeObjective,
    pipeline: BatchSource | ModelDependentSource,
    optimizer: AdamW,
    partitioner: Partitioner,
    checkpointing: Checkpointing,
    cadence: Cadence,
    seed: int,
    micro_batches: int = 1,
    initialise_from: Sequence[warm_start.Initialise] = (),
    evaluators: Sequence[hooks.Evaluator] = (),
    development_metric: str | None = None,
) -> dict[str, str]:
    """The job of a training stage.

    Args:
      model_dir: where everything goes.
      objective: factory, called as objective(rngs=...).
      pipeline: gives the batches; may depend on the model, see `interfaces.batch_source`.
      optimizer: schedule, decay, what is frozen.
      partitioner: mesh and rules.
      checkpointing: how many to keep, and so on.
      cadence: steps, and how often what happens.
      seed: of parameters and of all randomness in steps.
      micro_batches: pieces of a batch for the gradient.
      initialise_from: weights to import when there is no checkpoint to resume from.
      evaluators: run every `cadence.evaluate_every` steps.
      development_metric: 'evaluator/metric'; the checkpoint where it is largest is kept.

    Returns:
      the named outputs.

    Raises:
      ValueError: no evaluator gives the development metric.
      ContractError: the pooling is not for training, or an evaluator's texts do not fit it.
      CheckpointError: a checkpoint is damaged, its own or that of the training that it continues.
      stages.Interrupted: SIGTERM came; everything is saved.
    """
    check(pipeline, cadence, evaluators, development_metric)
    development_metric = measured_development_metric(
        development_metric, {e.name: getattr(e, "metrics", None) for e in evaluators}
    )
    folder = Path(model_dir)
    shown = stages.name_of(model_dir)
    main = jax.process_index() == 0
    account = _account(model_dir)
    source = as_model_dependent(pipeline)
    together(lambda: continue_parent(folder, optimizer, cadence, source))
    checkpointer = Checkpointer(folder / "checkpoints", checkpointing)
    trainer = Trainer(
        objective, source, optimizer, partitioner, checkpointer, cadence, seed, micro_batches,
        account,
    )  # fmt: skip
    together(lambda: _require_room(model_dir, checkpointer.bytes_of_run(trainer.state)))
    how = trainer.start(initialise_from)
    first = int(trainer.state.step)
    contract = trainer.abstract_module().contract()
    hooks.check_contracts(evaluators, contract)
    log = metric_writer.MetricLog(folder, first, main)
    if main:
        print(f"[{shown}] {how}; {describe(trainer)}", flush=True)
        contract.save(folder)
    seconds = trainer.compile() if first < cadence.steps else 0.0
    if main and seconds:
        print(f"[{shown}] compiled the step in {seconds:.1f} s", flush=True)
    account.save(first)
    progress = TrainingProgress(shown, first, cadence.steps, main)
    finished = trainer.fit(log, progress, {}, evaluators, development_metric)
    best = checkpointer.best()
    with account.part("checkpoint"):
        checkpointer.close()
        if finished:
            checkpointer.thin()
    account.save()
    if not finished:
        raise stages.Interrupted(f"stopped at step {int(trainer.state.step)}, having saved")
    if main:
        _write_summary(log, shown, trainer, best, development_metric)
    return {"checkpoint": "checkpoints", "model": ".", "metrics": metric_writer.JSONL}


def _account(model_dir: str) -> Account:
    """Of the time of this process, from its start on."""
    path = Path(model_dir) / attempts.file_name(jax.process_index())
    account = Account(path, stages.process_start(model_dir))
    compile_events.charge_to(account)
    return account


def _require_room(model_dir: str, needed: int) -> int:
    stages.require_room(model_dir, needed)
    return needed


def continue_parent(
    folder: Path, optimizer: AdamW, cadence: Cadence, source: ModelDependentSource
) -> int:
    """Copies what a shorter, finished training left, if this one continues it and has not begun.

    Args:
      folder: of this training.
      optimizer, cadence, source: of this training.

    Returns:
      the step that this training continues from, 0 if there is nothing to continue.

    Raises:
      CheckpointError: what should be continued is damaged or absent.
    """
    if checkpoint_directory.resumable_steps(folder / "checkpoints"):
        return 0
    parent = stages.parent_of(str(folder))
    if parent is None:
        return 0
    step, said = longer_training.how(parent, optimizer, cadence.steps, source)
    print(f"[{stages.name_of(str(folder))}] {said}", flush=True)
    if step is None:
        return 0
    stages.continues(str(folder), parent)
    longer_training.seed(parent, folder, step, cadence.evaluate_every, source)
    return step


def measured_development_metric(
    metric: str | None, evaluators: Mapping[str, Sequence[str] | None]
) -> str | None:
    """The development metric, or None where its evaluator has nothing to measure.

    Checked before step 0; an evaluator that does not list its metrics is trusted until it runs.

    Args:
      metric: 'evaluator/metric', or None for none.
      evaluators: name -> names of its metrics, or None if it does not list them.

    Raises:
      ValueError: none of the evaluators gives the metric.
    """
    if metric is None:
        return None
    listed = evaluators.get(metric.partition("/")[0])
    if listed is not None and not listed:
        logging.warning(
            "no query to compute %s on: the last checkpoint is kept, not the best", metric
        )
        return None
    _require_metric(metric, evaluators)
    return metric


def check(
    pipeline: BatchSource | ModelDependentSource,
    cadence: Cadence,
    evaluators: Sequence[hooks.Evaluator],
    development_metric: str | None,
) -> None:
    """Check arguments before `train` runs.

    Raises:
      ValueError: no evaluator gives the development metric, or two have one name; the source would
        wait for a checkpoint without end.
    """
    names = [evaluator.name for evaluator in evaluators]
    if len(set(names)) < len(names):
        raise ValueError(f"train.evaluators: expected distinct names, found {names}")
    if development_metric is not None:  # no metrics: nothing to measure, which is no mistake
        listed = {e.name: getattr(e, "metrics", None) or None for e in evaluators}
        _require_metric(development_metric, listed)
    if isinstance(pipeline, ModelDependentSource):
        pipeline.require_patience(cadence.save_every)


def _require_metric(metric: str, evaluators: Mapping[str, Sequence[str] | None]) -> None:
    """Raises ValueError unless an evaluator has the metric among its names or patterns of names."""
    evaluator, _, name = metric.partition("/")
    listed = evaluators.get(evaluator, ())
    if listed is None or name in listed or any(fnmatch.fnmatchcase(name, one) for one in listed):
        return
    found = [f"{e}/{m}" for e, names in evaluators.items() for m in names or ("...",)]
    meant = did_you_mean(metric, [one for one in found if one[-1] not in "*."], most=1, least=0.5)
    raise ValueError(
        f"train.development_metric: expected 'evaluator/metric', found {metric!r}; "
        f"train.evaluators gives {', '.join(found) or 'nothing: it holds no evaluators'}{meant}"
    )


def describe(trainer: Trainer) -> str:
    """The size of the model and of the machine, in words."""
    parameters = sum(leaf.size for leaf in jax.tree.leaves(trainer.state.params))
    mesh = dict(trainer.partitioner.mesh.shape)
    return f"{parameters:,} trainable parameters, {trainer.cadence.steps:,} steps, mesh {mesh}"


def _write_summary(
    log: metric_writer.MetricLog,
    shown: str,
    trainer: Trainer,
    best: tuple[int, float] | None,
    metric: str | None,
) -> None:
    """Draws the curves, ends the account and writes the page; process 0 alone."""
    folder = log.folder
    metric_writer.draw_curves(folder / metric_writer.JSONL, folder / "curves.png", folder.name)
    spent = trainer.account.save()
    log.text("summary.md", summary(folder.name, trainer, best, metric, spent))
    print(f"[{shown}] {table.line(spent)}", flush=True)


def summary(
    name: str,
    trainer: Trainer,
    best: tuple[int, float] | None,
    metric: str | None,
    spent: attempts.Spent,
) -> str:
    """One page about the run, in Markdown."""
    jsonl = trainer.checkpointer.folder.parent / metric_writer.JSONL
    last: dict[str, float] = {}
    for line in metric_writer.read_lines(jsonl):
        last |= {k: v for k, v in line.items() if k != "step"}
    rows = [f"| {key} | {value:.6g} |" for key, value in sorted(last.items())]
    kept = f"Best {metric}: {best[1]:.4f} at step {best[0]}.\n\n" if best else ""
    return (
        f"# {name}\n\n{describe(trainer)}.\n\n{kept}![curves](curves.png)\n\n"
        "Last values:\n\n| metric | value |\n|---|---|\n" + "\n".join(rows) + "\n\n"
        "Time:\n\n" + "\n".join(table.markdown(spent, attempts.slowest_input(jsonl.parent)))
    )


if __name__ == "__main__":
    from t5x_style.distributed import startup

    startup.start()
    from t5x_style import stage

    stage.main("t5x_style.train.train")
