"""gcloud's errors by kind, what is asked again, and the real process."""

import os
import stat

import pytest

from launch.cloud import gcloud, reports
from launch.cloud.gcloud import Completed, Gcloud, GcloudError
from tests.launch.cloud.histories import CAPACITY, QUOTA

TRANSIENT = Completed(1, "", "ERROR: code=503 UNAVAILABLE: try again")


class Scripted:
    """Answers one after the other; None does not answer."""

    def __init__(self, *answers):
        self.answers, self.slept = list(answers), []

    def __call__(self, argv, timeout):
        answer = self.answers.pop(0)
        if answer is None:
            raise TimeoutError("no answer")
        return answer

    def gcloud(self):
        return Gcloud(self, self.slept.append, name="gcloud")


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (QUOTA, "quota"),
        (f"RESOURCE_EXHAUSTED: {QUOTA}", "quota"),
        (CAPACITY, "capacity"),
        ("ZONE_RESOURCE_POOL_EXHAUSTED", "capacity"),
        ("the zone does not have enough resources available, currently unavailable", "capacity"),
        ("ERROR: NOT_FOUND: Resource 'projects/p/locations/z/queuedResources/q' was not found",
         "not_found"),
        ("The following URLs matched no objects or files", "not_found"),
        ("ALREADY_EXISTS: Resource 'q' already exists", "exists"),
        ("PERMISSION_DENIED: Permission 'tpu.nodes.create' denied", "permission"),
        ("You do not currently have an active account selected.\n $ gcloud auth login",
         "permission"),
        ("Cloud TPU API has not been used in project 1 before or it is disabled", "permission"),
        ("HTTPError 403: me@b.com does not have storage.objects.get access to the Google Cloud "
         "Storage object. Permission 'storage.objects.get' denied on resource (or it may not "
         "exist).", "permission"),
        ("Permission 'storage.buckets.get' denied on resource (or it may not exist)",
         "permission"),
        ("HTTPError 403: Forbidden", "permission"),
        ("HTTPError 403: Quota exceeded for quota metric 'Requests'", "quota"),
        ("ERROR: (gcloud.storage.cp) gs://bucket not found: 404.", "not_found"),
        ("HTTPError 502: bad gateway", "transient"),
        ("Too many requests", "transient"),
        ("Failed to establish a new connection: Name or service not known", "transient"),
        ("INVALID_ARGUMENT: the accelerator v5litepod-16 was not valid", "usage"),
        ("something else", "other"),
    ],
)  # fmt: skip
def test_kinds_of_errors(message, kind):
    assert gcloud.classify(message) == kind


def test_reading_is_repeated_with_longer_and_longer_waits():
    script = Scripted(TRANSIENT, None, TRANSIENT, Completed(0, "[1]", ""))
    assert script.gcloud().read(["list"]) == [1]
    assert script.slept == [2.0, 4.0, 8.0]


def test_reading_gives_up():
    script = Scripted(*[TRANSIENT] * gcloud.ATTEMPTS)
    with pytest.raises(GcloudError, match="UNAVAILABLE") as error:
        script.gcloud().read(["list"])
    assert error.value.kind == "transient" and script.answers == []


@pytest.mark.parametrize(("answer", "kind"), [(None, "unanswered"), (TRANSIENT, "transient")])
def test_what_changes_something_is_asked_once(answer, kind):
    script = Scripted(answer)
    with pytest.raises(GcloudError) as error:
        script.gcloud().once(["create"])
    assert error.value.kind == kind and script.slept == []


def test_an_error_has_the_command_to_try_and_the_end_of_a_long_message():
    script = Scripted(Completed(2, "", "\n".join(f"line {n}" for n in range(30))))
    with pytest.raises(GcloudError, match=r"command: gcloud 'a b'") as error:
        script.gcloud().once(["a b"])
    assert error.value.kind == "usage" and error.value.short.splitlines()[0] == "line 24"


def test_an_answer_that_is_no_json():
    with pytest.raises(GcloudError, match="expected JSON from gcloud, found 'Listed 0 items'"):
        Scripted(Completed(0, "Listed 0 items", "")).gcloud().read(["list"])


@pytest.mark.parametrize(("out", "value"), [("my-project\n", "my-project"), ("(unset)\n", "")])
def test_settings(out, value):
    assert Scripted(Completed(0, out, "")).gcloud().setting("project") == value


def test_the_program_is_a_process_that_a_variable_names(tmp_path, monkeypatch):
    program = tmp_path / "my gcloud"
    program.write_text('#!/bin/sh\necho "$1 and $2"; echo oops >&2; exit 3\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv(gcloud.PROGRAM, os.fspath(program))
    done = gcloud.run_process([gcloud.program(), "a b", "c"], 60.0)
    assert done == Completed(3, "a b and c\n", "oops\n")
    with pytest.raises(TimeoutError, match="did not answer"):
        gcloud.run_process(["sleep", "60"], 0.01)
    with pytest.raises(GcloudError, match="install the Google Cloud CLI") as error:
        gcloud.run_process([str(tmp_path / "none")], 1.0)
    assert error.value.kind == "program"


def test_a_resource_as_google_reports_it():
    node = {"acceleratorType": "projects/p/locations/z/acceleratorTypes/v6e-16"}
    found = reports.resource(
        {
            "name": "projects/p/locations/z/queuedResources/mine",
            "state": {"state": "FAILED", "failedData": {"error": {"message": CAPACITY}}},
            "createTime": "2026-11-25T10:00:00.123456789Z",
            "tpu": {"nodeSpec": [{"multisliceParams": {"nodeCount": 2}, "node": node}]},
        }
    )
    assert (found.name, found.state, found.failure, found.run) == ("mine", "FAILED", CAPACITY, "")
    assert str(found.slices) == "2x v6e:4x4" and found.created == 1_795_600_800.0
    config = {"acceleratorConfig": {"type": "V5LITE_POD", "topology": "4x8"}}
    found = reports.resource({"name": "q", "tpu": {"nodeSpec": [{"node": config}]}})
    assert str(found.slices) == "v5e:4x8" and found.state == "STATE_UNSPECIFIED"


def test_hosts_are_read_between_other_lines():
    text = """Using ssh batch size of 2.
{"host": "a", "state": "running", "exit_code": null, "job": "j"}
{"host": "b", "state": "failed", "exit_code": 137}
{"host": "b", "state": "running"}
{"host": "c", "sta
{"level": "info"}"""
    hosts = {one.name: one for one in reports.hosts(text)}
    assert set(hosts) == {"a", "b"}
    assert hosts["a"].job == "j" and hosts["b"].state == "running"
