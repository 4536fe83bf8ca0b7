"""Hard negatives that are mined again and again while a model trains on them: ANCE.

Xiong et al. 2021 (arXiv:2007.00808). Another process (`negatives_builder`) embeds the corpus and
the training queries with each new checkpoint, searches, and publishes the hits as a version of the
negatives. A step uses the newest version, and draws the negatives of its queries uniformly from it:
a pure function of the seed, the step and the version. Which version that was is written down before
the step, so a run that is stopped and continues repeats it bit for bit, as long as the versions are
kept.
"""

import dataclasses
import json
from collections.abc import Generator
from typing import Annotated, Any, ClassVar, Literal, Protocol, cast

import numpy as np

from t5x_style.interfaces.batch_source import (
    Batch,
    BatchSource,
    ModelDependentSource,
    ModelView,
    Specs,
    require_complete,
)
from t5x_style.mining.hard_negatives import MiningSettings
from t5x_style.model_dependent_data import (
    batches_ahead,
    staleness,
    version_log,
    versioned_negatives,
)
from t5x_style.model_dependent_data.version_selector import VersionChoice


class RedrawnPairs(BatchSource, Protocol):
    """Pairs of queries and passages whose hard negatives can be replaced."""

    def require_redrawn(self, listed: int) -> None:
        """Raises ValueError unless they can; `listed`: the most that a query will have."""
        ...

    def other_negatives(self, path: str) -> Any:
        """Negatives in a negatives.jsonl for these queries, for `redrawn`."""
        ...

    def redrawn(self, negatives: Any, step: int, rows: np.ndarray | None = None) -> Batch:
        """`batch` with negatives drawn from those; a pure function of all arguments."""
        ...


@dataclasses.dataclass(frozen=True)
class RefreshedNegatives(ModelDependentSource):
    """Batches of another source, with negatives that recent parameters of the model find.

    Attributes:
      source: gives pairs, with hard negatives of a file; as `RedrawnPairs`.
      folder: where versions are published.
      split, settings: how they are mined; the builder has the same.
      group_size: passages of a query, as the source has it; compared before anything runs.
      first_step: steps before it keep the negatives of the source's file.
      max_staleness_steps: how many steps older than the step a version's parameters may be.
      when_stale: 'pause' waits for a newer version, 'warn' reports it and continues.
      ahead: batches that are made before they are needed.
    """

    not_continued: ClassVar[str] = (
        "its negatives depend on versions that were mined while that training ran, which belong to "
        "it alone"
    )
    decides: ClassVar[tuple[str, ...]] = ("cadence.save_every",)  # a version of each checkpoint

    source: BatchSource
    folder: Annotated[str, "operational"]
    split: str
    settings: MiningSettings
    group_size: int
    first_step: int = 0
    max_staleness_steps: int | None = None
    when_stale: Literal["pause", "warn"] = "pause"
    ahead: int = 2

    def __post_init__(self) -> None:
        if self.first_step < 0:
            raise ValueError(
                f"RefreshedNegatives.first_step: expected 0 or more, found {self.first_step}"
            )
        staleness.check("RefreshedNegatives", self.max_staleness_steps, self.when_stale, self.ahead)
        if not 2 <= self.group_size <= self.settings.negatives + 1:
            raise ValueError(
                "RefreshedNegatives.group_size: expected 1 positive and from 1 to "
                f"{self.settings.negatives} negatives, as many as are mined for a query, found "
                f"{self.group_size}. Set GROUP_SIZE, or mine more (DEPTH, NEGATIVES_PER_QUERY)"
            )
        require_complete(self.source, "RefreshedNegatives.source")
        if not hasattr(self.source, "redrawn"):
            raise ValueError(
                "RefreshedNegatives.source: expected pairs whose negatives can be replaced, such "
                f"as training_pairs.TrainingPairs, found {type(self.source).__name__}"
            )
        self.pairs.require_redrawn(self.settings.negatives)

    @property
    def pairs(self) -> RedrawnPairs:
        """The source, whose negatives can be replaced."""
        return cast(RedrawnPairs, self.source)

    def bind(self, view: ModelView) -> "NegativesBatches":
        """See `ModelDependentSource`.

        Raises:
          ValueError: a bound of staleness that training would wait for without end.
        """
        self.require_patience(view.save_every)
        return NegativesBatches(self, view)

    def require_patience(self, save_every: int) -> None:
        """See `ModelDependentSource`."""
        staleness.require_patience(
            *("RefreshedNegatives", self.max_staleness_steps, self.when_stale, self.ahead),
            save_every,
        )

    @property
    def clean(self) -> BatchSource:
        """See `ModelDependentSource`: with the negatives of its file."""
        return self.source


@dataclasses.dataclass(frozen=True)
class _Opened:
    """A version in use."""

    version: versioned_negatives.Version[Any]


class NegativesBatches:
    """`RefreshedNegatives` for one training; a `BatchSource`.

    Attributes:
      fingerprint: of the source, and of how negatives are mined.
    """

    def __init__(self, refreshed: RefreshedNegatives, view: ModelView):
        """See `RefreshedNegatives.bind`."""
        self._source, self._refreshed, self._view = refreshed.pairs, refreshed, view
        self._mined = versioned_negatives.settings_of(refreshed.split, refreshed.settings)
        decides = json.dumps({**self._mined, "first_step": refreshed.first_step}, sort_keys=True)
        self.fingerprint = f"{self._source.fingerprint}:{decides}"
        self._versions = VersionChoice(
            *("RefreshedNegatives", "the negatives", refreshed.folder),
            *(refreshed.max_staleness_steps, refreshed.when_stale, self._read),
        )
        self._begun = False

    def specs(self) -> Specs:
        """See `BatchSource`."""
        return self._source.specs()

    def batch(self, step: int, rows: np.ndarray | None = None) -> Batch:
        """See `BatchSource`; with negatives of the version that the step used, or uses now."""
        if step < self._refreshed.first_step:
            return self._source.batch(step, rows)
        self._begin()
        return self._source.redrawn(self._versions.of(step).version.negatives, step, rows)

    def batches(self, start_step: int, rows: np.ndarray) -> Generator[Batch, None, None]:
        """See `BatchSource`; the process that mines finds a first checkpoint.

        `next` raises StopAsked where the training was asked to stop before a batch was there.
        """
        self._begin()
        self._view.snapshot()
        return batches_ahead.made_ahead(
            lambda step: self.batch(step, rows),
            start_step,
            self._refreshed.ahead,
            self._versions,
            self._view,
        )

    def _begin(self) -> None:
        """First called by all processes alike."""
        if not self._begun:
            self._begun = True
            self._versions.begin(*version_log.begin(self._view.folder))

    def _read(self, number: int) -> _Opened:
        return _Opened(
            versioned_negatives.read(
                self._refreshed.folder, number, self._mined, self._source.other_negatives
            )
        )
