"""Hooks between steps: health check, logging, evaluation, saving, profiling, preemption.

The trainer calls the hooks in a fixed order after every step; each decides whether it is its turn.
"""

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from t5x_style.checkpoints.checkpointing import Checkpointer
from t5x_style.distributed import peer_watch
from t5x_style.evaluation.embedding_sample import EmbeddingSample
from t5x_style.goodput.account import Account
from t5x_style.interfaces import metrics as metrics_lib
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import ModelFunction
from t5x_style.step.train_state import TrainState
from t5x_style.training.metric_writer import EMBEDDINGS, MetricLog
from t5x_style.training.progress import TrainingProgress


class NonFiniteError(ValueError):
    """A loss or gradient was NaN or Inf; the update was not applied."""


@dataclasses.dataclass
class StepContext:
    """Argument of a hook: the state just after a step, or before the first one.

    Attributes:
      step: updates applied so far.
      state: after the step.
      metrics: of the step, still on the device.
      input_wait: seconds that the step waited for its batch.
      last: whether training ends here.
      evaluated: what evaluators said at this step, by name; filled by `Evaluate`.
      paused: whether something was measured after the step, which is not training time.
      stop: set by `Preemption`; the trainer leaves the loop.
    """

    step: int
    state: TrainState
    metrics: Mapping[str, MetricSum]
    input_wait: float
    last: bool
    evaluated: dict[str, float] = dataclasses.field(default_factory=dict)
    paused: bool = False
    stop: bool = False

    def wait(self) -> None:
        """Waits for the step in flight, before a part of the account that needs its state.

        Such a part would wait for it anyway; what is waited here is the step's time.
        """
        jax.block_until_ready(self.state.step)


Hook = Callable[[StepContext], None]


class StopWhenNotFinite:
    """Raises as soon as a step is known to have had a loss or gradient that is not finite.

    Looks at the step before the one in flight, so that the host never waits for the device, and at
    the step itself where training ends or is asked to stop. The state is safe meanwhile: an
    unhealthy state applies no update and is never saved. The metrics of the step are logged,
    whatever the interval of the log is, so that the log shows why the training ended.
    """

    def __init__(self, explain: Callable[[int, TrainState], str], log: MetricLog):
        self._explain, self._log = explain, log
        self._previous: Mapping[str, MetricSum] | None = None

    def __call__(self, moment: StepContext) -> None:
        ending = moment.metrics if moment.last or moment.stop else None
        waiting = [one for one in (self._previous, ending) if one is not None]
        self._previous = moment.metrics
        for metrics in waiting:
            if float(metrics["healthy"].value()) != 0.0:
                continue
            bad_step = int(moment.state.step)
            scalars = {f"train/{k}": v for k, v in metrics_lib.values(metrics).items()}
            self._log.write(bad_step + 1, scalars)  # a step that a resumed training makes again
            raise NonFiniteError(
                f"step {bad_step}: the loss or a gradient is not finite. The update was not "
                f"applied; parameters are those after {bad_step} updates, nothing was saved.\n"
                + self._explain(bad_step, moment.state)
            )


class Log:
    """Writes the metrics of every n-th step, with speed over the steps since the last line.

    A metric that counts steps, `NAME_steps`, is logged in minutes at that speed, too.
    """

    def __init__(self, every: int, log: MetricLog, show: Callable[[int, dict[str, float]], None]):
        self._every, self._log, self._show = every, log, show
        self._tokens: list[MetricSum] = []
        self._since, self._wait = time.perf_counter(), 0.0

    def __call__(self, moment: StepContext) -> None:
        self._tokens.append(moment.metrics["padding_share"])
        self._wait += moment.input_wait
        if moment.step % self._every and not moment.last:
            return
        scalars = {f"train/{k}": v for k, v in metrics_lib.values(moment.metrics).items()}
        seconds = max(time.perf_counter() - self._since, 1e-9)
        tokens = sum(float((t.weight - t.total).sum()) for t in jax.device_get(self._tokens))
        scalars |= {
            "timing/tokens_per_second": tokens / seconds,
            "timing/steps_per_second": len(self._tokens) / seconds,
            "timing/input_wait_share": self._wait / seconds,
        }
        minutes = seconds / len(self._tokens) / 60
        scalars |= {
            f"timing/{name.removesuffix('_steps').removeprefix('train/')}_minutes": value * minutes
            for name, value in scalars.items()
            if name.endswith("_steps")
        }
        self._log.write(moment.step, scalars)
        self._show(moment.step, scalars)
        self.restart_clock()

    def restart_clock(self) -> None:
        """Called after evaluation too, which is not training time; waiting for a save is."""
        self._tokens, self._since, self._wait = [], time.perf_counter(), 0.0


class Evaluator(Protocol):
    """Something that measures a model while it trains.

    One with an attribute `metrics`, the names of what `evaluate` gives, has a development metric
    checked before step 0. One with a static method `measures` has it checked before the first stage
    of a recipe, when no evaluator is made: of some arguments of the constructor, `measures` returns
    the name and the metrics, which may be patterns (`F1_*`) where the data decides. One with a
    method `check_contract` has it called with the objective's contract before its first use; it
    raises ContractError where texts of the evaluator were not made as the contract says.
    """

    name: str

    def evaluate(self, functions: Mapping[str, ModelFunction], step: int) -> dict[str, float]:
        """Metrics by name. `functions` are the objective's, jitted, with the present parameters."""


def check_contracts(evaluators: Sequence[Evaluator], contract: Contract) -> None:
    """Raises ContractError where an evaluator's texts were made otherwise than a contract says."""
    for evaluator in evaluators:
        if (check := getattr(evaluator, "check_contract", None)) is not None:
            check(contract)


class Evaluate:
    """Runs the evaluators every n steps and at the end."""

    def __init__(
        self,
        every: int,
        evaluators: Sequence[Evaluator],
        functions: Callable[[TrainState], Mapping[str, ModelFunction]],
        log: MetricLog,
        show: Callable[[int, dict[str, float]], None],
        account: Account,
    ):
        self._every, self._evaluators, self._functions = every, evaluators, functions
        self._log, self._show, self._account = log, show, account

    def __call__(self, moment: StepContext) -> None:
        if not self._evaluators or (moment.step % self._every and not moment.last):
            return
        moment.paused = True
        moment.wait()
        with self._account.part("evaluation"):
            self._evaluate(moment)

    def _evaluate(self, moment: StepContext) -> None:
        functions = self._functions(moment.state)
        for evaluator in self._evaluators:
            for name, value in evaluator.evaluate(functions, moment.step).items():
                moment.evaluated[f"{evaluator.name}/{name}"] = value
        scalars = {f"eval/{name}": value for name, value in moment.evaluated.items()}
        self._log.write(moment.step, scalars)
        self._show(moment.step, scalars)


class Diagnose:
    """Logs figures of the embeddings before step 0, every n steps and at the end.

    Those of step 0 are shown in one line. A problem is shown where it appears: at once, and again
    only after it was gone.
    """

    def __init__(
        self,
        every: int,
        sample: EmbeddingSample,
        functions: Callable[[TrainState], Mapping[str, ModelFunction]],
        log: MetricLog,
        progress: TrainingProgress,
        account: Account,
    ):
        self._every, self._sample, self._functions = every, sample, functions
        self._log, self._progress, self._account = log, progress, account
        self._shown: set[str] = set()

    def __call__(self, moment: StepContext) -> None:
        if not self._sample.groups or (moment.step % self._every and not moment.last):
            return
        moment.paused = True
        moment.wait()
        with self._account.part("evaluation"):
            self._measure(moment)

    def _measure(self, moment: StepContext) -> None:
        report = self._sample.measure(self._functions(moment.state), moment.step)
        if report.figures:
            scalars = {f"{EMBEDDINGS}{name}": value for name, value in report.figures.items()}
            self._log.write(moment.step, scalars)
        if moment.step == 0:
            self._progress.say(f"step 0, {report.line()}")
        for kind, message in report.problems.items():
            if kind not in self._shown:
                self._progress.warn(message)
        self._shown = set(report.problems)


class Save:
    """Saves every n steps, at the end, and whenever the development metric is the best so far.

    Saves, too, at the last step whose state a longer training shares: it continues from there.
    """

    def __init__(
        self,
        every: int,
        checkpointer: Checkpointer,
        meta: dict[str, Any],
        metric: str | None,
        account: Account,
    ):
        """Args:
        every: steps between regular checkpoints.
        checkpointer: where they go.
        meta: kept with each checkpoint.
        metric: 'evaluator/metric', larger is better; None keeps no best.
        account: of the time; saving is a part of it.
        """
        self._every, self._checkpointer, self._meta = every, checkpointer, meta
        self._metric, self._account = metric, account

    def __call__(self, moment: StepContext) -> None:
        value = self._development_value(moment)
        best = self._checkpointer.best()
        improved = value is not None and (best is None or value > best[1])
        shared = self._checkpointer.shared
        branch = shared is not None and moment.step == shared.step
        if moment.step % self._every == 0 or moment.last or moment.stop or improved or branch:
            moment.wait()
            with self._account.part("checkpoint"):
                self.save(moment.state, value)

    def save(self, state: TrainState, value: float | None = None) -> None:
        """Saves unless the state has latched unhealthy, which is never written over a good one."""
        if bool(state.healthy) and self._checkpointer.last_saved != int(state.step):
            self._checkpointer.save(state, self._meta, value)

    def _development_value(self, moment: StepContext) -> float | None:
        if self._metric is None or not moment.evaluated:
            return None
        if self._metric not in moment.evaluated:
            raise ValueError(
                f"trainer.Trainer.development_metric: expected one of {sorted(moment.evaluated)}, "
                f"found {self._metric!r}"
            )
        value = moment.evaluated[self._metric]
        return value if math.isfinite(value) else None


class KeepAccount:
    """Writes the account of the time where the log is written; the last of the hooks."""

    def __init__(self, every: int, account: Account):
        self._every, self._account = every, account

    def __call__(self, moment: StepContext) -> None:
        ending = moment.last or moment.stop
        if moment.step % self._every == 0 or moment.paused or ending:
            self._account.save(moment.step)


class Profile:
    """Writes a jax.profiler trace of steps [first, first + count) into the folder."""

    def __init__(self, first: int, count: int, folder: str):
        self._first, self._stop, self._folder = first, first + count, folder
        self._tracing = False  # a run that resumes after `first` never starts

    def __call__(self, moment: StepContext) -> None:
        ending = moment.last or moment.stop
        if moment.step == self._first and not ending:
            jax.profiler.start_trace(self._folder)
            self._tracing = True
        elif self._tracing and (moment.step == self._stop or ending):
            jax.block_until_ready(moment.state.step)
            jax.profiler.stop_trace()
            self._tracing = False


class Preemption:
    """Asks the trainer to stop, after the step in flight, once the process is sent SIGTERM.

    With several processes JAX's coordination service lets all of them stop at the same step, and
    keeps the signal: the last of them may be sent it while the others are saving already. With one
    there is no such service, and a signal handler does.
    """

    def __init__(self) -> None:
        self._asked = False
        self._distributed = jax.process_count() > 1
        if self._distributed:
            peer_watch.agree_on_steps()
        else:
            self._before = signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: Any) -> None:
        self._asked = True

    @property
    def asked(self) -> bool:
        """Whether a single process was sent SIGTERM, also while no step ends."""
        return self._asked

    def __call__(self, moment: StepContext) -> None:
        if self._distributed:
            from jax.experimental import multihost_utils

            moment.stop = multihost_utils.reached_preemption_sync_point(moment.step)
        else:
            moment.stop = self._asked

    def close(self) -> None:
        """Gives the signal back to whoever had it before a single process."""
        if not self._distributed:
            signal.signal(signal.SIGTERM, self._before)


def find_rows(is_healthy: Callable[[np.ndarray], bool], rows: int, max_rows: int = 8) -> list[int]:
    """Find the rows that make a batch unhealthy, by halving.

    Args:
      is_healthy: whether a batch of the given rows, repeated as needed, is healthy.
      rows: of the whole batch.
      max_rows: stop after that many are found.

    Returns:
      row numbers; empty if no single row is unhealthy by itself.
    """
    found: list[int] = []
    pending = [np.arange(rows)]
    while pending and len(found) < max_rows:
        subset = pending.pop()
        if is_healthy(subset):
            continue
        if len(subset) == 1:
            found.append(int(subset[0]))
        else:
            pending += [subset[len(subset) // 2 :], subset[: len(subset) // 2]]
    return found
