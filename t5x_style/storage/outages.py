"""Limit on how long a driver runs without object storage, where its trials may train meanwhile."""

from collections.abc import Callable

from t5x_style.storage.errors import Unreachable

PATIENCE_SECONDS = 3600.0


class Outage:
    """Start of the time in which object storage does not answer."""

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        """Args:
        say: prints a line.
        clock: seconds.
        """
        self._say, self._clock = say, clock
        self._since: float | None = None

    def lasts(self, error: Unreachable, is_urgent: bool) -> None:
        """Notes that there was no answer.

        Args:
          error: what was found.
          is_urgent: whether somebody waits for the end of this process.

        Raises:
          Unreachable: the same, after an hour, or where it is urgent.
        """
        if self._since is None:
            self._since = self._clock()
            self._say(f"trials continue, and are looked after once there is an answer: {error}")
        if is_urgent or self._clock() - self._since >= PATIENCE_SECONDS:
            raise error

    def is_over(self) -> None:
        """Notes an answer."""
        if self._since is not None:
            self._say("object storage answers again")
        self._since = None
