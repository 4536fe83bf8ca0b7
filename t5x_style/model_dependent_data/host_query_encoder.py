"""Corrupt a batch on the host, ahead of its step, and embed its queries.

The training's own `corrupt`, with the step's own key, and the query's vectors under the parameters
of a version of the index: one small program, next to that of the step.
"""

import jax
import jax.numpy as jnp
import numpy as np

from t5x_style.interfaces import objective
from t5x_style.interfaces.batch_source import Batch, ModelView, SourceError, Specs
from t5x_style.interfaces.representation import QUERY
from t5x_style.model_dependent_data.versioned_index import Parameters, VersionError


def specs(view: ModelView, clean: Specs) -> Specs:
    """Specs of `corrupt`'s result for clean batches: group -> feature -> (shape, dtype)."""
    batch = {
        group: {name: jax.ShapeDtypeStruct(*leaf) for name, leaf in features.items()}
        for group, features in clean.items()
    }
    module = view.module()
    key = jax.eval_shape(lambda: jax.random.key(0))
    made = jax.eval_shape(lambda batch, key: module.corrupt(batch, key), batch, key)
    return {
        group: {name: (leaf.shape, np.dtype(leaf.dtype)) for name, leaf in features.items()}
        for group, features in made.items()
    }


class HostQueryEncoder:
    """(parameters of a version, clean batch, step) -> corrupted batch, and vectors of its queries.

    Made when batches are asked for: see `ModelView.program`.
    """

    def __init__(self, view: ModelView):
        self._run = view.program(_corrupt_and_embed)
        self._placed: tuple[Parameters, dict[str, jax.Array]] | None = None

    def __call__(self, parameters: Parameters, batch: Batch, step: int) -> tuple[Batch, np.ndarray]:
        """Corrupt as the step would, and embed the queries: [B, D] float32.

        Raises:
          VersionError: the version lacks parameters that queries are embedded with, or they have
            other shapes than the training's.
        """
        if self._placed is None or self._placed[0] is not parameters:  # once for each version
            self._placed = (parameters, jax.device_put(dict(parameters)))
        try:
            made, vectors = self._run(self._placed[1], batch, step)
        except SourceError as error:
            raise VersionError(
                f"step {step}: the version of the index is of another training: {error}. Build it "
                "from this training's checkpoints, in a separate folder."
            ) from error
        found = np.asarray(vectors)
        if not np.isfinite(found).all():
            raise VersionError(
                f"step {step}: queries have vectors that are not finite. The version of the index "
                f"brings {len(parameters)} parameters; expected all that embed queries, and "
                "finite ones: fix index_builder.Refresher.parameters, or look at the training."
            )
        return jax.tree.map(np.asarray, made), found


def _corrupt_and_embed(
    module: objective.Objective, batch: objective.Batch, key: jax.Array
) -> tuple[objective.Batch, jax.Array]:
    module.train()
    batch = module.corrupt(batch, key)
    module.eval()
    embed = objective.embedder(module.functions(), QUERY)
    return batch, embed(batch[QUERY])[:, 0].astype(jnp.float32)
