"""Rebuild the batch plan from current embeddings, every so many steps.

Plan number v is computed with the parameters after v * every updates, and holds for the steps from
there to the next plan. Each plan is a file in PLANS/ of the training's folder, so that a training
that resumes between two plans sees the same batches. At the first step of a plan the plan is
computed again, with the same result.
"""

import dataclasses
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import jax
import numpy as np

from t5x_style.interfaces.batch_source import (
    Batch,
    Batches,
    ModelDependentSource,
    ModelView,
    SourceError,
    Specs,
)
from t5x_style.interfaces.objective import embedder
from t5x_style.interfaces.representation import PASSAGE
from t5x_style.interfaces.texts import Batched
from t5x_style.model_dependent_data import neighbours
from t5x_style.retrieval import encoding

PLANS = "plans"
_DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error)

Arrays = Mapping[str, np.ndarray]


class PlanMissing(SourceError):
    """A training resumes in the middle of a plan that does not exist."""


class TextColumns(Protocol):
    """Metadata of the texts: see `neighbours.TextMetadata`."""

    shard: np.ndarray
    document: np.ndarray
    language: np.ndarray


class Planned(Protocol):
    """Batches of one plan."""

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """As `BatchSource`."""
        ...

    def batches(self, start_step: int, rows: np.ndarray, stop: int) -> Batches:
        """As `BatchSource`, up to `stop` - 1."""
        ...


class Replanned(Protocol):
    """A pipeline whose plans are made from similarities.

    Attributes:
      fingerprint: of all that decides what is in a batch but the plans.
      near_duplicate: texts of one language whose cosine is above are no neighbours, or None.
    """

    fingerprint: str
    near_duplicate: float | None

    @property
    def table(self) -> TextColumns:
        """Of its texts."""
        ...

    @property
    def source(self) -> Batched:
        """The texts, to be embedded."""
        ...

    def make(
        self, vectors: np.ndarray, rows: np.ndarray, similarity: np.ndarray, version: int
    ) -> tuple[Arrays, Mapping[str, int]]:
        """A plan of the vectors and the neighbours of each text, and counts to print."""
        ...

    def planned(self, arrays: Arrays, version: int, first: int) -> Planned:
        """Batches of plan number `version`, which begins with step `first`."""
        ...

    def specs(self) -> Specs:
        """As `BatchSource`."""
        ...


@dataclasses.dataclass(frozen=True)
class Replanning(ModelDependentSource):
    """Batches by plans: when plans are made, and from how many neighbours.

    Attributes:
      source: of which plans are made.
      every: steps; the paper: 10,000.
      same_language, other_language: neighbours of each text in its own language and in others.
      tile: texts that are compared with their shard at a time.
    """

    source: Replanned
    every: int
    same_language: int = 4
    other_language: int = 4
    tile: int = 1024

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"Replanning.every: expected at least 1 step, found {self.every}")
        if not hasattr(self.source, "planned"):
            raise ValueError(
                "Replanning.source: expected a source of which plans can be made, found "
                f"{type(self.source).__name__}; leave Replanning out"
            )

    def bind(self, view: ModelView) -> "Replanner":
        """See `ModelDependentSource`.

        Raises:
          PartitioningError: a tile does not divide by the mesh.
        """
        view.partitioner.check_rows(self.tile, "Replanning.tile")
        return Replanner(self, view)

    @property
    def clean(self) -> None:
        """See `ModelDependentSource`: there is no batch before there is a plan."""

    @property
    def texts(self) -> Batched:
        """See `ModelDependentSource`."""
        return self.source.source

    def resume_files(self, folder: Path, step: int) -> list[Path]:
        """See `ModelDependentSource`: the plan of the step, unless a new one is due."""
        if step % self.every == 0:
            return []
        path = _path(folder, step // self.every)
        if not path.is_file():
            raise PlanMissing(
                f"{path.parent}: expected plan {step // self.every}, in the middle of which step "
                f"{step} is, found none."
            )
        return [path]


def _path(folder: Path, version: int) -> Path:
    """Of a plan in a training's folder."""
    return folder / PLANS / f"{version:06d}.npz"


class Replanner:
    """`Replanning` for one training; a `BatchSource`: see the module's docstring.

    Attributes:
      fingerprint: of the source, and of when plans are made of what.
    """

    def __init__(self, replanning: Replanning, view: ModelView):
        self._source, self._replanning, self._view = replanning.source, replanning, view
        self._held: dict[int, Planned] = {}  # by version: the one in use, and that before it
        when = {
            "every": replanning.every,
            "same_language": replanning.same_language,
            "other_language": replanning.other_language,
            "tile": None,  # decides nothing
        }
        self.fingerprint = f"{self._source.fingerprint}:{json.dumps(when, sort_keys=True)}"

    def specs(self) -> Specs:
        """As `BatchSource`."""
        return self._source.specs()

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """As `BatchSource`, of the plan that ruled the step."""
        version = step // self._replanning.every
        planned = self._held.get(version) or self._planned(version, self._read(version, step))
        return planned.batch(step, rows)

    def batches(self, start_step: int, rows: np.ndarray) -> "_Replanned":
        """As `BatchSource`; where a plan is due, it is made before the batch is given.

        Raises:
          PlanMissing: `start_step` is in the middle of a plan that is not there.
        """
        return _Replanned(self._of(start_step, rows))

    def _of(self, step: int, rows: np.ndarray) -> Iterator[Batch]:
        every = self._replanning.every
        while True:
            version = step // every
            with self._view.refreshing():
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
        return self._source.planned(arrays, version, version * self._replanning.every)

    def _made(self, version: int) -> Arrays:
        """Make a plan on all processes alike; one of them writes it down."""
        texts, table = self._source.source, self._source.table
        embed, partitioner = embedder(self._view.functions(), PASSAGE), self._view.partitioner
        vectors = encoding.encode(embed, texts, partitioner, f"plan {version}")
        wanted = self._replanning
        found = neighbours.within_shards(
            vectors,
            neighbours.TextMetadata(table.shard, table.document, table.language),
            wanted.same_language,
            wanted.other_language,
            partitioner,
            wanted.tile,
            self._source.near_duplicate,
        )
        arrays, counts = self._source.make(vectors, found.rows, found.similarity, version)
        if jax.process_index() == 0:
            listed = ", ".join(f"{name} {count:,}" for name, count in counts.items())
            print(f"plan {version}: {listed}", flush=True)
            self._write(version, arrays)
        return arrays

    def _write(self, version: int, arrays: Arrays) -> None:
        """Whole or not at all."""
        path = _path(self._view.folder, version)
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".part"), "wb") as file:
            np.savez_compressed(file, of=np.array(self.fingerprint), **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(path.with_suffix(".part"), path)

    def _read(self, version: int, step: int) -> Arrays:
        path = _path(self._view.folder, version)
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
        """Stop prefetching."""
        self._batches.close()  # type: ignore[attr-defined]
