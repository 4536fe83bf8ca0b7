"""A run on GKE that nothing is wrong with, and the definition of JobSets."""

import functools
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from launch.clusters.cluster_job import ClusterJob, IndexBuilder
from t5x_style.accelerators import slices

REPOSITORY = Path(__file__).resolve().parents[3]
IMAGE = "us-docker.pkg.dev/my-project/kennel/kennel@sha256:" + "0123456789abcdef" * 4
SCHEMA = "schemas/jobset.x-k8s.io_jobsets.yaml"


def job(topology: str = "v5e:4x4", **changes: Any) -> ClusterJob:
    """A run on a slice, with other values of some fields."""
    fields = {
        "name": "mine",
        "slices": slices.parse(topology),
        "image": IMAGE,
        "command": ("python", "-m", "launch.recipe", "--gin.STEPS=3"),
        "run_dir": "gs://my-bucket/runs/mine",
    }
    return ClusterJob(**(fields | changes))


def with_builder(topology: str = "2x v6e:4x4", **changes: Any) -> ClusterJob:
    """A run with an index builder, on Spot nodes, in a queue."""
    builder = IndexBuilder(slices.parse("v6e:2x4"), ("python", "-m", "t5x_style.build_index"))
    fields = {"index_builder": builder, "provisioning": "spot", "queue": "tpus"}
    return job(topology, **(fields | changes))


@functools.cache
def validator(shared: Path) -> jsonschema.Draft202012Validator:
    """Of JobSets, refusing fields that the definition does not have.

    An API server prunes unknown fields: a misspelt one is lost without a word.
    """
    definition = yaml.load((shared / SCHEMA).read_text(), yaml.CSafeLoader)
    (version,) = definition["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    _close(schema)
    # The definition leaves these to the API server, which knows them.
    schema["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft202012Validator(schema)


def _close(schema: Any) -> None:
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            schema.setdefault("additionalProperties", False)
        for value in schema.values():
            _close(value)
    elif isinstance(schema, list):
        for value in schema:
            _close(value)


def schema_errors(shared: Path, manifest: Any) -> list[str]:
    """What the strict definition refuses, with the place of each."""
    errors = validator(shared).iter_errors(manifest)
    return [f"{error.json_path}: {error.message}" for error in errors]
