"""Fixtures of sweeps on slices, and on object storage."""

from tests.kits.toys.remote_folder import bucket
from tests.kits.toys.storage_fixtures import server
from tests.kits.toys.sweep_house import make_sweep_house
from tests.launch.sweeps.sweep_world import make_world

__all__ = ["bucket", "make_sweep_house", "make_world", "server"]
