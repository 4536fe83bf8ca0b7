"""Starts real processes that share a stage, by the real commands."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.kits import virtual_devices

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT_SECONDS = 240  # ends processes that hang, so that their test fails


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def flags(port: int, count: int, number: int, heartbeat: int = 6) -> list[str]:
    return [
        f"--coordinator_address=127.0.0.1:{port}",
        f"--num_processes={count}",
        f"--process_id={number}",
        f"--heartbeat_timeout={heartbeat}",
    ]


def start(arguments: list[str], env: dict[str, str] | None = None, devices: int = 1):
    """Starts `python -m ARGUMENTS` with some virtual devices.

    Each MODEL_DIR has a separate store: runs that a test compares must not share versions.
    """
    flag = "--gin.MODEL_DIR="
    folders = [word.removeprefix(flag).strip("'") for word in arguments if word.startswith(flag)]
    arguments = [*arguments, *(f"--gin.stage.run.store={folder}.store" for folder in folders)]
    options = {"XLA_FLAGS": virtual_devices.flags(devices)}
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        env=os.environ | options | {"PYTHONPATH": str(REPOSITORY)} | (env or {}),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    guard = threading.Timer(LIMIT_SECONDS, process.kill)
    guard.daemon = True
    guard.start()
    return process


def finish(started) -> list[tuple[int, str]]:
    """Exit code and output of each process."""
    outputs: dict[int, str] = {}

    def read(number):
        outputs[number] = started[number].communicate()[0]

    readers = [threading.Thread(target=read, args=(n,)) for n in range(len(started))]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return [(process.returncode, outputs[n]) for n, process in enumerate(started)]


def run(command: list[str], count: int = 2, each=None, env=None, devices: int = 1):
    """Runs the command in `count` processes; exit code and output of each.

    Args:
      each: process -> further arguments of that one.
      env: process -> variables of that one.
      devices: of each process.
    """
    port, each, env = free_port(), each or {}, env or {}
    started = []
    for number in range(count):
        described = flags(port, count, number) if count > 1 else []
        arguments = [*command, *described, *each.get(number, [])]
        started.append(start(arguments, env.get(number), devices))
    return finish(started)


def train(folder: Path, **bindings) -> list[str]:
    """The training command for the toy objective."""
    values = {"MODEL_DIR": str(folder), **bindings}
    return [
        *("t5x_style.train", "--gin_file=tests/multi_process/train.gin", "--gin_allow=tests"),
        *(f"--gin.{name}={value}" for name, value in values.items()),
    ]


def count_stage(folder: Path, gin_file: Path, steps: int = 5) -> list[str]:
    """The command of a stage that process 0 runs for all."""
    gin_file.write_text(
        "from __gin__ import dynamic_registration\nfrom t5x_style import stage\n"
        "from tests.multi_process import accidents\n"
        f"stage.run.job = @accidents.count\naccidents.count.steps = {steps}\n"
    )
    return [
        *("t5x_style.stage", f"--gin_file={gin_file}", "--gin_allow=tests"),
        f"--gin.MODEL_DIR={folder}",
    ]
