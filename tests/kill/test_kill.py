"""Real processes that are killed: what they leave is, bit for bit, that of an undisturbed run."""

import collections
import dataclasses
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from t5x_style.checkpoints import checksums
from t5x_style.training import metric_writer
from tests.kits import virtual_devices
from tests.kits.tiny_stores import realistic_lengths, write_store

REPOSITORY = Path(__file__).resolve().parents[2]
SAVE_EVERY = 6
LIMIT_SECONDS = 240

PAST, INSIDE = "after a step past the last checkpoint", "inside a save"
DELETING, EVALUATING = "deleting old checkpoints", "evaluating"
STARTING, RESTORING, COMPILING = "starting up", "building and restoring", "compiling, first step"
AT_CHECKPOINT = "just after a save"

Marks = list[list[str]]


@dataclasses.dataclass(frozen=True)
class Kill:
    """When to kill: once `until` says so of the marks so far. A thread may be held at a mark."""

    until: Callable[[Marks], bool]
    hold: str = ""


def limit(process: subprocess.Popen) -> None:
    """Ends a process that hangs, so that its test fails instead of hanging too."""
    guard = threading.Timer(LIMIT_SECONDS, process.kill)
    guard.daemon = True
    guard.start()


class Worker:
    """A process of tests/kill/worker.py; iterating over it gives its marks in their order."""

    def __init__(self, folder: Path, store: Path, steps: int, tf_data: bool, hold: str = ""):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        reader, writer = os.pipe()
        env = os.environ | {
            "XLA_FLAGS": virtual_devices.flags(), "PYTHONPATH": str(REPOSITORY),
            "MARKS": str(writer), "HOLD": hold, "TF_DATA": str(int(tf_data)),
        }  # fmt: skip
        numbers = [str(steps), str(SAVE_EVERY)]
        command = [sys.executable, "-m", "tests.kill.worker", str(folder), str(store), *numbers]
        with open(folder / "output.txt", "ab") as output:
            self.process = subprocess.Popen(
                command, env=env, cwd=REPOSITORY, stdout=output, stderr=output, pass_fds=[writer]
            )
        os.close(writer)
        limit(self.process)
        self._pipe = open(reader, encoding="utf-8")  # noqa: SIM115  closed when it ends
        self.marks: Marks = []

    def __iter__(self) -> Iterator[Marks]:
        """All marks so far, again after each; ends when the process does."""
        with self._pipe:
            for line in self._pipe:
                self.marks.append(line.split())
                yield self.marks

    def finish(self) -> Marks:
        for _ in self:
            pass
        output = (self._folder / "output.txt").read_text(errors="replace")
        assert self.process.wait() == 0, output[-3000:]
        return self.marks

    def kill(self, plan: Kill) -> Marks:
        """Kills it when the plan says so; returns what it had done by then."""
        asked = False
        for marks in self:
            if not asked and plan.until(marks):
                asked = True
                self.process.send_signal(signal.SIGKILL)
        code = self.process.wait()
        output = (self._folder / "output.txt").read_text(errors="replace")
        assert asked and code == -signal.SIGKILL, (
            f"ended with {code} before the kill: {output[-3000:]}"
        )
        return self.marks


def last_step(marks: Marks) -> int:
    """The last step that was computed; where it started if none was, -1 if not even that."""
    return max((int(m[1]) for m in marks if m[0] in ("at", "step")), default=-1)


def open_saves(marks: Marks) -> set[str]:
    return {m[1] for m in marks if m[0] == "save"} - {m[1] for m in marks if m[0] == "saved"}


def phase(marks: Marks) -> str:
    """What a process was doing when it made its last mark."""
    seen = [m[0] for m in marks]
    if "at" not in seen:
        return RESTORING if "starting" in seen else STARTING
    if seen.count("delete") > seen.count("deleted"):
        return DELETING  # a save that has been asked for waits for it
    if open_saves(marks):
        return INSIDE
    if "step" not in seen:
        return COMPILING
    if seen.count("evaluate") > seen.count("evaluated"):
        return EVALUATING
    saved = max(int(m[1]) for m in marks if m[0] in ("at", "saved"))
    return PAST if last_step(marks) > saved else AT_CHECKPOINT


def complete(folder: Path) -> list[int]:
    found = (folder / "checkpoints").glob("*/" + checksums.FILE_NAME)
    return sorted(int(path.parent.name) for path in found)


def past_a_checkpoint(start: int, chance: random.Random) -> Kill:
    """After some step that no checkpoint holds, with nothing being saved."""
    step = start + chance.choice([n for n in range(1, 3 * SAVE_EVERY) if n % SAVE_EVERY])
    held = ["held", "step", str(step)]
    return Kill(lambda marks: held in marks and not open_saves(marks), f"step {step}")


def inside_a_save(start: int, chance: random.Random) -> Kill:
    """While orbax writes, before our record of it is written, or with half of it written."""
    step = (start // SAVE_EVERY + chance.randint(1, 2)) * SAVE_EVERY
    where = chance.choice(["save", "record", "replace"])
    if where == "save":  # not held: orbax continues writing in the background
        return Kill(lambda marks: ["save", str(step)] in marks)
    held, later = ["held", where, str(step)], ["step", str(step + chance.randint(0, 3))]
    return Kill(lambda marks: held in marks and later in marks, f"{where} {step}")


def while_deleting(start: int, chance: random.Random) -> Kill:
    """With an old checkpoint's record gone and its arrays still there."""
    return Kill(lambda marks: any(m[0] == "held" for m in marks), "delete")


def while_evaluating(start: int, chance: random.Random) -> Kill:
    return Kill(
        lambda marks: any(m[0] == "held" for m in marks) and not open_saves(marks), "evaluate"
    )


def any_time(start: int, chance: random.Random) -> Kill:
    """When some number of things have happened, whatever they are."""
    count = chance.randint(1, 40)
    return Kill(lambda marks: len(marks) >= count)


def run_killed(
    folder: Path,
    store: Path,
    steps: int,
    tf_data: bool,
    kinds: list[Callable[..., Kill]],
    seed: int,
) -> collections.Counter[str]:
    """Kills a run once for each of `kinds`, lets it end, and returns the phases that were hit."""
    chance = random.Random(seed)
    phases: collections.Counter[str] = collections.Counter()
    for number, kind in enumerate(kinds, 1):
        plan = kind(max(complete(folder), default=0), chance)
        marks = Worker(folder, store, steps, tf_data, plan.hold).kill(plan)
        left = sorted(path.name for path in (folder / "checkpoints").glob("*"))
        print(f"kill {number:2}: step {last_step(marks):3}, {phase(marks)}; left {left}")
        phases[phase(marks)] += 1
    last = Worker(folder, store, steps, tf_data).finish()
    print(f"then from step {next(m[1] for m in last if m[0] == 'at')} to the end; {dict(phases)}")
    return phases


def check(tmp_path: Path, steps: int, tf_data: bool, kinds: list[Callable[..., Kill]], seed: int):
    store = write_store(tmp_path / "store", realistic_lengths(400, longest=32))
    Worker(tmp_path / "whole", store, steps, tf_data).finish()
    phases = run_killed(tmp_path / "killed", store, steps, tf_data, kinds, seed)
    whole, killed = (
        json.loads((tmp_path / name / "digests.json").read_text()) for name in ("whole", "killed")
    )
    assert whole["step"] == steps and whole["lines"] >= steps // 3
    assert killed == whole
    return phases


@pytest.mark.slow
def test_killed_four_times(tmp_path):
    kinds = [past_a_checkpoint, inside_a_save, any_time, past_a_checkpoint]
    phases = check(tmp_path, 30, False, kinds, seed=29)
    assert phases[PAST] >= 2 and phases[INSIDE] >= 1


@pytest.mark.slow
def test_killed_twenty_times_while_tf_data_reads_ahead(tmp_path):
    kinds = [past_a_checkpoint] * 9 + [inside_a_save] * 5 + [any_time] * 4
    kinds += [while_deleting, while_evaluating]
    random.Random(7).shuffle(kinds)
    phases = check(tmp_path, 200, True, kinds, seed=7)
    assert sum(phases.values()) == 20 and phases[PAST] >= 8 and phases[INSIDE] >= 3


def command(folder: Path, tokenizer: Path, store: Path) -> list[str]:
    """The command that a user, or a recipe, pre-trains with; smaller."""
    bindings = {
        "MODEL_DIR": str(folder), "STORE": str(store), "TOKENIZER": str(tokenizer), "ROWS": 8,
        "ROW_LENGTH": 64, "SEGMENTS": 5, "QUERY_LENGTH": 32, "PASSAGE_LENGTH": 32, "SEED": 1,
        "STEPS": 120, "WARMUP_STEPS": 5, "LEARNING_RATE": 1e-3, "LOG_EVERY": 10,
        "EVALUATE_EVERY": 1000,
        "bert.BertConfig.hidden": 32, "bert.BertConfig.mlp": 64,
        "bert.BertConfig.max_positions": 64, "retromae.RetroMAE.chunk": 128,
    }  # fmt: skip
    files = ("runs/training/train", "models/tiny", "objectives/retromae", "data/pretraining/packed")
    return [
        *(sys.executable, "-m", "t5x_style.train"),
        *(f"--gin_file=gin_configs/{name}.gin" for name in files),
        *(f"--gin.{name}={value!r}" for name, value in bindings.items()),
    ]


@pytest.fixture
def run(tmp_path):
    """Starts the command, with a store and a tokenizer's record; its folder is tmp_path / "run"."""
    store = write_store(tmp_path / "store", realistic_lengths(400, longest=32))
    fields = {"size": 300, "pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
    fields |= {"special_ids": [0, 1, 2, 3, 4], "fingerprint": "f" * 64}
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocabulary.json").write_text(json.dumps(fields))
    arguments = command(tmp_path / "run", tmp_path / "tokenizer", store)

    def start(env=()):
        process = subprocess.Popen(
            arguments,
            text=True,
            env=os.environ | {"XLA_FLAGS": virtual_devices.flags()} | dict(env),
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        limit(process)
        return process

    return start


def signal_after_step_10(process):
    """Sends SIGTERM; returns what the process printed until it ended."""
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "step 10/120" in line:
            process.terminate()
    return "".join(lines)


def test_sigterm_saves_exits_0_and_the_same_command_continues(tmp_path, run):
    process = run()
    output = signal_after_step_10(process)
    assert process.wait() == 0, output
    assert output.endswith("stopped early; the same command continues it\n"), output
    (step,) = complete(tmp_path / "run")  # the only one, since EVALUATE_EVERY is far away
    assert 10 <= step < 120

    process = run()
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert f"resumed at step {step};" in output and "done in" in output
    assert complete(tmp_path / "run") == [120]  # the other is of no use once training has finished
    logged = metric_writer.read_lines(tmp_path / "run" / "metrics.jsonl")
    steps = [line["step"] for line in logged if "train/loss" in line]
    assert steps == list(range(10, 121, 10))


@pytest.mark.slow
def test_sigterm_to_one_of_two_processes_stops_both_at_the_same_step(tmp_path, run):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "2"}
    first, second = (run(shared | {"JAX_PROCESS_ID": str(number)}) for number in (0, 1))
    output = signal_after_step_10(first)
    assert first.wait() == 0, output
    assert output.endswith("stopped early; the same command continues it\n"), output
    output, _ = second.communicate()
    assert second.returncode == 0, output
    (step,) = complete(tmp_path / "run")
    assert 10 <= step < 120
