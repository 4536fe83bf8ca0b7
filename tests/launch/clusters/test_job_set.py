"""Manifests: for every slice, and with words that shells, YAML and Kubernetes read differently."""

import re

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launch.cloud import recipe_job
from launch.clusters import job_set, job_set_rules
from launch.clusters.cluster_job import ClusterJobError
from t5x_style.accelerators.generations import GENERATIONS, PROVISIONING
from t5x_style.accelerators.slices import Slices
from tests.launch.clusters import cluster_jobs, kubernetes

ALL = [
    Slices(row, topology, count)
    for row in GENERATIONS.values()
    for topology in row.topologies
    for count in (1, 2)
    if count == 1 or Slices(row, topology).hosts > 1
]


@pytest.mark.parametrize("provisioning", PROVISIONING)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_slice_has_a_manifest_within_the_rules(generation, provisioning):
    chosen = [one for one in ALL if one.generation.name == generation]
    assert len(chosen) > 10
    reservation = "ours" if provisioning == "reserved" else ""
    for slices in chosen:
        job = cluster_jobs.job(slices=slices, provisioning=provisioning, reservation=reservation)
        manifest = yaml.load(job_set.text(job_set.manifest(job)), yaml.CSafeLoader)
        assert job_set_rules.problems(manifest, job) == []
        (trainer,) = manifest["spec"]["replicatedJobs"]
        spec = trainer["template"]["spec"]
        chips = spec["template"]["spec"]["containers"][0]["resources"]["limits"]["google.com/tpu"]
        assert trainer["replicas"] * spec["parallelism"] * chips == slices.all_chips


@pytest.mark.parametrize("slices", ALL, ids=str)
def test_every_manifest_passes_the_strict_definition(slices, shared):
    job = cluster_jobs.with_builder(slices=slices)
    assert cluster_jobs.schema_errors(shared, job_set.manifest(job)) == []


def test_fields_that_depend_on_the_run():
    job = cluster_jobs.with_builder(environment={"A": "1"}, namespace="team", grace_seconds=600)
    manifest = job_set.manifest(job)
    assert manifest["metadata"]["labels"] == {
        "kennel-run": "mine",
        "app.kubernetes.io/managed-by": "kennel",
        "kueue.x-k8s.io/queue-name": "tpus",
    }
    trainer, builder = manifest["spec"]["replicatedJobs"]
    assert (trainer["name"], trainer["replicas"]) == ("trainer", 2)
    assert (builder["name"], builder["replicas"]) == ("index-builder", 1)
    assert manifest["spec"]["successPolicy"]["targetReplicatedJobs"] == ["trainer"]
    pods = [one["template"]["spec"]["template"]["spec"] for one in (trainer, builder)]
    assert [pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] for pod in pods] == [
        *("4x4", "2x4")
    ]
    assert [pod["terminationGracePeriodSeconds"] for pod in pods] == [600, 600]
    # Four hosts twice join each other; the builder's one host has nobody to join.
    named = [{one["name"]: one["value"] for one in pod["containers"][0]["env"]} for pod in pods]
    assert named == [{"A": "1", **recipe_job.SEVERAL_HOSTS}, {"A": "1"}]


def test_a_pool_without_nodes_gets_no_exclusive_placement():
    """Followers would wait for a leader that no node can take."""
    annotations = [
        job_set.manifest(cluster_jobs.job(scales_from_zero=empty))["metadata"]["annotations"]
        for empty in (False, True)
    ]
    assert ["exclusive" in " ".join(one) for one in annotations] == [True, False]


def test_without_a_queue_kueue_has_no_say():
    assert "kueue" not in job_set.text(job_set.manifest(cluster_jobs.job()))


def test_text_has_a_line_for_each_word_and_no_alias():
    words = ("a", "x" * 300, "two\nlines")
    text = job_set.text(job_set.manifest(cluster_jobs.job(command=words)))
    assert "&" not in text and re.search(r'^ +- "x{300}"$', text, re.MULTILINE)
    assert r'- "two\nlines"' in text


@pytest.mark.parametrize("word", ["y", "no", "null", "1e3", "0o17", "1:20", "~", "", "=", "12"])
def test_words_that_yaml_has_other_uses_for_are_quoted(word):
    text = job_set.text(job_set.manifest(cluster_jobs.job(command=(word,))))
    assert f'- "{word}"' in text


# Pieces that a shell, YAML, gin, printf or Kubernetes would read as something else.
SPECIAL = (
    *("$", "$$", "$(", ")", "$(HOME)", "$$(HOME)", "${HOME}", "$HOME", "`id`", "\\", "\\n"),
    *("'", '"', "''", "%", "%s", "%%", "%MACRO", "#", ": ", "- ", "=", "@"),
    *("\n", "\r\n", "\t", " ", "  ", "\x1b", "\x7f"),
    *("{{x}}", "{", "[", "&a", "*a", "!", "|", ">", "---", "..."),
    *("中文", "検索", "ελ", "é", "e\u0301", "😀", "\u0085", "\u2028", "\ufeff", "\u00a0"),
)
TEXTS = st.lists(
    st.sampled_from(SPECIAL) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
).map(lambda pieces: "".join(pieces).replace("\0", ""))


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(words=st.lists(TEXTS, min_size=1, max_size=4), value=TEXTS)
def test_words_and_variables_arrive_byte_for_byte(words, value):
    job = cluster_jobs.job(
        "v5e:2x4", command=tuple(words), environment={"HOME": "/root", "V": value}
    )
    manifest = yaml.load(job_set.text(job_set.manifest(job)), yaml.CSafeLoader)
    (process,) = kubernetes.processes(manifest)
    assert process.command == [*job_set.POD, *words]
    assert process.environment == {"HOME": "/root", "V": value}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(B)", "$(B)"),
        ("$(A", "$(A"),
        ("$A$", "$A$"),
        ("a$$b", "a$b"),
    ],
)
def test_the_model_of_kubernetes_expands(text, expected):
    """The test before it is only as good as this: Kubernetes' own documented cases."""
    assert kubernetes.expand(text, {"A": "1"}) == expected


def test_what_is_no_text_is_refused():
    with pytest.raises(ClusterJobError, match="half a character"):
        cluster_jobs.job(environment={"A": "\udc80"})
