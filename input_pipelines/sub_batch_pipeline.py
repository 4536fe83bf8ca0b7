"""Targets and their evidence in batches, by a plan that is made anew as the model learns.

A plan is made of the similarities that the model of the moment sees (`sub_batches`). Until the next
one, what is in a step follows from the plan and the number of the step alone. Rows of `target` and
`evidence` belong together, and hold several sub-batches where they fit.
"""

import dataclasses
import functools
import hashlib
import json
from typing import NamedTuple

import numpy as np

from input_pipelines import packing, plan, stream, sub_batch_groups, sub_batches
from input_pipelines.document_chunks import ChunkTable, language_ids
from input_pipelines.packing import NONE
from input_pipelines.pipeline import PREFETCH, EncodeSource, open_stores
from input_pipelines.sub_batch_groups import SIDES
from input_pipelines.sub_batches import SubBatches, SubBatchRules
from input_pipelines.token_store import StoreError, TokenStore

VERSION = 1  # part of every fingerprint: raise it when the same arguments give other batches
_OPEN = 64  # rows that are tried before a new one is begun

Arrays = dict[str, np.ndarray]


class _Plan(NamedTuple):
    """Which chunks are where: a row here is a row of a batch.

    Attributes:
      slots: of target and evidence, int64 [R, segments], NONE where free.
      numbers: of the sub-batches in them, int32, alike.
    """

    slots: dict[str, np.ndarray]
    numbers: dict[str, np.ndarray]


class SubBatchPipeline:
    """Batches of sub-batches, without end; `use` has to give it a plan before the first.

    Attributes:
      table: what is known of the chunks.
      source: the chunks as they are embedded to make a plan.
      fingerprint: of everything but the plans that decides what is in a step.
    """

    def __init__(
        self,
        store: str | TokenStore,
        *,
        rows: int,
        length: int,
        segments: int,
        rules: SubBatchRules,
        only_first: bool,
        seed: int,
        tokenizer: str,
    ):
        """
        Args:
          store: token store folder, prepared with `document_chunks.Chunks`.
          rows, length, segments: of the global batch, of targets and of evidence each. All of a
            sub-batch but one chunk has to fit a row.
          rules: which chunks are put together.
          only_first: whether a document's first chunk alone may be a target, as in news, whose
            first lines say what matters.
          seed: decides the order, and who is a target.
          tokenizer: folder of the tokenizer that made the store; has a token for each language.

        Raises:
          ValueError, StoreError: a size out of range, or a store that does not fit.
          TokenizerError: a language without a token.
        """
        plan.check_sizes("SubBatchPipeline", rows=rows, length=length, segments=segments)
        (self.store,) = open_stores([store], tokenizer)
        self.table = ChunkTable.of(self.store)
        self._tokens = np.asarray(language_ids(tokenizer, self.table.languages), np.int32)
        self._shape = packing.Rows(rows, length, segments)
        self._rules, self._only_first, self._seed = rules, only_first, seed
        longest = (rules.documents - 1) * int(self.store.lengths.max())
        if longest > length or segments < rules.documents - 1:
            raise ValueError(
                f"SubBatchPipeline: expected rows for {rules.documents - 1} chunks of up to "
                f"{int(self.store.lengths.max())} tokens, all of a sub-batch but one, found length "
                f"{length} and segments {segments}: make rows longer, sub-batches smaller, or "
                "chunks shorter"
            )
        self.source = EncodeSource(
            self.store, length, segments, rows, segment_length=self.store.max_length
        )
        self.fingerprint = self._hash()
        self._plan: _Plan | None = None
        self._version = 0

    # --- plans ------------------------------------------------------------------------------------

    def make(
        self, neighbours: np.ndarray, similarity: np.ndarray, version: int
    ) -> tuple[Arrays, dict[str, int]]:
        """A plan, and what became of the chunks.

        Args:
          neighbours: int [N, k], of each chunk, NONE where there are fewer.
          similarity: float [N, k], their cosines.
          version: number of the plan.

        Raises:
          StoreError: too few sub-batches for a batch.
        """
        texts = sub_batches.Texts(self.table.document, self.table.language)
        found = sub_batches.build(
            texts, neighbours, similarity, self._rules, seed=self._seed, version=version
        )
        if self._only_first:
            found = self._first_alone(found)
        arrays = self._packed(found, version)
        count = len(arrays["target"])
        if count < self._shape.rows:
            raise StoreError(
                f"token store {self.store.folder}: expected sub-batches for {self._shape.rows} "
                f"rows of a batch, found {count} rows of them ({found.counts}). Make batches "
                "smaller, lower SubBatchRules.least, ask for more neighbours, or bring more text "
                "into a shard."
            )
        return arrays, found.counts | {"rows": count}

    def use(self, arrays: Arrays, version: int) -> None:
        """Batches are of this plan from now on."""
        self._plan = _Plan(
            {side: arrays[side].astype(np.int64) for side in SIDES},
            {side: arrays[f"{side}_sub_batch"].astype(np.int32) for side in SIDES},
        )
        self._version = version
        self._order.cache_clear()

    def _first_alone(self, found: SubBatches) -> SubBatches:
        """Without targets that are not the beginning of their documents."""
        begins = packing.at(self.table.number, found.targets, 1) == 0
        # Free places behind those in use: the order within a side does not matter.
        order = np.argsort(~begins, axis=1, kind="stable")
        targets = np.take_along_axis(np.where(begins, found.targets, NONE), order, axis=1)
        whole = targets[:, 0] != NONE
        left_out = int((found.targets != NONE).sum() - (targets != NONE).sum())
        counts = found.counts | {
            "targets": int((targets != NONE).sum()),
            "evidence": int((found.evidence[whole] != NONE).sum()),
            "sub_batches": int(whole.sum()),
            "not_first_of_its_document": left_out,
        }
        return SubBatches(targets[whole], found.evidence[whole], counts)

    def _packed(self, found: SubBatches, version: int) -> Arrays:
        """Sub-batches laid into rows, each into the first that has room on both sides."""
        sides = (found.targets, found.evidence)
        length, segments = self._shape.length, self._shape.segments
        tokens = np.stack([packing.at(self.store.lengths, side, 0).sum(1) for side in sides], 1)
        counts = np.stack([(side != NONE).sum(1) for side in sides], 1)
        needs = np.concatenate([tokens, counts], axis=1)  # [G, 4]
        room: list[np.ndarray] = []
        held: list[list[int]] = []
        open_rows: list[int] = []
        for number in plan.permutation(self._seed, 0, version, len(needs)).tolist():
            need = needs[number]
            row = next((row for row in open_rows if np.all(room[row] >= need)), None)
            if row is None:
                row = len(room)
                room.append(np.array([length, length, segments, segments]))
                held.append([])
                open_rows.append(row)
                if len(open_rows) > _OPEN:
                    open_rows.remove(min(open_rows, key=lambda row: int(room[row].min())))
            room[row] -= need
            held[row].append(number)
        return self._placed(held, dict(zip(SIDES, sides, strict=True)))

    def _placed(self, held: list[list[int]], sides: dict[str, np.ndarray]) -> Arrays:
        arrays: Arrays = {}
        for name, side in sides.items():
            slots = np.full((len(held), self._shape.segments), NONE)
            numbers = np.full(slots.shape, NONE, np.int32)
            for row, own in enumerate(held):
                chunks = side[own]
                taken = chunks[chunks != NONE]
                slots[row, : len(taken)] = taken
                of = np.repeat(np.arange(len(own)), (chunks != NONE).sum(1))
                numbers[row, : len(taken)] = of
            arrays |= {name: slots, f"{name}_sub_batch": numbers}
        return arrays

    # --- batches ----------------------------------------------------------------------------------

    def specs(self) -> stream.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        return sub_batch_groups.spec_of(self._shape)

    def chosen(self, step: int) -> np.ndarray:
        """Rows of the plan that are in a step: int64 [rows]. All are seen before one is again."""
        if self._plan is None:
            raise ValueError(
                "SubBatchPipeline: expected a plan before the first batch, found none: train with "
                "runs/replan.gin"
            )
        steps = len(self._plan.slots["target"]) // self._shape.rows
        epoch, step = divmod(step, steps)
        return self._order(epoch)[step * self._shape.rows : (step + 1) * self._shape.rows]

    @functools.lru_cache(maxsize=2)  # noqa: B019 - cleared by `use`; there is one of these a run
    def _order(self, epoch: int) -> np.ndarray:
        assert self._plan is not None
        stream_of_version = 1 + self._version
        count = len(self._plan.slots["target"])
        return plan.permutation(self._seed, stream_of_version, epoch, count)

    def batch(self, step: int, rows: np.ndarray | None = None) -> stream.Batch:
        """These rows of the global batch of a step; see `models.marge.Marge`."""
        chosen = self.chosen(step)[stream.own_rows(rows, self._shape.rows)]
        assert self._plan is not None
        slots = {side: of_plan[chosen] for side, of_plan in self._plan.slots.items()}
        numbers = {side: of_plan[chosen] for side, of_plan in self._plan.numbers.items()}
        passages = {side: self.store.read(own[own != NONE]) for side, own in slots.items()}
        languages = self._tokens[self.table.language]
        return sub_batch_groups.build(passages, slots, numbers, languages, self._shape.length)

    def batches(
        self, start_step: int, rows: np.ndarray | None = None, stop: int | None = None
    ) -> stream.Prefetched:
        """batch(start_step), ... to batch(stop - 1), None: without end, prefetched."""
        rows = stream.own_rows(rows, self._shape.rows)
        return stream.Prefetched(
            lambda step: self.batch(step, rows), self.specs(), start_step, stop, PREFETCH
        )

    def _hash(self) -> str:
        parts = {
            "version": VERSION,
            "store": self.store.fingerprint,
            "shape": dataclasses.astuple(self._shape),
            "rules": dataclasses.asdict(self._rules),
            "only_first": self._only_first,
            "seed": self._seed,
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
