"""Vectors of tokens in less space: fewer of them, and of fewer bytes."""
