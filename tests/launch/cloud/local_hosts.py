"""Local processes as the hosts of a slice: folders as their homes, a shell in place of ssh.

`programs/` comes first on a host's PATH. It holds fakes of uv, which makes "environments" that
are the Python of the tests, and for `gcloud storage cp`. Each stops at a mark if the host has a
file `hold-MARK`: it opens `held-MARK` and waits for ever, so that a kill hits it in the middle.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

from launch.cloud import bootstrap, code_archive
from launch.cloud.code_archive import CodeArchive

UV_VERSION = "0.13.8"
HOLD = 'hold() { [ ! -e "$HOME/hold-$1" ] || { : > "$HOME/held-$1"; exec tail -f /dev/null; }; }\n'
UV = f"""#!/bin/sh
{HOLD}
for last; do :; done
case "$1" in
  --version) echo "uv {UV_VERSION}" ;;
  venv)
    [ "$2" = --clear ] || exit 9
    rm -rf "$last"; mkdir -p "$last/bin"; hold venv
    printf '#!/bin/sh\\nexec "%s" "$@"\\n' "{sys.executable}" > "$last/bin/python"
    chmod +x "$last/bin/python" ;;
  pip) hold sync; cp "$last" "${{5%/bin/python}}/synced" ;;
esac
"""
GCLOUD = f"""#!/bin/sh
{HOLD}
[ "$1 $2" = "storage cp" ] || exit 9
source="$BUCKETS/${{3#gs://}}"
[ -e "$source" ] || {{ echo "403 no access to $3" >&2; exit 1; }}
head -c 100 "$source" > "$4"; hold copy; cp "$source" "$4"
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Host:
    """One machine: everything that runs with its home folder."""

    def __init__(self, folder: Path, **variables: str):
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.programs = folder / "programs"
        write_program(self.programs / "uv", UV)
        write_program(self.programs / "gcloud", GCLOUD)
        path = f"{self.programs}{os.pathsep}{os.environ['PATH']}"
        self.env = os.environ | {"HOME": str(self.home), "PATH": path} | variables
        self.env.pop("PYTHONPATH", None)

    def begin(self, text: str) -> subprocess.Popen[str]:
        """Starts a text as gcloud, ssh and sshd would."""
        shell = ["bash", "-c", " ".join(text.split(" "))]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(shell, env=self.env, start_new_session=True, **pipes)

    def ssh(self, text: str) -> subprocess.CompletedProcess[str]:
        """Runs a text; its outputs end when ssh's connection would."""
        process = self.begin(text)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess([], process.returncode, out, err)

    def state(self, name: str = "a") -> dict:
        """What the host says of a job."""
        return json.loads(self.ssh(bootstrap.status_text(name)).stdout)

    def wait(self, name: str = "a") -> dict:
        """The state of a job after its supervisor has ended."""
        with open(self.home / f".kennel/runs/{name}/lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
        return self.state(name)

    def log(self, name: str = "a") -> str:
        return self.ssh(bootstrap.log_text(name, lines=10_000)).stdout

    def processes(self) -> list[int]:
        """Those of this host that live."""
        mark = f"HOME={self.home}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def cut_power(self) -> None:
        """Kills everything that runs here."""
        while found := self.processes():
            for number in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)

    def preempt(self) -> None:
        """Gives the machine back: what comes next is a new one, with an empty disk."""
        self.cut_power()
        shutil.rmtree(self.home)
        self.home.mkdir()


def small_project(folder: Path, **files: str) -> CodeArchive:
    """An archive of what a host reads of the project; `files` replaces some in launch/cloud."""
    source = code_archive.REPOSITORY / "launch/cloud"
    target = folder / "project/launch/cloud"
    target.mkdir(parents=True, exist_ok=True)
    for name in ("host_environment.py", "tpu.lock", "uv_pin.txt"):
        text = files.get(name, (source / name).read_text())
        (target / name).write_text(text)
    return code_archive.build(folder, root=folder / "project")


def fake_uv_wheel(folder: Path) -> str:
    """Writes a wheel with the fake uv; returns its hash."""
    path, data = folder / f"uv-{UV_VERSION}-py3-none-any.whl", f"uv-{UV_VERSION}"
    with zipfile.ZipFile(path, "w") as wheel:
        script = zipfile.ZipInfo(f"{data}.data/scripts/uv")
        script.external_attr = 0o100755 << 16  # a regular file
        wheel.writestr(script, UV)
        wheel.writestr(
            f"{data}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: uv\nVersion: {UV_VERSION}\n",
        )
        wheel.writestr(f"{data}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{data}.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()
