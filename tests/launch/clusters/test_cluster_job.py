"""What GKE would not start, or would not keep alive, is refused before a manifest is made."""

import dataclasses
import re

import pytest

from launch.clusters.cluster_job import ClusterJobError, IndexBuilder
from t5x_style.accelerators import slices
from t5x_style.accelerators.generations import GENERATIONS
from t5x_style.accelerators.slices import Slices
from tests.launch.clusters import cluster_jobs

ABSENT = Slices(dataclasses.replace(GENERATIONS["v4"], name="v3", gke_label=""), "2x2x1")
REFUSED = {
    "a tag": ({"image": "kennel:latest"}, "image: expected NAME@sha256:DIGEST, found"),
    "a short digest": ({"image": "kennel@sha256:abc"}, "a tag can change between two restarts"),
    "a tag before no digest": ({"image": "kennel:v1@"}, "image:"),
    "capitals": ({"name": "Mine"}, "name 'Mine' is no DNS-1123 label"),
    "an underscore": ({"name": "my_run"}, "write my-run"),
    "a digit first": ({"name": "1st"}, "a letter first"),
    "a dash last": ({"name": "mine-"}, "no - last): write mine"),
    "a long name": ({"name": "m" * 60}, "shorten"),
    "a name whose pods' are too long": ({"name": "m" * 46}, "would have 64 characters"),
    "no name": ({"name": ""}, "name '' is no"),
    "gcs": ({"run_dir": "gcs://my-bucket/run"}, "write gs://my-bucket/run"),
    "a local folder": ({"run_dir": "runs/mine"}, "a path on a pod's disk is lost"),
    "an absolute path": ({"run_dir": "/data/mine"}, "expected gs://BUCKET/FOLDER"),
    "a bucket alone": ({"run_dir": "gs://my-bucket"}, "is a whole bucket"),
    "an empty part": ({"run_dir": "gs://my-bucket//x"}, "write gs://my-bucket/x"),
    "a generation of TPU VMs only": ({"slices": ABSENT}, "GKE has no v3"),
    "slices of one host": (
        {"slices": slices.parse("2x v5e:2x4")},
        "smallest with several hosts: 2x v5e:4x4",
    ),
    "an index builder of one host twice": (
        {"index_builder": IndexBuilder(slices.parse("2x v6e:2x2"), ("a",))},
        "index-builder: expected one slice of one host",
    ),
    "an index builder of several hosts": (
        {"index_builder": IndexBuilder(slices.parse("v6e:4x4"), ("a",))},
        "found v6e:4x4, largest of one host: v6e:2x4",
    ),
    "no restart on Spot": (
        {"provisioning": "spot", "max_restarts": 0},
        "at least 1 on spot, found 0: the first preemption would end the run",
    ),
    "fewer than no restarts": ({"max_restarts": -1}, "at least 0 on on_demand, found -1"),
    "killed during a save": ({"save_seconds": 121}, "at least the 121 s that a save takes"),
    "no time of a save": ({"save_seconds": 0}, "grace_seconds"),
    "reserved by nobody": ({"provisioning": "reserved"}, "reservation: expected its name"),
    "reserved and on demand": ({"reservation": "ours"}, "found 'ours' with 'on_demand'"),
    "no provisioning": ({"provisioning": "cheap"}, "provisioning: expected one of on_demand"),
    "a numbered process": (
        {"environment": {"JAX_PROCESS_ID": "0"}},
        "JAX_PROCESS_ID numbers the processes",
    ),
    "a numbered slice": ({"environment": {"MEGASCALE_SLICE_ID": "0"}}, "leave it out"),
    "no variable": ({"environment": {"A-B": ""}}, "'A-B' is no name of a variable"),
    "NUL in a variable": ({"environment": {"A": "\0"}}, "environment: A has a NUL"),
    "NUL in the command": ({"command": ("a", "b\0")}, "trainer: 'b\\x00' in its command"),
    "half a character": ({"command": ("a\ud800",)}, "half a character"),
    "no command": ({"command": ()}, "trainer: expected a command"),
    "no queue's name": ({"queue": "My Queue"}, "queue 'My Queue' is no"),
    "no namespace": ({"namespace": ""}, "namespace '' is no"),
    "no service account": ({"service_account": "a@b"}, "service account 'a@b' is no"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_run_that_cannot_be_is_refused(case):
    changes, message = REFUSED[case]
    with pytest.raises(ClusterJobError) as refused:
        cluster_jobs.job(**changes)
    assert message in str(refused.value)


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ClusterJobError) as refused:
        cluster_jobs.job(name="My", image="x", run_dir="x", max_restarts=-1)
    assert [re.split("[: ]", line)[0] for line in str(refused.value).splitlines()] == [
        *("name", "image", "RUN_DIR", "max_restarts")
    ]


def test_limits_are_allowed():
    assert cluster_jobs.job(name="m" * 45, save_seconds=120, max_restarts=0).max_restarts == 0
    assert cluster_jobs.job(provisioning="spot", max_restarts=1).max_restarts == 1
    assert cluster_jobs.job(provisioning="reserved", reservation="ours").reservation == "ours"


@pytest.mark.parametrize("name", ["v3-8", "v99-8", "v6e:4x4x4", "v2:2x2"])
def test_slices_of_no_generation_are_refused_by_name(name):
    with pytest.raises(slices.SliceError, match=r"nearest|generations"):
        slices.parse(name)
