"""A note in RUN_DIR that a job is done.

Without it, a launcher that was stopped after the slices were deleted would pay for new ones, to
find out that nothing is left to do.
"""

import json
import tempfile
from pathlib import Path

from launch.cloud.gcloud import Gcloud, GcloudError


def address(run_dir: str, job: str) -> str:
    """Where the note of a job is."""
    return f"{run_dir.rstrip('/')}/kennel-tpu/{job}.json"


def writing(here: str, run_dir: str, job: str) -> list[str]:
    """The argument list that copies the note to its place."""
    return ["storage", "cp", here, address(run_dir, job), "--quiet"]


def reading(run_dir: str, job: str) -> list[str]:
    """The argument list that prints the note."""
    return ["storage", "cat", address(run_dir, job)]


def write(gcloud: Gcloud, run_dir: str, job: str) -> None:
    """Notes that the job is done; a local RUN_DIR needs no note, since its host stays.

    Raises:
      GcloudError: the bucket did not take it.
    """
    if not run_dir.startswith("gs://"):
        return
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / "done.json"
        here.write_text(json.dumps({"job": job, "state": "done"}), encoding="utf-8")
        gcloud.once(writing(str(here), run_dir, job))


def is_done(gcloud: Gcloud, run_dir: str, job: str) -> bool:
    """Whether the job is noted as done.

    Raises:
      GcloudError: the bucket did not answer, or may not be read.
    """
    if not run_dir.startswith("gs://"):
        return False
    try:
        return gcloud.read(reading(run_dir, job)) == {"job": job, "state": "done"}
    except GcloudError as error:
        if error.kind == "not_found":
            return False
        raise
