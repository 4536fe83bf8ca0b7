"""Manifests with one thing wrong are all refused: by a rule, or by the definition of JobSets."""

import copy
import re

import pytest

from launch.clusters import job_set, job_set_rules
from launch.clusters.cluster_job import NUMBERING
from tests.launch.clusters import cluster_jobs

JOB = cluster_jobs.with_builder()  # two slices of v6e:4x4 on Spot, and an index builder on v6e:2x4
SPEC = "spec.replicatedJobs[0].template.spec"
POD = f"{SPEC}.template.spec"
BOX = f"{POD}.containers[0]"
SELECTOR = f"{POD}.nodeSelector"
ACCELERATOR = f"{SELECTOR}[cloud.google.com/gke-tpu-accelerator]"
TOPOLOGY = f"{SELECTOR}[cloud.google.com/gke-tpu-topology]"
FAILURES = f"{SPEC}.podFailurePolicy.rules"
DROP = object()
FIELD = {"fieldRef": {"fieldPath": "metadata.annotations['index']"}}


def exit_rule(action, *codes, operator="In"):
    return {
        "action": action,
        "onExitCodes": {"containerName": "kennel", "operator": operator, "values": list(codes)},
    }


def variables(**values):
    return [
        {"name": name, "value": value} if isinstance(value, str) else {"name": name, **value}
        for name, value in values.items()
    ]


NUMBERED = {
    "JAX_COORDINATOR_ADDRESS": "mine-trainer-0-0.mine:8476",
    "JAX_NUM_PROCESSES": "8",
    "JAX_PROCESS_ID": {"valueFrom": FIELD},
    "MEGASCALE_COORDINATOR_ADDRESS": "mine-trainer-0-0.mine",
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": {"valueFrom": FIELD},
}
LONE = {"JAX_NUM_PROCESSES": "8"}
WRONG_COUNT = NUMBERED | {"JAX_NUM_PROCESSES": "4"}
SAME_SLICE = NUMBERED | {"MEGASCALE_SLICE_ID": "0"}
TOLERATED = [{"key": "google.com/tpu", "operator": "Exists"}]
DISRUPTION = {"onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}

# name: (rule, path, value). Each breaks the rule, and only by what its name says.
BREAKS_A_RULE = {
    "the label of v5e": (1, ACCELERATOR, "tpu-v5-lite-podslice"),
    "a machine for a label": (1, ACCELERATOR, "ct6e-standard-4t"),
    "our name for a label": (1, ACCELERATOR, "v6e"),
    "no accelerator": (1, ACCELERATOR, DROP),
    "a topology of v4": (2, TOPOLOGY, "2x2x4"),
    "a topology of nobody": (2, TOPOLOGY, "4x5"),
    "another topology": (2, TOPOLOGY, "4x8"),
    "no topology": (2, TOPOLOGY, DROP),
    "a pod less": (3, f"{SPEC}.parallelism", 3),
    "pods one after another": (3, f"{SPEC}.parallelism", 1),
    "more completions than hosts": (3, f"{SPEC}.completions", 8),
    "no completions": (3, f"{SPEC}.completions", DROP),
    "pods without numbers": (3, f"{SPEC}.completionMode", "NonIndexed"),
    "chips of the slice": (4, f"{BOX}.resources.limits[google.com/tpu]", 16),
    "no chips": (4, f"{BOX}.resources.limits", {}),
    "requests below limits": (4, f"{BOX}.resources.requests[google.com/tpu]", 2),
    "no requests": (4, f"{BOX}.resources.requests", DROP),
    "one replica for two slices": (5, "spec.replicatedJobs[0].replicas", 1),
    "replicas left to the default": (5, "spec.replicatedJobs[0].replicas", DROP),
    "no index builder": (5, "spec.replicatedJobs[1]", DROP),
    "two trainers": (5, "spec.replicatedJobs[1].name", "trainer"),
    "done when all are": (5, "spec.successPolicy", DROP),
    "done when one slice is": (5, "spec.successPolicy.operator", "Any"),
    "one variable of three": (6, f"{BOX}.env", variables(**LONE)),
    "a number of processes that is not": (6, f"{BOX}.env", variables(**WRONG_COUNT)),
    "one slice id for all": (6, f"{BOX}.env", variables(**SAME_SLICE)),
    "numbered twice": (6, f"{BOX}.env", variables(KENNEL_PROCESSES="auto", **NUMBERED)),
    "not numbered": (6, f"{BOX}.env", []),
    "pods restart alone": (7, f"{POD}.restartPolicy", "OnFailure"),
    "a second try of a pod": (7, f"{SPEC}.backoffLimit", 3),
    "six tries, the default": (7, f"{SPEC}.backoffLimit", DROP),
    "no restart": (8, "spec.failurePolicy.maxRestarts", 0),
    "restarts left to the default": (8, "spec.failurePolicy.maxRestarts", DROP),
    "user errors restart": (8, SPEC + ".podFailurePolicy", DROP),
    "a lost process ends the run": (8, FAILURES, [exit_rule("FailJob", 1, 134)]),
    "no memory ends the run": (8, FAILURES, [exit_rule("FailJob", 1, operator="NotIn")]),
    "a preemption ends the run": (8, f"{FAILURES}[1]", exit_rule("FailJob", 1, 143)),
    "a disrupted pod is replaced alone": (8, f"{FAILURES}[0]", {"action": "Ignore", **DISRUPTION}),
    "a disruption that exits with 1": (8, FAILURES, [exit_rule("FailJob", 1)]),
    "a failed job restarts the set": (8, "spec.failurePolicy.rules", DROP),
    "any failure ends the set": (
        8,
        "spec.failurePolicy.rules[0].onJobFailureReasons",
        ["PodFailurePolicy", "BackoffLimitExceeded"],
    ),
    "the trainer's errors restart": (
        8,
        "spec.failurePolicy.rules[0].targetReplicatedJobs",
        ["index-builder"],
    ),
    "killed during a save": (9, f"{POD}.terminationGracePeriodSeconds", 59),
    "30 s, the default": (9, f"{POD}.terminationGracePeriodSeconds", DROP),
    "names of the node": (10, f"{POD}.dnsPolicy", "Default"),
    "the host's network without names": (10, f"{POD}.dnsPolicy", DROP),
    "names without the host's network": (10, f"{POD}.hostNetwork", False),
    "no TPU node": (11, f"{POD}.tolerations", DROP),
    "no Spot node": (11, f"{POD}.tolerations", TOLERATED),
    "any node": (11, f"{SELECTOR}[cloud.google.com/gke-spot]", DROP),
    "a tag": (12, f"{BOX}.image", "kennel:latest"),
    "a command for a shell": (12, f"{BOX}.command", ["bash", "-c", "python -m launch.recipe"]),
    "no command": (12, f"{BOX}.command", DROP),
    "a name with an underscore": (12, "metadata.name", "my_run"),
    "another run's label": (12, "metadata.labels[kennel-run]", "other"),
    "a volume's name": (12, f"{POD}.volumes[0].name", "Shared Memory"),
}
BREAKS_THE_DEFINITION = {
    "nodeSelectr": (f"{POD}.nodeSelectr", {}),
    "replica": ("spec.replicatedJobs[0].replica", 2),
    "maxRestart": ("spec.failurePolicy.maxRestart", 3),
    "backofLimit": (f"{SPEC}.backofLimit", 0),
    "image under the pod": (f"{POD}.image", "kennel"),
    "enviroment": (f"{BOX}.enviroment", []),
    "terminationGracePeriod": (f"{POD}.terminationGracePeriod", 120),
    "a toleration's keys": (f"{POD}.tolerations[0].keys", "x"),
    "replicas as a text": ("spec.replicatedJobs[0].replicas", "2"),
    "a command as a text": (f"{BOX}.command", "python -m launch.recipe"),
    "a variable as a number": (f"{BOX}.env", [{"name": "A", "value": 1}]),
    "hostNetwork as a text": (f"{POD}.hostNetwork", "true"),
    "codes as texts": (f"{FAILURES}[1].onExitCodes.values", ["1"]),
    "containers as one": (f"{POD}.containers", {"name": "kennel"}),
    "a strategy that is none": ("spec.failurePolicy.restartStrategy", "RestartAll"),
    "an action that is none": ("spec.failurePolicy.rules[0].action", "FailAll"),
    "a job without a name": ("spec.replicatedJobs[1].name", DROP),
    "a job without a template": ("spec.replicatedJobs[1].template", DROP),
    "fewer than no replicas": ("spec.replicatedJobs[0].replicas", -1),
    "an emptyDir's kind": (f"{POD}.volumes[0].emptyDir.kind", "Memory"),
}


def mutated(path, value):
    manifest = copy.deepcopy(job_set.manifest(JOB))
    keys = [
        int(key) if key.isdecimal() else key
        for key in (name or index for name, index in re.findall(r"\[(.*?)\]|([^.\[\]]+)", path))
    ]
    inside = manifest
    for key in keys[:-1]:
        inside = inside[key]
    if value is DROP:
        del inside[keys[-1]]
    else:
        inside[keys[-1]] = value
    return manifest


def test_the_manifest_is_right_to_begin_with(shared):
    manifest = job_set.manifest(JOB)
    assert job_set_rules.problems(manifest, JOB) == []
    assert cluster_jobs.schema_errors(shared, manifest) == []


@pytest.mark.parametrize("name", BREAKS_A_RULE)
def test_a_rule_refuses(name):
    rule, path, value = BREAKS_A_RULE[name]
    found = job_set_rules.problems(mutated(path, value), JOB)
    assert rule in {problem.rule for problem in found}
    assert {problem.rule for problem in found} <= {rule, 1, 2} if rule < 3 else {rule}
    for problem in found:
        assert re.fullmatch(r"\S+: expected .+, found .+ \(rule \d+\)", str(problem)), problem


@pytest.mark.parametrize("name", BREAKS_THE_DEFINITION)
def test_the_definition_refuses(name, shared):
    assert cluster_jobs.schema_errors(shared, mutated(*BREAKS_THE_DEFINITION[name]))


@pytest.mark.parametrize("name", BREAKS_THE_DEFINITION)
def test_rules_read_any_manifest(name):
    found = job_set_rules.problems(mutated(*BREAKS_THE_DEFINITION[name]), JOB)
    assert all(str(problem) for problem in found)


@pytest.mark.parametrize("manifest", [None, [], {}, {"spec": 3}, {"spec": {"replicatedJobs": [1]}}])
def test_what_is_no_job_set_is_refused(manifest):
    assert job_set_rules.problems(manifest, JOB)


def test_enough_mutations_of_every_rule():
    by_rule = [rule for rule, _, _ in BREAKS_A_RULE.values()]
    assert len(by_rule) + len(BREAKS_THE_DEFINITION) >= 50
    assert all(by_rule.count(rule) >= 2 for rule in range(1, 13))
    assert len(job_set_rules.RULES) == 12


def test_a_manifest_that_numbers_all_processes_is_allowed():
    manifest = mutated(f"{BOX}.env", variables(**NUMBERED))
    assert job_set_rules.problems(manifest, JOB) == []
    assert all(NUMBERING.fullmatch(name) for name in NUMBERED)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            TOPOLOGY,
            "2x2x4",
            f"{SELECTOR}[cloud.google.com/gke-tpu-topology]: expected a topology of v6e: 1x1, 2x2, "
            "2x4, 4x4, 4x8, 8x8, 8x16, 16x16, found '2x2x4' (rule 2)",
        ),
        (
            f"{POD}.dnsPolicy",
            DROP,
            f"{POD}.dnsPolicy: expected 'ClusterFirstWithHostNet' (with hostNetwork), found "
            "nothing (rule 10)",
        ),
        (
            FAILURES,
            [exit_rule("FailJob", 1, 137), *[{"action": "Count", **DISRUPTION}]],
            f"{FAILURES}: expected Count after exit code 137 (the set restarts), found 'FailJob' "
            "(rule 8)",
        ),
    ],
)
def test_messages(path, value, message):
    assert message in [str(one) for one in job_set_rules.problems(mutated(path, value), JOB)]
