"""What is in a batch, decided anew every so many steps by the model of the moment.

Plan number v is made of the parameters after v * every updates, and rules the steps from there to
the next. Each lies in PLANS/ of the training's folder, so that a training that goes on in between
sees what it would have seen; at a plan's own first step it is made again, and comes out the same.
"""

import dataclasses
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from t5x_style.partitioning import Partitioner
from t5x_style.retrieval import encoding, neighbours

PLANS = "plans"
EMBED = "embed_passage"
_DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)

Batch = dict[str, dict[str, np.ndarray]]
Arrays = Mapping[str, np.ndarray]


class PlanMissing(ValueError):
    """A training goes on in the middle of a plan that is not there."""


class Table(Protocol):
    """What is known of the texts: see `neighbours.Facts`."""

    shard: np.ndarray
    document: np.ndarray
    language: np.ndarray


class Replanned(Protocol):
    """A pipeline whose plans are made of similarities."""

    fingerprint: str

    @property
    def table(self) -> Table:
        """Of its texts."""
        ...

    @property
    def source(self) -> encoding.Batched:
        """The texts, to be embedded."""
        ...

    def make(
        self, rows: np.ndarray, similarity: np.ndarray, version: int
    ) -> tuple[Arrays, Mapping[str, int]]:
        """A plan of the neighbours of each text, and what to tell of it."""
        ...

    def use(self, arrays: Arrays, version: int) -> None:
        """Batches are of this plan from now on."""
        ...

    def specs(self) -> Mapping[str, Mapping[str, tuple[tuple[int, ...], Any]]]:
        """As `trainer.Pipeline`."""
        ...

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """As `trainer.Pipeline`."""
        ...

    def batches(self, start_step: int, rows: np.ndarray, stop: int) -> Any:
        """As `trainer.Pipeline`, up to `stop` - 1."""
        ...


@dataclasses.dataclass(frozen=True)
class Replanning:
    """When plans are made, and from how many neighbours.

    Attributes:
      every: steps; the paper: 10,000.
      same_language, other_language: neighbours of each text in its own language and in others.
      tile: texts that are compared with their shard at a time.
    """

    every: int
    same_language: int = 4
    other_language: int = 4
    tile: int = 1024

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"Replanning.every: expected at least 1 step, found {self.every}")


class Replanner:
    """The pipeline that a trainer sees: see the module's docstring.

    Attributes:
      fingerprint: of the pipeline, and of when plans are made of what.
    """

    def __init__(
        self,
        pipeline: Replanned,
        replanning: Replanning,
        embed: Callable[[], encoding.Embed],
        partitioner: Partitioner,
        folder: Path,
    ):
        """
        Args:
          pipeline: what gives the batches of a plan.
          replanning: when.
          embed: called where a plan is due; gives the function of the parameters of the moment.
          partitioner: of the training.
          folder: of the training.
        """
        self._pipeline, self._replanning = pipeline, replanning
        self._embed, self._partitioner = embed, partitioner
        self._folder = folder / PLANS
        when = dataclasses.asdict(replanning) | {"tile": None}
        self.fingerprint = f"{pipeline.fingerprint}:{json.dumps(when, sort_keys=True)}"

    def specs(self) -> Mapping[str, Mapping[str, tuple[tuple[int, ...], Any]]]:
        """As `trainer.Pipeline`."""
        return self._pipeline.specs()

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """As `trainer.Pipeline`, of the plan in use."""
        return self._pipeline.batch(step, rows)

    def batches(self, start_step: int, rows: np.ndarray) -> "_Replanned":
        """As `trainer.Pipeline`; where a plan is due, it is made before the batch is given.

        Raises:
          PlanMissing: `start_step` is in the middle of a plan that is not there.
        """
        return _Replanned(self._of(start_step, rows))

    def _of(self, step: int, rows: np.ndarray) -> Iterator[Batch]:
        every = self._replanning.every
        while True:
            version = step // every
            arrays = self._made(version) if step % every == 0 else self._read(version, step)
            self._pipeline.use(arrays, version)
            stop = (version + 1) * every
            batches = self._pipeline.batches(step, rows, stop)
            try:
                yield from batches
            finally:
                batches.close()
            step = stop

    def _made(self, version: int) -> Arrays:
        """By all processes alike; one of them writes it down."""
        texts, table = self._pipeline.source, self._pipeline.table
        vectors = encoding.encode(self._embed(), texts, self._partitioner, f"plan {version}")
        wanted = self._replanning
        found = neighbours.within_shards(
            vectors,
            neighbours.Facts(table.shard, table.document, table.language),
            wanted.same_language,
            wanted.other_language,
            self._partitioner,
            wanted.tile,
        )
        arrays, told = self._pipeline.make(found.rows, found.similarity, version)
        if jax.process_index() == 0:
            said = ", ".join(f"{name} {count:,}" for name, count in told.items())
            print(f"plan {version}: {said}", flush=True)
            self._write(version, arrays)
        return arrays

    def _path(self, version: int) -> Path:
        return self._folder / f"{version:06d}.npz"

    def _write(self, version: int, arrays: Arrays) -> None:
        """Whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(version)
        with open(path.with_suffix(".part"), "wb") as file:
            np.savez_compressed(file, of=np.array(self.fingerprint), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(path.with_suffix(".part"), path)

    def _read(self, version: int, step: int) -> Arrays:
        path = self._path(version)
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = dict(file)
            made_by = str(arrays.pop("of"))
        except _DAMAGED as error:
            raise PlanMissing(
                f"{path}: expected the plan of the steps from {version * self._replanning.every}, "
                f"in the middle of which step {step} is, found {error!r}. Begin from a checkpoint "
                f"at a multiple of {self._replanning.every} steps, or initialise_from its weights "
                "in another MODEL_DIR."
            ) from error
        if made_by != self.fingerprint:
            raise PlanMissing(
                f"{path}: expected a plan of {self.fingerprint}, found one of {made_by}: another "
                "training's. Use another MODEL_DIR."
            )
        return arrays


class _Replanned(Iterator[Batch]):
    """A generator that can be closed from outside, as a trainer closes what it reads."""

    def __init__(self, batches: Iterator[Batch]):
        self._batches = batches

    def __next__(self) -> Batch:
        return next(self._batches)

    def close(self) -> None:
        """Nothing is read any more."""
        self._batches.close()  # type: ignore[attr-defined]
