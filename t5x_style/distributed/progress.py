"""Progress of a long loop: a bar in a terminal, a line a minute in a log."""

import sys
from collections.abc import Callable
from typing import Any

import jax
import tqdm

SECONDS = 60  # between lines


class _Lines(tqdm.tqdm):
    """A bar for a log: it is never drawn over, and says nothing of what takes less than a line."""

    disable: bool

    @staticmethod
    def status_printer(file: Any) -> Callable[[str], None]:
        def write(text: str) -> None:
            if text:
                file.write(text + "\n")
                file.flush()

        return write

    def close(self) -> None:
        """Without the last line and the end of it: whoever counted says what was done."""
        if not self.disable:
            self.disable = True
            type(self)._decr_instances(self)


def progress(total: int, description: str, unit: str) -> "tqdm.tqdm[Any]":
    """A bar on stderr of the first process; a context manager, whose `update` counts.

    Args:
        total: how often there is something to count.
        description: text before the bar or the counts.
        unit: what is counted, in the plural.
    """
    options: dict[str, Any] = {"total": total, "desc": description, "unit": unit}
    if jax.process_index():
        return tqdm.tqdm(**options, disable=True)
    if sys.stderr.isatty():
        return tqdm.tqdm(**options, leave=False)
    return _Lines(
        **options, file=sys.stderr, mininterval=SECONDS, maxinterval=SECONDS, delay=SECONDS,
        bar_format="{desc}: {n:,} of {total:,} {unit}, left {remaining}{postfix}",
    )  # fmt: skip
