"""Fixtures of tests on object storage, and of calls of `kennel tpu`."""

from tests.kits.toys.remote_folder import bucket
from tests.kits.toys.storage_fixtures import client, server
from tests.launch.cloud.tpu_command import enter_repository, make_world

__all__ = ["bucket", "client", "enter_repository", "make_world", "server"]
