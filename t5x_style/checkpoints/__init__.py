"""Checkpoints: what they hold, how they are written, checked and restored."""
