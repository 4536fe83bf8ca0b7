"""Twelve rules of JobSets on TPU slices that the API server does not know.

It accepts a manifest that breaks one; the run then waits for ever, hangs, is not restarted, or is
taken for done. `problems` reads a parsed manifest, whoever wrote it, and compares it with
the run that it is meant for.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from launch.cloud import resource_names
from launch.cloud.decisions import RETRIED
from launch.cloud.resource_names import NAME_LENGTH
from launch.clusters.cluster_job import (
    DIGEST,
    NUMBERING,
    ClusterJob,
    longest_pod_name,
)
from launch.clusters.job_set import RUN_LABEL, SPOT, TPU
from launch.clusters.manifest_nodes import MISSING, Node, Problem
from t5x_style.accelerators.generations import GENERATIONS
from t5x_style.accelerators.slices import Slices

_ACCELERATOR, _TOPOLOGY = (
    f"cloud.google.com/gke-tpu-{name}" for name in ("accelerator", "topology")
)


@dataclass(frozen=True)
class _Part:
    """One replicated job, and what it is meant to run on."""

    job: ClusterJob
    name: str
    slices: Slices
    set: Node
    replicated: Node

    @property
    def spec(self) -> Node:
        return self.replicated.at("template", "spec")

    @property
    def pod(self) -> Node:
        return self.spec.at("template", "spec")

    @property
    def containers(self) -> list[Node]:
        return self.pod["containers"].items

    @property
    def is_spot(self) -> bool:
        return self.job.provisioning == "spot"


def problems(manifest: Any, job: ClusterJob) -> list[Problem]:
    """What in a manifest breaks a rule; empty where it is right.

    Args:
      manifest: as parsed.
      job: the run that it is meant for.
    """
    root = Node(manifest)
    jobs = root.at("spec", "replicatedJobs")
    by_name = jobs.by("name")
    found = [
        jobs.problem(5, f"a replicated job {name!r} for {slices}")
        for name, (slices, _) in job.parts.items()
        if name not in by_name
    ]
    found += [
        one["name"].problem(5, f"one of {', '.join(job.parts)}, each once")
        for one in jobs.items
        if str(one["name"].value) not in job.parts or one not in by_name.values()
    ]
    for name, (slices, _) in job.parts.items():
        if name in by_name:
            part = _Part(job, name, slices, root, by_name[name])
            for rule in RULES:
                found += rule(part)
    return list({str(problem): problem for problem in found}.values())


def _accelerator(part: _Part) -> Iterator[Problem]:
    """1: the accelerator's label is the generation's."""
    facts = part.slices.generation
    node = part.pod.at("nodeSelector", _ACCELERATOR)
    yield from node.unless(1, facts.gke_label, f"the label of {facts.name}")


def _topology(part: _Part) -> Iterator[Problem]:
    """2: the generation has the topology, and it is the run's."""
    labels = {row.gke_label: row for row in GENERATIONS.values()}
    selector = part.pod["nodeSelector"]
    facts = labels.get(str(selector[_ACCELERATOR].value), part.slices.generation)
    node = selector[_TOPOLOGY]
    if node.value not in facts.topologies:
        yield node.problem(2, f"a topology of {facts.name}: {', '.join(facts.topologies)}")
    else:
        yield from node.unless(2, part.slices.topology, f"of {part.slices}")


def _hosts(part: _Part) -> Iterator[Problem]:
    """3: a pod for each host of a slice, at once."""
    for name in ("parallelism", "completions"):
        yield from part.spec[name].unless(3, part.slices.hosts, f"hosts of a {part.slices}")
    yield from part.spec["completionMode"].unless(3, "Indexed", "pods are numbered")


def _chips(part: _Part) -> Iterator[Problem]:
    """4: a pod takes all chips of its host; requests are the limits."""
    containers = part.containers
    if len(containers) != 1:
        yield part.pod["containers"].problem(4, "one container, which has all chips")
    for container in containers:
        limits, requests = (container.at("resources", one) for one in ("limits", "requests"))
        yield from limits[TPU].unless(4, part.slices.chips_per_host, "chips of a host")
        if requests.value != limits.value:
            yield requests.problem(4, f"the limits, {limits.value!r}")


def _slices(part: _Part) -> Iterator[Problem]:
    """5: as many replicas as slices; the set is done when the trainer is."""
    yield from part.replicated["replicas"].unless(5, part.slices.count, f"slices of {part.slices}")
    trainer = next(iter(part.job.parts))
    policy = part.set.at("spec", "successPolicy")
    yield from policy["operator"].unless(5, "All", "every slice of the trainer")
    yield from policy["targetReplicatedJobs"].unless(5, [trainer])


_PROCESSES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
_MEGASCALE = ("MEGASCALE_COORDINATOR_ADDRESS", "MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID")


def _numbering(part: _Part) -> Iterator[Problem]:
    """6: GKE numbers all processes and slices, or the manifest does, completely."""
    count = part.slices.count
    processes = count * part.slices.hosts
    for container in part.containers:
        variables = container["env"].by("name")
        automatic = "KENNEL_PROCESSES" in variables
        numbered = [name for name in variables if NUMBERING.fullmatch(name)]
        if not numbered:
            wanted = processes > 1
            if automatic != wanted:
                yield container["env"].problem(
                    6, f"KENNEL_PROCESSES {'set' if wanted else 'left out'}: {processes} processes"
                )
            continue
        if automatic:
            yield variables["KENNEL_PROCESSES"].problem(6, f"none next to {', '.join(numbered)}")
        groups = [_PROCESSES, *([_MEGASCALE] if count > 1 else [])]
        for name in (name for group in groups for name in group):
            if name not in variables:
                yield container["env"].problem(6, f"{name} next to {', '.join(numbered)}")
        for name, number in (("JAX_NUM_PROCESSES", processes), ("MEGASCALE_NUM_SLICES", count)):
            if name in variables:
                yield from variables[name]["value"].unless(6, str(number))
        for name, number in (("JAX_PROCESS_ID", processes), ("MEGASCALE_SLICE_ID", count)):
            if name in variables and number > 1 and variables[name]["value"].value is not MISSING:
                yield variables[name].problem(6, "valueFrom: a constant is the same in all pods")


def _pods_fail(part: _Part) -> Iterator[Problem]:
    """7: a pod that fails is not restarted alone; its peers would wait for it."""
    yield from part.pod["restartPolicy"].unless(7, "Never")
    yield from part.spec["backoffLimit"].unless(7, 0)


def _restarts(part: _Part) -> Iterator[Problem]:
    """8: the set restarts after preemptions and lost processes, and not after user errors."""
    policy = part.set.at("spec", "failurePolicy")
    restarts, least = policy["maxRestarts"], 1 if part.is_spot else 0
    if not isinstance(restarts.value, int) or restarts.value < least:
        yield restarts.problem(8, f"{least} or more on {part.job.provisioning}")
    rules = part.spec.at("podFailurePolicy", "rules")
    cases = [(1, False, "FailJob", "a user error")]
    cases += [(code, False, "Count", "the set restarts") for code in RETRIED]
    cases += [(1, True, "Count", "a disrupted pod: the set restarts")]
    for code, disrupted, wanted, why in cases:
        if (action := _pod_action(rules, code, disrupted)) != wanted:
            kind = "disruption" if disrupted else f"exit code {code}"
            yield Problem(8, rules.path, f"{wanted} after {kind} ({why})", action)
    outcomes = {"PodFailurePolicy": "FailJobSet", "BackoffLimitExceeded": "RestartJobSet"}
    for reason, wanted in outcomes.items():
        if (action := _set_action(policy["rules"], reason, part.name)) != wanted:
            path = policy["rules"].path
            yield Problem(8, path, f"{wanted} after {reason} of {part.name}", action)


def _pod_action(rules: Node, code: int, disrupted: bool) -> object:
    """What Kubernetes does with a failed pod: the first rule that matches decides."""
    for rule in rules.items:
        conditions = rule["onPodConditions"].by("type")
        listed = str(code) in rule.at("onExitCodes", "values").texts
        operator = str(rule.at("onExitCodes", "operator").value)
        by_code = {"In": listed, "NotIn": not listed}.get(operator, False)
        if by_code or (disrupted and "DisruptionTarget" in conditions):
            return rule["action"].value
    return "Count"


def _set_action(rules: Node, reason: str, part: str) -> object:
    """What JobSet does after a failed job: the first rule that matches decides."""
    for rule in rules.items:
        reasons, targets = rule["onJobFailureReasons"].texts, rule["targetReplicatedJobs"].texts
        if reason in (reasons or [reason]) and part in (targets or [part]):
            return rule["action"].value
    return "RestartJobSet"


def _grace(part: _Part) -> Iterator[Problem]:
    """9: a stopped pod has the time that a save takes."""
    node, least = part.pod["terminationGracePeriodSeconds"], part.job.save_seconds
    if not isinstance(node.value, int) or node.value < least:
        yield node.problem(9, f"{least} or more, the seconds of a save")


def _network(part: _Part) -> Iterator[Problem]:
    """10: the host's network, with the cluster's names."""
    yield from part.pod["hostNetwork"].unless(10, True)
    yield from part.pod["dnsPolicy"].unless(10, "ClusterFirstWithHostNet", "with hostNetwork")


def _tolerations(part: _Part) -> Iterator[Problem]:
    """11: pods may be placed on TPU nodes, and on Spot nodes only if that was asked for."""
    node = part.pod["tolerations"]
    tolerated = node.by("key")
    if tolerated.get(TPU, node)["operator"].value != "Exists":
        yield node.problem(11, f"{TPU} with operator Exists")
    selected = part.pod["nodeSelector"][SPOT]
    if part.is_spot:
        yield from selected.unless(11, "true", "a Spot node")
        if SPOT not in tolerated:
            yield node.problem(11, f"{SPOT}, a toleration of Spot nodes")
    elif selected.value is not MISSING:
        yield selected.problem(11, f"no Spot node: the run is {part.job.provisioning}")


def _identity(part: _Part) -> Iterator[Problem]:
    """12: an image that cannot change, a command without a shell, names that can exist."""
    name = part.set.at("metadata", "name")
    yield from name.unless(12, part.job.name)
    label = part.set.at("metadata", "labels", RUN_LABEL)
    yield from label.unless(12, part.job.name, "by which the run is found and deleted")
    names = [name, part.replicated["name"], *(one["name"] for one in part.containers)]
    names += [one["name"] for one in part.pod["volumes"].items]
    for one in names:
        if resource_names.dns_label("name", str(one.value)):
            yield one.problem(12, f"a DNS-1123 label of at most {NAME_LENGTH} characters")
    pod = longest_pod_name(str(name.value), part.name, part.slices.count, part.slices.hosts)
    if len(pod) > NAME_LENGTH:
        yield name.problem(12, f"{len(pod) - NAME_LENGTH} characters less: {pod} is too long")
    for container in part.containers:
        image, command = container["image"], container["command"]
        if not isinstance(image.value, str) or not DIGEST.fullmatch(image.value):
            yield image.problem(12, "NAME@sha256:DIGEST")
        words = command.value
        if not (isinstance(words, list) and words and all(isinstance(w, str) for w in words)):
            yield command.problem(12, "a list of words")
        elif re.fullmatch(r"(.*/)?(ba|da|z)?sh", words[0]):
            yield command.problem(12, "a program, no shell: quotes would be read twice")


RULES: tuple[Callable[[_Part], Iterator[Problem]], ...] = (
    *(_accelerator, _topology, _hosts, _chips, _slices, _numbering),
    *(_pods_fail, _restarts, _grace, _network, _tolerations, _identity),
)
