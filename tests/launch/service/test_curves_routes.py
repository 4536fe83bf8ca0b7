"""The curves of trainings: the reply, a bundle without them, and what /info says."""

import dataclasses

from launch.service import bodies
from tests.launch.service.fake_service import CURVES, FakeService


def test_the_reply_is_what_the_bundle_holds(client):
    reply = client.get("/curves")
    found = reply.json()
    assert reply.status_code == 200 and found.pop("version") == 1
    assert found == dataclasses.asdict(CURVES)
    assert found["trainings"][1]["curves"][0]["values"] == [2.5, None, 1.25]


def test_the_reply_is_documented(client):
    found = client.get("/curves").json()
    assert bodies.CurvesReply.model_validate(found, extra="forbid").model_dump() == found
    schema = client.get("/openapi.json").json()["paths"]["/curves"]["get"]["responses"]["200"]
    assert schema["content"]["application/json"]["schema"]["$ref"].endswith("/CurvesReply")


def test_a_bundle_without_curves_says_so(serve):
    client = serve(FakeService(curves=False))
    assert client.get("/info").json()["curves"] is False
    reply = client.get("/curves")
    assert reply.status_code == 422
    assert "expected a bundle that has them" in reply.json()["error"]


def test_info_says_that_there_are_curves(client):
    assert client.get("/info").json()["curves"] is True


def test_it_needs_the_key(serve, service):
    client = serve(service, api_key="secret")
    assert client.get("/curves").status_code == 401
    key = {"Authorization": "Bearer secret"}
    assert client.get("/curves", headers=key).status_code == 200
