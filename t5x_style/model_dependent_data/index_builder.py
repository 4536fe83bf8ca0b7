"""Builds a new index from each checkpoint of a training that retrieves on the host.

Runs in another process than the training (`python -m t5x_style.watch_index`), on devices of
its own or on CPUs. It may be killed at any moment: what is not published whole is not published.
"""

import abc
import dataclasses
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import numpy as np

from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.representation import PASSAGE
from t5x_style.interfaces.text_encoder import TextEncoder
from t5x_style.interfaces.texts import EncodeSource
from t5x_style.model_dependent_data import versioned_index
from t5x_style.retrieval import encoding, versioned_folder
from t5x_style.storage.errors import Unreachable


class RefreshError(ValueError):
    """Nothing can be built: parameters that are not there, a corpus that cannot be embedded."""


@dataclasses.dataclass(frozen=True)
class Training:
    """A training that is watched; given by the entry point.

    Attributes:
      run: the identifier of this training; None before it has begun.
      newest: the step of the newest complete checkpoint, None before the first.
      load: the model of a checkpoint, by step.
      parameters: all its parameters by path, by step.
      finished: whether the training has come to its end.
    """

    run: Callable[[], str | None]
    newest: Callable[[], int | None]
    load: Callable[[int], TextEncoder]
    parameters: Callable[[int], Mapping[str, np.ndarray]]
    finished: Callable[[], bool]


def _nothing() -> None:
    """Nobody else has to be given what was published."""


@dataclasses.dataclass(frozen=True)
class Builder(abc.ABC):
    """Publishes a version of each new checkpoint; what is in it is the subclass's.

    Attributes:
      folder: where versions are published.
      source: the corpus, in the order of its store.
      index: the type that is built of it, with its settings.
      keep: versions that stay; a stopped training resumes with those it saw.
      minimum_recall: of the exact top 10; an index below it is not used.
      published: called once versions are in `folder`; set by the entry point where that is a
        working copy.
    """

    folder: Annotated[str, "operational"]
    source: EncodeSource
    index: index_lib.IndexType
    keep: int = dataclasses.field(default=4, kw_only=True)
    minimum_recall: float = dataclasses.field(default=0.9, kw_only=True)
    published: Callable[[], None] = dataclasses.field(default=_nothing, kw_only=True)

    @abc.abstractmethod
    def refresh(self, training: Training, run: str, step: int) -> int:
        """Embeds the corpus with a checkpoint and publishes a version; returns its number."""

    def built(self, run: str) -> int | None:
        """The step of the newest version of a training."""
        found = versioned_index.newest(self.folder, run)
        return None if found is None else found[1]

    def embed(self, model: TextEncoder) -> encoding.Embeddings:
        """The corpus by a checkpoint."""
        vectors = model.encode(PASSAGE, self.source)
        return encoding.Embeddings(
            vectors, list(self.source.ids), model.contract, model.fingerprint
        )

    def watch(
        self, training: Training, poll_seconds: float, retry: tuple[type[Exception], ...]
    ) -> None:
        """Builds of the newest checkpoint whenever there is one, until the training has ended.

        An outage of object storage is waited for; then what it kept from being published is.

        Args:
          training: what is watched.
          poll_seconds: between two looks.
          retry: errors of a checkpoint that was replaced while it was read.

        Raises:
          RefreshError: the training had ended before.
          PublishError: nothing can be written to `folder`.
        """
        if training.finished():
            raise RefreshError("the training has ended: start one that has not, before this")
        versioned_folder.require_writable(self.folder)
        look = _Look(self, training, retry)
        away = False
        while True:
            try:
                if away:
                    self.published()  # what was built before the outage
                if (what := look()) == "ended":
                    return
                away = False
            except Unreachable as error:  # the training survives this, too
                if not away:
                    say(f"{error}; looking again")
                away, what = True, "nothing"
            if what == "nothing":
                time.sleep(poll_seconds)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Refresher(Builder):
    """Publishes the index, with what embeds queries for it.

    Attributes:
      folder: where versions are published.
      source: the corpus, in the order of its store.
      index: the type that is built, with its settings.
      keep: versions that stay; a stopped training resumes with those it saw.
      minimum_recall: of the exact top 10; an index below it is not published.
      published: see `Builder`.
      parameters: regular expressions of the paths of what embeds queries.
    """

    parameters: tuple[str, ...]

    def refresh(self, training: Training, run: str, step: int) -> int:
        """Embeds the corpus with a checkpoint, builds and publishes; returns the version's number.

        Raises:
          RefreshError: a pattern of `parameters` matches nothing.
        """
        started = time.perf_counter()
        kept = self._kept(training.parameters(step))
        embeddings = self.embed(training.load(step))
        embedded = time.perf_counter()
        number = versioned_index.write(
            self.folder, embeddings, run, step, kept, self.index, self.keep, self.minimum_recall
        )
        self.published()
        done = time.perf_counter()
        say(
            f"version {number} of step {step}: {len(embeddings.ids):,} blocks embedded in "
            f"{embedded - started:.1f} s, built and published in {done - embedded:.1f} s"
        )
        return number

    def _kept(self, parameters: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        for pattern in self.parameters:
            if not any(re.search(pattern, path) for path in parameters):
                raise RefreshError(
                    f"Refresher.parameters: {pattern!r} matches no parameter of the training. "
                    f"Paths look like: {', '.join(sorted(parameters)[:8])}"
                )
        return {
            path: array
            for path, array in parameters.items()
            if any(re.search(pattern, path) for pattern in self.parameters)
        }


class _Look:
    """Looks at a training once a call, and builds of its newest checkpoint."""

    def __init__(self, refresher: Builder, training: Training, retry: tuple[type[Exception], ...]):
        """See `Builder.watch`."""
        self._refresher, self._training, self._retry = refresher, training, retry
        self._failed: int | None = None  # step
        self._announced = False

    def __call__(self) -> Literal["built", "nothing", "ended"]:
        """Return the result of one look."""
        training = self._training
        finished = training.finished()  # looked at first: its last checkpoint was saved before
        run, step = training.run(), training.newest()
        if run is not None and step is not None and step != self._refresher.built(run):
            return "built" if self._built(run, step) else "nothing"
        if finished:
            say(f"the training has ended at step {step}")
            return "ended"
        if step is None and not self._announced:
            self._announced = True
            say("waiting for the training's first checkpoint")
        return "nothing"

    def _built(self, run: str, step: int) -> bool:
        try:
            self._refresher.refresh(self._training, run, step)
        except self._retry as error:
            if self._failed == step:  # twice the same: it is not being replaced
                raise
            self._failed = step
            say(f"step {step}: {error}; looking again")
            return False
        self._failed = None
        return True


def say(text: str) -> None:
    """Reports what a builder does."""
    print(f"refresh: {text}", file=sys.stderr, flush=True)
