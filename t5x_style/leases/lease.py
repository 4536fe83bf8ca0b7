"""A lease with a heartbeat and a fencing token: decides which process may write.

Two processes that want the same version must not both make it. The first acquires the version's
lease and renews it; the others wait. If the holder dies, the next acquires it with a higher token.
A process that lost its lease while it was stopped (a suspended machine, SIGSTOP, a frozen disk)
still believes that it holds it: what it has made is refused, because its token is not the last.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from t5x_style.leases.holders import Holder

Before = Literal["none", "released", "dead", "silent"]


class LeaseLost(ValueError):
    """Another process has acquired the lease; what this one made does not count."""


class Lease(Protocol):
    """A lease that this process holds, or has lost without knowing it yet.

    Attributes:
      token: higher than that of every holder before.
      before: what became of the holder before: `silent` may still wake up, and write.
    """

    token: int
    before: Before

    def guard(self) -> contextlib.AbstractContextManager[None]:
        """Raises LeaseLost on entering if the lease was lost. Inside, it cannot be lost in files.

        On object storage nothing can be locked: the lease is renewed on entering, and can be lost
        only to somebody who saw no heartbeat for the whole expiry. What must never count after that
        is written by `publish`.
        """

    def publish(self, path: str | os.PathLike[str], record: Mapping[str, Any]) -> None:
        """Writes a JSON record that counts only if the lease is held.

        All holders of a lease publish a record under that lease, and none writes it otherwise.

        Raises:
          LeaseLost: the lease was lost, or a later holder has fenced the record.
        """

    def fence(self, path: str | os.PathLike[str]) -> None:
        """After this, no earlier holder of the lease can publish a record.

        Who follows a `silent` holder calls it for each record that the other may still publish,
        and looks at the record only then. On object storage a missing record becomes
        `{"fenced_by": token}`; files need nothing.
        """

    def release(self) -> None:
        """Lets others have it."""


class Leases(Protocol):
    """Leases by name."""

    def acquire(
        self, name: str, waiting: Callable[[Holder], None], lost: Callable[[], None]
    ) -> Lease:
        """Waits until nobody else holds the lease.

        Args:
          name: of the lease.
          waiting: called once with the holder that is waited for, if there is one.
          lost: called in another thread when a heartbeat finds that the lease was lost.
        """

    def claim(self, name: str, lost: Callable[[], None]) -> Lease | None:
        """The same at once: None where somebody else holds the lease, or may still hold it."""

    def holder(self, name: str) -> Holder | None:
        """Holder of the lease, as far as it is known at once; None for nobody."""
