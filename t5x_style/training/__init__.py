"""The loop around the step: hooks, metrics, where a run starts from."""
