"""The same run for xpk and SkyPilot: words arrive unchanged, slices have their names there."""

import itertools
import shlex
import subprocess

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch.cloud import recipe_job
from launch.clusters import job_set, other_launchers
from launch.clusters.cluster_job import IndexBuilder
from launch.clusters.other_launchers import OtherLauncherError
from t5x_style.accelerators import slices
from t5x_style.accelerators.generations import PROVISIONING
from tests.launch.clusters import cluster_jobs, kubernetes
from tests.launch.clusters.test_job_set import ALL, TEXTS

IN_ONE_LINE = TEXTS.map(lambda text: text.replace("\n", "").replace("\r", ""))


def parsed(command):
    """(words that are no flags, flag -> value) of a printed command, as a shell reads it."""
    found = shlex.split(command.replace("\\\n", ""))  # shlex knows no continued lines
    first = [one for one in found if not one.startswith("--")]
    return first, dict(one.split("=", 1) if "=" in one else (one, None) for one in found[3:])


def in_the_pod(flags):
    """What bash runs there: Kubernetes expands what xpk wrote into the manifest."""
    return shlex.split(kubernetes.expand(flags["--command"], {"HOME": "/root"}))


@pytest.mark.parametrize("provisioning", PROVISIONING)
def test_a_command_of_xpk(provisioning):
    reservation = "ours" if provisioning == "reserved" else ""
    job = cluster_jobs.job(
        "2x v5e:4x4", provisioning=provisioning, reservation=reservation, grace_seconds=300
    )
    first, flags = parsed(other_launchers.xpk_command(job))
    assert first == ["xpk", "workload", "create"]
    capacity = {"on_demand": "--on-demand", "spot": "--spot", "flex_start": "--flex"}
    assert flags.pop(capacity.get(provisioning, "--reservation")) == (reservation or None)
    command = flags.pop("--command")
    assert in_the_pod({"--command": command}) == [
        *("env", *(f"{name}={value}" for name, value in recipe_job.SEVERAL_HOSTS.items())),
        *(*job_set.POD, *job.command),
    ]
    assert flags == {
        "--cluster": "$CLUSTER",
        "--project": "$PROJECT",
        "--zone": "$ZONE",
        "--workload": "mine",
        "--docker-image": cluster_jobs.IMAGE,
        "--tpu-type": "v5litepod-4x4",
        "--num-slices": "2",
        "--max-restarts": "100",
        "--termination-grace-period-seconds": "300",
        "--namespace": "default",
    }


def test_a_shell_reads_the_command_as_shlex_does():
    words = ("it's", '"$(HOME)" $$ `id` %s', "中", "\\")
    command = other_launchers.xpk_command(cluster_jobs.job(command=words))
    stand_in = "xpk() { printf '%s\\0' \"$@\"; }\nCLUSTER=c PROJECT=p ZONE=z\n"
    done = subprocess.run(
        ["sh", "-c", stand_in + command], capture_output=True, text=True, check=True
    )
    expected = shlex.split(command.replace("\\\n", ""))[1:]
    places = {"$CLUSTER": "c", "$PROJECT": "p", "$ZONE": "z"}
    for name, value in places.items():
        expected = [one.replace(f"={name}", f"={value}") for one in expected]
    assert done.stdout.split("\0")[:-1] == expected


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(IN_ONE_LINE, min_size=1, max_size=4), value=IN_ONE_LINE)
def test_words_arrive_byte_for_byte_through_xpk(words, value):
    job = cluster_jobs.job("v6e:2x2", command=tuple(words), environment={"V": value})
    _, flags = parsed(other_launchers.xpk_command(job))
    assert in_the_pod(flags) == ["env", f"V={value}", *job_set.POD, *words]


@pytest.mark.parametrize("word", ["two\nlines", "two\rlines"])
def test_xpk_cannot_pass_on_line_breaks(word):
    for changes in ({"command": (word,)}, {"environment": {"V": word}}):
        with pytest.raises(OtherLauncherError, match="line break"):
            other_launchers.xpk_command(cluster_jobs.job(**changes))


@pytest.mark.parametrize("name", ["v5e:1x1", "v5litepod-4", "v5e:2x4", "v6e-8"])
def test_slices_that_xpk_makes_of_other_hosts(name):
    with pytest.raises(OtherLauncherError, match="of one host; take another size"):
        other_launchers.xpk_command(cluster_jobs.job(name))


def test_xpk_starts_one_job():
    with pytest.raises(OtherLauncherError, match="index builder"):
        other_launchers.xpk_command(cluster_jobs.with_builder(queue=""))


def test_names_of_slices_differ():
    names = {str(one): other_launchers.xpk_type(one) for one in ALL if one.count == 1}
    assert names["v5p:4x4x16"] == "v5p-4x4x16" and names["tpu7x:2x2x1"] == "tpu7x-2x2x1"
    assert len(set(names.values())) == len(names)


def on_vms(*words, **changes):
    """A run without an image, which SkyPilot does not use."""
    return cluster_jobs.job(*words, **({"image": ""} | changes))


@pytest.mark.parametrize(("slices", "spot"), itertools.product(ALL, (False, True)), ids=str)
def test_a_task_of_skypilot_names_the_accelerator(slices, spot):
    job = on_vms(slices=slices, provisioning="spot" if spot else "on_demand")
    if slices.count > 1 or slices.generation.name == "tpu7x" or not slices.is_usual:
        with pytest.raises(OtherLauncherError, match=r"one slice|number of chips"):
            other_launchers.skypilot_task(job)
        return
    task = yaml.safe_load(other_launchers.skypilot_task(job))
    assert task["resources"] == {
        "infra": "gcp",
        "accelerators": f"tpu-{slices.accelerator_type}",
        "accelerator_args": {"runtime_version": slices.generation.runtime_version},
        "use_spot": spot,
    }
    assert task["envs"] == (recipe_job.SEVERAL_HOSTS if slices.hosts > 1 else {})


def test_names_of_accelerators_in_skypilot():
    """As its catalogue of Google Cloud lists them."""
    names = {"v4:2x2x1": "tpu-v4-8", "v5e:2x4": "tpu-v5litepod-8", "v5p:2x2x2": "tpu-v5p-16"}
    for name, expected in (names | {"v6e:4x4": "tpu-v6e-16"}).items():
        task = yaml.safe_load(other_launchers.skypilot_task(on_vms(name)))
        assert task["resources"]["accelerators"] == expected


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(TEXTS, min_size=1, max_size=4), value=TEXTS)
def test_words_arrive_byte_for_byte_through_skypilot(words, value):
    job = on_vms("v5e:2x4", command=tuple(words), environment={"V": value})
    task = yaml.load(other_launchers.skypilot_task(job), yaml.CSafeLoader)
    activate, _, command = task["run"].partition("\n")
    assert activate == ". .venv/bin/activate"
    assert shlex.split(command) == ["exec", *job_set.POD, *words] and task["envs"] == {"V": value}


def test_skypilot_brings_the_python_and_the_lock_of_the_launcher():
    task = yaml.safe_load(other_launchers.skypilot_task(on_vms()))
    assert "--require-hashes -r launch/cloud/uv_pin.txt" in task["setup"]
    assert "--python=3.11" in task["setup"] and "launch/cloud/tpu.lock" in task["setup"]


@pytest.mark.parametrize(
    "changes",
    [
        {"provisioning": "flex_start"},
        {"provisioning": "reserved", "reservation": "ours"},
        {"index_builder": IndexBuilder(slices.parse("v5e:2x4"), ("a",))},
    ],
)
def test_what_a_task_of_skypilot_cannot_ask_for(changes):
    with pytest.raises(OtherLauncherError, match=r"on demand or spot|index builder"):
        other_launchers.skypilot_task(on_vms(**changes))


IGNORED = {
    "queue": "tpus",
    "service_account": "writer",
    "scales_from_zero": True,
    "image": cluster_jobs.IMAGE,
    "namespace": "team",
    "max_restarts": 7,
    "grace_seconds": 300,
}


@pytest.mark.parametrize("name", IGNORED)
def test_flags_that_a_launcher_has_no_place_for(name):
    given = {name: IGNORED[name]}
    with pytest.raises(OtherLauncherError, match=f"SkyPilot takes no --{name};"):
        other_launchers.skypilot_task(on_vms(**given))
    job = cluster_jobs.job(**given)
    if name in other_launchers.XPK_IGNORES:
        with pytest.raises(OtherLauncherError, match=f"xpk takes no --{name};"):
            other_launchers.xpk_command(job)
    else:
        assert str(IGNORED[name]) in other_launchers.xpk_command(job)
