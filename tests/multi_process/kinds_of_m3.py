"""One process of those that compute M3's loss and its gradients: `kinds_of_m3.py FILE`.

JAX's environment variables say which process it is. The first one writes the file: for each mesh
the loss, and the norm of each parameter's gradient.
"""

import json
import sys
from pathlib import Path
from typing import Any

from t5x_style.distributed import startup

MESHES = [((8, 1, 1), "ring"), ((2, 4, 1), "gather")]

if __name__ == "__main__":
    startup.start()

    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax import nnx

    from t5x_style.distributed.partitioning import MeshShape, Partitioner
    from tests.models.losses.contrastive_batches import PACKED, shapes_of
    from tests.models.objectives.test_m3 import losses, objective

    def placed(leaf: Any, value: jax.Array) -> jax.Array:
        whole = np.asarray(value)
        return jax.make_array_from_callback(whole.shape, leaf.sharding, whole.__getitem__)

    def found(shape: tuple[int, int, int], exchange: str) -> list[float]:
        partitioner = Partitioner(MeshShape(*shape))
        model = objective(
            PACKED, losses(teacher="m3_kd"), distil_after=0, exchange=exchange, encode_chunks=2
        )
        graph, params, rest = nnx.split(model, nnx.Param, ...)
        params = jax.tree.map(placed, partitioner.abstract(lambda: params)[0], params)
        rows = {name: group.rows for name, group in zip(PACKED, shapes_of(PACKED), strict=True)}
        mine = partitioner.local_rows(min(rows.values()))
        batch = {
            name: {key: np.asarray(array)[mine] for key, array in group.items()}
            for name, group in PACKED.items()
        }
        batch = partitioner.place_batch(batch, rows)

        def total(params: nnx.State, batch: Any) -> jax.Array:
            with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
                module = nnx.merge(graph, params, rest)
                module.train()
                return module.loss(batch, jax.random.key(5))[0].value()

        def figures(params: nnx.State, batch: Any) -> jax.Array:
            value, gradients = jax.value_and_grad(total)(params, batch)
            norms = [
                jnp.linalg.norm(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(gradients)
            ]
            return jnp.stack([value, *norms])

        return jax.jit(figures, out_shardings=partitioner.replicated)(params, batch).tolist()

    results = [found(*mesh) for mesh in MESHES]
    if jax.process_index() == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
