"""Requests: what is refused, and what the argument lists of legal ones say."""

import pytest

from launch.cloud import durations, queued_resources, requests, resource_names
from launch.cloud.requests import Request
from t5x_style.accelerators import slices
from tests.launch.cloud.planted_errors import PLANTED


def request(name="v5e:4x4", **options):
    return Request("mine", slices.parse(name), "us-west4-a", "my-project", **options)


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_refused_with_what_to_write(name):
    with pytest.raises(ValueError, match=PLANTED[name].message):
        PLANTED[name].make()


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(requests.RequestError) as refusal:
        Request("Mine", slices.parse("v4-8"), "us-west4", "my-project", "flex_start")
    assert len(str(refusal.value).splitlines()) == 3
    assert "--max_run" not in str(refusal.value)  # no flag helps v4 to flex-start


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("v5e:2x4", {}, "--node-id=mine --accelerator-type=v5litepod-8"),
        ("v5e:2x4", {"provisioning": "spot"}, "--spot"),
        ("2x v6e-16", {}, "--node-count=2 --node-prefix=mine --accelerator-type=v6e-16"),
        ("v4:4x4x16", {}, "--type=v4 --topology=4x4x16 --runtime-version=tpu-ubuntu2204-base"),
        ("v4:4x8x8", {}, "--accelerator-type=v4-512"),
        ("v6e-8", {"provisioning": "reserved"}, "--reserved"),
        ("v6e-8", {"valid_until": 21_600}, "--valid-until-duration=6h"),
        ("v6e-8", {"labels": {"team": "a"}}, "--labels=team=a,kennel-run=mine"),
        ("v6e-8", {"internal_ips": True, "network": "n"}, "--network=n --internal-ips"),
    ],
)
def test_released_commands(name, options, words):
    arguments = queued_resources.create(request(name, **options))
    assert arguments[:4] == ["compute", "tpus", "queued-resources", "create"]
    assert set(words.split()) <= set(arguments) and "--async" in arguments


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        (
            "v5e-8",
            {"provisioning": "flex_start", "max_run": 4 * 3600},
            "--provisioning-model=flex-start --max-run-duration=4h",
        ),
        (
            "v6e-8",
            {"provisioning": "reserved", "reservation": "ours"},
            "--reserved --reservation=ours",
        ),
        (
            "v5p:4x4x16",
            {"provisioning": "spot"},
            "--type=v5p --topology=4x4x16 --provisioning-model=spot",
        ),
    ],
)
def test_alpha_commands_where_only_they_can_say_it(name, options, words):
    arguments = queued_resources.create(request(name, **options))
    assert arguments[0] == "alpha" and set(words.split()) <= set(arguments)
    assert "--spot" not in arguments


def test_labels_say_whose_a_resource_is():
    labels = request(run_dir="gs://bucket/mine").all_labels
    assert labels["kennel-run"] == "mine"
    assert labels["kennel-folder"] == requests.folder_key("gs://bucket/mine/")
    assert labels != request(run_dir="gs://bucket/other").all_labels
    assert resource_names.labels(labels, ()) == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("6h", 21_600), ("90m", 5_400), ("1d12h", 129_600), (" 30S ", 30)]
)
def test_durations(text, seconds):
    assert durations.seconds(text) == seconds
    assert durations.seconds(durations.text(seconds)) == seconds


@pytest.mark.parametrize("text", ["", "6", "h", "6 h", "-1h", "1.5h", "0m", "tomorrow"])
def test_no_durations(text):
    with pytest.raises(durations.DurationError):
        durations.seconds(text)


@pytest.mark.parametrize("text", ["My_Run.2", "2024-run", "a" * 80, "---", "Ünï"])
def test_tidied_names_are_names(text):
    tidied = resource_names.tidy(text)
    assert not tidied or resource_names.run_name(tidied, 1) == ""


@pytest.mark.parametrize(
    "zone", ["us-west4-a", "us-central2-b", "europe-west4-b", "us-central1-ai1a"]
)
def test_zones(zone):
    assert resource_names.zone(zone) == ""


def test_the_other_services_have_other_generations():
    assert request("tpu7x:2x2x2", service="gke").hosts == 2
    assert request("v4-8", provisioning="flex_start", max_run=60, service="gke").hosts == 1
    with pytest.raises(requests.RequestError, match="v4 is on queued resources"):
        request("v4-8", service="instance_groups")
    with pytest.raises(requests.RequestError, match="v5litepod is not served by instance groups"):
        request("v5litepod-16", service="instance_groups")
