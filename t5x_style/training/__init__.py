"""The loop around the step: hooks, metrics, the start of a run."""
