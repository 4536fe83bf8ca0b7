"""Write the lines of a long job in parts that are complete or absent, so that it can resume.

    folder/parts/3f0c.../00007.jsonl    the lines of the items 7 x size to 8 x size - 1
    folder/negatives.jsonl              all of them, once every part is there; the parts are removed

The name in the middle is a fingerprint of everything that the lines depend on: parts of another
version are never mixed in. In several processes only process 0 sees the parts; each process does
its `share` of a part, and the lines are `gathered`.
"""

import hashlib
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5x_style.retrieval import versioned_folder

FOLDER = "parts"


class ResumableParts:
    """One line for each of `count` items, `size` items a part; only process 0 may use it.

    Attributes:
      bounds: first item and end of each part.
    """

    def __init__(self, folder: str | Path, version: str, count: int, size: int):
        """Args:
        folder: of the job; may hold parts of a run that was stopped.
        version: a fingerprint of all that the lines depend on.
        count: items, at least 1.
        size: items in a part, at least 1: what a kill costs at most.

        Raises:
          ValueError: there are no items, or `size` is below 1.
        """
        if count < 1 or size < 1:
            raise ValueError(f"expected at least 1 item and 1 item a part, found {count=}, {size=}")
        self.bounds = bounds(count, size)
        self._folder = Path(folder)
        digest = hashlib.sha256(json.dumps([version, count, size]).encode()).hexdigest()
        self._run_folder = self._folder / FOLDER / digest[:16]

    def missing(self) -> list[int]:
        """Numbers of the parts still to be made; removes parts of other versions, and says so."""
        for path in sorted((self._folder / FOLDER).glob("*")):
            if path != self._run_folder:
                print(f"{path}: removed: of other settings or other inputs", file=sys.stderr)
                shutil.rmtree(path)
        return [number for number in range(len(self.bounds)) if not self._path(number).exists()]

    def write(self, number: int, lines: Iterable[str]) -> None:
        """Writes a part: its lines in order, each ending with its only line break.

        Raises:
          ValueError: there is not one line for each item of the part.
        """
        start, end = self.bounds[number]
        text = "".join(lines)
        if text.count("\n") != end - start or not text.endswith("\n"):
            raise ValueError(
                f"part {number}: expected {end - start} lines, each ending with a line break, "
                f"found {text.count(chr(10))} line breaks and {text[-20:]!r} at the end"
            )
        self._run_folder.mkdir(parents=True, exist_ok=True)
        versioned_folder.write_atomically(self._path(number), text)

    def lines(self) -> Iterator[str]:
        """The lines of all parts, in order.

        Raises:
          FileNotFoundError: a part is missing.
        """
        for number in range(len(self.bounds)):
            with self._path(number).open(encoding="utf-8", newline="\n") as file:
                yield from file

    def join(self, name: str) -> Path:
        """Writes all lines to the file `name` of the job's folder, then removes the parts.

        Raises:
          FileNotFoundError: a part is missing; nothing was changed.
        """
        path = self._folder / name
        with versioned_folder.replaced(path) as file:
            file.writelines(self.lines())
        shutil.rmtree(self._folder / FOLDER)
        return path

    def _path(self, number: int) -> Path:
        return self._run_folder / f"{number:05}.jsonl"


def bounds(count: int, size: int) -> list[tuple[int, int]]:
    """First item and end of each part of `count` items, `size` a part; the last may be smaller."""
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def agreed(missing: list[int], count: int) -> list[int]:
    """Missing parts of `count`, from process 0, in every process: only it need see them."""
    marked = np.isin(np.arange(count), missing)
    if jax.process_count() > 1:
        marked = np.asarray(multihost_utils.broadcast_one_to_all(marked))
    return np.flatnonzero(marked).tolist()


def share(start: int, end: int) -> tuple[int, int]:
    """First item and end of what this process does of the items `start` to `end` - 1.

    The shares of all processes follow each other in order; one may be empty.
    """
    number, count = jax.process_index(), jax.process_count()
    size = end - start
    return start + size * number // count, start + size * (number + 1) // count


def gathered(lines: Sequence[str]) -> list[str]:
    """The lines of all processes, in the order of the processes, in every process.

    Args:
      lines: of this process, each ending with its only line break.
    """
    if jax.process_count() == 1:
        return list(lines)
    encoded = np.frombuffer("".join(lines).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.asarray(encoded.size))  # [processes]
    width = 1 << int(sizes.max()).bit_length()  # few widths: each is a program to compile
    padded = np.zeros(width, np.uint8)
    padded[: encoded.size] = encoded
    texts = np.asarray(multihost_utils.process_allgather(padded))  # [processes, width]
    whole = b"".join(text[:size].tobytes() for text, size in zip(texts, sizes, strict=True))
    return [line + "\n" for line in whole.decode().split("\n")[:-1]]
