"""A server without sockets: an app on a fake service, and a client of it."""

import pytest
from starlette.testclient import TestClient

from launch.service.app import create_app
from launch.service.settings import Settings
from tests.launch.service.fake_service import FakeCurrent, FakeService


@pytest.fixture
def service():
    return FakeService()


@pytest.fixture
def serve():
    """A function from a service and settings to a client."""
    opened = []

    def start(service, **settings):
        app = create_app(FakeCurrent(service), Settings(**{"threads": 2, **settings}))
        client = TestClient(app, raise_server_exceptions=False)
        opened.append(client.__enter__())
        return client

    yield start
    for client in opened:
        client.__exit__(None, None, None)


@pytest.fixture
def client(serve, service):
    return serve(service)
