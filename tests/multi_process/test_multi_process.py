"""Two real processes on this machine give the losses of one, each reading only its rows."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_style.training import metric_writer
from tests.kits import virtual_devices

REPOSITORY = Path(__file__).resolve().parents[2]
DEVICES = 8


def start(folder, steps, processes):
    """Starts the processes of one run; returns them."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for number in range(processes):
        flags = virtual_devices.flags(DEVICES // processes)
        env = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(REPOSITORY)}
        if processes > 1:
            env |= {
                "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
                "JAX_NUM_PROCESSES": str(processes),
                "JAX_PROCESS_ID": str(number),
            }
        command = [sys.executable, "-m", "tests.multi_process.worker", str(folder), str(steps)]
        started.append(
            subprocess.Popen(
                command, env=env, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
        )
    return started


def run(folder, steps, processes):
    """Runs to the end and returns the logged losses and norms by step."""
    for process in start(folder, steps, processes):
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output.decode()[-3000:]
    lines = metric_writer.read_lines(folder / "metrics.jsonl")
    names = ("step", "train/loss", "train/gradient_norm")
    return [tuple(line[name] for name in names) for line in lines if "train/loss" in line]


def embeddings(folder):
    """The figures of step 0."""
    lines = metric_writer.read_lines(folder / "metrics.jsonl")
    (start,) = [line for line in lines if line["step"] == 0]
    return {name: value for name, value in start.items() if name.startswith("embeddings/")}


def test_two_processes_equal_one(tmp_path):
    one = run(tmp_path / "one", 6, 1)
    two = run(tmp_path / "two", 6, 2)
    assert [line[0] for line in two] == [1, 2, 3, 4, 5, 6]
    for found, expected in zip(two, one, strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
    figures = embeddings(tmp_path / "one")
    assert len(figures) == 4 and embeddings(tmp_path / "two") == pytest.approx(figures, rel=1e-5)
    rows = [json.loads((tmp_path / "two" / f"rows-{n}.json").read_text()) for n in (0, 1)]
    assert sorted(rows[0] + rows[1]) == list(range(16)) and not set(rows[0]) & set(rows[1])


@pytest.mark.slow
def test_checkpoint_of_two_processes_is_read_by_one_and_back(tmp_path):
    whole = run(tmp_path / "whole", 10, 1)
    run(tmp_path / "mixed", 4, 2)
    run(tmp_path / "mixed", 8, 1)
    mixed = run(tmp_path / "mixed", 10, 2)
    for found, expected in zip(mixed, whole, strict=True):
        assert found == pytest.approx(expected, rel=1e-5)
