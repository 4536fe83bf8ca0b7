"""Fixtures of tests on object storage."""

from tests.kits.toys.remote_folder import bucket
from tests.kits.toys.storage_fixtures import client, server

__all__ = ["bucket", "client", "server"]
