"""What kubectl itself makes of the manifests and argument lists; and what its answers mean."""

import json
import os
import random
import shutil
import subprocess

import pytest
import yaml
from tests.launch.clusters.test_job_set import SPECIAL

from launch import gke
from launch.clusters import job_set, kubectl
from launch.clusters.kubectl import KubectlError, Status
from tests.launch.clusters import api_server, cluster_jobs, kubernetes

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets"


@pytest.fixture(name="server", scope="module")
def make_server():
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl on the PATH")
    with api_server.running() as server:
        yield server


@pytest.fixture(name="call", scope="module")
def make_call(server, tmp_path_factory):
    """Runs an argument list of kubectl against the server, as no user."""
    home = str(tmp_path_factory.mktemp("home"))

    def call(arguments, text=""):
        environment = {"PATH": os.environ["PATH"], "HOME": home, "KUBECONFIG": os.devnull}
        words = [*arguments, f"--server={server.address}"]
        server.asked.clear()
        return subprocess.run(words, input=text, env=environment, capture_output=True, text=True)

    return call


def applied(call, server, job):
    text = gke.manifest(job)
    # The server has no definitions to validate with; an unknown flag or field manager would fail.
    done = call([*kubectl.apply_arguments(job, text), "--validate=false"], text)
    assert done.returncode == 0, done.stderr
    return server.asked[-1]


def test_apply_sends_the_manifest_and_overwrites_nobody(call, server):
    job = cluster_jobs.with_builder(namespace="team")
    asked = applied(call, server, job)
    assert (asked.method, asked.path) == ("PATCH", f"{JOBSETS}/mine")
    assert json.loads(asked.body) == job_set.manifest(job)
    (manager,) = asked.query["fieldManager"]
    assert asked.query["force"] == ["false"]
    assert applied(call, server, job).query["fieldManager"] == [manager]
    other = cluster_jobs.with_builder(namespace="team", max_restarts=7)
    assert applied(call, server, other).query["fieldManager"] != [manager]


def test_words_arrive_byte_for_byte_through_kubectl(call, server):
    """Its YAML parser is not PyYAML; hundreds of texts in one manifest."""
    draw = random.Random(0)
    characters = [chr(one) for one in (*range(1, 0x100), 0x2029, 0xFFFD, 0x10FFFF)]
    texts = {
        "".join(draw.choices([*SPECIAL, *characters], k=draw.randrange(9))) for _ in range(900)
    }
    assert len(texts) > 500
    words = ("program", *sorted(texts))
    variables = {f"V{number}": text for number, text in enumerate(words)}
    job = cluster_jobs.job("v5e:2x4", command=words, environment=variables, namespace="team")
    asked = applied(call, server, job)
    (process,) = kubernetes.processes(json.loads(asked.body))
    assert process.command == [*job_set.POD, *words]
    assert process.environment == variables


def test_status_logs_and_deletion_are_parsed(call, server):
    job = cluster_jobs.with_builder(namespace="team")
    applied(call, server, job)
    answer = call(kubectl.status_arguments("mine", "team"))
    assert kubectl.read_status(answer.stdout) == Status("running", 0), answer.stderr
    for follow in (False, True):
        done = call(kubectl.logs_arguments("mine", "team", follow))
        (asked,) = server.asked
        assert done.returncode == 0 and asked.path == "/api/v1/namespaces/team/pods"
        (selector,) = asked.query["labelSelector"]
        assert "jobset.sigs.k8s.io/jobset-name=mine" in selector
    assert call(kubectl.delete_arguments("mine", "team")).returncode == 0
    listed, deleted = server.asked[0], server.asked[1]
    assert (listed.path, listed.query) == (JOBSETS, {"labelSelector": ["kennel-run=mine"]})
    assert (deleted.method, deleted.path) == ("DELETE", f"{JOBSETS}/mine")


def test_only_what_has_the_label_is_deleted():
    words = kubectl.delete_arguments("mine", "team")
    assert [word for word in words if not word.startswith("--")] == ["kubectl", "delete", "jobset"]
    assert "--selector=kennel-run=mine" in words


def status(*conditions, **more):
    found = [
        {"type": name, "status": value, "reason": "Why", "message": "because"}
        for name, value in conditions
    ]
    return json.dumps({"kind": "JobSet", "status": {"conditions": found, **more}})


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (json.dumps({"kind": "JobSet"}), Status("running", 0)),
        (status(("Suspended", "True")), Status("waiting", 0)),
        (status(("Suspended", "False"), restarts=3), Status("running", 3)),
        (status(("Suspended", "False"), ("Completed", "True")), Status("done", 0)),
        (status(("Failed", "True"), restarts=2), Status("failed", 2, "Why: because")),
        (status(("Failed", "False")), Status("running", 0)),
    ],
)
def test_how_a_run_is(answer, expected):
    assert kubectl.read_status(answer) == expected


@pytest.mark.parametrize("answer", ["", "Error from server", "[]", '{"kind": "Pod"}'])
def test_an_answer_that_is_no_job_set(answer):
    with pytest.raises(KubectlError, match="expected a JobSet, found"):
        kubectl.read_status(answer)


def test_status_of_the_definition(shared):
    """`restarts` and conditions are where the definition of JobSets has them."""
    definition = yaml.load((shared / cluster_jobs.SCHEMA).read_text(), yaml.CSafeLoader)
    (version,) = definition["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert {"restarts", "conditions"} <= set(fields)
    assert {"type", "status", "reason", "message"} <= set(
        fields["conditions"]["items"]["properties"]
    )


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'jobsets \"mine\" not found' >&2; exit 1", 'get jobset mine .*"mine" not found'),
        ("echo nothing", "expected a JobSet, found 'nothing"),
        (None, "needs kubectl on the PATH"),
    ],
)
def test_status_without_an_answer(script, message, tmp_path, monkeypatch):
    if script is not None:
        (tmp_path / "kubectl").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KubectlError, match=message):
        kubectl.status("mine", "team")


def test_status_is_asked_for(tmp_path, monkeypatch):
    answer = status(("Completed", "True"), restarts=4)
    (tmp_path / "kubectl").write_text(f"#!/bin/sh\necho '{answer}'\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kubectl.status("mine", "team") == Status("done", 4)
