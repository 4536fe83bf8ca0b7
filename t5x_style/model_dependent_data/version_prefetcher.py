"""Versions for a training: one is in use, a newer one is read in the background."""

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from t5x_style.model_dependent_data.version_log import Readiness
from t5x_style.model_dependent_data.versioned_index import VersionError
from t5x_style.storage.errors import Unreachable


class Numbered(Protocol):
    """A version, whatever it holds."""

    @property
    def number(self) -> int:
        """Of the version."""
        ...

    @property
    def step(self) -> int:
        """Of the training, whose parameters made it."""
        ...


class Opened(Protocol):
    """Result of `VersionReader.read` for a version."""

    @property
    def version(self) -> Numbered:
        """That it is of."""
        ...


T = TypeVar("T", bound=Opened)


class VersionReader(Generic[T]):
    """Keeps the version in use, and reads the next in a separate thread between start and close.

    Two are in memory while the next is read.
    """

    def __init__(self, read: Callable[[int], T]):
        """
        Args:
          read: opens a version, by number; VersionError for one that is not there any more.
        """
        self._read = read
        self._in_use: T | None = None
        self._executor: concurrent.futures.Executor | None = None
        self._coming: tuple[int, concurrent.futures.Future[T]] | None = None
        self._one_at_a_time = threading.RLock()

    def start(self) -> None:
        """Read newer versions in the background from now on; without it, reads block."""
        self._executor = concurrent.futures.ThreadPoolExecutor(1, "version")

    def close(self) -> None:
        """Waits for what is being read, and drops it."""
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        self._executor = self._coming = None

    def open(self, number: int) -> T:
        """A version, which is the one in use now; raises VersionError if it has gone."""
        with self._one_at_a_time:
            found = self._in_use
            if found is None or found.version.number != number:
                coming = self._coming
                if coming is not None and coming[0] == number:
                    self._coming = None
                    found = coming[1].result()
                else:
                    found = self._read(number)
                self._in_use = found
            return found

    def expect(self, number: int) -> None:
        """Starts reading a version in the background, if it is newer and no other is being read.

        One that was read, and is not the expected one, was passed over by who decides.
        """
        with self._one_at_a_time:
            coming = self._coming
            if coming is not None and coming[0] != number and coming[1].done():
                self._coming = None
            self._begin(number)

    def _begin(self, number: int) -> None:
        """Reads a version in the background, if it is newer and no other is being read."""
        with self._one_at_a_time:
            if self._executor is None or self._in_use is None:
                return
            newest = self._in_use.version.number
            if self._coming is not None and self._coming[0] <= newest:
                self._coming = None  # one as new was opened meanwhile
            if self._coming is None and number > newest:
                self._coming = (number, self._executor.submit(self._read, number))

    def state(self, number: int) -> Readiness:
        """Whether a version that was expected has been read."""
        with self._one_at_a_time:
            in_use, coming = self._in_use, self._coming
            if in_use is not None and in_use.version.number == number:
                return "ready"
            if coming is None or coming[0] != number or not coming[1].done():
                return "waits"
            error = coming[1].exception()
            if error is None:
                return "ready"
            self._coming = None
            if isinstance(error, VersionError):
                return "gone"
            if isinstance(error, Unreachable):  # the next call of `expect` reads it again
                return "waits"
            raise error

    def open_beside(
        self,
        number: int,
        will_do: Callable[[Numbered], bool],
        others: Callable[[int], Readiness] = lambda number: "ready",
    ) -> T:
        """A version, or while it is read the one in use, if that will do.

        Args:
          number: of the version.
          will_do: whether the version in use can still be used.
          others: whether other processes have read a version; "gone" where one cannot any more.

        Raises:
          VersionError: the version has gone.
        """
        with self._one_at_a_time:
            in_use = self._in_use
            if self._executor is None or in_use is None or not will_do(in_use.version):
                return self.open(number)
            self._begin(number)
            if self._coming is None:
                return self.open(number)
            coming, future = self._coming
            elsewhere = others(coming)
            if elsewhere == "gone":
                self._coming = None
            if elsewhere != "ready" or not future.done():
                return in_use
            try:
                return self.open(coming)
            except VersionError:
                if coming == number:
                    raise
                return in_use  # it went while it was read, and there is a newer one
