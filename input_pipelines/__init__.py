"""From text to batches, without JAX."""
