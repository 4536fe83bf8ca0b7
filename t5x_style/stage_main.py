"""Runs a stage from the command line: flags, checks, signals, errors, exit codes.

Exit code 0: done, skipped, or stopped early with everything saved; 1: an error, told in a few
lines when it is the user's to mend (`--traceback` shows where it arose); else a traceback.
"""

import contextlib
import ctypes
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from t5x_style import gin_utils, stage
from t5x_style.gin_reader import REPOSITORY

PARENT = "KENNEL_PARENT"  # process id of the recipe that started this stage
PROCESS = "JAX_PROCESS_ID"  # number of this process when several share one stage
DISTRIBUTED = ("JAX_COORDINATOR_ADDRESS", "JAX_DISTRIBUTED")  # set when they do; see runtime
PR_SET_PDEATHSIG = 1


def main(job: str = "") -> None:
    """Runs the stage of `sys.argv` and exits; `job` is the entry point's own job, or ""."""
    sys.exit(guarded(lambda flags: run_stage(flags, job), sys.argv[1:]))


def guarded(action: Callable[[gin_utils.Flags], int], argv: Sequence[str]) -> int:
    """Calls `action` with the parsed flags; turns users' errors into a message and exit code 1."""
    try:
        return action(gin_utils.parse_flags(argv))
    except (ValueError, OSError) as error:
        if "--traceback" in argv or not is_users(error):
            raise
        # gin names the configurables on the way to the error, and their addresses in memory
        text = re.sub(r"(?m)^(  In call to configurable '.*?') \(<.*?>\)", r"\1", str(error))
        print(f"error: {text}", file=sys.stderr)
        print("(--traceback shows where this arose)", file=sys.stderr)
        return 1


def is_users(error: Exception) -> bool:
    """Whether our own code raised the error on purpose, rather than a library in surprise."""
    if isinstance(error, OSError):
        return True  # a full disk or a missing file says itself what to do
    frames = traceback.extract_tb(error.__traceback__)
    source = Path(frames[-1].filename).resolve() if frames else Path("/")
    environment = Path(sys.prefix).resolve()
    return source.is_relative_to(REPOSITORY) and not source.is_relative_to(environment)


def run_stage(flags: gin_utils.Flags, job: str) -> int:
    """Plans, decides, and runs what is not done yet; returns the exit code."""
    _die_with_parent()
    # With several processes JAX holds SIGTERM since they joined: all stop at the same step, saved.
    # A handler of ours would stop one at any point, and leave the others waiting for it.
    if not any(os.environ.get(name) for name in DISTRIBUTED):
        signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    try:
        planned = stage.plan(flags, job)
        decision = stage.decide(planned)
        print(f"[{planned.folder}] {decision.status}: {decision.reason}", flush=True)
        if decision.status == "done" or flags.dry_run:
            return 0
        _check_code(flags, planned)
        if int(os.environ.get(PROCESS, "0")):
            with contextlib.suppress(stage.Interrupted):
                _call(flags, planned, first=False)  # process 0 keeps the records, and says so
            return 0
        with stage.lock(planned.folder):
            return _run_locked(flags, planned)
    except stage.Interrupted:
        print("stopped before the job began; the same command starts it", flush=True)
        return 0


def _check_code(flags: gin_utils.Flags, planned: stage.Plan) -> None:
    """Finds wrong names and types before a folder is emptied."""
    config = flags.read()
    gin_utils.check_code(config)
    gin_utils.check_job(config, planned.job)


def _run_locked(flags: gin_utils.Flags, planned: stage.Plan) -> int:
    decision = stage.decide(planned)  # again: another process may have finished meanwhile
    if decision.status == "done":
        return 0
    if decision.status == "changed":
        _check_files_survive(flags, planned, decision)
    stage.prepare_folder(planned, decision)
    begin = time.monotonic()
    try:
        outputs = _call(flags, planned, first=True)
    except stage.Interrupted:
        outputs = None
    seconds = time.monotonic() - begin
    if outputs is None:
        stage.add_seconds(planned, seconds)
        print(f"[{planned.folder}] stopped early; the same command continues it", flush=True)
        return 0
    stage.finish(planned, stage.check_outputs(planned.folder, outputs, planned.job), seconds)
    print(f"[{planned.folder}] done in {seconds:.0f} s", flush=True)
    return 0


def _check_files_survive(
    flags: gin_utils.Flags, planned: stage.Plan, decision: stage.Decision
) -> None:
    """Refuses to empty a folder that holds the gin files of this very run."""
    folder = planned.folder.resolve()
    for path in flags.read().files:
        if path.resolve().is_relative_to(folder):
            raise stage.StageError(
                f"{planned.folder} must be emptied ({decision.reason}), but {path} is read for "
                "this run. Copy it elsewhere, and name the copy."
            )


def _call(flags: gin_utils.Flags, planned: stage.Plan, *, first: bool) -> stage.Outputs | None:
    """Lets gin read the configuration, locks it, and calls the job with its bindings."""
    config = flags.read()
    gin_utils.parse(config, flags, planned.job)
    if not first:
        return gin_utils.configured(stage.run)(model_dir=str(planned.folder))
    gin_utils.save_config(planned.folder)
    try:
        return gin_utils.configured(stage.run)(model_dir=str(planned.folder))
    finally:
        gin_utils.save_operative_config(planned.folder)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Stops a job that has no handler of its own; jobs that save first install theirs."""
    del frame
    raise stage.Interrupted(signal.Signals(number).name)


def _die_with_parent() -> None:
    """A recipe that is killed takes its stage along: two writers in a folder would be worse."""
    parent = os.environ.pop(PARENT, "")
    if not parent or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before we could ask
        sys.exit(f"the recipe (process {parent}) that started this stage is gone")
