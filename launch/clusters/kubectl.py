"""Argument lists of kubectl for a run on a cluster, and what it answers.

kubectl acts on its current context: `kubectl config current-context`. Nothing here deletes what has
not the run's label.
"""

import hashlib
import json
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from launch.clusters.cluster_job import TRAINER, ClusterJob
from launch.clusters.job_set import RUN_LABEL

State = Literal["waiting", "running", "done", "failed"]
FINGERPRINT = 12  # hexadecimal digits


class KubectlError(ValueError):
    """kubectl is missing, failed, or printed no JobSet."""


@dataclass(frozen=True)
class Status:
    """How a run is.

    Attributes:
      state: 'waiting' for Kueue's queue, 'running' (its pods may wait for nodes), 'done', 'failed'.
      restarts: of the whole JobSet so far.
      reason: why it failed, as JobSet puts it; "" otherwise.
    """

    state: State
    restarts: int
    reason: str = ""


def apply_arguments(job: ClusterJob, manifest: str) -> list[str]:
    """Creates the JobSet from a manifest on standard input; a second time it changes nothing.

    The field manager has the manifest's hash. Another manifest under the same name is a conflict,
    which the API server refuses with the fields that differ, so that no run replaces another.

    Args:
      job: names the JobSet.
      manifest: its text.
    """
    digest = hashlib.sha256(manifest.encode()).hexdigest()[:FINGERPRINT]
    manager = f"--field-manager=kennel-{digest}"
    return ["kubectl", "apply", "--server-side", manager, _namespace(job.namespace), "--filename=-"]


def status_arguments(name: str, namespace: str) -> list[str]:
    """Prints the JobSet for `read_status`."""
    return ["kubectl", "get", "jobset", name, _namespace(namespace), "--output=json"]


def logs_arguments(name: str, namespace: str, follow: bool = False) -> list[str]:
    """Prints what the trainer's first host wrote; with `follow`, until its pod ends."""
    first = ",".join(
        (
            f"jobset.sigs.k8s.io/jobset-name={name}",
            f"jobset.sigs.k8s.io/replicatedjob-name={TRAINER}",
            "jobset.sigs.k8s.io/job-index=0",
            "batch.kubernetes.io/job-completion-index=0",
        )
    )
    words = ["kubectl", "logs", f"--selector={first}", _namespace(namespace), "--tail=-1"]
    return [*words, "--follow"] if follow else words


def delete_arguments(name: str, namespace: str) -> list[str]:
    """Deletes the JobSet that has the run's label, and its pods; results stay in the bucket."""
    selector = f"--selector={RUN_LABEL}={name}"
    return ["kubectl", "delete", "jobset", selector, _namespace(namespace), "--wait=false"]


def _namespace(namespace: str) -> str:
    return f"--namespace={namespace}"


def status(name: str, namespace: str) -> Status:
    """Asks kubectl how a run is.

    Raises:
      KubectlError: no kubectl, no such run, or no answer; quotes kubectl.
    """
    arguments = status_arguments(name, namespace)
    try:
        done = subprocess.run(arguments, capture_output=True, text=True)
    except FileNotFoundError:
        raise KubectlError("needs kubectl on the PATH") from None
    if done.returncode:
        raise KubectlError(f"{shlex.join(arguments)}: {done.stderr.strip()}")
    return read_status(done.stdout)


def read_status(answer: str) -> Status:
    """What `status_arguments` printed.

    Raises:
      KubectlError: no JobSet; quotes how the answer begins.
    """
    try:
        found = json.loads(answer)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or found.get("kind") != "JobSet":
        raise KubectlError(f"kubectl get jobset: expected a JobSet, found {answer[:80]!r}")
    status = found.get("status", {})
    conditions = {one["type"]: one for one in status.get("conditions", ())}
    restarts = int(status.get("restarts", 0))
    if _holds(conditions, "Completed"):
        return Status("done", restarts)
    if _holds(conditions, "Failed"):
        failed = conditions["Failed"]
        return Status("failed", restarts, f"{failed.get('reason')}: {failed.get('message')}")
    if _holds(conditions, "Suspended"):
        return Status("waiting", restarts)
    return Status("running", restarts)


def _holds(conditions: Mapping[str, Mapping[str, Any]], name: str) -> bool:
    return conditions.get(name, {}).get("status") == "True"
