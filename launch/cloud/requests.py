"""What a run asks Google Cloud for. A request that the service cannot fill does not exist.

    Request("mine", slices.parse("v5e:2x4"), zone="us-west4-a", project="my-project")

The rules are checked when a request is made, before a command is printed or run. gcloud accepts
most of what they refuse: its parser knows no generations, and Google's servers answer minutes
later, or not at all.
"""

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from launch.cloud import durations, resource_names
from t5x_style.accelerators.generations import (
    GENERATIONS,
    PROVISIONING,
    Generation,
    Provisioning,
)
from t5x_style.accelerators.slices import Slices
from t5x_style.configuration.suggestions import closest

Service = Literal["queued_resources", "gke", "instance_groups"]
SERVICES: dict[Service, str] = {
    "queued_resources": "queued resources (TPU VMs)",
    "gke": "GKE",
    "instance_groups": "instance groups of Compute Engine",
}
RUN_LABEL, FOLDER_LABEL = "kennel-run", "kennel-folder"
MAX_FLEX = 7 * durations.DAY  # seconds


class RequestError(ValueError):
    """A request that cannot be filled; the message says what to ask for instead."""


@dataclass(frozen=True)
class Place:
    """Where a resource is, and what it is called.

    Attributes:
      name: of the run, and of its queued resource.
      zone: as in us-west4-a.
      project: its id.
      tunnel: whether its hosts have no external addresses, so that ssh reaches them through
        Google's Identity-Aware Proxy.
    """

    name: str
    zone: str
    project: str
    tunnel: bool = False

    @property
    def flags(self) -> str:
        """Flags of `kennel tpu` that name it."""
        words = [f"--name={self.name}", f"--zone={self.zone}", f"--project={self.project}"]
        return shlex.join([*words, *(["--internal_ips"] if self.tunnel else [])])

    def __str__(self) -> str:
        return f"{self.name} in {self.zone} of {self.project}"


@dataclass(frozen=True)
class Request:
    """Slices for one run.

    Attributes:
      name: of the run; the resource, its nodes and the run's label are named after it.
      slices: what it trains on.
      zone: as in us-west4-a.
      project: its id.
      provisioning: how the slices are paid for, and whether they can be taken away.
      reservation: name of one, where the run is `reserved`; "" for any of the project.
      valid_until: seconds after which a request that still waits is dropped; None waits for ever.
      max_run: seconds after which Google ends the slices; flex-start only, which needs it.
      network: "" for the project's default.
      subnetwork: "" for the network's default.
      internal_ips: hosts get no external address.
      service_account: e-mail that the hosts act as; "" for the project's default.
      run_dir: RUN_DIR of the recipe; "" where no recipe is known yet.
      labels: more labels, next to those that mark the run.
      service: which one the slices are asked from.
      needs_folder: whether slices that were asked for without RUN_DIR are somebody else's.

    Raises:
      RequestError: the service cannot fill it, or would lose the run; lists all reasons.
    """

    name: str
    slices: Slices
    zone: str
    project: str
    provisioning: Provisioning = "on_demand"
    reservation: str = ""
    valid_until: int | None = None
    max_run: int | None = None
    network: str = ""
    subnetwork: str = ""
    internal_ips: bool = False
    service_account: str = ""
    run_dir: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    service: Service = "queued_resources"
    needs_folder: bool = False

    def __post_init__(self) -> None:
        problems = [one for one in _problems(self) if one]
        if problems:
            raise RequestError("\n".join(problems))

    @property
    def place(self) -> Place:
        """Where its resource is."""
        return Place(self.name, self.zone, self.project, self.internal_ips)

    @property
    def hosts(self) -> int:
        """Of all slices together."""
        return self.slices.count * self.slices.hosts

    @property
    def all_labels(self) -> dict[str, str]:
        """The user's labels and those that say whose resource it is."""
        folder = {FOLDER_LABEL: folder_key(self.run_dir)} if self.run_dir else {}
        return {**self.labels, RUN_LABEL: self.name, **folder}


def folder_key(run_dir: str) -> str:
    """A label's value for RUN_DIR: it distinguishes two runs of one name."""
    return hashlib.sha256(run_dir.rstrip("/").encode()).hexdigest()[:16]


def offered(generation: Generation, service: Service) -> tuple[Provisioning, ...]:
    """How a service provides a generation; () where it does not."""
    if service == "gke":
        return PROVISIONING
    if service == "instance_groups":
        return PROVISIONING if generation.has_groups else ()
    return generation.provisioning


def _problems(asked: Request) -> Iterator[str]:
    """All that is wrong with a request; empty texts where nothing is."""
    yield resource_names.run_name(asked.name, asked.slices.count)
    if asked.service != "gke":  # a manifest knows neither
        yield resource_names.zone(asked.zone)
        yield resource_names.project(asked.project)
    yield _provisioning_problem(asked)
    yield from _duration_problems(asked)
    yield resource_names.reservation(asked.reservation)
    if asked.reservation and asked.provisioning != "reserved":
        yield (
            f"reservation {asked.reservation!r} with provisioning {asked.provisioning}: a "
            "reservation needs --reserved"
        )
    yield resource_names.network("network", asked.network)
    yield resource_names.network("subnetwork", asked.subnetwork)
    yield resource_names.account(asked.service_account)
    yield from resource_names.labels(asked.labels, (RUN_LABEL, FOLDER_LABEL))
    yield resource_names.bucket_path(asked.run_dir) or _loss_problem(asked)


def _provisioning_problem(asked: Request) -> str:
    """A generation that the service does not have, or not in this way."""
    generation = asked.slices.generation
    spelled = asked.slices.spelled or generation.name
    if asked.provisioning not in PROVISIONING:
        return f"no provisioning {asked.provisioning!r}{closest(asked.provisioning, PROVISIONING)}"
    possible = offered(generation, asked.service)
    if not possible:
        others = [SERVICES[one] for one in SERVICES if offered(generation, one)]
        has = [one.name for one in GENERATIONS.values() if offered(one, asked.service)]
        return (
            f"{spelled} is not served by {SERVICES[asked.service]}, which have {', '.join(has)}; "
            f"{spelled} is on {' and '.join(others)}"
        )
    if asked.provisioning not in possible:
        has = [
            one.name
            for one in GENERATIONS.values()
            if asked.provisioning in offered(one, asked.service)
        ]
        return (
            f"{spelled} has no {asked.provisioning} on {SERVICES[asked.service]}: it is offered "
            f"{', '.join(possible)}; {asked.provisioning} is for {', '.join(has)}"
        )
    return ""


def _duration_problems(asked: Request) -> Iterator[str]:
    for name, value in (("valid_until", asked.valid_until), ("max_run", asked.max_run)):
        if value is not None and value <= 0:
            yield f"--{name} is {value} seconds; expected at least 1s"
    flex = asked.provisioning == "flex_start"
    offers_flex = "flex_start" in offered(asked.slices.generation, asked.service)
    if flex and offers_flex and asked.max_run is None:
        yield "flex_start needs --max_run, of at most 7d: Google ends the slices after it"
    if flex and asked.max_run is not None and asked.max_run > MAX_FLEX:
        yield f"--max_run={durations.text(asked.max_run)}: flex_start lasts at most 7d"
    if asked.max_run is not None and not flex:
        yield (
            f"--max_run with provisioning {asked.provisioning}: only flex_start ends by itself; "
            "leave it out, or pass --flex_start"
        )


def _loss_problem(asked: Request) -> str:
    """A RUN_DIR on a host's disk that would be gone with it, or that other hosts do not see."""
    if not asked.run_dir or asked.run_dir.startswith("gs://"):
        return ""
    hint = f"write RUN_DIR=gs://BUCKET/{asked.name}"
    if asked.hosts > 1:
        return (
            f"RUN_DIR {asked.run_dir!r} is a folder of one host, and {asked.slices} has "
            f"{asked.hosts} hosts, which share no disk: {hint}"
        )
    if asked.provisioning != "on_demand" and asked.provisioning != "reserved":
        return (
            f"RUN_DIR {asked.run_dir!r} is on the disk of a host that {asked.provisioning} takes "
            f"away, with all that was trained: {hint}"
        )
    return ""
