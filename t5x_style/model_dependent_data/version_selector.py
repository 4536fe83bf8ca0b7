"""Select the version of an index, or of negatives, that a step of a training sees.

It is the newest, and that is written down.
"""

import concurrent.futures
import functools
import sys
import threading
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

from t5x_style.model_dependent_data import versioned_index
from t5x_style.model_dependent_data.version_log import Follower, Leader, Record
from t5x_style.model_dependent_data.version_prefetcher import Opened, VersionReader
from t5x_style.model_dependent_data.versioned_index import VersionError
from t5x_style.retrieval.remote_versions import Copies, drop_gone, published
from t5x_style.storage import places
from t5x_style.storage.errors import StorageError, Unreachable

_POLL_SECONDS = 0.5
_TOLD_SECONDS = 0.02
_REMIND_SECONDS = 60.0

T = TypeVar("T", bound=Opened)


class VersionChoice(Generic[T]):
    """Chooses as `HostRetrieval` says.

    Attributes:
      waiting: whether a call of `of`, in any thread, waits for a version.
    """

    def __init__(
        self,
        owner: str,
        what: str,
        folder: str,
        max_staleness_steps: int | None,
        when_stale: Literal["pause", "warn"],
        read: Callable[[int], T],
    ):
        """`begin` has to be called before a step is asked for.

        Args:
          owner: class whose fields messages name.
          what: versions are of it, such as 'the index'; for messages.
          folder, max_staleness_steps, when_stale: see `HostRetrieval`.
          read: opens a version, see `VersionReader`.
        """
        self._owner, self._what = owner, what
        self._shown, self._folder = folder, places.local(folder)
        self._bound, self._when_stale = max_staleness_steps, when_stale
        self._reader = VersionReader(read)
        self._begun: tuple[str, Record | Follower] | None = None
        self._copies: Copies | None = None
        self._closing = threading.Event()
        self._warned = self._followed = -1
        self.waiting = False

    def begin(self, run: str, record: Record | Follower) -> None:
        """Before the first step; see `version_log.begin`.

        Args:
          run: which training this is; versions of others do not count.
          record: which versions its steps saw; `Follower` for a process that does not decide it.
        """
        self._begun = (run, record)
        if places.remote(self._folder) and not isinstance(record, Follower):
            self._copies = Copies(self._folder, lambda one: one.get("run") == run, _say)
            self._copies.start()

    def start(self) -> None:
        """Read newer versions in the background of the steps from now on."""
        self._closing.clear()
        if self._copies is not None:
            self._copies.start()
        self._reader.start()

    def stop_waiting(self) -> None:
        """Ends a call of `of` that waits."""
        self._closing.set()

    def close(self) -> None:
        """Waits for what is being read, and drops it."""
        if self._copies is not None:
            self._copies.close()
        self._reader.close()

    def of(self, step: int) -> T:
        """The version that a step saw, or else the newest, which is written down.

        Raises:
          CancelledError: `stop_waiting` was called before there was one.
        """
        assert self._begun is not None, "begin was not called"
        run, record = self._begun
        if isinstance(record, Follower):
            return self._following(step, record)
        seen = record.of(step)
        found = None if seen is None else self._again(step, seen)
        if found is None:
            found = self._fresh_enough(step, run, record)
            keep = record.add if seen is None else record.replace
            keep(step, found.version.number)
        if isinstance(record, Leader):
            record.publish(step, found.version.number)
        return found

    def _again(self, step: int, seen: int) -> T | None:
        """The version that a step of this run saw before; None where it has gone."""
        try:
            return self._answered(lambda: self._reader.open(seen))
        except VersionError as error:
            _say(
                f"step {step} saw version {seen} of {self._what}: {error} It sees the newest now: "
                "this run does not repeat the one before it, bit for bit."
            )
            return None

    def _following(self, step: int, leader: Follower) -> T:
        """The version that process 0 decides for a step; waits until it does."""
        waited = 0.0
        while (decided := leader.decision(step)) is None:
            if _REMIND_SECONDS - waited % _REMIND_SECONDS < _TOLD_SECONDS:
                _say(
                    f"step {step}: waiting for process 0 to decide which version of {self._what} "
                    f"in {self._shown} it sees"
                )
            self._wait(_TOLD_SECONDS)
            waited += _TOLD_SECONDS
        number, asked = decided
        found = self._answered(lambda: self._reader.open(number))
        if self._followed != number:
            self._followed = number
            self._drop_gone()
        if asked > number:
            self._reader.expect(asked)
            leader.answer(asked, self._reader.state(asked))
        return found

    def _fresh_enough(self, step: int, run: str, record: Record) -> T:
        """The newest version; waits while there is none, or while it is too old, as asked for."""
        waited = 0.0
        others = [record.ask] if isinstance(record, Leader) else []
        while True:
            found = versioned_index.newest(self._folder, run)
            if found is not None and not self._too_old(*found, step):
                try:
                    return self._answered(
                        functools.partial(
                            self._reader.open_beside,
                            found[0],
                            lambda in_use: not self._past_bound(in_use.step, step),
                            *others,
                        )
                    )
                except VersionError:
                    if versioned_index.newest(self._folder, run) == found:
                        raise
                    continue  # replaced by a newer one while it was read
            if waited % _REMIND_SECONDS < _POLL_SECONDS:
                self._tell_waiting(found, step)
            self._wait(_POLL_SECONDS)
            waited += _POLL_SECONDS

    def _answered(self, call: Callable[[], T]) -> T:
        """Result of a call, repeated for as long as object storage does not answer."""
        said = False
        while True:
            try:
                return call()
            except Unreachable as error:
                if not said:
                    _say(f"{self._shown}: {error}; this is tried again")
                said = True
                self._wait(_POLL_SECONDS)

    def _drop_gone(self) -> None:
        """Deletes this machine's copies of versions that are gone, as `Copies` does on process 0's.

        A listing that fails leaves them to the next version.
        """
        if url := places.remote(self._folder):
            try:
                drop_gone(self._folder, published(url))
            except StorageError as error:
                _say(f"{self._shown}: {error}; copies of old versions stay for now")

    def _wait(self, seconds: float) -> None:
        """Raises CancelledError where `stop_waiting` is called meanwhile, or was before."""
        self.waiting = True
        try:
            if self._closing.wait(seconds):
                raise concurrent.futures.CancelledError
        finally:
            self.waiting = False

    def _past_bound(self, made_at: int, step: int) -> bool:
        return self._bound is not None and step - made_at > self._bound

    def _too_old(self, number: int, made_at: int, step: int) -> bool:
        if not self._past_bound(made_at, step):
            return False
        if self._when_stale == "pause":
            return True
        if self._warned != number:
            self._warned = number
            print(
                f"step {step}: version {number} of {self._what} is {step - made_at} steps old, the "
                f"bound is {self._bound}: training continues with it "
                f"({self._owner}.when_stale = 'warn'). "
                "Is its companion, `python -m t5x_style.watch_index`, still running?",
                file=sys.stderr,
            )
        return False

    def _tell_waiting(self, found: tuple[int, int] | None, step: int) -> None:
        bound = self._bound
        age = "" if bound is None else f", at most {bound} steps old,"
        there = "this run has none" if found is None else f"the newest is of step {found[1]}"
        print(
            f"step {step}: waiting for a version of {self._what}{age} in {self._shown}; {there}. "
            "The companion of this training makes it from its checkpoints: `kennel run RECIPE "
            "--companions=only`, or `python -m t5x_style.watch_index`.",
            file=sys.stderr,
            flush=True,
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
