"""A pipeline and a job to which things happen, to one process alone, as its environment says.

ACCIDENT=SIGKILL, SIGTERM, error or bug; ACCIDENT_STEP=N. The environment is in no fingerprint, so
both processes still run the same stage.
"""

import os
import signal
import threading
from pathlib import Path

import jax

from tests.kits.toys.toy_objective import ToyPipeline

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"count": {"name": "accident_count", "version": 1, "outputs": ["steps"]}}


def accident(step: int) -> None:
    """Has the accident if this is the step, and this the process."""
    kind = os.environ.get("ACCIDENT", "")
    if not kind or step != int(os.environ["ACCIDENT_STEP"]):
        return
    if kind == "error":
        raise OSError(f"shard-3 cannot be read at step {step}")
    if kind == "bug":
        raise KeyError(f"a bug at step {step}")
    os.kill(os.getpid(), signal.Signals[kind])


class AccidentPipeline(ToyPipeline):
    """The toy's batches, until the accident."""

    def batch(self, step, rows=None):
        accident(step)
        if os.environ.get("ACCIDENT") == "SIGTERM" and step > int(os.environ["ACCIDENT_STEP"]):
            # the processes take about a second to agree, in which a toy would come to its end
            threading.Event().wait(0.05)
        return super().batch(step, rows)


class AccidentEvaluator:
    """Measures nothing; the accident happens when it is asked to, after a step."""

    name = "accident"

    def evaluate(self, functions, step):
        del functions
        accident(step)
        return {}


def count(steps: int, model_dir: str) -> dict[str, str]:
    """A job that continues, and that process 0 runs for all; JAX shows it this host alone."""
    path = Path(model_dir) / "steps.txt"
    done = len(path.read_text().splitlines()) if path.exists() else 0
    for step in range(done, steps):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {jax.process_count()}\n")
        accident(step)
        if step == int(os.environ.get("WAIT_STEP", "-1")):
            signal.pause()  # until another process has this one stopped
    return {"steps": "steps.txt"}
