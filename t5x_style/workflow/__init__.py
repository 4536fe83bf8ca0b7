"""Stages as immutable versions in a store: what identifies one, where it is, and who may use it."""
