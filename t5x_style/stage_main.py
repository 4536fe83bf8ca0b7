"""Runs a stage from the command line: flags, checks, signals, errors, exit codes.

Exit code 0: done, skipped, or stopped early with everything saved; 1: an error, told in a few
lines when it is the user's to mend (`--traceback` shows where it arose); else a traceback.

With several processes (see `processes`) process 0 keeps the lock and the records. A job that
computes on devices, whose entry point calls `runtime.start`, runs on all of them; any other runs on
process 0, and the others wait. However one of them ends, all do; see `peers`.
"""

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
from typing import TYPE_CHECKING

from t5x_style import gin_utils, processes, stage
from t5x_style.gin_reader import REPOSITORY

if TYPE_CHECKING:  # imports JAX
    from t5x_style.peers import Peers

PARENT = "KENNEL_PARENT"  # process id of the recipe that started this stage
PR_SET_PDEATHSIG = 1

# What a process that computes on CPU is best started with; malloc reads it before Python runs. XLA
# takes a step's temporaries anew at every step, and in pages of 4 KiB the first touch of each is a
# fault: in huge pages BERT-mini's step takes an eighth less (docs/results/benchmarks.md).
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


def main(job: str = "") -> None:
    """Runs the stage of `sys.argv` and exits; `job` is the entry point's own job, or ""."""
    try:
        code = guarded(lambda flags: run_stage(flags, job), sys.argv[1:])
    except SystemExit as wrong_flags:
        if (peers := _join()) is not None:
            peers.end(2, "was given flags it does not know; its own message says which")
        raise wrong_flags
    if code and (peers := _join()) is not None:
        peers.end(code, "could not read its flags; its own message says why")
    sys.exit(code)


def _join() -> "Peers | None":
    """The other processes of this stage, which this one joins now if its entry point has not."""
    if processes.read(sys.argv[1:], os.environ) is None:
        return None
    from t5x_style import runtime  # imports JAX, which many a stage does without

    return runtime.join(together=False)


def guarded(action: Callable[[gin_utils.Flags], int], argv: Sequence[str]) -> int:
    """Calls `action` with the parsed flags; turns users' errors into a message and exit code 1."""
    try:
        return action(gin_utils.parse_flags(argv))
    except (ValueError, OSError) as error:
        if "--traceback" in argv or not is_users(error):
            raise
        _tell(error)
        return 1


def _tell(error: Exception) -> None:
    print(f"error: {_in_words(error)}", file=sys.stderr)
    print("(--traceback shows where this arose)", file=sys.stderr, flush=True)


def _in_words(error: Exception) -> str:
    # gin names the configurables on the way to the error, and their addresses in memory
    return re.sub(r"(?m)^(  In call to configurable '.*?') \(<.*?>\)", r"\1", str(error))


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
    peers = _join()
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    if peers is not None:
        return _run_among(peers, flags, job)
    try:
        planned = stage.plan(flags, job)
        decision = stage.decide(planned)
        print(f"[{planned.folder}] {decision.status}: {decision.reason}", flush=True)
        if decision.status == "done" or flags.dry_run:
            return 0
        _check_code(flags, planned)
        with stage.lock(planned.folder):
            return _run_locked(flags, planned)
    except stage.Interrupted:
        print("stopped before the job began; the same command starts it", flush=True)
        return 0


def _run_among(peers: "Peers", flags: gin_utils.Flags, job: str) -> int:
    """As `run_stage`, among several processes: all end when one does."""
    try:
        planned = stage.plan(flags, job)
        peers.compare(_identity(planned))
        if peers.number == 0:
            peers.close(_lead(peers, flags, planned))
        else:
            _follow(peers, flags, planned)
    except stage.Signalled as signalled:
        peers.end(0, f"was stopped by {signalled}; the same command continues")
    except Exception as error:
        if flags.traceback or not is_users(error):
            traceback.print_exception(error)
        else:
            _tell(error)
        if peers.is_loss(error):
            peers.wait_for_the_cause()
        peers.end(1, f"failed: {type(error).__name__}: {_in_words(error)}")
    return 0


def _identity(planned: stage.Plan) -> dict[str, dict[str, str]]:
    """What must be the same on all processes of a stage."""
    return {
        "job": {planned.job: ""},
        "folder": {str(planned.folder.absolute()): ""},
        "binding": planned.bindings,
        "input": planned.inputs,
        "code": planned.code,
    }


def _lead(peers: "Peers", flags: gin_utils.Flags, planned: stage.Plan) -> str:
    """Process 0: decides, keeps lock and records, runs the job; what the others say at the end."""
    decision = stage.decide(planned)
    print(f"[{planned.folder}] {decision.status}: {decision.reason}", flush=True)
    if decision.status == "done" or flags.dry_run:
        peers.verdict("done")
        return ""
    _check_code(flags, planned)
    with stage.lock(planned.folder):
        _run_locked(flags, planned, peers)
    return "" if stage.decide(planned).status == "done" else "stopped early"


def _follow(peers: "Peers", flags: gin_utils.Flags, planned: stage.Plan) -> None:
    """Any other process: runs the job where all do, and waits until process 0 has ended."""
    runs = peers.verdict() == "run"
    if runs and peers.together:
        try:
            _call(flags, planned, first=False)
        except stage.Signalled:
            raise
        except stage.Interrupted:
            pass  # all have agreed on it; process 0 says so
    outcome = None
    while outcome is None:
        try:
            if runs and not peers.together:
                print(f"process {peers.number} waits: process 0 runs this stage", flush=True)
            outcome = peers.wait_for_the_end()
        except stage.Signalled:
            peers.ask_to_stop()
    if outcome:
        print(f"[{planned.folder}] {outcome}; the same command continues it", flush=True)
    peers.close()


def _check_code(flags: gin_utils.Flags, planned: stage.Plan) -> None:
    """Finds wrong names and types before a folder is emptied."""
    config = flags.read()
    gin_utils.check_code(config)
    gin_utils.check_job(config, planned.job)


def _run_locked(flags: gin_utils.Flags, planned: stage.Plan, peers: "Peers | None" = None) -> int:
    decision = stage.decide(planned)  # again: another run may have finished meanwhile
    if decision.status == "done":
        if peers is not None:
            peers.verdict("done")
        return 0
    if decision.status == "changed":
        _check_files_survive(flags, planned, decision)
    stage.prepare_folder(planned, decision)
    if peers is not None:
        peers.verdict("run")  # from here on the others may read the folder
    begin = time.monotonic()
    try:
        outputs = _call(flags, planned, first=True)
    except stage.Interrupted as interrupted:
        if peers is not None and peers.together and isinstance(interrupted, stage.Signalled):
            raise  # the others have not agreed to stop here
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
    raise stage.Signalled(signal.Signals(number).name)


def _die_with_parent() -> None:
    """A recipe that is killed takes its stage along: two writers in a folder would be worse."""
    parent = os.environ.pop(PARENT, "")
    if not parent or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before we could ask
        sys.exit(f"the recipe (process {parent}) that started this stage is gone")
