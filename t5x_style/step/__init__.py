"""One training step: its state, its program, the optimizer."""
