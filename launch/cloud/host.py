"""A job on one host: start it, report, show and stop it. Every ssh command carries this source.

    python3 -c SOURCE start JOB                  JOB: JSON, see `launch.cloud.bootstrap.Job`
    python3 -c SOURCE status NAME
    python3 -c SOURCE log NAME LINES once|follow
    python3 -c SOURCE stop NAME SECONDS term|kill

All but `log` print one line of JSON, the state of the job. It runs on the Python of the host's
image, which is 3.10, with the standard library alone. Files in `~/.kennel`:

    code/HASH/           the unpacked archive of the code
    environments/HASH/   Python 3.11 with the packages of the lock; made by `host_environment.py`
    runs/NAME/job.json   what was started
    runs/NAME/lock       locked (flock) for as long as the supervisor lives
    runs/NAME/pid        of the supervisor
    runs/NAME/record.json   how the last attempt ended
    runs/NAME/log.txt    everything that all attempts printed

`start` unpacks the code, has the environment made, leaves a supervisor in a separate session, and
returns: ssh may end. The supervisor runs the job as its child and records how it ended. SIGTERM to
the supervisor goes to the child, which saves. While it lives no second one starts.
"""

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path.home() / ".kennel"
MANIFEST = ".kennel_manifest"
POLL_SECONDS = 0.1
KILLED, STOPPED = 128 + signal.SIGKILL, 128 + signal.SIGTERM


class HostError(ValueError):
    """The job cannot run on this host; the message says why."""


class Run:
    """The files of one run on this host."""

    def __init__(self, name: str):
        self.name, self.folder = name, ROOT / "runs" / name
        self.job, self.log = self.folder / "job.json", self.folder / "log.txt"
        self.pid, self.record = self.folder / "pid", self.folder / "record.json"

    @contextlib.contextmanager
    def guard(self) -> Iterator[int]:
        """One command at a time; yields the descriptor of its lock."""
        with open(self.folder / "guard", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file.fileno()

    def lock(self) -> "io.BufferedWriter | None":
        """The lock of the supervisor; None if one lives. To be called inside `guard`."""
        file = open(self.folder / "lock", "ab")  # noqa: SIM115  held until the process ends
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file

    def write(self, **changes: Any) -> None:
        """Changes keys of the record, in one piece."""
        text = json.dumps({**self.read(), **changes})
        temporary = self.record.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self.record)

    def read(self) -> "dict[str, Any]":
        """The record; empty before the first start."""
        if not self.record.exists():
            return {}
        return dict(json.loads(self.record.read_text(encoding="utf-8")))

    def state(self) -> "dict[str, Any]":
        """What `status` prints: running, done, failed, or absent (never started here).

        Of a job that was stopped, and saved, the exit code is 143, whatever it says itself: it is
        not done. It is 137 where none was recorded: the host went down, or the supervisor did.
        """
        state = {"host": socket.gethostname(), "run": self.name, "state": "absent"}
        if not self.folder.exists():
            return state
        with self.guard():
            lock, record = self.lock(), self.read()
        if lock is None:
            return {**state, **record, "state": "running"}
        lock.close()
        if not record:
            return state
        code = KILLED if record["exit_code"] is None else record["exit_code"]
        if record["stopped"] and code == 0:
            code = STOPPED
        return {**state, **record, "state": "failed" if code else "done", "exit_code": code}

    def show(self) -> None:
        """Prints the state as one line, in one piece: other hosts may print to the same pipe."""
        sys.stdout.write(json.dumps(self.state()) + "\n")
        sys.stdout.flush()


class Supervisor:
    """Runs the job, and records its end."""

    def __init__(self, run: Run):
        self.run = run
        self.stopping = False
        self.child: "subprocess.Popen[bytes] | None" = None

    def detach(self) -> None:
        """Leaves the session of ssh; its signals, and what is printed, are the job's from here."""
        os.setsid()
        signal.signal(signal.SIGTERM, self._stop)
        null = os.open(os.devnull, os.O_RDONLY)
        log = os.open(self.run.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for ours, standard in ((null, 0), (log, 1), (log, 2)):
            os.dup2(ours, standard)
        self.run.pid.write_text(str(os.getpid()))

    def _stop(self, number: int, frame: "FrameType | None") -> None:
        """Hands SIGTERM on: somebody asked for a stop, or the host shuts down."""
        del number, frame
        self.stopping = True
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)

    def call(self, command: "list[str]", **options: Any) -> None:
        """Runs the job to its end."""
        attempt = self.run.read()["attempt"]
        print(f"== {self.run.name}, attempt {attempt} on {socket.gethostname()}", flush=True)
        # if this process is killed, the job ends too: see `stage_runner.die_with_parent`
        options["env"] = {**options["env"], "KENNEL_PARENT": str(os.getpid())}
        self.child = subprocess.Popen(command, **options)
        if self.stopping:
            self.child.send_signal(signal.SIGTERM)
        code = self.child.wait()
        code = code if code >= 0 else 128 - code  # as shells count
        self.run.write(exit_code=code, stopped=self.stopping)
        print(f"== exit code {code}", flush=True)


def start(text: str) -> None:
    """Sets the host up and leaves a supervisor for the job, unless one lives.

    Raises:
      HostError: the host cannot be set up, or another job of this name runs.
    """
    job = json.loads(text)
    run, identity = Run(job["name"]), hashlib.sha256(text.encode()).hexdigest()
    run.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    state = run.state()
    attempts = state.get("attempt", 0)
    if state["state"] != "running":
        code = unpacked_code(job["code"], job["archive"])
        variables, python, lock = environment(code, job["environment"])
        variables["KENNEL_CODE_HASH"] = job["code"]
        with run.guard() as guard:
            held = run.lock()
            if held is not None and run.read().get("attempt", 0) == attempts:
                run.job.write_text(text, encoding="utf-8")
                run.write(
                    job=identity, code=job["code"], lock=lock, exit_code=None, stopped=False,
                    attempt=attempts + 1,
                )  # fmt: skip
                supervise(run, guard, [python, *job["command"]], env=variables, cwd=str(code))
            if held is not None:
                held.close()
    found = run.read().get("job")
    if found != identity:
        raise HostError(
            f"{run.name} runs on {socket.gethostname()} with other settings or other code "
            f"(job {found}; asked for {identity}): stop it first"
        )


def supervise(run: Run, guard: int, command: "list[str]", **options: Any) -> None:
    """Leaves a process that runs a command; returns once it no longer needs this one.

    Args:
      run: its files; this process holds both of its locks, and the new one inherits them.
      guard: the descriptor of the one that the new process gives up.
      command: the job.
      options: of its process.
    """
    run.pid.unlink(missing_ok=True)  # of the last attempt: no number is better than a wrong one
    ready, detached = os.pipe()
    if os.fork() == 0:
        os.close(guard)
        supervisor = Supervisor(run)
        supervisor.detach()
        os.close(detached)
        try:
            supervisor.call(command, **options)
        except BaseException:
            traceback.print_exc()
            run.write(exit_code=1)
        finally:
            os._exit(0)
    os.close(detached)
    os.read(ready, 1)  # returns when the other end is closed
    os.close(ready)


def environment(code: Path, given: "dict[str, str]") -> "tuple[dict[str, str], str, str]":
    """Makes the job's environment: packages of the lock, and no others.

    Args:
      code: folder with the unpacked code.
      given: variables that the job asks for.

    Returns:
      The variables, the Python, and the hash of the lock.
    """
    cloud = code / "launch" / "cloud"
    lock = hashlib.sha256((cloud / "tpu.lock").read_bytes()).hexdigest()
    folder = ROOT / "environments" / lock
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    variables = {
        **kept,
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / "jax_cache"),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        **given,
        "PYTHONNOUSERSITE": "1",
        "KENNEL_LOCK_HASH": lock,
    }
    making = [sys.executable, str(cloud / "host_environment.py"), str(folder)]
    if subprocess.run(making, env=variables, stdout=sys.stderr, check=False).returncode:
        raise HostError(f"{folder} could not be made on {socket.gethostname()}; see above")
    return variables, str(folder / "bin" / "python"), lock


def unpacked_code(code: str, source: str) -> Path:
    """The folder with the code, as the launcher archived it.

    Args:
      code: its hash.
      source: the archive: gs://..., or a path, relative to the home folder or absolute.
    """
    folder = ROOT / "code" / code
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may need the same code
        if not folder.exists():
            archive = Path.home() / source
            if source.startswith("gs://"):
                archive = folder.with_name(f"{code}.tar.gz")
                copy = ["gcloud", "storage", "cp", source, str(archive)]
                if subprocess.run(copy, stdout=sys.stderr, check=False).returncode:
                    raise HostError(
                        f"could not copy {source} to {socket.gethostname()}: see above. The "
                        "host's service account must be able to read the bucket"
                    )
            unpack(archive, folder)
    check_code(folder, code)
    return folder


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks an archive of `launch.cloud.code_archive` into `folder`, all or nothing.

    Raises:
      HostError: no archive, half of one, or one that holds more than files below its root.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a start that was killed
    try:
        with gzip.open(archive) as file:
            data = file.read()
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                content, place = tar.extractfile(member), Path(member.name)
                if content is None or place.is_absolute() or ".." in place.parts:
                    raise HostError(f"{archive}: {member.name} is no file below the root")
                target = partial / place
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.read())
                target.chmod(member.mode & 0o755)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise HostError(
            f"{archive}: expected the whole archive of the code, found none ({error}); copy it to "
            f"{socket.gethostname()} again"
        ) from error
    check_code(partial, folder.name)
    os.replace(partial, folder)


def check_code(folder: Path, code: str) -> None:
    """Raises `HostError` if files differ from what the launcher archived as `code`."""
    manifest = folder / MANIFEST
    data = manifest.read_bytes() if manifest.exists() else b""
    if (found := hashlib.sha256(data).hexdigest()) != code:
        raise HostError(f"{folder}: expected the code {code}, found {found}; remove the folder")
    changed = []
    for line in data.decode().splitlines():
        digest, _, name = line.split(" ", 2)
        path = folder / name
        if not path.exists() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            changed.append(name)
    if changed:
        raise HostError(
            f"{len(changed)} files of {folder} were changed on {socket.gethostname()}, which would "
            f"run other code than the other hosts: {', '.join(changed[:5])}. Remove the folder"
        )


def show_log(run: Run, lines: str, follow: bool) -> int:
    """Prints the end of the log, and with `follow` what comes, until the supervisor ends."""
    if not run.log.exists():
        print(f"{run.name} has not been started on {socket.gethostname()}", file=sys.stderr)
        return 1
    words = ["tail", f"--lines={lines}"]
    if follow and run.pid.exists():
        words += ["--follow=name", f"--pid={run.pid.read_text()}"]
    return subprocess.run([*words, str(run.log)], check=False).returncode


def stop(run: Run, seconds: float, kill: bool) -> None:
    """Has the job save and end; or ends it at once. Waits so many seconds for the end."""
    deadline, asked = time.monotonic() + seconds, False
    while run.state()["state"] == "running" and time.monotonic() < deadline:
        if not asked and run.pid.exists() and (pid := run.pid.read_text()):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(int(pid), signal.SIGKILL) if kill else os.kill(int(pid), signal.SIGTERM)
            asked = True
        time.sleep(POLL_SECONDS)


def main(verb: str, subject: str, *rest: str) -> int:
    """Runs one command; returns its exit code, never 255, which would mean that ssh failed."""
    if verb == "start":
        try:
            start(subject)
        except HostError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        subject = json.loads(subject)["name"]
    run = Run(subject)
    if verb == "log":
        return show_log(run, rest[0], rest[1] == "follow")
    if verb == "stop":
        stop(run, float(rest[0]), rest[1] == "kill")
    run.show()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
