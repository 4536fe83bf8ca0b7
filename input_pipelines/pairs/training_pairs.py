"""Batches of training pairs, labelled or made from text alone: the pipeline of a bi-encoder.

With pairs from text alone it is the data of contrastive pre-training; docs/pairs.md.
"""

import dataclasses
import hashlib
import json

import numpy as np

from input_pipelines.batches import prefetch, token_groups
from input_pipelines.batches.negatives import NO_SCORE
from input_pipelines.batches.packed_text import PREFETCH
from input_pipelines.pairs import pair_rows
from input_pipelines.pairs.pair_mixture import PairMixture, StepPairs
from input_pipelines.pairs.pair_packing import base_rows, pair_specs, slots_of
from input_pipelines.store.token_store import Passages


class TrainingPairs:
    """Batches of pairs of a mixture, packed into rows, without end.

    Groups and features are those of `PairsPipeline`: several texts share a row, in any order, and
    `example_id` says which passages came with which query. What is in a step does not depend on the
    rows, nor on how many processes share them. Every process cuts all texts of a step, since how
    long they get decides where they are.

    Attributes:
      pairs: what is in which step.
      query_rows, passage_rows: the rows of the global batch.
      fingerprint: of everything that decides what is in a step.
    """

    def __init__(
        self,
        pairs: PairMixture,
        query_rows: token_groups.Rows,
        passage_rows: token_groups.Rows,
        known_positives: int = 0,
    ):
        """
        Args:
          pairs: the mixture.
          query_rows, passage_rows: rows of the global batch, see `pair_rows.fitting_rows`; one
            segment takes a row for each text. One number has to be a multiple of the other.
          known_positives: K, the most passages of a step that answer a query besides its positive,
            see `pair_rows.known_positives`; the objective has to have the same.

        Raises:
          ValueError: rows that the pairs do not fit, a K that is too small, and what the mixture
            raises.
        """
        self.pairs = pairs.open()
        self.query_rows, self.passage_rows = query_rows, passage_rows
        self.known_positives = known_positives
        rows = {"query": query_rows, "passage": passage_rows}
        self._base = base_rows(
            "TrainingPairs",
            query_rows,
            passage_rows,
            ". pair_rows.fitting_rows gives both numbers.",
        )
        pair_rows.check_lengths(self.pairs, rows, "TrainingPairs")
        pair_rows.check_rows(self.pairs, rows, "TrainingPairs")
        self._check_known()
        parts = [self.pairs.fingerprint, known_positives, *map(dataclasses.astuple, rows.values())]
        self.fingerprint = hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        rows = (self.query_rows, self.passage_rows)
        return pair_specs(*rows, self.known_positives, self.pairs.mixture.taught)

    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """These rows of the global batch of a step.

        Args:
          step: 0 or more.
          rows: int [n], rows of the group that has fewer; of the other, as many times more go with
            each as there are. None takes all.

        Returns:
          `query`: example_id is different for all examples of the mixture; `known` [R, S, K] holds
          documents of the step that are no negatives of the query, -1 where fewer.
          `passage`: example_id is that of the query, document_id the row in the passage store (also
          of a passage from which something was removed), -1 where free; relevance is 1 for the
          positive. With a teacher, `teacher_score` float32, -inf where it has not scored.
        """
        return self._batch(self.pairs.step(step), step, rows)

    def require_redrawn(self, listed: int) -> None:
        """Raises ValueError unless labelled pairs can get other negatives than their file's.

        Args:
          listed: the most other negatives that a query will have.
        """
        kinds, teacher = self.pairs.labelled, self.pairs.mixture.taught
        group_size = self.pairs.mixture.group_size
        if len(kinds) != 1 or teacher or not 2 <= group_size <= listed + 1:
            raise ValueError(
                "TrainingPairs: other negatives need one kind of labelled pairs in the batches, no "
                "teacher (whose scores are of its file's) and a group_size from 2 to "
                f"{listed + 1}, 1 more than are mined for a query; found labelled {kinds}, teacher "
                f"{teacher} and group_size {group_size}. Set WEIGHTS, GROUP_SIZE and "
                "NEGATIVES_PER_QUERY"
            )

    def other_negatives(self, path: str) -> np.ndarray:
        """See `OpenPairs.other_negatives`."""
        return self.pairs.other_negatives(path)

    def redrawn(
        self, negatives: np.ndarray, step: int, rows: np.ndarray | None = None
    ) -> prefetch.Batch:
        """`batch` with negatives that are drawn from those of `other_negatives`."""
        return self._batch(self.pairs.step(step, negatives), step, rows)

    def _batch(self, made: StepPairs, step: int, rows: np.ndarray | None) -> prefetch.Batch:
        rows = prefetch.own_rows(rows, self._base)
        shapes = (self.query_rows, self.passage_rows)
        slots = pair_rows.placed(made, shapes, self.known_positives, f"TrainingPairs: step {step}")
        query_slots, passage_slots = (slots_of(one, rows, self._base) for one in slots)
        query = _group(made.queries, query_slots, made.example, self.query_rows)
        passage = _group(made.passages, passage_slots, made.example[made.owner], self.passage_rows)
        relevant = token_groups.at(made.relevant.astype(np.int32), passage_slots, 0)
        passage["relevance"] = relevant
        passage["document_id"] = token_groups.at(made.document, passage_slots).astype(np.int32)
        if self.pairs.mixture.taught:
            passage["teacher_score"] = token_groups.at(made.teacher, passage_slots, NO_SCORE)
        if self.known_positives:
            query["known"] = token_groups.at(self._known(made), query_slots).astype(np.int32)
        return {"query": query, "passage": passage}

    def batches(self, start_step: int, rows: np.ndarray | None = None) -> prefetch.Prefetched:
        """batch(start_step), batch(start_step + 1), ... without end, prefetched."""
        rows = prefetch.own_rows(rows, self._base)
        return prefetch.Prefetched(
            lambda step: self.batch(step, rows), self.specs(), start_step, None, PREFETCH
        )

    def _known(self, made: StepPairs) -> np.ndarray:
        """`known` with K columns; pairs that have more are in no row."""
        known = made.known[:, : self.known_positives]
        missing = self.known_positives - known.shape[1]
        return np.pad(known, [(0, 0), (0, missing)], constant_values=token_groups.NONE)

    def _check_known(self) -> None:
        needed = max(known for *_, known in self.pairs.probe)
        if not 0 <= needed <= self.known_positives:
            raise ValueError(
                f"TrainingPairs.known_positives: up to {needed} other passages of a batch answer a "
                "query, and would be its negatives: expected space for them, found "
                f"{self.known_positives}. Bind KNOWN_POSITIVES = @pair_rows.known_positives() for "
                "the pipeline and the objective."
            )


def _group(
    texts: Passages, slots: np.ndarray, example: np.ndarray, rows: token_groups.Rows
) -> token_groups.Group:
    """The texts that are in these slots, int64 [R, S], as a token group."""
    ours = token_groups.reorder(texts, slots[slots != token_groups.NONE])
    return token_groups.build_group(ours, slots, rows.length, token_groups.at(example, slots))
