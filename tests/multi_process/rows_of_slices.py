"""One process of two whose devices do not follow each other in the mesh: `rows_of_slices.py`.

Checks that the rows which it supplies arrive where the global batch has them. JAX's environment
variables say which process it is.
"""

from t5x_style.distributed import startup

ROWS, TIMES = 32, 3  # of the smaller group; rows of the larger one for each of these

if __name__ == "__main__":
    startup.start()

    import jax
    import numpy as np

    from t5x_style.distributed import device_grid
    from t5x_style.distributed.partitioning import MeshShape, Partitioner

    def slice_of(device: jax.Device) -> int:
        """Slices of two devices; processes 1, 0, 1 and 0 have them."""
        return 2 * (device.id % 4 // 2) + 1 - device.process_index

    device_grid.slice_of = slice_of
    for shape in ((8, 1, 1), (4, 2, 1), (4, 1, 2)):
        partitioner = Partitioner(MeshShape(*shape))
        processes = [device.process_index for device in partitioner.mesh.devices.flat]
        assert processes == [1, 1, 0, 0, 1, 1, 0, 0], processes
        local = partitioner.local_rows(ROWS)
        ahead = slice(8, 16) if jax.process_index() == 0 else slice(0, 8)
        assert local[:8].tolist() == np.arange(ROWS)[ahead].tolist() and len(local) == 16, local
        passages = np.concatenate([np.arange(TIMES * row, TIMES * (row + 1)) for row in local])
        placed = partitioner.place_batch(
            {"query": {"id": local[:, None]}, "passage": {"id": passages}},
            {"query": ROWS, "passage": TIMES * ROWS},
        )
        whole = jax.jit(lambda batch: batch, out_shardings=partitioner.replicated)(placed)
        assert np.array_equal(whole["query"]["id"][:, 0], np.arange(ROWS))
        assert np.array_equal(whole["passage"]["id"], np.arange(TIMES * ROWS))
