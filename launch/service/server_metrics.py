"""What a server counts, for Prometheus; in a registry of the app, since a process may have two."""

import contextlib
import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

CONTENT_TYPE = CONTENT_TYPE_LATEST
TOKENIZATION, ENCODING, SEARCH = "tokenization", "encoding", "search"
QUEUE, INFERENCE = "queue", "inference"  # the parts of ENCODING, which the service knows
OTHER = "other"  # any path without a route, so that clients cannot make labels
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_POWERS_OF_TWO = tuple(2**power for power in range(15))


class Metrics:
    """Counters of one app; a `current.Observer`. Methods may be called from any thread."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self._stages = Histogram(
            "kennel_stage_seconds",
            "Seconds of a request's stages; queue and inference of a batch",
            ["stage"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._requests = Counter(
            "kennel_requests",
            "Requests by route, method and status",
            ["route", "method", "status"],
            registry=registry,
        )
        self._request_seconds = Histogram(
            "kennel_request_seconds",
            "Seconds of a request from its first byte to the reply",
            ["route"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.active = Gauge("kennel_requests_active", "Requests in progress", registry=registry)
        self._batch_texts, self._batch_tokens = (
            Histogram(
                f"kennel_batch_{unit}",
                f"{unit.capitalize()} of a batch that was encoded",
                ["program"],
                buckets=_POWERS_OF_TWO,
                registry=registry,
            )
            for unit in ("texts", "tokens")
        )
        self._texts = Counter("kennel_texts", "Texts that were encoded", registry=registry)
        self._cut = Counter("kennel_texts_cut_off", "Texts that were too long", registry=registry)
        self._compilations = Counter(
            "kennel_compilations",
            "Programs that JAX compiled, of the model and of searches, or read from its cache",
            registry=registry,
        )
        self._compilation_seconds = Counter(
            "kennel_compilation_seconds", "Seconds of compilations", registry=registry
        )
        self._waiting = Gauge(
            "kennel_waiting_tokens", "Tokens that wait to be encoded", registry=registry
        )
        self._to_compile = Gauge(
            "kennel_programs_to_compile",
            "Programs that are not compiled yet; until then each text is a batch",
            registry=registry,
        )
        self._version = Gauge("kennel_version", "Version of the bundle", registry=registry)
        self._wanted = Gauge(
            "kennel_version_wanted",
            "Version that the bundle's folder names as the current one; 0 where it names none",
            registry=registry,
        )
        self._failed = Gauge(
            "kennel_version_failed",
            "Version that could not be opened and is tried again; 0 for none",
            registry=registry,
        )

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator["Stopwatch"]:
        """Measures a stage, also where it fails."""
        watch = Stopwatch()
        try:
            yield watch
        finally:
            watch.stop()
            self._stages.labels(name).observe(watch.seconds)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts a request that was answered; `route` is a template, or OTHER."""
        self._requests.labels(route, method, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def texts(self, count: int, cut_off: int) -> None:
        """Counts texts, and those of them that were longer than the model allows."""
        self._texts.inc(count)
        self._cut.inc(cut_off)

    def batch(self, program: str, texts: int, tokens: int, seconds: float) -> None:
        """See `token_batches.Observer`."""
        self._batch_texts.labels(program).observe(texts)
        self._batch_tokens.labels(program).observe(tokens)
        self._stages.labels(INFERENCE).observe(seconds)

    def queue(self, seconds: float) -> None:
        """Counts how long a text waited for its batch."""
        self._stages.labels(QUEUE).observe(seconds)

    def versions(self, wanted: int, failed: int) -> None:
        """See `current.Observer`."""
        self._wanted.set(wanted)
        self._failed.set(failed)

    def compilation(self, seconds: float) -> None:
        """Counts a compilation, see `current.Observer`."""
        self._compilations.inc()
        self._compilation_seconds.inc(seconds)

    def text(self, waiting: int, to_compile: int, version: int) -> bytes:
        """All of them in the format of Prometheus.

        Args:
          waiting: tokens that wait to be encoded.
          to_compile: programs that are not compiled yet.
          version: of the bundle.
        """
        self._waiting.set(waiting)
        self._to_compile.set(to_compile)
        self._version.set(version)
        return generate_latest(self.registry)


class Stopwatch:
    """Seconds since it was made, until it is stopped."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self.seconds = 0.0

    def stop(self) -> None:
        """Sets `seconds`."""
        self.seconds = time.perf_counter() - self._start
