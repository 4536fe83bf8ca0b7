"""A run as a JobSet of Kubernetes: a job for each slice, a pod for each host.

The trainer's slices are replicas of one job, the index builder's of another. Any pod that fails
restarts all of them, except after exit code 1 or 2: the user has to correct something first.
"""

from collections.abc import Mapping
from typing import Any

import yaml

from launch.cloud import recipe_job
from launch.cloud.requests import RUN_LABEL
from launch.clusters.cluster_job import TRAINER, ClusterJob
from t5x_style.accelerators.slices import Slices

API = "jobset.x-k8s.io/v1alpha2"
EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
TPU = "google.com/tpu"
SPOT = "cloud.google.com/gke-spot"
CONTAINER = "kennel"
USER_ERRORS = (1, 2)  # exit codes: wrong input, wrong flags
POD = ("python", "-m", "launch.clusters.pod")

Tree = dict[str, Any]


class _Dumper(yaml.SafeDumper):
    """Quotes every text, and no key: `y` and `1e3` are no texts to all parsers of YAML."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: Any = None) -> yaml.MappingNode:
        node = super().represent_mapping(tag, mapping, flow_style)
        for key, _ in node.value:
            key.style = None
        return node


_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def text(manifest: Tree) -> str:
    """A manifest as YAML; each text is on one line."""
    return yaml.dump(
        manifest, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf")
    )


def literal(value: str) -> str:
    """A text that Kubernetes passes on unchanged: it expands `$(NAME)`, and `$$` is a dollar."""
    return value.replace("$", "$$")


def environment(job: ClusterJob, slices: Slices) -> dict[str, str]:
    """Variables of each process on some slices."""
    # Google numbers slices and hosts; this only has each of several processes join the others.
    several = slices.hosts * slices.count > 1
    return dict(job.environment) | (recipe_job.SEVERAL_HOSTS if several else {})


def manifest(job: ClusterJob) -> Tree:
    """The JobSet of a run."""
    labels = {RUN_LABEL: job.name, "app.kubernetes.io/managed-by": "kennel"}
    queue = {"kueue.x-k8s.io/queue-name": job.queue} if job.queue else {}
    metadata: Tree = {
        "name": job.name,
        "namespace": job.namespace,
        "labels": labels | queue,
        "annotations": {"kennel/run-dir": job.run_dir},
    }
    if not job.scales_from_zero:
        metadata["annotations"] |= EXCLUSIVE
    return {
        "apiVersion": API,
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "failurePolicy": _failure_policy(job),
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [TRAINER]},
            "replicatedJobs": [
                _replicated_job(job, labels, name, slices, command)
                for name, (slices, command) in job.parts.items()
            ],
        },
    }


def _failure_policy(job: ClusterJob) -> Tree:
    return {
        "maxRestarts": job.max_restarts,
        # A pod of the last attempt may hold chips and a lease until it is gone.
        "restartStrategy": "BlockingRecreate",
        "rules": [
            {
                "name": "user-error",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy"],
            }
        ],
    }


def _replicated_job(
    job: ClusterJob, labels: Mapping[str, str], name: str, slices: Slices, command: tuple[str, ...]
) -> Tree:
    pod = {"metadata": {"labels": dict(labels)}, "spec": _pod(job, slices, command)}
    return {
        "name": name,
        "replicas": slices.count,
        "template": {
            "spec": {
                "completionMode": "Indexed",
                "parallelism": slices.hosts,
                "completions": slices.hosts,
                "backoffLimit": 0,
                "podFailurePolicy": {"rules": _pod_failure_rules()},
                "template": pod,
            }
        },
    }


def _pod_failure_rules() -> list[Tree]:
    """The first rule that matches decides. `Count` exceeds the limit of 0: the JobSet restarts."""
    return [
        {
            "action": "Count",
            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
        },
        {
            "action": "FailJob",
            "onExitCodes": {
                "containerName": CONTAINER,
                "operator": "In",
                "values": list(USER_ERRORS),
            },
        },
    ]


def _pod(job: ClusterJob, slices: Slices, command: tuple[str, ...]) -> Tree:
    return {
        "restartPolicy": "Never",
        "serviceAccountName": job.service_account,
        "terminationGracePeriodSeconds": job.grace_seconds,
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "nodeSelector": _node_selector(job, slices),
        "tolerations": _tolerations(job),
        "containers": [_container(job, slices, command)],
        "volumes": [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}],
    }


def _node_selector(job: ClusterJob, slices: Slices) -> dict[str, str]:
    pools = {
        "on_demand": {},
        "spot": {SPOT: "true"},
        "reserved": {"cloud.google.com/reservation-name": job.reservation},
        "flex_start": {"cloud.google.com/gke-flex-start": "true"},
    }
    return {
        "cloud.google.com/gke-tpu-accelerator": slices.generation.gke_label,
        "cloud.google.com/gke-tpu-topology": slices.topology,
    } | pools[job.provisioning]


def _tolerations(job: ClusterJob) -> list[Tree]:
    found: list[Tree] = [{"key": TPU, "operator": "Exists"}]
    if job.provisioning == "spot":
        found.append({"key": SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"})
    return found


def _container(job: ClusterJob, slices: Slices, command: tuple[str, ...]) -> Tree:
    variables = environment(job, slices)
    chips = {TPU: slices.chips_per_host}
    return {
        "name": CONTAINER,
        "image": job.image,
        "command": [literal(word) for word in (*POD, *command)],
        "env": [{"name": name, "value": literal(value)} for name, value in variables.items()],
        "resources": {"limits": chips, "requests": dict(chips)},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }
