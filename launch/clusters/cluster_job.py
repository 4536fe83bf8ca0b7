"""What a run on a GKE cluster needs, and what is refused before anything is printed."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from launch.cloud import resource_names
from launch.cloud.resource_names import NAME_LENGTH
from t5x_style.accelerators.generations import PROVISIONING, Provisioning
from t5x_style.accelerators.slices import Slices

TRAINER, INDEX_BUILDER = "trainer", "index-builder"
POD_SUFFIX = "-abcde"  # as long as what Kubernetes appends to the names of pods
DIGEST = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# GKE sets these in every pod: from them JAX knows which process of which slice it is.
NUMBERING = re.compile(
    r"JAX_(COORDINATOR_ADDRESS|NUM_PROCESSES|PROCESS_ID)|MEGASCALE_\w+"
    r"|TPU_(WORKER_ID|WORKER_HOSTNAMES|PROCESS_ADDRESSES|SKIP_MDS_QUERY)"
)


class ClusterJobError(ValueError):
    """A run that GKE would not start, or would not keep alive."""


@dataclass(frozen=True)
class IndexBuilder:
    """Runs the companions of a recipe's stages, next to the trainer.

    Attributes:
      slices: what it runs on.
      command: argument list.
    """

    slices: Slices
    command: tuple[str, ...]


@dataclass(frozen=True)
class ClusterJob:
    """A run on GKE. Illegal ones cannot be made.

    Attributes:
      name: of the JobSet; its label `kennel-run` has the same value.
      slices: what the trainer runs on.
      image: with its digest, REGISTRY/NAME@sha256:...; "" for launchers that start none.
      command: the trainer's argument list, the same on every host.
      run_dir: gs://BUCKET/PATH, of the results.
      provisioning: how the node pool gets its machines.
      reservation: its name where `provisioning` is 'reserved', else "".
      environment: name -> value, of all containers.
      queue: a LocalQueue of Kueue in the namespace; "" starts the pods at once.
      namespace: of Kubernetes.
      service_account: of Kubernetes, bound to one of Google that may write to the bucket.
      max_restarts: of the whole JobSet, preemptions included.
      save_seconds: the longest time that a save was measured to take.
      grace_seconds: between SIGTERM and SIGKILL.
      scales_from_zero: whether the node pool has no nodes until pods wait for them.
      index_builder: a second job of the same JobSet.

    Raises:
      ClusterJobError: everything that is wrong, at once.
    """

    name: str
    slices: Slices
    image: str
    command: tuple[str, ...]
    run_dir: str
    provisioning: Provisioning = "on_demand"
    reservation: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    queue: str = ""
    namespace: str = "default"
    service_account: str = "default"
    max_restarts: int = 100
    save_seconds: int = 60
    grace_seconds: int = 120
    scales_from_zero: bool = False
    index_builder: IndexBuilder | None = None

    def __post_init__(self) -> None:
        problems = [*_names(self), *_places(self), *_slices(self), *_lifetime(self), *_texts(self)]
        if problems:
            raise ClusterJobError("\n".join(problems))

    @property
    def parts(self) -> dict[str, tuple[Slices, tuple[str, ...]]]:
        """Name of each replicated job -> its slices and command."""
        found = {TRAINER: (self.slices, self.command)}
        if self.index_builder is not None:
            found[INDEX_BUILDER] = (self.index_builder.slices, self.index_builder.command)
        return found


def longest_pod_name(name: str, part: str, replicas: int, hosts: int) -> str:
    """The longest name that a replicated job gives to its pods; those of its jobs begin it."""
    return f"{name}-{part}-{replicas - 1}-{hosts - 1}{POD_SUFFIX}"


def _names(job: ClusterJob) -> Iterator[str]:
    for what, name in {
        "name": job.name,
        "queue": job.queue or "unused",
        "namespace": job.namespace,
        "service account": job.service_account,
    }.items():
        # Service names, of which JobSet makes one, begin with a letter; other labels need not.
        if problem := resource_names.dns_label(what, name):
            yield problem
    for part, (slices, _) in job.parts.items():
        pod = longest_pod_name(job.name, part, slices.count, slices.hosts)
        if (over := len(pod) - NAME_LENGTH) > 0:
            yield (
                f"name: the pod {pod} would have {len(pod)} characters, at most {NAME_LENGTH} are "
                f"allowed; shorten {job.name!r} by {over}"
            )


def _places(job: ClusterJob) -> Iterator[str]:
    if job.image and not DIGEST.fullmatch(job.image):
        yield (
            f"image: expected NAME@sha256:DIGEST, found {job.image!r}; a tag can change between "
            "two restarts. `docker buildx imagetools inspect NAME:TAG` prints the digest"
        )
    if problem := resource_names.bucket_path(job.run_dir):
        yield problem
    elif not job.run_dir.startswith("gs://"):
        yield (
            f"RUN_DIR {job.run_dir!r}: a path on a pod's disk is lost with the pod; expected "
            "gs://BUCKET/FOLDER"
        )


def _slices(job: ClusterJob) -> Iterator[str]:
    for part, (slices, _) in job.parts.items():
        if not slices.generation.gke_label:
            yield f"{part}: GKE has no {slices.generation.name}; found {slices}"
        elif part == INDEX_BUILDER and slices.count * slices.hosts > 1:
            alone = [
                one
                for one in slices.generation.topologies
                if Slices(slices.generation, one).hosts == 1
            ]
            yield (
                f"{part}: expected one slice of one host, since a companion is one process; found "
                f"{slices}, largest of one host: {slices.generation.name}:{alone[-1]}"
            )
        elif slices.count > 1 and slices.hosts == 1:
            many = [
                one
                for one in slices.generation.topologies
                if Slices(slices.generation, one).hosts > 1
            ]
            yield (
                f"{part}: GKE joins several slices only where each has several hosts; found "
                f"{slices}, smallest with several hosts: {slices.count}x "
                f"{slices.generation.name}:{many[0]}"
            )


def _lifetime(job: ClusterJob) -> Iterator[str]:
    if job.provisioning not in PROVISIONING:
        yield f"provisioning: expected one of {', '.join(PROVISIONING)}, found {job.provisioning!r}"
    if (job.provisioning == "reserved") != bool(job.reservation):
        yield (
            "reservation: expected its name with provisioning 'reserved', and none otherwise; "
            f"found {job.reservation!r} with {job.provisioning!r}"
        )
    least = 1 if job.provisioning == "spot" else 0
    if job.max_restarts < least:
        why = ": the first preemption would end the run" if least else ""
        yield (
            f"max_restarts: expected at least {least} on {job.provisioning}, found "
            f"{job.max_restarts}{why}"
        )
    if not 0 < job.save_seconds <= job.grace_seconds:
        yield (
            f"grace_seconds: expected at least the {job.save_seconds} s that a save takes, found "
            f"{job.grace_seconds}; a stopped run is killed after that"
        )


def _texts(job: ClusterJob) -> Iterator[str]:
    for part, (_, command) in job.parts.items():
        if not command:
            yield f"{part}: expected a command, found none"
        for word in command:
            if reason := _unprintable(word):
                yield f"{part}: {word!r} in its command has {reason}, which no process can be given"
    for name, value in job.environment.items():
        if not VARIABLE.fullmatch(name):
            yield f"environment: {name!r} is no name of a variable"
        elif NUMBERING.fullmatch(name):
            yield f"environment: {name} numbers the processes, which GKE does; leave it out"
        elif reason := _unprintable(value):
            yield f"environment: {name} has {reason}, which no process can be given"


def _unprintable(text: str) -> str:
    """What in a text no manifest can carry; "" mostly."""
    if "\0" in text:
        return "a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"half a character ({text[error.start]!r})"
    return ""
