"""Checkpoints: their content, and how to write, check and restore them."""
