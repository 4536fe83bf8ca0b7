"""Limits of a server, and names and files that it needs next to the bundle."""

import dataclasses
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from t5x_style.serving.service import Service

if TYPE_CHECKING:  # imports JAX
    from t5x_style.serving.opened.current import Failure

PAGE = Path(__file__).resolve().parent.parent / "page"


class Current(Protocol):
    """The bundle that a server offers, which may be replaced by a newer version at any time."""

    def use(self) -> AbstractContextManager[Service]:
        """The newest version; it stays open until the context ends."""
        ...

    @property
    def failure(self) -> "Failure | None":
        """Of a newer version that could not be opened, if there is one."""
        ...


def default_threads() -> int:
    """Threads that tokenize and search: as many as Python's default executor has."""
    return min(32, (os.cpu_count() or 1) + 4)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a server accepts.

    Attributes:
      name: of the model in replies; None: that of the run it was made of.
      max_body: bytes of a request's body; a larger one is answered with 413.
      max_bodies: bytes of the bodies of all requests in progress, which are in memory; a request
        beyond that is answered with 429.
      max_texts: of one request; fewer than that are batched as the service likes.
      max_characters: of one text.
      max_k: passages that a search returns at most.
      max_read: passages that a reader reads for one request.
      max_requests: at the same time; one more is answered with 429.
      timeout: seconds of a request, after which it is answered with 504.
      texts_in_queue: of one request at the same time, so that a large one leaves room for others.
      threads: that tokenize and search.
      hosts: names by which clients may call the server, in small letters and without a port; ():
        any. Without a list, a web page of another site can give its own domain name the address
        of this machine (DNS rebinding), and read the replies.
      api_key: that clients send as `Authorization: Bearer KEY`; None: none is needed.
      page: folder of the page at `/`.
    """

    name: str | None = None
    max_body: int = 8_000_000
    max_bodies: int = 1_000_000_000
    max_texts: int = 2048
    max_characters: int = 200_000
    max_k: int = 1000
    max_read: int = 50
    max_requests: int = 512
    timeout: float = 60.0
    texts_in_queue: int = 64
    threads: int = dataclasses.field(default_factory=default_threads)
    hosts: tuple[str, ...] = ()
    api_key: str | None = dataclasses.field(default=None, repr=False)
    page: Path = PAGE

    def __post_init__(self) -> None:
        """Refuses limits that would let no request pass.

        Raises:
          ValueError: a limit is not above 0, max_body is above max_bodies, or the key is no
            printable ASCII.
        """
        sizes = ("max_body", "max_bodies", "max_texts", "max_characters", "max_k", "max_read")
        for name in (*sizes, "max_requests", "timeout", "texts_in_queue", "threads"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected more than 0, found {getattr(self, name)}")
        if self.max_body > self.max_bodies:
            raise ValueError(
                f"max_body: expected at most max_bodies, {self.max_bodies:,} bytes, found "
                f"{self.max_body:,}: such a request could never pass. Lower max_body, or raise "
                "max_bodies."
            )
        key = self.api_key
        if key is not None and not (key and key.isascii() and key.isprintable() and " " not in key):
            raise ValueError("api_key: expected printable ASCII without spaces")
