"""The version of a bundle that is served, and its replacement by a newer one without a pause.

A new version is opened and compiled next to the old one, then takes its place for requests to come;
the old one is closed when the last request that uses it has ended.
"""

import contextlib
import dataclasses
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from t5x_style.retrieval import versioned_folder
from t5x_style.serving import freed_memory, token_batches
from t5x_style.serving.opened.bundle_service import BundleService
from t5x_style.step import compile_events

_FIRST_WAIT, _LONGEST_WAIT = 4.0, 300.0  # seconds before a version that failed is tried again


class Observer(token_batches.Observer, Protocol):
    """Counts batches and compilations, and is given which versions there are."""

    def compilation(self, seconds: float) -> None:
        """JAX compiled a program, of the model or of a search, or read it from its cache."""
        ...

    def versions(self, wanted: int, failed: int) -> None:
        """What the folder asks for, whenever that was looked at.

        Args:
          wanted: the version that CURRENT names; 0 where that cannot be read.
          failed: a version that could not be opened and is tried again later; 0 for none.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Failure:
    """A version that could not be opened.

    Attributes:
      version: its number; 0 where CURRENT cannot be read.
      reason: kind of the error, without paths, for clients; the whole message is on stderr.
      message: of the error.
      wait: seconds from then on to the next try.
      again: when that is, by `time.monotonic`.
    """

    version: int
    reason: str
    message: str
    wait: float
    again: float


class _Held:
    """A service, None once it is closed, and how many requests use it."""

    def __init__(self, service: BundleService) -> None:
        self.service: BundleService | None = service
        self.version = service.facts.version
        self.users = 0
        self.retired = False

    def close(self, wait: bool = False) -> None:
        """Ends the service; `wait`: also for what it compiles now, which takes seconds."""
        service, self.service = self.service, None
        if service is not None:
            service.close(wait)


class Current:
    """See the module's docstring; may be called from any thread.

    Attributes:
      failure: of the version that CURRENT names, which is tried again, ever more rarely; None
        where it is the one that is served.
    """

    def __init__(self, folder: Path, observer: Observer | None = None) -> None:
        """Opens the current version of a bundle; errors as of `BundleService`.

        Raises:
          FileNotFoundError: the folder has no version.
        """
        self._folder, self._observer = folder, observer
        self.failure: Failure | None = None
        if observer is not None:
            compile_events.observe(observer, lambda one, seconds: one.compilation(seconds))
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._memory_to_give_back = threading.Event()  # of a closed version, or one that failed
        self._watcher: threading.Thread | None = None
        self._held = _Held(self._open(versioned_folder.current_number(folder)))
        self._report_versions(self._held.version)

    @contextlib.contextmanager
    def use(self) -> Iterator[BundleService]:
        """The version that is served now; it stays open until the `with` ends."""
        with self._lock:
            held = self._held
            held.users += 1
        try:
            assert held.service is not None  # it is closed after the last user has left
            yield held.service
        finally:
            self._leave(held)

    def refresh(self) -> bool:
        """Changes to the current version of the folder, if that is another; whether it did.

        A version that cannot be opened is named on stderr, the present one stays, and the other is
        tried again later: it may be on its way from another machine, or memory was short.
        """
        number = 0
        try:
            number = versioned_folder.current_number(self._folder)
            if number == self._held.version:
                self.failure = None
            if number == self._held.version or self._waits_for_retry(number):
                self._report_versions(number)
                return False
            opened = _Held(self._open(number, self._held.service))
        except token_batches.Stopped:
            return False
        except Exception as error:  # whatever is wrong with it, what is served stays
            self._record_failure(number, error)
            self._report_versions(number)
            return False
        self.failure = None
        self._report_versions(number)
        with self._lock:
            old, self._held = self._held, opened
            old.retired = True
            unused = old.users == 0
        print(f"serve: version {number} is served now", file=sys.stderr, flush=True)
        if unused:
            old.close()
            self._memory_to_give_back.set()
        return True

    def watch(self, seconds: float = 2.0) -> None:
        """Starts a thread that looks for a newer version."""

        def run() -> None:
            while not self._stop.wait(seconds):
                self.refresh()
                if self._memory_to_give_back.is_set():  # here, so that no request waits for it
                    self._memory_to_give_back.clear()
                    freed_memory.give_back()

        self._watcher = threading.Thread(target=run, name="watch", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """Ends the threads; what waits is encoded before.

        Of a version that is opened now, one step is awaited and no other: reading its files, its
        indexes and programs, compiling a program, or a search that compiles.
        """
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()
        self._held.close(wait=True)

    def _open(self, number: int, before: BundleService | None = None) -> BundleService:
        version = versioned_folder.version_folder(self._folder, number)
        stopped = self._stop.is_set
        service: BundleService | None = None
        try:
            service = BundleService(version, self._observer, before, stopped)
            if before is None:
                service.warm_up(meanwhile=True, stopped=stopped)
            else:  # by one thread: others would take the processors of the version that serves
                service.warm_up(threads=1, stopped=stopped)
        except BaseException:
            if service is not None:
                service.close()
            self._memory_to_give_back.set()  # or each try would take more
            raise
        return service

    def _waits_for_retry(self, number: int) -> bool:
        found = self.failure
        return found is not None and found.version == number and time.monotonic() < found.again

    def _record_failure(self, number: int, error: Exception) -> None:
        """Sets when to try again, and says what is wrong, once for each message."""
        before = self.failure if self.failure and self.failure.version == number else None
        wait = _FIRST_WAIT if before is None else min(2 * before.wait, _LONGEST_WAIT)
        detail = f": {error.strerror}" if isinstance(error, OSError) and error.strerror else ""
        reason, message = f"{type(error).__name__}{detail}", str(error)
        self.failure = Failure(number, reason, message, wait, time.monotonic() + wait)
        if before is None or before.message != message:
            what = f"version {number} is not served" if number else "no newer version is served"
            print(f"serve: {what}: {message}", file=sys.stderr, flush=True)

    def _report_versions(self, wanted: int) -> None:
        if self._observer is not None:
            self._observer.versions(wanted, 0 if self.failure is None else self.failure.version)

    def _leave(self, held: _Held) -> None:
        with self._lock:
            held.users -= 1
            last = held.retired and held.users == 0
        if last:
            held.close()
            self._memory_to_give_back.set()


def open_current(folder: str | Path, observer: Observer | None = None) -> Current:
    """The current version of the bundle in a folder; errors as of `Current`."""
    return Current(Path(folder), observer)
