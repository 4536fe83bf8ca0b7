"""What of a step is done before it, where blocks are retrieved on the host.

The training's own `corrupt`, with the step's own key, and the query's vectors under the parameters
of a version of the index: one small program, beside that of the step.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

from t5x_style.interfaces import representation
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.objective import Batch, Objective, embedder
from t5x_style.model_dependent_data import retrieval_batches, version_log
from t5x_style.model_dependent_data.versioned_index import Parameters, VersionError
from t5x_style.step import train_step
from t5x_style.step.optimizers import path_string
from t5x_style.step.train_state import Definition, TrainState

QUERY = "query"


class Prepare:
    """See `retrieval_batches.Prepare`. `begin` has to be called before it is used."""

    def __init__(self, definition: Definition, state: TrainState):
        """Args:
        definition: of the training.
        state: only shapes are looked at.
        """
        self._definition = definition
        shapes = jax.eval_shape(lambda: (state.params, state.variables))
        self._params, self._variables = shapes
        self._key_impl = jax.random.key_impl(state.key)
        self._key_data: np.ndarray | None = None
        self._placed: tuple[Parameters, dict[str, jax.Array]] | None = None
        self._jitted = jax.jit(self._run)

    def contract(self) -> Contract:
        """Of the objective."""
        return self._definition.module(self._params, self._variables).contract()

    def begin(self, key: jax.Array) -> None:
        """Takes over the key of a training; the array itself may be donated afterwards."""
        self._key_data = np.asarray(jax.random.key_data(key))

    def spec(self, pipeline: retrieval_batches.Spec) -> retrieval_batches.Spec:
        """What it makes of a pipeline's batches: group -> feature -> (shape, dtype)."""
        batch = {
            group: {name: jax.ShapeDtypeStruct(*leaf) for name, leaf in features.items()}
            for group, features in pipeline.items()
        }
        module = self._definition.module(self._params, self._variables)
        key = jax.eval_shape(lambda: jax.random.key(0))
        made = jax.eval_shape(lambda batch, key: module.corrupt(batch, key), batch, key)
        return {
            group: {name: (leaf.shape, np.dtype(leaf.dtype)) for name, leaf in features.items()}
            for group, features in made.items()
        }

    def __call__(
        self, parameters: Parameters, batch: retrieval_batches.Batch, step: int
    ) -> tuple[retrieval_batches.Batch, np.ndarray]:
        """Hides what the step hides of a clean batch, and embeds its queries: [B, D] float32.

        Raises:
          VersionError: the version lacks parameters that queries are embedded with.
        """
        assert self._key_data is not None, "begin was not called"
        nnx.use_eager_sharding(False)  # of this thread; see `partitioning`
        if self._placed is None or self._placed[0] is not parameters:  # once for each version
            self._placed = (parameters, jax.device_put(dict(parameters)))
        made, vectors = self._jitted(self._placed[1], batch, self._key_data, np.int32(step))
        found = np.asarray(vectors)
        if not np.isfinite(found).all():
            raise VersionError(
                f"step {step}: queries have vectors that are not finite. The version of the index "
                f"brings {len(parameters)} parameters; expected all that embed queries, and "
                "finite ones: mend index_builder.Refresher.parameters, or look at the training."
            )
        return jax.tree.map(np.asarray, made), found

    def _run(
        self, parameters: Mapping[str, jax.Array], batch: Batch, key_data: Any, step: Any
    ) -> tuple[Batch, jax.Array]:
        module: Objective = self._definition.module(
            _filled(self._params, parameters), _filled(self._variables, parameters)
        )
        module.train()
        key = jax.random.wrap_key_data(key_data, impl=self._key_impl)
        batch = module.corrupt(batch, train_step.step_keys(key, step)[0])
        module.eval()
        embed = embedder(module.functions(), representation.QUERY)
        return batch, embed(batch[QUERY])[:, 0].astype(jnp.float32)


def _filled(state: nnx.State, parameters: Mapping[str, jax.Array]) -> nnx.State:
    """A state with the parameters that are given, NaN elsewhere: what is not used costs nothing."""

    def fill(path: tuple[Any, ...], leaf: Any) -> Any:
        given = parameters.get(path_string(path))
        (value,) = jax.tree.leaves(leaf)
        shape, dtype = value.shape, value.dtype
        if given is None:
            nothing = jnp.nan if jnp.issubdtype(dtype, jnp.floating) else 0
            return leaf.replace(jnp.full(shape, nothing, dtype))
        if given.shape != shape:
            raise VersionError(
                f"{path_string(path)}: expected shape {shape}, found {given.shape} in a version of "
                "the index: it is of another training"
            )
        return leaf.replace(given.astype(dtype))

    return nnx.from_flat_state(
        [(path, fill(path, leaf)) for path, leaf in nnx.to_flat_state(state)]
    )


class HostRetrievalSession:
    """A training's retrieval: its pipeline, and what has to be told where the training begins.

    Attributes:
      pipeline: gives batches that bring evidence.
    """

    def __init__(
        self,
        pipeline: retrieval_batches.Pipeline,
        retrieval: retrieval_batches.HostRetrieval,
        definition: Definition,
        state: TrainState,
        folder: Path,
    ):
        """
        Args:
          pipeline: gives clean batches.
          retrieval: what is retrieved.
          definition, state: of the training.
          folder: of the training, where it is written down which run this is, and what it saw;
            the same for all processes.
        """
        self._prepare = Prepare(definition, state)
        self._folder = folder
        self.pipeline = retrieval_batches.RetrievalBatches(
            pipeline,
            retrieval,
            self._prepare.spec(pipeline.specs()),
            self._prepare.contract(),
            self._prepare,
        )

    def begin(self, key: jax.Array) -> None:
        """Where a training begins or goes on; `key` is its key, which may be donated afterwards."""
        self._prepare.begin(key)
        path = self._folder / version_log.RECORD
        record: version_log.Record | None = None
        if jax.process_index() == 0:
            self._folder.mkdir(parents=True, exist_ok=True)
            if version_log.run_of(self._folder) is None:
                version_log.new_run(self._folder)
            record = version_log.Record(path)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("host retrieval: which run this is")
        run = version_log.run_of(self._folder)
        if run is None:
            raise ValueError(
                f"{self._folder}: expected {version_log.RUN}, which process 0 has written, "
                "found none: all processes have to see one folder."
            )
        self.pipeline.begin(run, record or version_log.RemoteLog(path))


def require_patience(retrieval: retrieval_batches.HostRetrieval, save_every: int) -> None:
    """Raises ValueError if a training would wait for an index of a checkpoint it never comes to."""
    bound, least = retrieval.max_staleness_steps, save_every + retrieval.ahead + 1
    if retrieval.when_stale == "pause" and bound is not None and bound < least:
        raise ValueError(
            f"HostRetrieval.max_staleness_steps: expected at least {least} (a checkpoint every "
            f"{save_every} steps, and {retrieval.ahead} batches made ahead), found {bound}: "
            "training would wait for an index of a checkpoint that it has not come to. Save more "
            "often, or let the index be older."
        )
