"""Search by words next to that by a model."""
