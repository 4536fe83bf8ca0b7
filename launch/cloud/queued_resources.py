"""Argument lists for gcloud: queued resources of the Cloud TPU API and their hosts.

A list begins after `gcloud`. The released commands are used wherever they can say it; `alpha` ones
for flex-start, for a reservation by its name, and for a topology that no accelerator type means.
Read in gcloud 528: its alpha `--spot` sends the provisioning model STANDARD along, so that alpha
commands say `--provisioning-model=spot`.
"""

from collections.abc import Sequence

from launch.cloud import durations
from launch.cloud.requests import Place, Request

_GROUP = ("compute", "tpus", "queued-resources")
_RELEASED_TYPES = ("v4",)  # generations that `--type` of the released command takes
_DETAILS = "name.basename(),state,createTime,tpu.nodeSpec"


def create(request: Request) -> list[str]:
    """Asks for slices; returns at once, since the request waits in Google's queue."""
    generation = request.slices.generation
    typed = not request.slices.is_usual
    alpha = (
        request.provisioning == "flex_start"
        or bool(request.reservation)
        or (typed and generation.accelerator not in _RELEASED_TYPES)
    )
    return [
        *(["alpha"] if alpha else []),
        *_GROUP,
        "create",
        request.name,
        *_where(request.place),
        *_nodes(request),
        *_slice(request),
        f"--runtime-version={generation.runtime_version}",
        *_provisioning(request, alpha),
        *_network(request),
        f"--labels={','.join(f'{key}={value}' for key, value in request.all_labels.items())}",
        "--async",
        "--quiet",
    ]


def describe(place: Place) -> list[str]:
    """State, labels and node names of a resource, as JSON."""
    return [*_GROUP, "describe", place.name, *_where(place), f"--format=json({_DETAILS})"]


def list_all(zone: str, project: str) -> list[str]:
    """All resources of a zone, as JSON; those of runs have labels."""
    where = _where(Place("", zone, project))
    return [*_GROUP, "list", *where, f"--format=json({_DETAILS})"]


def nodes(place: Place) -> list[str]:
    """All TPU VMs of a zone, as JSON; those that were taken away are missing."""
    details = "--format=json(name.basename(),state,health,labels)"
    return ["compute", "tpus", "tpu-vm", "list", *_where(place), details]


def delete(place: Place) -> list[str]:
    """Deletes a resource with its nodes; returns at once."""
    return [*_GROUP, "delete", place.name, *_where(place), "--force", "--quiet", "--async"]


def ssh(place: Place, command: str, node: str = "all", worker: str = "all") -> list[str]:
    """Runs a shell text on hosts.

    gcloud skips a node that it cannot prepare, and still exits with 0: count the answers.

    Args:
      place: of the resource.
      command: one text for the shell of each host; "" opens a shell on one host.
      node: number of the slice, or 'all'.
      worker: number of a host in its slice, or 'all'.
    """
    text = [f"--command={command}"] if command else []
    return [*_GROUP, "ssh", place.name, *_hosts(place, node, worker), "--quiet", *text]


def scp(
    place: Place, sources: Sequence[str], target: str, node: str = "all", worker: str = "all"
) -> list[str]:
    """Copies files; a path on hosts is `NAME:path`, as in `on_host`."""
    where = _hosts(place, node, worker)
    return [*_GROUP, "scp", "--recurse", *sources, target, *where, "--quiet"]


def on_host(place: Place, path: str) -> str:
    """A path on hosts, for `scp`; relative ones begin in the home folder."""
    return f"{place.name}:{path}"


def _where(place: Place) -> list[str]:
    return [f"--zone={place.zone}", f"--project={place.project}"]


def _hosts(place: Place, node: str, worker: str) -> list[str]:
    tunnel = ["--tunnel-through-iap"] if place.tunnel else []
    return [*_where(place), f"--node={node}", f"--worker={worker}", *tunnel]


def _nodes(request: Request) -> list[str]:
    if request.slices.count == 1:
        return [f"--node-id={request.name}"]
    return [f"--node-count={request.slices.count}", f"--node-prefix={request.name}"]


def _slice(request: Request) -> list[str]:
    slices = request.slices
    if slices.is_usual:
        return [f"--accelerator-type={slices.accelerator_type}"]
    return [f"--type={slices.generation.accelerator}", f"--topology={slices.topology}"]


def _provisioning(request: Request, alpha: bool) -> list[str]:
    flags = []
    if request.provisioning == "spot":
        flags.append("--provisioning-model=spot" if alpha else "--spot")
    elif request.provisioning == "flex_start":
        flags.append("--provisioning-model=flex-start")
    elif request.provisioning == "reserved":
        flags.append("--reserved")
    if request.reservation:
        flags.append(f"--reservation={request.reservation}")
    if request.max_run is not None:
        flags.append(f"--max-run-duration={durations.text(request.max_run)}")
    if request.valid_until is not None:
        flags.append(f"--valid-until-duration={durations.text(request.valid_until)}")
    return flags


def _network(request: Request) -> list[str]:
    flags = {
        "network": request.network,
        "subnetwork": request.subnetwork,
        "service-account": request.service_account,
    }
    given = [f"--{name}={value}" for name, value in flags.items() if value]
    return [*given, *(["--internal-ips"] if request.internal_ips else [])]
