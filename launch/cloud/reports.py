"""What gcloud reports about a run: its queued resource, its nodes, the job on its hosts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from launch.cloud.requests import RUN_LABEL
from t5x_style.accelerators import slices
from t5x_style.accelerators.slices import Slices

WAITING = ("CREATING", "ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING")
GONE = ("PREEMPTED", "TERMINATED", "STOPPED", "STOPPING", "DELETING")  # nodes that do not return
JobState = Literal["absent", "running", "done", "failed"]


@dataclass(frozen=True)
class Resource:
    """A queued resource.

    Attributes:
      name: its name.
      state: as Google calls it, such as ACTIVE.
      labels: of its nodes.
      accelerator: 'v5litepod-8', or a generation and a topology: 'v4:2x2x4'; "" if not reported.
      count: of its nodes.
      created: seconds since 1970; None if not reported.
      failure: message of a FAILED one, or "".
    """

    name: str
    state: str
    labels: Mapping[str, str] = field(default_factory=dict)
    accelerator: str = ""
    count: int = 1
    created: float | None = None
    failure: str = ""

    @property
    def run(self) -> str:
        """Name of the run whose it is; "" where another tool made it."""
        return self.labels.get(RUN_LABEL, "")

    @property
    def slices(self) -> Slices:
        """What it consists of.

        Raises:
          SliceError: a generation or topology that the table does not have.
        """
        prefix = f"{self.count}x " if self.count > 1 else ""
        return slices.parse(f"{prefix}{self.accelerator}")


@dataclass(frozen=True)
class Node:
    """One slice as a TPU VM."""

    name: str
    state: str


@dataclass(frozen=True)
class Host:
    """The job on one host.

    Attributes:
      name: the host's.
      state: of the job.
      exit_code: of a job that has ended.
      job: which one; "" if not reported.
    """

    name: str
    state: JobState
    exit_code: int | None = None
    job: str = ""


def resource(answer: Mapping[str, Any]) -> Resource:
    """Reads the JSON of `describe`, or one entry of `list`."""
    state = answer.get("state") or {}
    specs = (answer.get("tpu") or {}).get("nodeSpec") or [{}]
    node = specs[0].get("node") or {}
    several = specs[0].get("multisliceParams") or specs[0].get("multiNodeParams") or {}
    return Resource(
        name=str(answer.get("name", "")).rpartition("/")[2],
        state=str(state.get("state", "STATE_UNSPECIFIED")),
        labels=dict(node.get("labels") or {}),
        accelerator=_accelerator(node),
        count=max(len(specs), int(several.get("nodeCount") or 1)),
        created=_seconds(answer.get("createTime")),
        failure=_failure(state),
    )


def _accelerator(node: Mapping[str, Any]) -> str:
    config = node.get("acceleratorConfig") or {}
    if config.get("topology") and config.get("type"):
        kind = str(config["type"]).lower().replace("_", "")
        return f"{kind}:{config['topology']}"
    return str(node.get("acceleratorType", "")).rpartition("/")[2]


def _failure(state: Mapping[str, Any]) -> str:
    error = (state.get("failedData") or {}).get("error") or {}
    return str(error.get("message", "")) or (json.dumps(error) if error else "")


def _seconds(text: str | None) -> float | None:
    if not text:
        return None
    whole = text.partition(".")[0].removesuffix("Z")  # Google's fractions have nine digits
    return datetime.fromisoformat(f"{whole}+00:00").timestamp()


def nodes(answer: Any, run: str) -> list[Node]:
    """Reads the nodes of a run in the JSON of all."""
    return [
        Node(str(one.get("name", "")).rpartition("/")[2], str(one.get("state", "")))
        for one in answer or ()
        if (one.get("labels") or {}).get(RUN_LABEL) == run
    ]


def hosts(text: str) -> list[Host]:
    """Reads what the hosts printed: a JSON object each, between other lines.

    A host that printed twice counts once, with its last line.
    """
    found = {}
    for line in text.splitlines():
        start = line.find("{")
        try:
            said = json.loads(line[start:]) if start >= 0 else None
        except ValueError:
            continue
        if isinstance(said, dict) and said.get("state") in ("absent", "running", "done", "failed"):
            code = said.get("exit_code")
            name = str(said.get("host", ""))
            found[name] = Host(name, said["state"], code, str(said.get("job", "")))
    return list(found.values())
