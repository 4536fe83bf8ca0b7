"""Slices of hosts for the rehearsals."""

from tests.launch.cloud.rehearsals.host_slice import make_slices

__all__ = ["make_slices"]
