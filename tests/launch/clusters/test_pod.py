"""The main process of a pod: exit codes of commands that end, are stopped, are killed."""

import signal
import subprocess
import sys

import pytest

from launch.clusters import pod
from tests.launch.clusters.cluster_jobs import REPOSITORY

# Says that it runs, and exits with the given code when it is asked to stop.
WAITS = (
    "import signal, sys, threading\n"
    "stopped = threading.Event()\n"
    "signal.signal(signal.SIGTERM, lambda *_: stopped.set())\n"
    "print('runs', flush=True)\n"
    "stopped.wait(60)\n"
    "sys.exit(int(sys.argv[1]))\n"
)


def start(*command):
    words = [sys.executable, "-m", "launch.clusters.pod", *command]
    return subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("code", [0, 1, 2, 143])
def test_a_command_that_ends_decides(code):
    assert start(sys.executable, "-c", f"raise SystemExit({code})").wait(60) == code


@pytest.mark.parametrize("number", [signal.SIGABRT, signal.SIGKILL])
def test_a_killed_command_has_the_shells_code(number):
    code = f"import os; os.kill(os.getpid(), {int(number)})"
    assert start(sys.executable, "-c", code).wait(60) == 128 + number


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("code", "expected"), [(0, 143), (1, 1), (134, 134)])
def test_a_command_that_was_stopped_has_not_succeeded(number, code, expected):
    process = start(sys.executable, "-c", WAITS, str(code))
    assert process.stdout.readline() == "runs\n"
    process.send_signal(number)
    assert process.wait(60) == expected


def test_words_arrive_unchanged():
    words = ["a b", "$(HOME)", '"', "中\n"]
    show = "import sys; print(ascii(sys.argv[1:]))"
    output, _ = start(sys.executable, "-c", show, *words).communicate(timeout=60)
    assert output == f"{words!a}\n"


def test_codes_are_those_that_restart():
    assert pod.STOPPED == 143
