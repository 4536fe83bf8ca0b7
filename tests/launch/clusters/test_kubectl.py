"""What kubectl itself makes of the manifests and argument lists."""

import json
import os
import random
import shutil
import subprocess

import pytest
import yaml

from launch import gke
from launch.clusters import job_set, kubectl
from tests.launch.clusters import api_server, cluster_jobs, kubernetes
from tests.launch.clusters.test_job_set import SPECIAL

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
    assert json.loads(answer.stdout)["kind"] == "JobSet", answer.stderr
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


def test_status_of_the_definition(shared):
    """`restarts` and conditions are where the definition of JobSets has them."""
    definition = yaml.load((shared / cluster_jobs.SCHEMA).read_text(), yaml.CSafeLoader)
    (version,) = definition["spec"]["versions"]
    fields = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    assert {"restarts", "conditions"} <= set(fields)
    assert {"type", "status", "reason", "message"} <= set(
        fields["conditions"]["items"]["properties"]
    )
