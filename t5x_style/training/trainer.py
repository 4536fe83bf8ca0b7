"""The loop. It knows an objective by its protocol only, and does the same things in the same order
for all of them; what differs between runs is bound in gin."""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import jax
import numpy as np

from t5x_style.checkpoints.checkpoint_directory import Shared
from t5x_style.checkpoints.checkpointing import Checkpointer
from t5x_style.distributed import startup
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.distributed.replica_fingerprints import ReplicaFingerprints
from t5x_style.evaluation.embedding_sample import EmbeddingSample
from t5x_style.goodput.account import Account
from t5x_style.interfaces import batch_source, objective
from t5x_style.interfaces.batch_source import BatchSource, ModelDependentSource
from t5x_style.step import compiled_step, jitted_functions, static_tables, train_state, train_step
from t5x_style.step.optimizers import AdamW
from t5x_style.step.train_state import MakeObjective, TrainState
from t5x_style.training import divergence, hooks, warm_start
from t5x_style.training.device_watch import DeviceWatch
from t5x_style.training.limits import WatchLimits
from t5x_style.training.metric_writer import MetricLog
from t5x_style.training.model_view import TrainingView
from t5x_style.training.progress import TrainingProgress

Functions = Mapping[str, objective.ModelFunction]


class PlanError(ValueError):
    """A checkpoint was trained on another plan than the pipeline has now."""


@dataclasses.dataclass(frozen=True)
class Cadence:
    """How long training is and how often things happen, in steps.

    Attributes:
      steps: updates in all; 0 leaves the initial parameters unchanged.
      log_every, evaluate_every, save_every: steps between two of these; the last step has all.
      evaluate_at_start: whether the evaluators see the parameters of step 0, too.
      profile_first, profile_count: which steps are traced; count 0 traces none.
      compare_hosts_every: steps between two comparisons of the hosts' states, where there are
        several; 0 for never. See `divergence`.
    """

    # The marks say which fields do not change results, unless the source of batches names them in
    # `ModelDependentSource.decides`.
    steps: int
    log_every: Annotated[int, "operational"] = 50
    evaluate_every: Annotated[int, "operational unless development_metric"] = 500
    save_every: Annotated[int, "operational"] = 500
    evaluate_at_start: Annotated[bool, "operational"] = False
    profile_first: Annotated[int, "operational"] = 10
    profile_count: Annotated[int, "operational"] = 0
    compare_hosts_every: Annotated[int, "operational"] = 100

    def __post_init__(self) -> None:
        for name in (
            *("steps", "log_every", "evaluate_every", "save_every"),
            "compare_hosts_every",
        ):
            smallest = 0 if name in ("steps", "compare_hosts_every") else 1
            if getattr(self, name) < smallest:
                raise ValueError(
                    f"Cadence.{name}: expected at least {smallest}, found {getattr(self, name)}"
                )
        if self.profile_count < 0 or (self.profile_count and self.profile_first < 1):
            raise ValueError(
                "Cadence: expected profile_first >= 1 and profile_count >= 0, found "
                f"{self.profile_first} and {self.profile_count}"
            )


class Trainer:
    """A run: a state, the step that changes it, and what happens in between."""

    def __init__(
        self,
        make_objective: MakeObjective,
        source: BatchSource | ModelDependentSource,
        optimizer: AdamW,
        partitioner: Partitioner,
        checkpointer: Checkpointer,
        cadence: Cadence,
        seed: int,
        micro_batches: int = 1,
        account: Account | None = None,
    ):
        """Builds the initial state and checks everything that can be checked before a step.

        Args:
          make_objective, source, optimizer, partitioner, checkpointer, cadence, seed,
            micro_batches: see `t5x_style.train.train`.
          account: of the time; None: one that nobody reads.

        Raises:
          BatchError: the source does not give what the objective expects.
          ContractError: the objective's pooling is not for training.
          PartitioningError: rows or sizes do not divide by the mesh.
          ValueError: fewer than 1 micro-batches, or several of an objective that couples its
            examples; a source that is incomplete, or that does not fit this training.
        """
        unbound = batch_source.as_model_dependent(source)
        self.partitioner, self.checkpointer = partitioner, checkpointer
        self.cadence, self.account = cadence, account or Account()
        branch = optimizer.branch_step()
        shared = cadence.steps if branch is None else min(branch, cadence.steps)
        checkpointer.shared = Shared(shared, cadence.evaluate_every)
        self.definition, self.state, self.shardings = train_state.create(
            make_objective, optimizer, partitioner, seed, micro_batches, corrupted=unbound.corrupts
        )
        self._stop_asked: Callable[[], bool] = lambda: False
        self.view = self._seen_by_source()
        self.pipeline: BatchSource = unbound.bind(self.view)
        self._specs = {
            group: {name: jax.ShapeDtypeStruct(*leaf) for name, leaf in features.items()}
            for group, features in self.pipeline.specs().items()
        }
        self._rows = compiled_step.rows_of(self._specs)
        self._base_rows = min(self._rows.values())
        module = self.abstract_module()
        self._check(module, micro_batches)
        self._sample = EmbeddingSample(module, unbound.clean, partitioner, unbound.texts)
        self._local_rows = partitioner.local_rows(self._base_rows)
        self._step = compiled_step.jit(self.definition, partitioner, self.shardings)
        self._compiled: Callable[..., Any] | None = None
        self._functions = jitted_functions.jitted_functions(
            self.definition.graphdef, module.functions(), partitioner.mesh
        )
        self._functions[jitted_functions.OBJECTIVE] = jitted_functions.jitted_objective(
            self.definition.graphdef, partitioner.mesh
        )

    def abstract_module(self) -> objective.Objective:
        """The objective without arrays, to ask for specs and contract."""
        return self.view.module()

    def _seen_by_source(self) -> TrainingView:
        return TrainingView(
            definition=self.definition,
            state=lambda: self.state,
            partitioner=self.partitioner,
            folder=self.checkpointer.folder.parent,
            save_every=self.cadence.save_every,
            functions=lambda: self.functions(self.state),
            snapshot=self._snapshot,
            refreshing=lambda: self.account.part("refresh"),
            stop_asked=lambda: self._stop_asked(),
        )

    def _snapshot(self) -> None:
        if self.checkpointer.latest() is None:
            with self.account.part("checkpoint"):
                self.checkpointer.save(self.state, self._meta())
                self.checkpointer.wait()

    def _meta(self) -> dict[str, Any]:
        """Metadata of a checkpoint that must match for it to be resumed."""
        tables = static_tables.fingerprints(self._sources())
        return {"plan": self.pipeline.fingerprint, "tables": tables}

    def _check(self, module: objective.Objective, micro_batches: int) -> None:
        specs = module.batch_specs()
        objective.check_batch(self._spec_like(specs), self._specs, "the pipeline")
        compiled_step.check(module, self._specs, self.partitioner, micro_batches)
        module.contract().require_trainable()

    def _spec_like(self, specs: list[dict[str, Any]]) -> dict[str, Any]:
        """The bucket whose shapes the pipeline gives, or the first, for the error message."""
        for spec in specs:
            try:
                objective.check_batch(spec, self._specs, "")
                return spec
            except objective.BatchError:
                continue
        return specs[0]

    def start(self, initialise_from: Sequence[warm_start.Initialise] = ()) -> str:
        """Resumes if there is a checkpoint, else imports weights, else starts from scratch.

        Returns:
          which of these happened, in words.

        Raises:
          PlanError: the checkpoint belongs to another plan: its steps saw other batches.
          TableError: it belongs to another corpus.
        """
        if self.checkpointer.latest() is not None:
            self.state, meta = self.checkpointer.restore(self.state, self.shardings)
            static_tables.require_same(meta.get("tables", {}), self._sources(), "the checkpoint")
            if meta["plan"] != self.pipeline.fingerprint:
                raise PlanError(
                    f"checkpoint at step {int(self.state.step)} was trained on plan "
                    f"{meta['plan']}, the pipeline now has {self.pipeline.fingerprint}: data, seed "
                    "or batch changed. Use another MODEL_DIR, or initialise_from its weights."
                )
            self._fill_tables()
            return f"resumed at step {int(self.state.step)}"
        how = "from scratch"
        if initialise_from:
            self.state = warm_start.apply(self.state, initialise_from, self.shardings)
            how = "imported weights: " + ", ".join(str(source) for source in initialise_from)
        self._fill_tables()
        self._begin()
        return how

    def _sources(self) -> dict[str, objective.TableSource]:
        return self.abstract_module().table_sources()

    def _fill_tables(self) -> None:
        variables = static_tables.fill(
            self.state.variables, self._sources(), self.shardings.variables
        )
        self.state = dataclasses.replace(self.state, variables=variables)

    def _begin(self) -> None:
        """Lets the objective see its first parameters, such as to embed what it retrieves from."""
        if type(self.abstract_module()).on_train_start is objective.Objective.on_train_start:
            return
        begin = jax.jit(
            functools.partial(train_step.begin, self.definition, self.partitioner.mesh),
            out_shardings=self.shardings.variables,
        )
        with self.account.part("refresh"):
            variables = jax.block_until_ready(begin(self.state))
        self.state = dataclasses.replace(self.state, variables=variables)

    def compile(self) -> float:
        """Compiles the step for the batch that was checked; returns the seconds it took.

        Done before step 0, so that what does not compile or does not fit is known at once, and
        tokens/s count training only.
        """
        started = time.perf_counter()
        with self.account.part("compile"):
            traced = compiled_step.trace(self._step, self.partitioner, self.state, self._specs)
            self._compiled = traced.lower().compile()
        return time.perf_counter() - started

    def fit(
        self,
        log: MetricLog,
        progress: TrainingProgress,
        meta: dict[str, Any],
        evaluators: Sequence[hooks.Evaluator] = (),
        development_metric: str | None = None,
    ) -> bool:
        """Trains to the last step, or until asked to stop.

        Returns:
          False if it stopped early, having saved.

        Raises:
          NonFiniteError: a loss or gradient was NaN or Inf; names step and rows.
          LimitError: a metric is above what the objective allows.
        """
        preemption = hooks.Preemption()
        log_hook = hooks.Log(self.cadence.log_every, log, progress.show)
        self._stop_asked = lambda: preemption.asked
        meta = meta | self._meta()
        evaluate = hooks.Evaluate(
            self.cadence.evaluate_every,
            evaluators,
            self.functions,
            log,
            progress.show,
            self.account,
        )
        diagnose = hooks.Diagnose(
            self.cadence.evaluate_every, self._sample, self.functions, log, progress, self.account
        )
        after_step: list[hooks.Hook] = [
            preemption,  # first: the others act differently on the last step before a stop
            # Before saving: of a step that is known to be bad nothing is kept.
            hooks.StopWhenNotFinite(self._explain_non_finite, log),
            *self._comparisons(),
            log_hook,
            WatchLimits(self.cadence.log_every, self.abstract_module().limits, progress.warn),
            diagnose,
            evaluate,
            # After evaluation, which decides whether this step is the best so far.
            hooks.Save(
                self.cadence.save_every, self.checkpointer, meta, development_metric, self.account
            ),
            hooks.KeepAccount(self.cadence.log_every, self.account),
        ]
        if self.cadence.profile_count:
            after_step.append(
                hooks.Profile(
                    self.cadence.profile_first,
                    self.cadence.profile_count,
                    str(log.folder / "profile"),
                )
            )
        try:
            if int(self.state.step) == 0:
                start = hooks.StepContext(0, self.state, {}, 0.0, last=False)
                diagnose(start)
                if self.cadence.evaluate_at_start:
                    evaluate(start)
                if not self.cadence.steps:
                    self._save(meta)
            finished = self._loop(after_step, log_hook)
        except batch_source.StopAsked:
            self._save(meta)
            finished = False
        except BaseException:
            # not `wait`, in which processes agree: the others may be anywhere
            self.checkpointer.finish_alone()
            raise
        finally:
            preemption.close()
            progress.close()
            log.close()
        with self.account.part("checkpoint"):
            self.checkpointer.wait()
        return finished

    def _save(self, meta: dict[str, Any]) -> None:
        with self.account.part("checkpoint"):
            self.checkpointer.save(self.state, meta)

    def _comparisons(self) -> list[hooks.Hook]:
        """With other processes, what compares them."""
        peers, every = startup.peers(), self.cadence.compare_hosts_every
        if peers is None or not every:
            return []
        fingerprints = ReplicaFingerprints(self.state, self.partitioner.mesh)
        data = lambda: self.pipeline.fingerprint  # noqa: E731
        return [divergence.CompareHosts(every, peers, fingerprints, data)]

    def _loop(self, after_step: list[hooks.Hook], log_hook: hooks.Log) -> bool:
        first, last = int(self.state.step), self.cadence.steps
        if first >= last:
            return True
        if self._compiled is None:
            self.compile()
        compiled = self._compiled
        assert compiled is not None
        read_ahead = contextlib.closing(self.pipeline.batches(first, self._local_rows))
        with read_ahead as batches, DeviceWatch() as device, self.account.loop():
            log_hook.restart_clock()
            for step in range(first, last):
                self.account.begin_step(step)
                with self.account.part("input"):
                    asked = device.now()
                    batch = self.partitioner.place_batch(next(batches), self._rows)
                    waited = device.now() - asked
                    self.account.charge("step", device.busy(asked))
                self.state, metrics = compiled(self.state, batch)  # donates the old state
                device.step(metrics["healthy"])
                moment = hooks.StepContext(
                    step + 1, self.state, metrics, waited, last=step + 1 == last
                )
                for hook in after_step:
                    hook(moment)
                if moment.paused:
                    log_hook.restart_clock()
                if moment.stop:
                    return moment.last
        return True

    def functions(self, state: TrainState) -> Functions:
        """The objective's functions and `OBJECTIVE`, with the parameters of `state`."""
        return jitted_functions.bound(self._functions, state.params, state.variables)

    def _explain_non_finite(self, step: int, state: TrainState) -> str:
        """Repeats the step on parts of its batch to name the rows to blame."""
        healthy_state = dataclasses.replace(state, healthy=jax.numpy.ones((), bool))
        repeat = jax.jit(
            lambda state, batch: train_step.train_step(
                self.definition, self.partitioner.mesh, state, batch
            )[1]["healthy"].value()
        )

        def is_healthy(subset: np.ndarray) -> bool:
            filled = np.resize(subset, self._base_rows)[self._local_rows]
            batch = self.partitioner.place_batch(self.pipeline.batch(step, filled), self._rows)
            return float(repeat(healthy_state, batch)) == 1.0

        rows = hooks.find_rows(is_healthy, self._base_rows)
        if not rows:
            return "No single row of the batch does it alone."
        examples = {
            group: features["example_id"].tolist()
            for group, features in self.pipeline.batch(step, np.asarray(rows)).items()
            if "example_id" in features
        }
        return f"Rows of the batch that do it alone: {rows}; their example ids: {examples}."
