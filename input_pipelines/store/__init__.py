"""Token stores: how they are prepared, written and read."""
