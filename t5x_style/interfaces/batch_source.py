"""Interfaces of a training's batches, and of the model as a model-dependent source sees it.

A plain source (`BatchSource`) gives batches that are a pure function of its settings and the step.
It needs no base class and imports nothing of ours. A source whose batches depend on the model
derives from `ModelDependentSource`, and mostly wraps a plain one; `bind` makes it a plain source of
one training. `as_model_dependent` holds the rule that joins both, so that the engine has one case:
a source that does not derive from `ModelDependentSource` is bound to any training unchanged.
"""

import abc
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import jax
import numpy as np

from t5x_style.interfaces.objective import Batch as DeviceBatch
from t5x_style.interfaces.objective import ModelFunction, Objective
from t5x_style.interfaces.texts import Batched

Batch = dict[str, dict[str, np.ndarray]]
Specs = Mapping[str, Mapping[str, tuple[tuple[int, ...], Any]]]  # leaves: global shape, dtype
Parameters = Mapping[str, Any]  # path, parts joined by '/' -> array
T = TypeVar("T")


class SourceError(ValueError):
    """A source that cannot give its batches; the message says what to do."""


class StopAsked(Exception):
    """Raised by `next` of batches: the training was asked to stop while it waited for one."""


class Batches(Iterator[Batch], Protocol):
    """Batches that are read ahead, until they are closed."""

    def close(self) -> None:
        """Stop reading ahead, and free threads and files."""


@runtime_checkable
class BatchSource(Protocol):
    """Batches by step.

    Attributes:
      fingerprint: of all that decides the batches; a checkpoint is resumed with the same one only.
    """

    @property
    def fingerprint(self) -> str: ...

    def specs(self) -> Specs:
        """Group -> feature -> (global shape, dtype)."""
        ...

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """These rows, in this order, of the batch of a step; all of them by default.

        Rows are those of the smallest group, with what belongs to them in the other groups.
        """
        ...

    def batches(self, start_step: int, rows: np.ndarray) -> Batches:
        """The same rows of every step from `start_step` on, read ahead."""
        ...


class FiniteSource(Protocol):
    """Batches for evaluation, with an end.

    Attributes:
      batches_in_all: how many there are.
    """

    batches_in_all: int

    def specs(self) -> Specs:
        """See `BatchSource`."""
        ...

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """See `BatchSource`; `step` is below `batches_in_all`."""
        ...


class ModelView(Protocol):
    """A training as its source sees it. All processes make the same calls in the same order."""

    @property
    def folder(self) -> Path:
        """Of the training; all processes see the same one."""
        ...

    @property
    def save_every(self) -> int:
        """Steps between two checkpoints."""
        ...

    @property
    def partitioner(self) -> Any:
        """The training's `distributed.partitioning.Partitioner`."""
        ...

    def module(self) -> Objective:
        """The objective without arrays, to ask for its contract and the shapes that it makes."""
        ...

    def functions(self) -> Mapping[str, ModelFunction]:
        """`Objective.functions`, compiled, with the parameters after the last update."""
        ...

    def program(
        self, run: Callable[[Objective, DeviceBatch, jax.Array], T]
    ) -> Callable[[Parameters, Batch, int], T]:
        """Compile `run(module, batch, key)` for single batches, ahead of their step.

        Call it when batches are asked for, not in `bind`: a checkpoint may replace the key.

        Args:
          run: pure; `key` is the one with which the step corrupts its batch.

        Returns:
          f(parameters, batch, step), for any thread of this process. Parameters that are not
          given are NaN, so that those which `run` does not use may be absent. Raises SourceError
          where an array has another shape than the parameter.
        """
        ...

    def snapshot(self) -> None:
        """Return once there is a complete checkpoint that the training can resume from."""
        ...

    def refreshing(self) -> AbstractContextManager[None]:
        """Count the time inside as that of refreshing an index or a plan, not of waiting for input.

        For the thread that asks for batches; in another thread it counts nothing.
        """
        ...

    def stop_asked(self) -> bool:
        """Whether this process was asked to stop; batches that are waited for raise StopAsked."""
        ...


class ModelDependentSource(abc.ABC):
    """The settings of a source whose batches depend on the model that they train.

    Attributes:
      corrupts: whether its batches have gone through `Objective.corrupt`, which the step then
        skips.
      not_continued: why a longer training may not continue from a finished one; "" if it may.
      decides: operational settings of the training, such as "cadence.save_every", that decide the
        batches of this source; stages read it from the source code, see `configuration.signatures`.
    """

    corrupts: ClassVar[bool] = False
    not_continued: ClassVar[str] = ""
    decides: ClassVar[tuple[str, ...]] = ()

    def require_patience(self, save_every: int) -> None:  # noqa: B027  most wait for none
        """Check that a training would not wait for a checkpoint that it never comes to.

        Called by the training's check, before the first stage of a recipe, and by `bind`.

        Args:
          save_every: steps between two checkpoints.

        Raises:
          ValueError: it would.
        """

    @abc.abstractmethod
    def bind(self, view: ModelView) -> BatchSource:
        """The source that one training reads.

        Called before the training has restored or initialised its parameters.

        Raises:
          ValueError: the settings do not fit the training.
        """

    @property
    @abc.abstractmethod
    def clean(self) -> BatchSource | None:
        """A source of like batches that needs no model; None where there is none."""

    @property
    def texts(self) -> Batched | None:
        """Texts of the batches, where `clean` is None."""
        return None

    def resume_files(self, folder: Path, step: int) -> list[Path]:
        """The files that a training which resumes at `step` reads, apart from its checkpoint.

        A longer training copies them from the finished one that it continues.

        Args:
          folder: of the training.
          step: that it resumes at.

        Raises:
          SourceError: such a file is absent.
        """
        return []


@dataclasses.dataclass(frozen=True)
class _Plain(ModelDependentSource):
    """A plain source, bound to any training."""

    source: BatchSource

    def bind(self, view: ModelView) -> BatchSource:
        return self.source

    @property
    def clean(self) -> BatchSource:
        return self.source


def as_model_dependent(source: BatchSource | ModelDependentSource) -> ModelDependentSource:
    """The source itself if it depends on the model; else one that ignores the model.

    Raises:
      SourceError: it is neither a `BatchSource` nor a `ModelDependentSource`.
    """
    if isinstance(source, ModelDependentSource):
        return source
    require_complete(source)
    return _Plain(source)


def require_complete(source: object, name: str = "") -> None:
    """Raises SourceError, which lists what is missing, if this is not a whole `BatchSource`.

    Args:
      source: what is checked; its properties are not evaluated, for they may read files.
      name: of the parameter that it was given to.
    """
    needed = ("specs", "batch", "batches", "fingerprint")
    missing = [one for one in needed if inspect.getattr_static(source, one, None) is None]
    # what is not known before a run says so when it is asked
    if missing and not all(hasattr(source, one) for one in missing):
        raise SourceError(
            f"{name}{': ' if name else ''}expected a batch source, found {type(source).__name__}, "
            f"which has no {' and no '.join(missing)}: another source has to wrap it. The files in "
            "gin_configs/data/ bind PIPELINE to a source that is complete."
        )
