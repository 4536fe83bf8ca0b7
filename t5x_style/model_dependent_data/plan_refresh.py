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

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.texts import Batched
from t5x_style.model_dependent_data import neighbours
from t5x_style.retrieval import encoding

PLANS = "plans"
_DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)

Batch = dict[str, dict[str, np.ndarray]]
Arrays = Mapping[str, np.ndarray]


class PlanMissing(ValueError):
    """A training goes on in the middle of a plan that is not there."""


class Table(Protocol):
    """What is known of the texts: see `neighbours.TextMetadata`."""

    shard: np.ndarray
    document: np.ndarray
    language: np.ndarray


class Planned(Protocol):
    """Batches of one plan."""

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """As `trainer.Pipeline`."""
        ...

    def batches(self, start_step: int, rows: np.ndarray, stop: int) -> Any:
        """As `trainer.Pipeline`, up to `stop` - 1."""
        ...


class Replanned(Protocol):
    """A pipeline whose plans are made of similarities.

    Attributes:
      fingerprint: of all that decides what is in a batch but the plans.
      near_duplicate: texts of one language whose cosine is above are no neighbours, or None.
    """

    fingerprint: str
    near_duplicate: float | None

    @property
    def table(self) -> Table:
        """Of its texts."""
        ...

    @property
    def source(self) -> Batched:
        """The texts, to be embedded."""
        ...

    def make(
        self, vectors: np.ndarray, rows: np.ndarray, similarity: np.ndarray, version: int
    ) -> tuple[Arrays, Mapping[str, int]]:
        """A plan of the vectors and the neighbours of each text, and what to tell of it."""
        ...

    def planned(self, arrays: Arrays, version: int, first: int) -> Planned:
        """Batches of plan number `version`, which begins with step `first`."""
        ...

    def specs(self) -> Mapping[str, Mapping[str, tuple[tuple[int, ...], Any]]]:
        """As `trainer.Pipeline`."""
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


def require_fit(pipeline: object, replanning: Replanning | None) -> None:
    """Raises ValueError unless the pipeline gives batches, or plans where these are made."""
    plans = hasattr(pipeline, "planned")
    if plans == (replanning is not None):
        return
    name = type(pipeline).__name__
    if plans:
        raise ValueError(
            f"{name} gives batches of plans alone: expected train.train.replanning, which says "
            "when these are made, found None; include gin_configs/data/sub_batches.gin"
        )
    raise ValueError(
        f"train.train.replanning: expected a pipeline of which plans can be made, found {name}; "
        "leave replanning out"
    )


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

        Raises:
          PartitioningError: a tile does not divide by the mesh.
        """
        partitioner.check_rows(replanning.tile, "Replanning.tile")
        self._pipeline, self._replanning = pipeline, replanning
        self._held: dict[int, Planned] = {}  # by version: the one in use, and that before it
        self._embed, self._partitioner = embed, partitioner
        self._folder = folder / PLANS
        when = dataclasses.asdict(replanning) | {"tile": None}
        self.fingerprint = f"{pipeline.fingerprint}:{json.dumps(when, sort_keys=True)}"

    def specs(self) -> Mapping[str, Mapping[str, tuple[tuple[int, ...], Any]]]:
        """As `trainer.Pipeline`."""
        return self._pipeline.specs()

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """As `trainer.Pipeline`, of the plan that ruled the step."""
        version = step // self._replanning.every
        planned = self._held.get(version) or self._planned(version, self._read(version, step))
        return planned.batch(step, rows)

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
            before = {v: planned for v, planned in self._held.items() if v == version - 1}
            self._held = before | {version: self._planned(version, arrays)}
            stop = (version + 1) * every
            batches = self._held[version].batches(step, rows, stop)
            try:
                yield from batches
            finally:
                batches.close()
            step = stop

    def _planned(self, version: int, arrays: Arrays) -> Planned:
        return self._pipeline.planned(arrays, version, version * self._replanning.every)

    def _made(self, version: int) -> Arrays:
        """By all processes alike; one of them writes it down."""
        texts, table = self._pipeline.source, self._pipeline.table
        vectors = encoding.encode(self._embed(), texts, self._partitioner, f"plan {version}")
        wanted = self._replanning
        found = neighbours.within_shards(
            vectors,
            neighbours.TextMetadata(table.shard, table.document, table.language),
            wanted.same_language,
            wanted.other_language,
            self._partitioner,
            wanted.tile,
            self._pipeline.near_duplicate,
        )
        arrays, told = self._pipeline.make(vectors, found.rows, found.similarity, version)
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
