"""Accounts of a run's wall time; imports no JAX."""
