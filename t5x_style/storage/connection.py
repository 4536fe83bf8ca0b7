"""The connection to Google Cloud Storage: Google's client, repeated requests, errors in our words.

Google's client is imported at the first request. `STORAGE_EMULATOR_HOST` names another server,
which is asked without credentials.
"""

import contextlib
import http.client
import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from t5x_style.storage import errors, paths

if TYPE_CHECKING:
    from google.cloud import storage

T = TypeVar("T")
PathLike = str | os.PathLike[str]
PASSING = (408, 429, 500, 502, 503, 504)  # HTTP statuses after which the same request may succeed
LONGEST_DELAY = 32.0
LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Patience:
    """How long a request may take.

    Attributes:
      total: seconds for which a request is repeated before it is an error; the last one may take
        `answer` longer.
      answer: seconds without a byte after which a connection is given up, and the request repeated.
      delay: seconds before the first repetition; the delays double, up to 32 s, and vary by chance.
    """

    total: float = 120.0
    answer: float = 60.0
    delay: float = 1.0


PATIENCE = Patience()


class Connection:
    """Sends requests; any number of threads may use it, and processes after a fork."""

    def __init__(self, patience: Patience = PATIENCE):
        self.patience = patience
        self._clients: dict[int, storage.Client] = {}
        self._lock = threading.Lock()

    def options(self, checksum: str | None = None) -> dict[str, Any]:
        """Arguments of each request to Google's client: `call` repeats, not that client."""
        options: dict[str, Any] = {"timeout": self.patience.answer, "retry": None}
        return options | ({"checksum": checksum} if checksum else {})

    def client(self) -> "storage.Client":
        """Google's client of this process: connections may not be shared across a fork."""
        with self._lock:
            if os.getpid() not in self._clients:
                self._clients[os.getpid()] = _connect()
            return self._clients[os.getpid()]

    def blob(self, path: PathLike, generation: int | None = None) -> "storage.Blob":
        """Google's handle of an object; asks nothing.

        Raises:
          paths.PathError: the path names no object.
        """
        bucket, name = paths.split(path)
        if not name:
            raise paths.PathError(f"{os.fspath(path)!r}: expected gs://BUCKET/NAME, found no name.")
        return self.client().bucket(bucket).blob(name, generation=generation)

    def retry(self, path: PathLike) -> Any:
        """Retry policy of requests for a path, as Google's client takes it."""
        from google.api_core import retry

        patience = self.patience

        def warn(error: BaseException) -> None:
            text = f"{type(error).__name__}: {_answer(error)}"
            LOGGER.warning("%s: repeats for up to %g s: %s", path, patience.total, text)

        return retry.Retry(
            predicate=_passes,
            initial=patience.delay,
            maximum=LONGEST_DELAY,
            multiplier=2.0,
            timeout=patience.total,
            on_error=warn,
        )

    def call(self, path: PathLike, permission: str, request: Callable[[], T]) -> T:
        """Repeats a request while its errors may pass.

        Args:
          path: that it is about, for messages.
          permission: that it needs, for messages.
          request: sends it once.

        Raises:
          errors.Missing, errors.NoPermission, errors.Conflict, errors.Unreachable, and
          errors.StorageError for other answers.
        """
        from google.api_core import exceptions
        from google.auth import exceptions as auth_exceptions

        text = os.fspath(path)
        try:
            return self.retry(path)(request)()
        except exceptions.RetryError as error:
            last = f"{type(error.cause).__name__}: {_answer(error.cause)}"
            raise errors.unreachable(text, self.patience.total, last) from error
        except (exceptions.Forbidden, exceptions.Unauthorized) as error:
            account, answer = self._account(), _answer(error)
            raise errors.no_permission(text, permission, account, answer) from error
        except exceptions.NotFound as error:
            raise errors.Missing(f"{text}: {_answer(error)}") from error
        except exceptions.PreconditionFailed as error:
            raise errors.Conflict(f"{text}: {_answer(error)}") from error
        except auth_exceptions.GoogleAuthError as error:
            raise errors.NoPermission(
                f"{text}: no credentials that Google accepts: {str(error).rstrip('.')}. On a TPU "
                "VM, give the machine a service account with the scope cloud-platform; elsewhere "
                "run: gcloud auth application-default login"
            ) from error
        except exceptions.GoogleAPICallError as error:
            raise errors.StorageError(f"{text}: {_answer(error)}") from error

    def _account(self) -> str:
        credentials = self.client()._credentials
        return str(getattr(credentials, "service_account_email", "") or "the caller")


def _connect() -> "storage.Client":
    # The client would look up each bucket for its traces, in a thread.
    os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
    try:
        from google.cloud import storage
    except ImportError as error:
        raise errors.StorageError(
            "Paths on gs:// need Google's client. Install it: pip install 'kennel[cloud]'"
        ) from error
    try:
        return storage.Client()
    except OSError:  # credentials without a project, which objects do not need
        return storage.Client(project="none")


def _answer(error: BaseException | None) -> str:
    """Message in the body of Google's answer, or else the first line of the error."""
    from google.api_core.exceptions import GoogleAPICallError

    if isinstance(error, GoogleAPICallError) and error.response is not None:
        with contextlib.suppress(TypeError, KeyError, ValueError):  # an answer of a proxy
            return str(error.response.json()["error"]["message"])
    return str(error).strip().partition("\n")[0]


def _passes(error: BaseException) -> bool:
    """Whether a request that failed so may succeed when it is repeated."""
    import requests
    import urllib3
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import TransportError
    from google.cloud.storage.exceptions import DataCorruption

    if isinstance(error, GoogleAPICallError):
        return error.code in PASSING
    broken = (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException)
    return isinstance(error, (*broken, ConnectionError, TransportError, DataCorruption))
