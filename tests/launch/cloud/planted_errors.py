"""Errors that gcloud's parser accepts: as a request, as gcloud's words, and what our table says."""

from collections.abc import Callable
from dataclasses import dataclass

from launch.cloud import durations
from launch.cloud.requests import Request
from t5x_style.accelerators import slices

_BASE = {"name": "mine", "slice": "v5e:4x4", "zone": "us-west4-a", "project": "my-project"}
_WORDS = {
    "name": "mine",
    "--node-id": "mine",
    "--zone": "us-west4-a",
    "--project": "my-project",
    "--accelerator-type": "v5litepod-16",
    "--runtime-version": "v2-alpha-tpuv5-lite",
}


@dataclass(frozen=True)
class Planted:
    """One error.

    Attributes:
      make: raises where the table refuses.
      message: part of the error.
      arguments: the same for gcloud.
    """

    make: Callable
    message: str
    arguments: list


def planted(message, words, alpha=False, **given):
    """An error: what differs from a request, and from gcloud's words, that are legal."""
    values = _BASE | given

    def make():
        options = {key: value for key, value in values.items() if key != "slice"}
        for name in ("valid_until", "max_run"):
            if name in options:
                options[name] = durations.seconds(options[name])
        return Request(slices=slices.parse(values["slice"]), **options)

    found = {k: v for k, v in (_WORDS | words).items() if v is not None}
    name = found.pop("name")
    flags = [key if value is True else f"{key}={value}" for key, value in found.items()]
    start = ["alpha"] if alpha else []
    arguments = [*start, "compute", "tpus", "queued-resources", "create", name, *flags]
    return Planted(make, message, arguments)


def _type(value):
    return {"--accelerator-type": value}


def _flex(run="1d", **more):
    return {"--provisioning-model": "flex-start", "--max-run-duration": run, **more}


PLANTED = {
    # slices that do not exist
    "generation 99": planted("no slice 'v99-8'", _type("v99-8"), slice="v99-8"),
    "no such generation": planted("did you mean|nearest|generations", _type("v8-8"), slice="v8-8"),
    "v5litepod-12": planted("nearest: v5litepod-", _type("v5litepod-12"), slice="v5litepod-12"),
    "v6e-512": planted("nearest: v6e-256", _type("v6e-512"), slice="v6e-512"),
    "an odd number of cores": planted("nearest: v4-8", _type("v4-7"), slice="v4-7"),
    "half a chip": planted("nearest: v5p-8", _type("v5p-5"), slice="v5p-5"),
    "topology of another generation": planted(
        "nearest: v4:",
        {"--accelerator-type": None, "--type": "v4", "--topology": "4x4"},
        slice="v4:4x4",
    ),
    "three sides for a flat generation": planted(
        "nearest: v6e:",
        {"--accelerator-type": None, "--type": "v6e", "--topology": "2x2x2"},
        alpha=True,
        slice="v6e:2x2x2",
    ),
    "a topology too large": planted(
        "nearest: v4:",
        {"--accelerator-type": None, "--type": "v4", "--topology": "64x64x64"},
        slice="v4:64x64x64",
    ),
    # what a service does not offer
    "tpu7x": planted("GKE and instance groups", _type("tpu7x-8"), slice="ironwood:2x2x2"),
    "v4 flex-start": planted(
        "v4 has no flex_start .* it is offered on_demand, spot, reserved; .* for v5e, v6e",
        _type("v4-8") | _flex(),
        alpha=True,
        slice="v4-8",
        provisioning="flex_start",
        max_run="1d",
    ),
    "v5p flex-start": planted(
        "v5p has no flex_start",
        _type("v5p-8") | _flex(),
        alpha=True,
        slice="v5p-8",
        provisioning="flex_start",
        max_run="1d",
    ),
    "no such provisioning": planted(
        "no provisioning 'spott'; did you mean spot",
        {"--provisioning-model": "spott"},
        alpha=True,
        provisioning="spott",
    ),
    # durations
    "flex-start for eight days": planted(
        "at most 7d", _flex("8d"), alpha=True, provisioning="flex_start", max_run="8d"
    ),
    "flex-start without an end": planted(
        "needs --max_run",
        {"--provisioning-model": "flex-start"},
        alpha=True,
        provisioning="flex_start",
    ),
    "an end of what has none": planted(
        "only flex_start ends by itself",
        {"--spot": True, "--max-run-duration": "1d"},
        alpha=True,
        provisioning="spot",
        max_run="1d",
    ),
    "no time at all": planted(
        "no time at all", {"--valid-until-duration": "0s"}, valid_until="0s"
    ),
    # reservations
    "a reservation on demand": planted(
        "needs --reserved", {"--reservation": "ours"}, alpha=True, reservation="ours"
    ),
    "a reservation and spot": planted(
        "needs --reserved",
        {"--reservation": "ours", "--spot": True},
        alpha=True,
        reservation="ours",
        provisioning="spot",
    ),
    "a reservation's name": planted(
        "is no name; expected NAME",
        {"--reservation": "Our TPUs", "--reserved": True},
        alpha=True,
        reservation="Our TPUs",
        provisioning="reserved",
    ),
    # names
    "capital letters": planted("write my-run", {"name": "My_Run"}, name="My_Run"),
    "a digit first": planted("write run-1", {"name": "1-run-1"}, name="1-run-1"),
    "a dash last": planted("write run", {"name": "run-"}, name="run-"),
    "64 characters": planted("at most 63", {"name": "a" * 64}, name="a" * 64),
    "no room for the slice's number": planted(
        "at most 60",
        {"name": "a" * 61, "--node-id": None, "--node-count": "12", "--node-prefix": "a" * 61},
        name="a" * 61,
        slice="12x v5e:4x4",
    ),
    "a region": planted("ends with a letter: us-west4-a", {"--zone": "us-west4"}, zone="us-west4"),
    "no zone": planted("is no zone", {"--zone": "mars-1"}, zone="mars-1"),
    "nothing as zone": planted("no zone: pass --zone", {"--zone": ""}, zone=""),
    "nothing as project": planted("no project: pass", {"--project": ""}, project=""),
    "a project's id": planted(
        "is no id of a project", {"--project": "ab-1"}, project="ab-1"
    ),
    "a project's number": planted("is a number", {"--project": "123456789"}, project="123456789"),
    "no e-mail": planted(
        "is no e-mail", {"--service-account": "trainer"}, service_account="trainer"
    ),
    "a network": planted("network 'Net 1' is no name", {"--network": "Net 1"}, network="Net 1"),
    "a subnetwork": planted(
        "subnetwork 'sub_1' is no name", {"--subnetwork": "sub_1"}, subnetwork="sub_1"
    ),
    "a label's key": planted("label 'Team'", {"--labels": "Team=a"}, labels={"Team": "a"}),
    "a label's value": planted(
        "label team='Search Team'", {"--labels": "team=Search Team"},
        labels={"team": "Search Team"},
    ),
    "a label of the launcher": planted(
        "label kennel-run is the launcher's",
        {"--labels": "kennel-run=other"},
        labels={"kennel-run": "other"},
    ),
    # RUN_DIR, of which gcloud knows nothing: the command is legal, the run would be lost
    "gcs://": planted("write gs://bucket/a", {}, run_dir="gcs://bucket/a"),
    "gs:/": planted("write gs://bucket/a", {}, run_dir="gs:/bucket/a"),
    "s3://": planted("is not on Cloud Storage", {}, run_dir="s3://bucket/a"),
    "an address for browsers": planted(
        "write gs://bucket/a", {}, run_dir="https://storage.googleapis.com/bucket/a"
    ),
    "no bucket": planted("'My_Bucket' is no bucket", {}, run_dir="gs://My_Bucket/a"),
    "a whole bucket": planted("write gs://bucket/FOLDER", {}, run_dir="gs://bucket"),
    "a local folder of four hosts": planted("which share no disk", {}, run_dir="runs/mine"),
    "a local folder on spot": planted(
        "that spot takes away",
        _type("v5litepod-8") | {"--spot": True},
        slice="v5e:2x4",
        provisioning="spot",
        run_dir="runs/mine",
    ),
}  # fmt: skip
