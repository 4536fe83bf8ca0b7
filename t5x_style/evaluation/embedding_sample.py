"""Figures of the embeddings of a training's texts, before step 0 and while it trains.

The texts are those of the training's batch 0, at most about `MOST_TEXTS`: the same at every step
and for any mesh. One forward pass without dropout; nothing of the training changes.

Letters: B rows, S segments a row, D vector size.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.evaluation.embedding_diagnostics import MOST_TEXTS
from t5x_style.evaluation.embedding_report import Report, Vectors, report
from t5x_style.interfaces.batch_source import BatchSource
from t5x_style.interfaces.objective import ModelFunction, Objective, Spec, embedder
from t5x_style.interfaces.representation import DENSE, PASSAGE, QUERY
from t5x_style.interfaces.texts import Batched
from t5x_style.retrieval import encoding

ROWS_AT_ONCE = 32  # of a group on a device: bounds the memory of long texts
_NEEDED = ("tokens", "segment_ids", "segment_valid", "example_id")


class _Plan(NamedTuple):
    """Choice of the rows of a batch to embed.

    Attributes:
      rows: [pieces, R] int64, of the smallest group.
      times: group -> how many of its rows belong to one of the smallest group.
      share: of the batch's rows that are embedded.
    """

    rows: np.ndarray
    times: dict[str, int]
    share: float


class EmbeddingSample:
    """See the module's docstring.

    Attributes:
      groups: side -> the group whose texts are embedded; empty where nothing is.
    """

    def __init__(
        self,
        module: Objective,
        pipeline: BatchSource | None,
        partitioner: Partitioner,
        source: Batched | None = None,
    ):
        """Args:
        module: the objective; abstract arrays suffice.
        pipeline: gives clean batches; None: texts are those of `source`.
        partitioner: of the training.
        source: texts that are embedded as passages, where there is no batch before step 0.
        """
        functions = by_side(module.functions())
        self._module, self._partitioner = module, partitioner
        self._source, self._pipeline = source, pipeline
        self._specs: dict[str, dict[str, jax.ShapeDtypeStruct]] = {}
        if pipeline is None:
            self.groups = {PASSAGE: PASSAGE} if PASSAGE in functions else {}
        else:
            specs = pipeline.specs()
            self._specs = {
                group: {name: jax.ShapeDtypeStruct(*leaf) for name, leaf in specs[group].items()}
                for group in module.batch_specs()[0]
                if group in specs
            }
            self.groups = match_groups(functions, self._specs)
        self._features = {side: [*functions[side].inputs] for side in self.groups}

    def measure(self, functions: Mapping[str, ModelFunction], step: int) -> Report:
        """Embeds the sample; collective where there are several processes.

        Args:
          functions: a trainer's, jitted, with parameters.
          step: named in messages.
        """
        found: dict[str, list[Vectors]] = {side: [] for side in self.groups}
        embed = {side: embedder(functions, side) for side in self.groups}
        share = 1.0
        if self._pipeline is None:
            pieces = self._from_source()
        else:
            plan = self._plan()
            pieces, share = self._from_batch(self._pipeline, plan), plan.share
        for piece in pieces:
            for side, group in piece.items():
                inputs = {feature: group[feature] for feature in self._features[side]}
                found[side].append(_vectors(embed[side](inputs), group))
        sides = {side: _joined(parts) for side, parts in found.items()}
        compares = self._module.requires_full_batch and PASSAGE in sides
        candidates = round(len(sides[PASSAGE].texts) / share) if compares else 0
        return report(sides, self._module.contract(), candidates, step)

    def _plan(self) -> _Plan:
        """The same texts for any mesh: a last piece that is not full is filled with repeated rows.

        Repeated texts count once.
        """
        base = min(_rows_and_segments(features)[0] for features in self._specs.values())
        sizes = {group: _rows_and_segments(self._specs[group]) for group in self.groups.values()}
        times = {group: rows // base for group, (rows, _) in sizes.items()}
        texts = max(times[group] * segments for group, (_, segments) in sizes.items())
        wanted = min(base, max(1, MOST_TEXTS // texts))
        ways = self._partitioner.ways
        at_once = ways * min(max(1, ROWS_AT_ONCE // max(times.values())), -(-wanted // ways))
        rows = np.resize(np.arange(wanted), (-(-wanted // at_once), at_once))
        return _Plan(rows, times, wanted / base)

    def _from_batch(self, pipeline: BatchSource, plan: _Plan) -> Iterator[dict[str, Any]]:
        """Side -> placed rows of its group, piece by piece."""
        for piece in plan.rows:
            local = pipeline.batch(0, piece[self._partitioner.local_rows(len(piece))])
            groups = {
                group: {name: local[group][name] for name in self._specs[group]}
                for group in plan.times
            }
            rows = {group: len(piece) * count for group, count in plan.times.items()}
            placed = self._partitioner.place_batch(groups, rows)
            yield {side: placed[group] for side, group in self.groups.items()}

    def _from_source(self) -> Iterator[dict[str, Any]]:
        """As `_from_batch`, of the first batches of the source; all processes make the same."""
        assert self._source is not None
        sharding, count = self._partitioner.batch_sharding, 0
        for group in self._source.batches():
            fitting = encoding.fitting(group, self._partitioner)
            yield {
                PASSAGE: {
                    name: jax.make_array_from_callback(array.shape, sharding, array.__getitem__)
                    for name, array in fitting.items()
                }
            }
            count += int(np.asarray(group["segment_valid"]).sum())
            if count >= MOST_TEXTS:
                return


def by_side(functions: Mapping[str, ModelFunction]) -> dict[str, ModelFunction]:
    """Side -> the function that makes dense vectors of it."""
    return {
        function.side: function
        for function in functions.values()
        if function.side is not None and DENSE in function.representations
    }


def match_groups(functions: Mapping[str, ModelFunction], specs: Spec) -> dict[str, str]:
    """Match each side with the group of a batch that it embeds.

    A group `query` or `passage` is the side of that name. Where there is neither, a single group
    of texts is embedded as passages, and of several the first is the query, the next the passage
    (LaBSE's source and target).

    Args:
      functions: of the objective, `by_side`.
      specs: group -> feature -> shape and dtype, in the objective's order.

    Returns:
      side -> group; empty for an objective that embeds nothing of its batch.
    """
    fits = {
        side: [group for group, features in specs.items() if _fits(functions[side], features)]
        for side in (QUERY, PASSAGE)
        if side in functions
    }
    named = {side: side for side, groups in fits.items() if side in groups}
    if named:
        return named
    queries, passages = fits.get(QUERY, []), fits.get(PASSAGE, [])
    if len(passages) == 1 or not queries:
        return {PASSAGE: passages[0]} if passages else {}
    others = [group for group in passages if group != queries[0]]
    return {QUERY: queries[0]} | ({PASSAGE: others[0]} if others else {})


def _fits(function: ModelFunction, features: Mapping[str, Any]) -> bool:
    """Whether a group has all that the function reads; rows and lengths may differ."""
    return set(_NEEDED) <= features.keys() and all(
        name in features
        and np.dtype(leaf.dtype) == np.dtype(features[name].dtype)
        and len(leaf.shape) == len(features[name].shape)
        for name, leaf in function.inputs.items()
    )


def _rows_and_segments(features: Mapping[str, Any]) -> tuple[int, int]:
    """Of a group; one segment a row where it is no token group."""
    rows = next(iter(features.values())).shape[0]
    return rows, features["segment_valid"].shape[1] if "segment_valid" in features else 1


def _vectors(vectors: jax.Array, group: Mapping[str, Any]) -> Vectors:
    """The valid segments of a placed group; `vectors` [B, S, D]."""
    host = {name: _fetched(group[name]) for name in (*_NEEDED, "relevance") if name in group}
    valid, ids = host["segment_valid"], host["example_id"]
    texts = [
        host["tokens"][row][host["segment_ids"][row] == segment + 1].tobytes()
        for row, segment in np.argwhere(valid)
    ]
    relevant = host.get("relevance", np.ones_like(ids)) == 1
    return Vectors(_fetched(vectors)[valid].astype(np.float32), texts, ids[valid], relevant[valid])


def _joined(parts: list[Vectors]) -> Vectors:
    return Vectors(
        np.concatenate([part.vectors for part in parts]),
        [text for part in parts for text in part.texts],
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.relevant for part in parts]),
    )


def _fetched(array: Any) -> np.ndarray:
    """All rows, also those of other processes."""
    if not array.is_fully_addressable:
        from jax.experimental import multihost_utils

        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)
