"""Losses, as functions of arrays."""
