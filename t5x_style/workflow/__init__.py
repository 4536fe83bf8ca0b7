"""Stages as immutable versions in a store: their identity, their place, and who may use them."""
