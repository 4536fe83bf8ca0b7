"""An objective's own loss and metrics during training, on the same batches each time.

A training logs the loss of the current batch, with random masks; this is the loss of fixed
batches with the same masks each time, without dropout, so that moments and runs can be compared.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces import metrics as metrics_lib
from t5x_style.interfaces.batch_source import BatchSource, FiniteSource
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.step import compiled_step, jitted_functions


class ObjectiveEvaluator:
    """See the module's docstring."""

    def __init__(
        self,
        name: str,
        pipeline: BatchSource | FiniteSource,
        batches: int | None,
        metrics: Sequence[str],
        partitioner: Partitioner,
        seed: int = 0,
    ):
        """Args:
        name: prefix of the metrics' names.
        pipeline: gives the batches 0 to `batches` - 1, of the shapes that the objective asks for.
        batches: over which metrics are averaged; None: all of a pipeline that has an end.
        metrics: which of the objective's are reported; 'loss' is one.
        partitioner: of the training.
        seed: of what is hidden.

        Raises:
          ValueError: fewer than 1 batch, None of a pipeline without end.
        """
        if batches is None:
            batches = getattr(pipeline, "batches_in_all", None)
        if batches is None or batches < 1:
            raise ValueError(
                "ObjectiveEvaluator.batches: expected 1 or more, or None of a pipeline that has an "
                f"end, found {batches} of {type(pipeline).__name__}"
            )
        self.name, self.metrics = name, tuple(metrics)
        self._pipeline, self._batches = pipeline, batches
        self._partitioner, self._key = partitioner, jax.random.key(seed)
        specs = {
            group: {feature: jax.ShapeDtypeStruct(*leaf) for feature, leaf in features.items()}
            for group, features in pipeline.specs().items()
        }
        self._rows = compiled_step.rows_of(specs)

    @staticmethod
    def measures(name: str, metrics: Sequence[str]) -> tuple[str, Sequence[str]]:
        """See `hooks.Evaluator`."""
        return name, metrics

    def evaluate(self, functions: Mapping[str, Callable[..., Any]], step: int) -> dict[str, float]:
        """`metrics`, over all batches.

        Args:
          functions: a trainer's; 'objective' gives the metrics of a batch and a key.
          step: of the training; decides nothing.

        Raises:
          ValueError: a metric that the objective does not have.
        """
        local = self._partitioner.local_rows(min(self._rows.values()))
        found: dict[str, MetricSum] = {}
        for number in range(self._batches):
            batch = self._partitioner.place_batch(self._pipeline.batch(number, local), self._rows)
            one = functions[jitted_functions.OBJECTIVE](
                batch, jax.random.fold_in(self._key, number)
            )
            if missing := set(self.metrics) - one.keys():
                raise ValueError(
                    f"evaluator {self.name!r}: expected metrics among {sorted(one)}, found "
                    f"{sorted(missing)}"
                )
            one = {name: one[name] for name in self.metrics}
            found = {name: mean.merge(found[name]) for name, mean in one.items()} if found else one
        return metrics_lib.values(found)
