"""Small configurables and jobs for the tests of gin, stages and recipes; no JAX."""

import dataclasses
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

from t5x_style.workflow import stages

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "make": {"name": "toy_make", "version": 1, "outputs": ["text"]},
    "count": {"name": "toy_count", "version": 1, "outputs": ["steps"]},
    "stops": {"name": "toy_stops", "version": 1},
    "interrupts": {"name": "toy_interrupts", "version": 1},
    "promises": {"name": "toy_promises", "version": 1},
    "fails": {"name": "toy_fails", "version": 1, "outputs": ["x"]},
}


@dataclasses.dataclass(frozen=True)
class Size:
    """A frozen configuration."""

    width: int
    rate: float = 0.1
    kind: Literal["small", "large"] = "small"


class Named(Protocol):
    """Anything with a name."""

    name: str


def build(
    size: Size,
    words: tuple[str, ...] = (),
    table: Mapping[str, int | None] | None = None,
    make: Callable[[int], Any] | None = None,
    pair: tuple[int, str] = (1, "a"),
    items: Sequence[Size] = (),
    named: Named | None = None,
    flag: bool = False,
) -> Size:
    """A configurable with one parameter of each kind."""
    del words, table, make, pair, items, named, flag
    return size


def make(size: Size, model_dir: str) -> dict[str, str]:
    """A job: writes its configuration."""
    with open(os.path.join(model_dir, "out.txt"), "w", encoding="utf-8") as file:
        file.write(repr(size))
    return {"text": "out.txt"}


def count(
    source: str,
    steps: int,
    model_dir: str,
    stop_at: int = -1,
    report_every: Annotated[int, "operational"] = 1,
    folder: str | None = None,
) -> dict[str, str] | None:
    """A job that continues: one line a step; at `stop_at` it is asked to stop, once."""
    del source, report_every, folder
    path = os.path.join(model_dir, "steps.txt")
    done = 0
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            done = len(file.readlines())
    for step in range(done, steps):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{step} {os.getpid()}\n")
        if step == stop_at:
            # a recipe's stage stops the recipe, which must hand the signal back
            parent = os.getppid() if os.environ.get("TOY_STOPS_PARENT") else os.getpid()
            os.kill(parent, signal.Signals["SIG" + os.environ.get("TOY_SIGNAL", "TERM")])
            signal.pause()
    return {"steps": "steps.txt"}


def stops(model_dir: str) -> None:
    """A job that saved and stopped early."""
    del model_dir


def interrupts(model_dir: str) -> dict[str, str]:
    """The same, by exception."""
    del model_dir
    raise stages.Interrupted("saved")


def promises(model_dir: str, outputs: Any) -> Any:
    """A job that returns `outputs`."""
    del model_dir
    return outputs


def fails(model_dir: str, ours: bool) -> dict[str, str]:
    """A job that ends in an error: ours, or a library's."""
    del model_dir
    if ours:
        raise ValueError("expected a corpus, found nothing")
    return {"x": int("a library's error")}  # type: ignore[dict-item]


if __name__ == "__main__":
    from t5x_style import stage

    stage.main("tests.kits.gin_toys.make")
