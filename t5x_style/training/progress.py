"""Progress of a run: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class TrainingProgress:
    """Shows step, loss, tokens/s, padding share and time left."""

    def __init__(self, name: str, first: int, total: int, active: bool = True):
        """Args:
        name: of the stage.
        first: the step that training starts from, after a resume.
        total: steps of the whole run.
        active: False shows nothing; only one process of many should.
        """
        self._name, self._first, self._total, self._active = name, first, total, active
        self._started = time.perf_counter()
        self._bar: Progress | None = None
        if active and sys.stderr.isatty():
            columns = [
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[text]}"),
            ]
            self._bar = Progress(
                *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True)
            )
            self._task = self._bar.add_task(name, total=total, completed=first, text="")
            self._bar.start()

    def show(self, step: int, scalars: Mapping[str, float]) -> None:
        """Called with the scalars of a log line or of an evaluation."""
        if not self._active:
            return
        text = _text(scalars)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, text=text)
            return
        done = step - self._first
        seconds = (time.perf_counter() - self._started) * (self._total - step)
        left = f"  left {_clock(seconds / done)}" if done else ""
        print(f"[{self._name}] step {step}/{self._total}  {text}{left}", flush=True)

    def say(self, text: str) -> None:
        """Prints a line that stays."""
        if self._active:
            print(f"[{self._name}] {text}", flush=True)

    def warn(self, text: str) -> None:
        """Prints a warning on stderr."""
        if self._active:
            print(f"[{self._name}] warning: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _text(scalars: Mapping[str, float]) -> str:
    if "train/loss" not in scalars:
        return "  ".join(f"{name} {value:.4f}" for name, value in scalars.items())
    return (
        f"loss {scalars['train/loss']:.4f}  {scalars['timing/tokens_per_second']:,.0f} tokens/s  "
        f"padding {scalars['train/padding_share']:.1%}  "
        f"input wait {scalars['timing/input_wait_share']:.1%}"
    )


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
