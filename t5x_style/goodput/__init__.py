"""Where the wall time of a run went; imports no JAX."""
