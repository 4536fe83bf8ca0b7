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
    runs/NAME/record.json   how far it came: phase, exit code, error
    runs/NAME/log.txt    everything that all attempts printed

`start` leaves a supervisor, in a session of its own, and returns: ssh may end. The supervisor
unpacks the code, has the environment made, runs the job as its child and records how that ended.
SIGTERM to it goes to the child, which saves. While it lives no second one starts.
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
ERROR_CHARACTERS = 500  # a line of JSON below PIPE_BUF is not torn by those of other hosts
STOPPED = 128 + signal.SIGTERM
NO_EXIT_CODE = "no exit code was recorded: the host restarted, or the supervisor was killed"


class HostError(ValueError):
    """The job cannot run on this host; the message says why."""


class Stopping(Exception):
    """SIGTERM came before the job was started."""


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

    def is_running(self) -> bool:
        """Whether a supervisor lives. To be called inside `guard`."""
        if lock := self.lock():
            lock.close()
        return lock is None

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
        return json.loads(self.record.read_text(encoding="utf-8"))

    def state(self) -> "dict[str, Any]":
        """What `status` prints."""
        state = {"kennel": 1, "host": socket.gethostname(), "run": self.name, "state": "absent"}
        if not self.folder.exists():
            return state
        with self.guard():
            running, record = self.is_running(), self.read()
        if not record:
            return state
        code = record["exit_code"]
        if running:
            state["state"] = "running"
        elif record["stopped"] and code in (0, STOPPED):
            state["state"] = "stopped"
        else:
            state["state"] = "done" if code == 0 else "failed"
            record["error"] = NO_EXIT_CODE if code is None else record["error"]
        return {**state, **record}


class Supervisor:
    """Runs the steps of a job, one child at a time."""

    def __init__(self, run: Run, job: "dict[str, Any]"):
        self.run, self.job = run, job
        self.stopping = False
        self.child: "subprocess.Popen[bytes] | None" = None

    def watch(self) -> None:
        """Hands SIGTERM on to the child: a stop that was asked for, or the shutdown of the host."""
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, number: int, frame: "FrameType | None") -> None:
        del number, frame
        self.stopping = True
        if self.child is not None and self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)

    def call(self, phase: str, command: "list[str]", **options: Any) -> int:
        """The exit code of a child, as a shell reports it.

        Raises:
          Stopping: SIGTERM came before the job.
        """
        self.run.write(phase=phase)
        if self.stopping:
            raise Stopping
        print(f"== {phase}", flush=True)
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
        if self.stopping:
            self.child.send_signal(signal.SIGTERM)
        code = self.child.wait()
        if self.stopping and phase != "job":
            raise Stopping
        return code if code >= 0 else 128 - code

    def all_steps(self) -> int:
        """Code, environment, job; the exit code of the last that ran.

        Raises:
          HostError: the code did not arrive, or was changed.
          Stopping: SIGTERM came before the job.
        """
        code = self.unpacked_code()
        cloud = code / "launch" / "cloud"
        lock = hashlib.sha256((cloud / "tpu.lock").read_bytes()).hexdigest()
        self.run.write(lock=lock)
        environment = ROOT / "environments" / lock
        variables = self.variables(environment, lock)
        making = [sys.executable, str(cloud / "host_environment.py"), str(environment)]
        if ended := self.call("environment", making, env=variables):
            return ended
        python = str(environment / "bin" / "python")
        return self.call("job", [python, *self.job["command"]], env=variables, cwd=code)

    def variables(self, environment: Path, lock: str) -> "dict[str, str]":
        """The job's environment: packages of the lock, and no others."""
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        return {
            **kept,
            "JAX_COMPILATION_CACHE_DIR": str(ROOT / "jax_cache"),
            "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            **self.job["environment"],
            "PYTHONNOUSERSITE": "1",
            "KENNEL_CODE_HASH": self.job["code"],
            "KENNEL_LOCK_HASH": lock,
            "KENNEL_PARENT": str(os.getpid()),  # if this process is killed, so is the job
        }

    def unpacked_code(self) -> Path:
        """The folder with the code of the job, as the launcher archived it."""
        folder = ROOT / "code" / self.job["code"]
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.parent / "lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another run may need the same code
            if not folder.exists():
                unpack(self.archive(), folder)
        check_code(folder)
        return folder

    def archive(self) -> Path:
        """The archive of the code on this host's disk."""
        source = self.job["archive"]
        if not source.startswith("gs://"):
            return Path(os.path.expanduser(source))
        target = ROOT / "code" / f"{self.job['code']}.tar.gz"
        if self.call("code", ["gcloud", "storage", "cp", source, str(target)]):
            raise HostError(
                f"could not copy {source} to this host; gcloud's message is in the log. The "
                "host's service account must be able to read the bucket"
            )
        return target


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
            f"{archive}: expected the archive of the code, found none that is whole ({error}); "
            "copy it to the host again"
        ) from error
    check_code(partial, folder.name)
    os.replace(partial, folder)


def check_code(folder: Path, code: str = "") -> None:
    """Raises `HostError` if files differ from what the launcher archived as `code`."""
    code = code or folder.name
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
            f"{len(changed)} files of {folder} were changed on this host, so that it would run "
            f"other code than the others: {', '.join(changed[:5])}. Remove the folder"
        )


def start(job: "dict[str, Any]") -> int:
    """Leaves a supervisor for the job, unless one lives."""
    run = Run(job["name"])
    run.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    text = json.dumps(job, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    with run.guard() as guard:
        lock = run.lock()
        if lock is None and run.read().get("job") != digest:
            print(
                f"{run.name} runs on {socket.gethostname()} with other settings or other code: "
                "stop it first",
                file=sys.stderr,
            )
            return 1
        if lock is not None:
            run.pid.unlink(missing_ok=True)
            run.job.write_text(text, encoding="utf-8")
            attempt = run.read().get("attempt", 0) + 1
            run.write(
                job=digest, code=job["code"], lock="", attempt=attempt, phase="code",
                exit_code=None, error="", stopped=False,
            )  # fmt: skip
            ready, alive = os.pipe()
            if os.fork() == 0:
                os.close(guard)
                supervise(run, job, alive)
            os.close(alive)
            os.read(ready, 1)  # nothing: it returns when the supervisor has closed the other end
            lock.close()
    show(run)
    return 0


def supervise(run: Run, job: "dict[str, Any]", alive: int) -> None:
    """Everything that the supervisor does; does not return.

    Args:
      run: its files; this process holds its lock.
      job: what to run.
      alive: a descriptor that it closes once it needs nobody any more.
    """
    supervisor = Supervisor(run, job)
    supervisor.watch()
    os.setsid()
    run.pid.write_text(str(os.getpid()))
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(run.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for ours, standard in ((null, 0), (log, 1), (log, 2)):
        os.dup2(ours, standard)
    os.close(alive)
    print(f"== attempt {run.read()['attempt']} of {run.name} on {socket.gethostname()}", flush=True)
    code, error = 1, ""
    try:
        code = supervisor.all_steps()
    except Stopping:
        code = STOPPED
    except HostError as problem:
        error = str(problem)
        print(f"error: {error}")
    except BaseException as problem:  # the launcher hears of everything
        error = repr(problem)
        traceback.print_exc()
    run.write(exit_code=code, error=error[:ERROR_CHARACTERS], stopped=supervisor.stopping)
    print(f"== exit code {code}", flush=True)
    os._exit(0)


def show(run: Run) -> None:
    """Prints the state as one line, in one piece."""
    sys.stdout.write(json.dumps(run.state()) + "\n")
    sys.stdout.flush()


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
        return start(json.loads(subject))
    run = Run(subject)
    if verb == "log":
        return show_log(run, rest[0], rest[1] == "follow")
    if verb == "stop":
        stop(run, float(rest[0]), rest[1] == "kill")
    show(run)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
