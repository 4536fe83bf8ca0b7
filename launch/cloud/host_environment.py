"""Makes a host's Python environment: `python3 host_environment.py FOLDER`.

FOLDER becomes a virtual environment with its own Python 3.11 and exactly the packages of
`tpu.lock`, which is next to this file: the images' own Python is 3.10, for which pip picks another
JAX without an error. It runs on that Python, with the standard library alone. Run again after a
kill it starts over, and returns at once where all is done. uv makes the environment: the one on the
PATH if it has the version of `uv_pin.txt`, else one that pip installs, with checked hashes.
"""

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PYTHON = "3.11.18"  # the newest 3.11 that the pinned uv knows
HERE = Path(__file__).resolve().parent
LOCK, PIN = HERE / "tpu.lock", HERE / "uv_pin.txt"
COMPLETE = ".kennel_complete"
CHECKED = ("jax", "jaxlib", "libtpu")
_VERSIONS = """
import importlib.metadata, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "none"
print(json.dumps({name: version(name) for name in sys.argv[1:]}))
"""


class PackagesError(ValueError):
    """The environment cannot be made, or is not what the lock says."""


def pinned(path: Path) -> "dict[str, str]":
    """Package -> version, of a file with `package==version` lines."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s;\\]+)", path.read_text("utf-8"), re.MULTILINE))


def call(lock: int, *words: "str | Path") -> None:
    """Runs a program, its output in the log; it holds the lock even if this process is killed."""
    print("$", *words, flush=True)
    if code := subprocess.run(list(words), pass_fds=[lock], check=False).returncode:
        raise PackagesError(f"{words[0]} failed with exit code {code}; its message is above")


def uv(tools: Path, lock: int) -> str:
    """The program uv in its pinned version, installed into `tools` if need be."""
    version = pinned(PIN)["uv"]
    for found in (shutil.which("uv"), str(tools / f"uv-{version}" / "bin" / "uv")):
        if found and os.path.exists(found):
            shown = subprocess.run(
                [found, "--version"], capture_output=True, text=True, check=False
            )
            if shown.stdout.split()[1:2] == [version]:
                return found
    target, partial = tools / f"uv-{version}", tools / f"uv-{version}.partial"
    for folder in (target, partial):  # of an installation that was killed
        shutil.rmtree(folder, ignore_errors=True)
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:")
    call(lock, *pip, "--require-hashes", "--target", partial, "--requirement", PIN)
    os.replace(partial, target)
    return str(target / "bin" / "uv")


def make(folder: Path) -> None:
    """Makes the environment, or finishes one that was begun.

    Raises:
      PackagesError: uv or pip failed, or another JAX than the lock's was found.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(folder.parent / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs may have the same packages
        complete = folder / COMPLETE
        if not complete.exists():
            held = lock.fileno()
            program = uv(folder.parent.parent / "tools", held)
            call(held, program, "venv", "--clear", "--managed-python", "--python", PYTHON, folder)
            python = folder / "bin" / "python"
            call(held, program, "pip", "sync", "--require-hashes", "--python", python, LOCK)
            check(folder)
            complete.touch()
    check(folder)


def check(folder: Path) -> None:
    """Raises `PackagesError` if the job would import another JAX than the lock's."""
    expected = {name: version for name, version in pinned(LOCK).items() if name in CHECKED}
    command = [str(folder / "bin" / "python"), "-c", _VERSIONS, *expected]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    if shown.returncode:
        raise PackagesError(f"{command[0]} does not run: {shown.stderr[-500:]}")
    found = json.loads(shown.stdout)
    wrong = [
        f"expected {name}=={expected[name]}, found {found[name]}"
        for name in expected
        if found[name] != expected[name]
    ]
    if wrong:
        raise PackagesError(
            f"{'; '.join(wrong)} in {folder}. Nothing but the lock's versions is run: remove the "
            "folder, and leave PYTHONPATH alone"
        )


if __name__ == "__main__":
    try:
        make(Path(sys.argv[1]))
    except PackagesError as error:
        sys.exit(f"error: {error}")
