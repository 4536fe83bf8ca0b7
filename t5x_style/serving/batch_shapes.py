"""Which shapes batches for one program have: few, so that all are compiled before they are used.

    widths   16, 32, 64, 96, 128, then four to each doubling: 160, 192, 224, 256, 320, ...
    rows     1, 4, 16, ... and as many as the budget of tokens allows

A batch takes texts of like lengths, and on a CPU a smaller shape rather than one that is half
empty: a token of padding costs as much as any other there, and two batches as much as one.
"""

import os
from collections.abc import Iterator, Sequence

BUDGETS = {"cpu": 1_024}  # backend -> tokens; docs/results/serving.md has figures of this one
OTHER_BUDGET = 4_096
OUTPUT_BYTES = 1 << 26  # of a batch: what a model that fills in gives is a megabyte a text and more
WINDOW = 1_024  # texts that waited longest, of which a batch is chosen
_MOST_PARALLEL = 8
_TO_A_DOUBLING = 4
_ROWS = 4  # one more shape for each factor of rows
# backend -> the least share of a batch's places, were all texts as long as its longest. Elsewhere a
# row more costs little, and a batch takes all that it can.
FULL = {"cpu": 0.6}


def parallel_batches(backend: str) -> int:
    """Returns how many batches are computed at the same time; each needs its own memory.

    One program alone does not keep all cores of a CPU at work: three batches on two cores encode
    1.9 times the tokens of one after another (`benchmarks/parallel_batches.py`; other numbers of
    cores were not measured). Two on an accelerator, where nothing was measured: one can be copied
    while the other runs.
    """
    if backend != "cpu":
        return 2
    return min(1 + len(os.sched_getaffinity(0)), _MOST_PARALLEL)


class BatchShapes:
    """The shapes of one program.

    Attributes:
      rows: width -> numbers of rows, ascending, the first of them 1.
    """

    def __init__(
        self, longest: int, budget: int, full: float = 0.0, most_rows: int | None = None
    ) -> None:
        """Lists them.

        Args:
          longest: tokens of the longest text, which is a width.
          budget: tokens of a batch, padding included; one text may have more, so that 0 is for
            batches of one text.
          full: see `FULL`.
          most_rows: that a batch may have whatever its budget, at least 1; None: any.
        """
        self._full = full
        self.rows = {
            width: list(_rows(max(1, min(budget // width, most_rows or budget))))
            for width in _widths(longest)
        }

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(rows, columns) of all."""
        return ((rows, width) for width, known in self.rows.items() for rows in known)

    def room(self, texts: int, longest: int) -> tuple[int, int]:
        """(rows, columns) of the smallest batch that holds so many texts, the longest as given.

        Raises:
          StopIteration: there is none.
        """
        width = self._width(longest)
        return next(rows for rows in self.rows[width] if rows >= texts), width

    def chosen(self, lengths: Sequence[int]) -> list[int]:
        """Which texts are encoded next: the one that waited longest, and those most like it.

        Args:
          lengths: of texts that wait, in the order of their arrival; at least one.

        Returns:
          Their numbers.
        """
        width = self._width(lengths[0])
        fitting = [n for n, length in enumerate(lengths) if length <= width]
        fitting.sort(key=lambda n: (n > 0, -lengths[n]))
        for rows in reversed(self.rows[width]):
            taken = fitting[:rows]
            given = [lengths[n] for n in taken]
            if sum(given) >= self._full * rows * max(given):
                return taken
        return fitting[:1]

    def _width(self, length: int) -> int:
        """Of the rows for a text of `length`."""
        return next(width for width in self.rows if width >= length)


def _widths(longest: int) -> Iterator[int]:
    width, step = 16, 16
    while width < longest:
        yield width
        width += step
        step = max(32, (1 << (width.bit_length() - 1)) // _TO_A_DOUBLING)
    yield longest


def _rows(most: int) -> Iterator[int]:
    """Of one width; a number that is nearly the largest is left out."""
    rows = 1
    while rows == 1 or 1.5 * rows <= most:
        yield rows
        rows *= _ROWS
    if most > 1:
        yield most
