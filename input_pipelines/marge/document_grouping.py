"""Group similar documents into MARGE's sub-batches (arXiv:2006.15020, 2.4).

Every document has links to those that resemble it most. The documents are the nodes of a graph;
groups of them grow by merging, each time the two whose links weigh most together, until they are
full. Then each group is divided: some of its documents are targets, which are to be written from
the others, the evidence. NumPy only; the same links give the same groups on every machine.
"""

import dataclasses
import heapq
from typing import NamedTuple

import numpy as np

from input_pipelines.batches import packing_plan
from input_pipelines.batches.token_groups import NONE


@dataclasses.dataclass(frozen=True)
class SubBatchRules:
    """Rules for grouping documents.

    Attributes:
      documents: in a sub-batch at most; at least 2.
      least: documents that are less similar (by cosine) are no evidence for each other.
      near_duplicate: documents of one language that are more similar are copies of each other and
        are never in one sub-batch; None keeps them.
      other_language: what a link between two languages weighs more than one within a language.
    """

    documents: int = 4
    least: float = 0.0
    near_duplicate: float | None = None
    other_language: float = 0.0

    def __post_init__(self) -> None:
        if self.documents < 2:
            raise ValueError(
                "SubBatchRules.documents: expected 2 or more, a target and its evidence, found "
                f"{self.documents}"
            )
        if not -1 <= self.least <= 1:
            raise ValueError(f"SubBatchRules.least: expected a cosine, found {self.least}")
        if self.near_duplicate is not None and not self.least < self.near_duplicate <= 1:
            raise ValueError(
                f"SubBatchRules.near_duplicate: expected above least ({self.least}) and at most 1, "
                f"or None, found {self.near_duplicate}"
            )
        if not self.other_language >= 0:
            raise ValueError(
                f"SubBatchRules.other_language: expected 0 or more, found {self.other_language}"
            )


class Texts(NamedTuple):
    """Metadata of N chunks.

    Attributes:
      document: int [N]; chunks of one document are never each other's evidence.
      language: int [N], a number for each.
      may_be_target: bool [N]; the others are evidence alone.
      vectors: float32 [N, D], of length 1, whose products are the cosines.
    """

    document: np.ndarray
    language: np.ndarray
    may_be_target: np.ndarray
    vectors: np.ndarray


class Links(NamedTuple):
    """Pairs of similar chunks, each pair once.

    Attributes:
      pairs: int64 [E, 2], the smaller number first.
      weights: float64 [E], above 0: how much the similarity exceeds the least, with what is added
        for another language.
    """

    pairs: np.ndarray
    weights: np.ndarray


class SubBatches(NamedTuple):
    """Assignment of chunks to sub-batches, as targets and as evidence.

    Attributes:
      targets, evidence: int64 [G, documents - 1], numbers of chunks, NONE after the last.
      counts: what became of the chunks, by name.
    """

    targets: np.ndarray
    evidence: np.ndarray
    counts: dict[str, int]


def links(
    texts: Texts, neighbours: np.ndarray, similarity: np.ndarray, rules: SubBatchRules
) -> Links:
    """The links of each chunk with its neighbours, as the rules allow them.

    Args:
      texts: of N chunks.
      neighbours: int [N, k], NONE where there are fewer.
      similarity: float [N, k], their cosines.
      rules: what counts.
    """
    left = np.repeat(np.arange(len(neighbours)), neighbours.shape[1])
    right, cosine = neighbours.ravel().astype(np.int64), similarity.ravel().astype(np.float64)
    kept = (right != NONE) & (cosine >= rules.least)
    left, right, cosine = left[kept], right[kept], cosine[kept]
    same_language = texts.language[left] == texts.language[right]
    allowed = texts.document[left] != texts.document[right]
    if rules.near_duplicate is not None:
        allowed &= ~(same_language & (cosine > rules.near_duplicate))
    pairs = np.sort(np.stack([left, right], axis=1)[allowed], axis=1)
    weights = (cosine - rules.least + np.where(same_language, 0.0, rules.other_language))[allowed]
    pairs, first = np.unique(pairs, axis=0, return_index=True)
    # At the threshold itself a link weighs nothing but is one.
    return Links(pairs, np.maximum(weights[first], 1e-9))


def group(found: Links, texts: Texts, rules: SubBatchRules) -> list[list[int]]:
    """Groups of chunks, by the order of their first ones; none has a document twice, or copies.

    Merges, again and again, the two groups whose links have the largest sum, of those that may be
    merged. Groups only grow, so two that may not be merged stay apart.
    """
    members: dict[int, list[int]] = {}
    near: dict[int, dict[int, float]] = {}
    for (one, other), weight in zip(found.pairs.tolist(), found.weights.tolist(), strict=True):
        for a, b in ((one, other), (other, one)):
            members.setdefault(a, [a])
            near.setdefault(a, {})[b] = weight
    heap = [(-weight, a, b) for a, others in near.items() for b, weight in others.items() if a < b]
    heapq.heapify(heap)
    while heap:
        weight, a, b = heapq.heappop(heap)
        if a not in members or b not in members or near[a].get(b) != -weight:
            continue  # merged or changed since
        if not _fit(members[a], members[b], texts, rules):
            del near[a][b], near[b][a]
            continue
        members[a] = members[a] + members[b]
        del members[b], near[a][b]
        for c, extra in near.pop(b).items():
            if c == a:
                continue
            del near[c][b]
            total = near[a].get(c, 0.0) + extra
            near[a][c] = near[c][a] = total
            heapq.heappush(heap, (-total, min(a, c), max(a, c)))
    return [sorted(group) for group in members.values() if len(group) > 1]


def _fit(one: list[int], other: list[int], texts: Texts, rules: SubBatchRules) -> bool:
    """Whether two groups may be one."""
    together = one + other
    if len(together) > rules.documents:
        return False
    if len(set(texts.document[together].tolist())) < len(together):
        return False
    if rules.near_duplicate is None:
        return True
    cosine = texts.vectors[one] @ texts.vectors[other].T
    same_language = texts.language[one][:, None] == texts.language[other]
    return not (same_language & (cosine > rules.near_duplicate)).any()


def divide(
    groups: list[list[int]],
    found: Links,
    texts: Texts,
    rules: SubBatchRules,
    seed: int,
    version: int,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Targets and evidence of each group, so that links run between the two.

    The first target is drawn from those that may be one; which, changes with the version. Those
    that may not are evidence. The others are dealt out one by one, each to the side to which it is
    linked less. A target that then has no link to any evidence would be written from nothing that
    is like it, and is left out. Each group has one chunk that may be a target.

    Returns:
      targets, evidence: int64 [G, documents - 1] each, NONE after the last.
      how many chunks were left out.
    """
    weight = {
        (a, b): w for (a, b), w in zip(found.pairs.tolist(), found.weights.tolist(), strict=True)
    }

    def link(a: int, b: int) -> float:
        return weight.get((min(a, b), max(a, b)), 0.0)

    shape = (len(groups), rules.documents - 1)
    targets, evidence = np.full(shape, NONE), np.full(shape, NONE)
    left_out = 0
    for number, members in enumerate(groups):
        order = np.asarray(members)[packing_plan.permutation(seed, number, version, len(members))]
        possible = order[texts.may_be_target[order]].tolist()
        never = order[~texts.may_be_target[order]].tolist()
        sides: tuple[list[int], list[int]] = (possible[:1], never)
        for one in possible[1:]:
            to_targets, to_evidence = (sum(link(one, other) for other in side) for side in sides)
            sides[to_targets > to_evidence or not sides[1]].append(one)
        linked = [t for t in sides[0] if any(link(t, e) for e in sides[1])]
        left_out += len(sides[0]) - len(linked)
        targets[number, : len(linked)] = linked
        evidence[number, : len(sides[1])] = sides[1]
    return targets, evidence, left_out


def build(
    texts: Texts,
    neighbours: np.ndarray,
    similarity: np.ndarray,
    rules: SubBatchRules,
    *,
    seed: int,
    version: int,
) -> SubBatches:
    """Sub-batches of N chunks.

    Args:
      texts, neighbours, similarity, rules: see `links`.
      seed, version: decide who is a target; another version, other targets.
    """
    found = links(texts, neighbours, similarity, rules)
    grouped = group(found, texts, rules)
    groups = [members for members in grouped if texts.may_be_target[members].any()]
    targets, evidence, left_out = divide(groups, found, texts, rules, seed, version)
    whole = targets[:, 0] != NONE
    counts = {
        "chunks": len(texts.document),
        "without_link": len(texts.document) - len(np.unique(found.pairs)),
        "alone": len(np.unique(found.pairs)) - sum(map(len, grouped)),
        "without_target": sum(map(len, grouped)) - sum(map(len, groups)),
        "without_linked_evidence": left_out,
        "targets": int((targets != NONE).sum()),
        "evidence": int((evidence[whole] != NONE).sum()),
        "sub_batches": int(whole.sum()),
    }
    return SubBatches(targets[whole], evidence[whole], counts)
