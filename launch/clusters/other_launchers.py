"""The same run for launchers of others: a command of xpk 1.16, a task of SkyPilot 0.14.

Both are printed, never run. What they cannot do is refused here, not left out.
"""

import dataclasses
import shlex
from collections.abc import Sequence

from launch.clusters import job_set
from launch.clusters.cluster_job import ClusterJob
from t5x_style.accelerators.slices import Slices

XPK_NAMES = {"v5e": "v5litepod"}
# Slices of one host here and on GKE's machines with eight chips. xpk's table has no such machine,
# and makes two hosts of the larger ones.
XPK_LACKS = {("v5e", "1x1"), ("v5e", "2x2"), ("v5e", "2x4"), ("v6e", "2x4")}


# What a launcher has no place for, by fields of a run.
XPK_IGNORES = ("queue", "service_account", "scales_from_zero")
SKYPILOT_IGNORES = (*XPK_IGNORES, "image", "namespace", "max_restarts", "grace_seconds")


class OtherLauncherError(ValueError):
    """A run that another launcher cannot start as intended."""


def _refuse_ignored(launcher: str, job: ClusterJob, names: Sequence[str]) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(job)}
    defaults["image"] = ""
    if given := [name for name in names if getattr(job, name) != defaults[name]]:
        flags = ", ".join(f"--{name}" for name in given)
        raise OtherLauncherError(f"{launcher} takes no {flags}; leave it out, or use the JobSet")


def xpk_command(job: ClusterJob) -> str:
    """A command line for a shell, `$CLUSTER`, `$PROJECT` and `$ZONE` being the user's.

    xpk writes the command into a YAML block and has bash run it there, after Kubernetes expanded
    `$(NAME)`; the environment goes into it too, as xpk does not escape values of `--env`.

    Raises:
      OtherLauncherError: a second job, several lines, a slice that xpk does not know, or flags
        that it has no place for.
    """
    _refuse_ignored("xpk", job, XPK_IGNORES)
    if job.index_builder is not None:
        raise OtherLauncherError("xpk starts one job; found an index builder next to the trainer")
    if (job.slices.generation.name, job.slices.topology) in XPK_LACKS:
        raise OtherLauncherError(
            f"xpk 1.16 has no {job.slices} of one host; take another size, as 4x4, or the JobSet"
        )
    inside = shlex.join([*_environment(job), *job_set.POD, *job.command])
    if "\n" in inside or "\r" in inside:
        raise OtherLauncherError("xpk cannot pass on a word with a line break; use the JobSet")
    arguments = [
        f"--workload={job.name}",
        f"--docker-image={job.image}",
        f"--tpu-type={xpk_type(job.slices)}",
        f"--num-slices={job.slices.count}",
        *_xpk_capacity(job),
        f"--max-restarts={job.max_restarts}",
        f"--termination-grace-period-seconds={job.grace_seconds}",
        f"--namespace={job.namespace}",
        f"--command={job_set.literal(inside)}",
    ]
    place = '--cluster="$CLUSTER" --project="$PROJECT" --zone="$ZONE"'
    lines = ["xpk workload create", place, *(shlex.quote(one) for one in arguments)]
    return " \\\n    ".join(lines) + "\n"


def xpk_type(slices: Slices) -> str:
    """xpk's name of a slice, by its topology: by their number of cores some are others there."""
    name = slices.generation.name
    return f"{XPK_NAMES.get(name, name)}-{slices.topology}"


def _xpk_capacity(job: ClusterJob) -> list[str]:
    return {
        "on_demand": ["--on-demand"],
        "spot": ["--spot"],
        "flex_start": ["--flex"],
        "reserved": [f"--reservation={job.reservation}"],
    }[job.provisioning]


def _environment(job: ClusterJob) -> list[str]:
    """The variables as words of env(1)."""
    variables = job_set.environment(job, job.slices)
    return ["env", *(f"{name}={value}" for name, value in variables.items())] if variables else []


def skypilot_task(job: ClusterJob) -> str:
    """A task file: `sky launch FILE`, from the repository's folder. It uses TPU VMs, not GKE.

    Raises:
      OtherLauncherError: several slices, a second job, a slice that TPU VMs do not have, a
        reservation, or flags that it has no place for.
    """
    _refuse_ignored("SkyPilot", job, SKYPILOT_IGNORES)
    if job.slices.count > 1 or job.index_builder is not None:
        raise OtherLauncherError(
            "SkyPilot starts one slice: separate TPU VMs never become one multislice job; found "
            f"{job.slices}{' and an index builder' if job.index_builder else ''}"
        )
    if not job.slices.accelerator_type or not job.slices.is_usual:
        raise OtherLauncherError(
            f"SkyPilot asks for TPU VMs by their number of chips, which does not name {job.slices}"
        )
    if job.provisioning not in ("on_demand", "spot"):
        raise OtherLauncherError(
            f"a SkyPilot task is on demand or spot, found {job.provisioning}; reservations and "
            "flex-start are settings of SkyPilot, not of a task"
        )
    task = {
        "name": job.name,
        "workdir": ".",
        "resources": {
            "infra": "gcp",
            "accelerators": f"tpu-{job.slices.accelerator_type}",
            "accelerator_args": {"runtime_version": job.slices.generation.runtime_version},
            "use_spot": job.provisioning == "spot",
        },
        "envs": job_set.environment(job, job.slices),
        "setup": SETUP,
        "run": f". .venv/bin/activate\nexec {shlex.join([*job_set.POD, *job.command])}\n",
    }
    return job_set.text(task)


# The images have Python 3.10, with which pip installs an old JAX without a word.
SETUP = """\
set -e
python3 -m pip install --quiet --require-hashes -r launch/cloud/uv_pin.txt
python3 -m uv venv --allow-existing --python=3.11 .venv
python3 -m uv pip install --python=.venv/bin/python --require-hashes -r launch/cloud/tpu.lock
"""
