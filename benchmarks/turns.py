"""Contestants that take turns, each in a separate process, so that other load meets all alike.

What benchmarks of training steps share. Imports neither JAX nor PyTorch by itself.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from benchmarks import corpora
from benchmarks.shapes import Round
from t5x_style.workflow import stage_runner

WARMUP = 2  # steps


class Contestant(NamedTuple):
    """What a worker runs.

    Attributes:
        run: (first step, count) -> what was timed.
        facts: what is known before anything is timed.
    """

    run: Callable[[int, int], Round]
    facts: Mapping[str, float]


def serve(contestant: Contestant, library: Literal["jax", "torch"]) -> None:
    """In a worker: says that it is ready, answers each line (first step, count) with a Round; JSON.

    Args:
        contestant: runs here.
        library: whose accelerator's memory counts, see `peak_bytes`.
    """
    contestant.run(0, WARMUP)
    ready = {"peak": peak_bytes(library), "facts": dict(contestant.facts)}
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        first, count = json.loads(line)
        contestant.run(first - 1, 1)  # what lay idle may have left the caches, or the memory
        timed = contestant.run(first, count)
        answer = {**dataclasses.asdict(timed), "peak": peak_bytes(library)}
        print(json.dumps(answer), flush=True)


def peak_bytes(library: Literal["jax", "torch"]) -> int:
    """The most memory that this process held: of the accelerator if there is one, else resident."""
    if library == "jax":
        import jax

        stats = jax.devices()[0].memory_stats() or {}
        if "peak_bytes_in_use" in stats:
            return stats["peak_bytes_in_use"]
    else:
        import torch

        if torch.cuda.is_available():
            return torch.cuda.max_memory_allocated()
    # Not getrusage: its figure is never below what the parent held when it started this process.
    (line,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.M)
    return int(line) * 1024


class Worker:
    """A contestant in its own process, with memory in huge pages.

    Args:
        module: the benchmark, which is run with this process's flags.
        arguments: further flags, which say which contestant it is.
        cache: folder where JAX keeps compiled programs.

    Attributes:
        rounds: what was timed so far.
        peak: bytes, the most that the process held so far.
        facts: of the contestant.
    """

    def __init__(self, module: str, arguments: Sequence[str], cache: str):
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *sys.argv[1:], *arguments],
            stdin=pipe, stdout=pipe, text=True, cwd=corpora.ROOT,
            env=stage_runner.HUGE_PAGES | os.environ | {"JAX_COMPILATION_CACHE_DIR": cache},
        )  # fmt: skip
        self.rounds: list[Round] = []
        ready = self._answer()  # compiled and warm
        self.peak: int = ready["peak"]
        self.facts: dict[str, float] = ready["facts"]

    @property
    def places(self) -> int:
        """Tokens of all batches, padding included."""
        return sum(one.places for one in self.rounds)

    @property
    def tokens(self) -> int:
        """Those that are not padding."""
        return sum(one.tokens for one in self.rounds)

    @property
    def speeds(self) -> list[float]:
        """Tokens that are not padding per second, of each round."""
        return [one.tokens / one.seconds for one in self.rounds]

    def run(self, first: int, count: int) -> None:
        """One more round."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([first, count]) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        self.peak = answer.pop("peak")
        self.rounds.append(Round(**answer))

    def _answer(self) -> dict:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with status {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """Lets the process end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def require_agreement(workers: Mapping[str, Worker], tolerances: Mapping[str, float]) -> None:
    """Ends the benchmark unless all found the same on the first batch.

    Args:
        workers: one is called 'ours'.
        tolerances: fact -> relative tolerance.
    """
    for fact, tolerance in tolerances.items():
        values = {name: worker.facts[fact] for name, worker in workers.items()}
        allowed = tolerance * abs(values["ours"])
        if not all(abs(value - values["ours"]) <= allowed for value in values.values()):
            raise SystemExit(f"{fact}: expected the same within {tolerance:.0e}, found {values}")


def race(workers: Mapping[str, Worker], rounds: int, steps: int) -> None:
    """Lets the workers take turns, so many rounds of so many steps."""
    for number in range(rounds):
        for one in workers.values():
            one.run(WARMUP + number * steps, steps)
