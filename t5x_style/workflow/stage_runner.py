"""Runs a stage from the command line: flags, checks, signals, errors, exit codes.

Exit code 0: done, skipped, or stopped early with everything saved; 143: other processes did not
come in time, and the same command may succeed; 1: an error, in a few lines where the user can fix
it (`--traceback` shows where it arose); else a traceback.

With several processes (see `processes`) process 0 keeps the lease and the records. A job that
computes on devices, whose entry point calls `startup.start()`, runs on all of them; any other runs
on process 0, on its CPU, and the others wait. However one of them ends, all do; see `peers`.
"""

import contextlib
import ctypes
import errno
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING

from t5x_style import STARTED
from t5x_style.configuration import gin_checks
from t5x_style.configuration.gin_reader import REPOSITORY
from t5x_style.distributed import launch_flags
from t5x_style.leases.holders import Holder
from t5x_style.leases.lease import Lease
from t5x_style.storage import places
from t5x_style.workflow import making, plans, remote_store, stages

if TYPE_CHECKING:  # imports JAX
    from t5x_style.distributed.peer_watch import Peers

PARENT = "KENNEL_PARENT"  # process id of the recipe or sweep that started this process
PR_SET_PDEATHSIG = 1

# What a process that computes on CPU is best started with; malloc reads it before Python runs. XLA
# allocates temporaries again at every step, and in pages of 4 KiB the first touch of each is a
# fault: in huge pages BERT-mini's step takes an eighth less (docs/results/benchmarks.md).
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
DISK_ADVICE = (
    "\nNo finished version is affected. Free disk space (python -m t5x_style.gc shows what may go) "
    "or make the folder writable, and run the same command: it continues."
)


def main(job: str = "") -> None:
    """Runs the stage of `sys.argv` and exits; `job` is the entry point's own job, or ""."""
    try:
        code = guarded(lambda flags: run_stage(flags, job), sys.argv[1:])
    except SystemExit as wrong_flags:
        if (peers := _join()) is not None:
            peers.end(2, "was given flags it does not know; its own message says which")
        raise wrong_flags
    if code not in (0, launch_flags.AGAIN) and (peers := _join()) is not None:
        peers.end(code, "could not read its flags; its own message says why")
    sys.exit(code)


def _join() -> "Peers | None":
    """The other processes of this stage, which this one joins now if its entry point has not."""
    if launch_flags.read(sys.argv[1:], os.environ) is None:
        return None
    from t5x_style.distributed import startup  # imports JAX, which many a stage does without

    return startup.join(together=False)


def guarded(action: Callable[[gin_checks.Flags], int], argv: Sequence[str]) -> int:
    """Calls `action` with the parsed flags; turns users' errors into a message and exit code 1."""
    try:
        return action(gin_checks.parse_flags(argv))
    except BrokenPipeError:  # whoever reads our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except launch_flags.AbsentError as error:
        _tell(error)
        return launch_flags.AGAIN
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
    text = re.sub(r"(?m)^(  In call to configurable '.*?') \(<.*?>\)", r"\1", str(error))
    return text + DISK_ADVICE if getattr(error, "errno", None) in DISK_ERRORS else text


def is_users(error: Exception) -> bool:
    """Whether our own code raised the error on purpose, rather than a library in surprise."""
    if isinstance(error, OSError):
        return True  # a full disk or a missing file says itself what to do
    frames = traceback.extract_tb(error.__traceback__)
    source = Path(frames[-1].filename).resolve() if frames else Path("/")
    environment = Path(sys.prefix).resolve()
    return source.is_relative_to(REPOSITORY) and not source.is_relative_to(environment)


def run_stage(flags: gin_checks.Flags, job: str) -> int:
    """Plans, decides, and runs what is not done yet; returns the exit code."""
    die_with_parent()
    peers = _join()
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)
    if peers is not None:
        return _run_among(peers, flags, job)
    try:
        flags = flags.without_links()
        planned = stages.plan(flags, job, fresh=True)
        decision = stages.decide(planned)
        _say(planned, decision)
        if flags.dry_run:
            return 0
        if decision.status == "done":
            _use(planned, decision)
            return 0
        _check_code(flags, planned)
        with _lease(planned) as lease:
            _make(flags, planned, lease)
        return 0
    except stages.Interrupted:
        print("stopped; the same command starts or continues the stage", flush=True)
        return 0


def _say(planned: stages.Plan, decision: plans.Decision) -> None:
    print(f"[{planned.shown}] {decision.status}: {decision.reason}", flush=True)
    if decision.note:
        print(f"[{planned.shown}] {decision.note}", flush=True)


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _use(planned: stages.Plan, decision: plans.Decision) -> None:
    assert decision.version is not None
    making.use(planned, decision.version)


@contextlib.contextmanager
def _lease(planned: stages.Plan) -> Iterator[Lease]:
    """Waits for whoever makes the same version; nobody else makes it inside."""

    def waiting(holder: Holder) -> None:
        print(f"[{planned.shown}] waits: {holder} makes {planned.id}", flush=True)

    def lost() -> None:
        print(
            f"[{planned.shown}] another process took {planned.id} over",
            file=sys.stderr,
        )
        os.kill(os.getpid(), signal.SIGTERM)

    lease = planned.store.leases.acquire(planned.id, waiting, lost)
    try:
        yield lease
    finally:
        lease.release()


def _run_among(peers: "Peers", flags: gin_checks.Flags, job: str) -> int:
    """As `run_stage`, among several processes: all end when one does."""
    try:
        flags = flags.without_links()
        planned = stages.plan(flags, job, fresh=True)
        _agreement().compare(peers, _identity(planned))
        if peers.number == 0:
            peers.close(_lead(peers, flags, planned))
        else:
            _follow(peers, flags, planned)
    except stages.Signalled as signalled:
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


def _agreement() -> ModuleType:
    from t5x_style.distributed import agreement  # imports JAX

    return agreement


def _identity(planned: stages.Plan) -> dict[str, dict[str, str]]:
    """Identity of a stage, which must be the same on all processes."""
    job = f"{planned.job.name}, version {planned.job.version}"
    return {
        "stage": {"job": job, "folder": places.shown(planned.link.absolute())},
        "gin": planned.values.semantic | planned.values.operational,
        "input": planned.inputs.flat(),
        "code": planned.code,
    }


def _lead(peers: "Peers", flags: gin_checks.Flags, planned: stages.Plan) -> str:
    """Process 0: decides, keeps lease and records, runs the job; what the others say at the end."""
    decision = stages.decide(planned)
    _say(planned, decision)
    if decision.status == "done" and not flags.dry_run:
        _use(planned, decision)
    if decision.status == "done" or flags.dry_run:
        peers.verdict("done")
        return ""
    _check_code(flags, planned)
    with _lease(planned) as lease:
        _make(flags, planned, lease, peers)
    return "" if stages.decide(replace(planned, rerun=False)).status == "done" else "stopped early"


def _follow(peers: "Peers", flags: gin_checks.Flags, planned: stages.Plan) -> None:
    """Any other process: runs the job where all do, and waits until process 0 has ended."""
    folder = peers.verdict().removeprefix("run ")
    runs = folder != "done"
    if runs and peers.together:
        try:
            _agreement().gather(peers)
            with remote_store.joined(planned.store, places.local(folder), _warn) as here:
                _call(flags, planned, here, first=False)
            peers.put(f"ran/{peers.number}", "")
        except stages.Signalled:
            raise
        except stages.Interrupted:
            pass  # all have agreed on it; process 0 says so
    outcome = None
    while outcome is None:
        try:
            if runs and not peers.together:
                print(f"process {peers.number} waits: process 0 runs this stage", flush=True)
            outcome = peers.wait_for_the_end()
        except stages.Signalled:
            peers.ask_to_stop()
    if outcome:
        print(f"[{planned.shown}] {outcome}; the same command continues it", flush=True)
    peers.close()


def _check_code(flags: gin_checks.Flags, planned: stages.Plan) -> None:
    """Finds wrong names and types before a version is begun; imports the job on the way."""
    config = flags.read()
    gin_checks.check_code(config)
    gin_checks.check_job(config, planned.entry)
    if "jax" in sys.modules:  # not every job that computes has a separate entry point
        from t5x_style.distributed import startup

        startup.tolerate_absent_tpu()


def _make(
    flags: gin_checks.Flags, planned: stages.Plan, lease: Lease, peers: "Peers | None" = None
) -> None:
    """Makes the version, or finds that it was made while this process waited for the lease."""
    remote_store.refresh(planned.store)
    decision = stages.decide(planned)
    if decision.status == "done":
        _say(planned, decision)
        _use(planned, decision)
        if peers is not None:
            peers.verdict("done")
        return
    folder = making.begin(planned, decision, lease, STARTED)
    print(f"[{planned.shown}] writes {places.shown(folder)}", flush=True)
    if peers is not None:
        peers.verdict(f"run {places.shown(folder)}")  # from here on the others may read the folder
    begin = time.monotonic()
    try:
        if peers is not None and peers.together:
            _agreement().gather(peers)
        with remote_store.pushed(planned.store, folder, _warn):
            outputs = _call(flags, planned, folder, first=True)
        if peers is not None and peers.together:
            peers.put(f"ran/{peers.number}", "")
            peers.wait_until_all_ran()  # the process that writes the outputs may be another one
            remote_store.complete(planned.store, folder)
    except stages.Interrupted as interrupted:
        if peers is not None and peers.together and isinstance(interrupted, stages.Signalled):
            raise  # the others have not agreed to stop here
        outputs = None
    seconds = time.monotonic() - begin
    if outputs is None:
        making.add_seconds(folder, seconds)
        print(
            f"[{planned.shown}] stopped early; the same command continues it",
            flush=True,
        )
        return
    making.finish(planned, folder, outputs, seconds, lease)
    print(f"[{planned.shown}] done in {seconds:.0f} s", flush=True)


def _call(
    flags: gin_checks.Flags, planned: stages.Plan, folder: Path, *, first: bool
) -> stages.Outputs | None:
    """Lets gin read the configuration, locks it, and calls the job with its bindings.

    Inputs are bound to the versions of the plan, where a link may point elsewhere by now; an input
    that is another one (`ANSWER_FILE = %CORPUS`) follows it.
    """
    with remote_store.fetched(making.read_by(planned, folder)):
        return _call_here(flags, planned, folder, first=first)


def _call_here(
    flags: gin_checks.Flags, planned: stages.Plan, folder: Path, *, first: bool
) -> stages.Outputs | None:
    """As `_call`; all that the job reads is here."""
    macros = flags.read().macros
    paths = planned.inputs.paths
    follows = {name for name in paths if getattr(macros[name].value, "name", "") in paths}
    fixed = flags.with_macros({name: paths[name] for name in paths if name not in follows})
    config = fixed.read()
    gin_checks.parse(config, planned.entry)
    _check_unchanged(fixed, planned)
    if not first:
        return gin_checks.configured(stages.run)(model_dir=str(folder))
    gin_checks.save_config(folder)
    try:
        return gin_checks.configured(stages.run)(model_dir=str(folder))
    finally:
        gin_checks.save_operative_config(folder)


def _check_unchanged(flags: gin_checks.Flags, planned: stages.Plan) -> None:
    """After gin has read the files: they must say what was planned, perhaps hours ago."""
    now = stages.plan(flags, planned.entry)
    if now.fingerprint != planned.fingerprint:
        changes = plans.in_words(plans.changes_between(planned.record(), now))
        raise stages.StageError(
            f"{planned.link}: gin files or inputs changed since this command read them: {changes}. "
            "Nothing was run. Run the same command again."
        )


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Stops a job that has no handler; jobs that save first install theirs."""
    del frame
    raise stages.Signalled(signal.Signals(number).name)


def die_with_parent() -> None:
    """A recipe that is killed takes its stage along, a sweep its recipes: two writers are worse."""
    parent = os.environ.pop(PARENT, "")
    if not parent or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before we could ask
        sys.exit(f"process {parent}, which started this one, is gone")
