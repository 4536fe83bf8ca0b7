"""The version of a bundle that is served, and its replacement by a newer one without a pause.

A new version is opened and compiled next to the old one, then takes its place for requests to come;
the old one is closed when the last request that uses it has ended.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from t5x_style.retrieval import versioned_folder
from t5x_style.serving import freed_memory, token_batches
from t5x_style.serving.bundle_service import BundleService


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
      failed: version that could not be opened -> why; it is not tried again.
    """

    def __init__(self, folder: Path, observer: token_batches.Observer | None = None) -> None:
        """Opens the current version of a bundle; errors as of `BundleService`.

        Raises:
          FileNotFoundError: the folder has no version.
        """
        self._folder, self._observer = folder, observer
        self.failed: dict[int, str] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._memory_to_give_back = threading.Event()  # of a closed version
        self._watcher: threading.Thread | None = None
        self._held = _Held(self._open(versioned_folder.current_number(folder)))

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

        A version that cannot be opened is named on stderr, and the present one stays.
        """
        try:
            number = versioned_folder.current_number(self._folder)
        except (OSError, ValueError) as error:
            print(f"serve: {error}", file=sys.stderr, flush=True)
            return False
        if number == self._held.version or number in self.failed:
            return False
        try:
            opened = _Held(self._open(number, self._held.service))
        except Exception as error:  # whatever is wrong with it, what is served stays
            self.failed[number] = str(error)
            print(f"serve: version {number} is not served: {error}", file=sys.stderr, flush=True)
            return False
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
        """Ends the threads; what waits is encoded before."""
        self._stop.set()
        if self._watcher is not None:
            self._watcher.join()
        self._held.close(wait=True)

    def _open(self, number: int, before: BundleService | None = None) -> BundleService:
        version = versioned_folder.version_folder(self._folder, number)
        service = BundleService(version, self._observer, before)
        try:
            if before is None:
                service.warm_up(meanwhile=True)
            else:  # by one thread: others would take the processors of the version that serves
                service.warm_up(threads=1)
        except BaseException:
            service.close()
            raise
        return service

    def _leave(self, held: _Held) -> None:
        with self._lock:
            held.users -= 1
            last = held.retired and held.users == 0
        if last:
            held.close()
            self._memory_to_give_back.set()


def open_current(folder: str | Path, observer: token_batches.Observer | None = None) -> Current:
    """The current version of the bundle in a folder; errors as of `Current`."""
    return Current(Path(folder), observer)
