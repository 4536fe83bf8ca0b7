"""Argument lists of kubectl for a run on a cluster.

kubectl acts on its current context: `kubectl config current-context`. Nothing here deletes what has
not the run's label.
"""

import hashlib

from launch.clusters.cluster_job import TRAINER, ClusterJob
from launch.clusters.job_set import RUN_LABEL

FINGERPRINT = 12  # hexadecimal digits


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
    """Prints the JobSet; its `status` has conditions and restarts."""
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
