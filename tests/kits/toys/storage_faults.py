"""Faults that a fake Cloud Storage injects, by operation and object, so many times."""

import dataclasses
import fnmatch
import threading
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["status", "stall", "lose_response", "vanish", "corrupt", "cut"]
MESSAGES = {
    401: "Anonymous caller does not have storage.objects.get access to the object.",
    429: "The object exceeded the rate limit for object mutation operations.",
    503: "We encountered an internal error. Please try again.",
}


@dataclass
class Fault:
    """What goes wrong, and with which requests.

    Attributes:
      kind: `status` answers with an HTTP error; `stall` answers nothing until the server closes or
        the client gives up; `lose_response` does the work and closes the connection; `vanish`
        deletes the object first; `corrupt` changes a byte of what is read; `cut` sends half of it.
      status: of the answer.
      objects: pattern of object names.
      operations: which: get, read, insert, start (of a resumable upload), list, delete, patch,
        compose, rewrite, bucket; empty for all.
      times: how often; None for always.
      message: of the answer, "" for Google's usual one.
    """

    kind: Kind
    status: int = 0
    objects: str = "*"
    operations: tuple[str, ...] = ()
    times: int | None = 1
    message: str = ""


class Faults:
    """The faults of a server, in the order they were added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """From now on."""
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """No more faults."""
        with self._lock:
            self._faults.clear()

    def take(self, operation: str, name: str) -> Fault | None:
        """The fault of a request, counted; None for a request that is served."""
        with self._lock:
            for fault in self._faults:
                right = not fault.operations or operation in fault.operations
                if right and fault.times != 0 and fnmatch.fnmatchcase(name, fault.objects):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None


def forbidden(permission: str, **which: Any) -> Fault:
    """403 as Google answers it to a service account without a permission."""
    message = (
        f"robot@project.iam.gserviceaccount.com does not have {permission} access to the Google "
        f"Cloud Storage object. Permission '{permission}' denied on resource (or it may not exist)."
    )
    return dataclasses.replace(Fault("status", 403, message=message, times=None), **which)
