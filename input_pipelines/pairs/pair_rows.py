"""Place the texts of a step in rows, and count the rows that a batch needs.

`fitting_rows` and `known_positives` are for gin: the pipeline and the objective bind the same
number, which follows from the data.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from input_pipelines.batches import packing_plan, token_groups
from input_pipelines.pairs import pair_packing
from input_pipelines.pairs.pair_mixture import OpenPairs, PairMixture, StepPairs

SIDES = ("query", "passage")
MOST_PADDING = 0.3  # share of token positions above which there is a warning
_MOST_SEGMENTS = 16  # texts in a row that the warning suggests
_WORTH_IT = 0.8  # the warning comes where the same texts fit this share of the positions


def fitting_rows(
    pairs: PairMixture,
    side: str,
    query_row_length: int,
    query_segments: int,
    passage_row_length: int,
    passage_segments: int,
    multiple: int = 1,
    chunks: int = 1,
) -> int:
    """Rows of one side that a batch needs, with a small margin: for QUERY_ROWS and PASSAGE_ROWS.

    The most that the first steps need, and one in 32 more; where a row holds one text, exactly as
    many as there are texts. The rows of one side are a multiple of the other's, so that both can be
    cut over processes alike.

    Args:
      pairs: what is packed.
      side: 'query' or 'passage'.
      query_row_length, passage_row_length: tokens in a row of each side.
      query_segments, passage_segments: most texts in a row; 1 does not pack.
      multiple: devices, or a multiple of them.
      chunks: in which the objective encodes a batch; both sides' rows divide by the product.

    Raises:
      ValueError: another side, a row that is too short, or an error of `pairs`.
    """
    if side not in SIDES:
        raise ValueError(f"fitting_rows.side: expected one of {SIDES}, found {side!r}")
    packing_plan.check_sizes("fitting_rows", multiple=multiple, chunks=chunks)
    shapes = {
        "query": token_groups.Rows(1, query_row_length, query_segments),
        "passage": token_groups.Rows(1, passage_row_length, passage_segments),
    }
    opened = pairs.open()
    check_lengths(opened, shapes, "fitting_rows")
    return _together(_needed(opened, shapes), shapes, multiple * chunks)[side]


def known_positives(pairs: PairMixture) -> int:
    """K, the most passages of a step that answer a query besides its positive; for KNOWN_POSITIVES.

    Twice what the first steps need and two more; 0 where no passage answers two queries. A pair
    that would need more is left out of its step, and that is reported.
    """
    opened = pairs.open()
    return 2 * max(known for *_, known in opened.probe) + 2 if opened.may_know else 0


def check_lengths(pairs: OpenPairs, rows: Mapping[str, token_groups.Rows], owner: str) -> None:
    """Raises ValueError where a text as long as it may be does not fit a row."""
    for side, shape in rows.items():
        length = getattr(pairs.mixture, f"{side}_length")
        if length > shape.length:
            raise ValueError(
                f"{owner}: expected rows for texts of {length} tokens (PairMixture.{side}_length), "
                f"found {side} rows of {shape.length}"
            )


def check_rows(pairs: OpenPairs, rows: Mapping[str, token_groups.Rows], owner: str) -> None:
    """Raises ValueError where the first steps do not fit; warns where fewer rows would do."""
    sizes = [(queries, passages) for queries, passages, _ in pairs.probe]
    pair_packing.require_rows(owner, rows, sizes, f"{pairs.batch} pairs")
    tokens = [sum(int(of.sum()) for of in side) / len(sizes) for side in zip(*sizes, strict=True)]
    shares = [
        1 - count / (shape.rows * shape.length)
        for count, shape in zip(tokens, rows.values(), strict=True)
    ]
    if max(shares) <= MOST_PADDING:
        return
    packed = {
        side: dataclasses.replace(
            shape, segments=max(shape.segments, min(_MOST_SEGMENTS, shape.length))
        )
        for side, shape in rows.items()
    }
    enough = _together(_needed(pairs, packed), packed, 1)
    positions = [
        sum(count * rows[side].length for side, count in counts.items())
        for counts in (enough, {side: shape.rows for side, shape in rows.items()})
    ]
    if positions[0] > _WORTH_IT * positions[1]:
        return  # a batch so small that rows do not fill
    advice = [
        f"{enough[side]} {side} rows of {shape.length} tokens and {shape.segments} segments"
        for side, shape in packed.items()
    ]
    logging.warning(
        "%s: padding is %.0f %% of %d query rows and %.0f %% of %d passage rows. Enough are %s; "
        "pair_rows.fitting_rows computes such numbers",
        *(owner, 100 * shares[0], rows["query"].rows, 100 * shares[1], rows["passage"].rows),
        " and ".join(advice),
    )


def placed(
    step: StepPairs, rows: Sequence[token_groups.Rows], known: int, where: str
) -> list[np.ndarray]:
    """Places of a step's texts.

    Pairs that do not fit are left out, those with the longest passages first, and so are those with
    more known passages than fit; both are reported.

    Args:
      step: its pairs.
      rows: of queries and of passages.
      known: K.
      where: names the step in messages.

    Returns:
      int64 [rows, segments] for queries and for passages: places in `step`, -1 where free.

    Raises:
      ValueError: not one pair fits.
    """
    batch = len(step.example)
    keep = (step.known != token_groups.NONE).sum(axis=1) <= known
    total = np.bincount(step.owner, step.passages.lengths, batch)
    # False first: those that are left out anyway come last.
    order = np.lexsort((total, ~keep))
    for count in _fewer(int(keep.sum()), batch):
        kept = np.zeros(batch, np.bool_)
        kept[order[:count]] = True
        chosen = [np.flatnonzero(kept), np.flatnonzero(kept[step.owner])]
        lengths = (step.queries.lengths, step.passages.lengths)
        found = [
            _place(sizes[ours], ours, shape)
            for sizes, ours, shape in zip(lengths, chosen, rows, strict=True)
        ]
        slots = [one for one in found if one is not None]
        if len(slots) == len(rows):
            break
    else:
        raise ValueError(f"{where}: not one of {batch} pairs fits {' and '.join(map(str, rows))}")
    if count < batch:
        logging.warning(
            "%s: %d of %d pairs are left out this time: %d have more than %d known passages in the "
            "batch (KNOWN_POSITIVES), the rest do not fit %s",
            *(where, batch - count, batch, batch - int(keep.sum()), known),
            " and ".join(map(str, rows)),
        )
    return slots


def _fewer(count: int, batch: int) -> Iterator[int]:
    """count, and then smaller numbers down to 1."""
    return iter(range(count, 0, -max(1, batch // 64)))


def _place(lengths: np.ndarray, names: np.ndarray, rows: token_groups.Rows) -> np.ndarray | None:
    slots = pair_packing.place(lengths, rows)
    return None if slots is None else token_groups.at(names, slots)


def _needed(pairs: OpenPairs, shapes: Mapping[str, token_groups.Rows]) -> dict[str, int]:
    """Rows of each side, with a margin."""
    found = {}
    for side, (name, shape) in enumerate(shapes.items()):
        texts = max(len(step[:2][side]) for step in pairs.probe)
        needed = max(_count(step[:2][side], shape) for step in pairs.probe)
        found[name] = min(texts, pair_packing.with_room(needed))
    return found


def _count(lengths: np.ndarray, rows: token_groups.Rows) -> int:
    if rows.segments == 1:
        return len(lengths)
    return len(packing_plan.pack_rows(lengths, rows.length, rows.segments))


def _together(
    needed: Mapping[str, int], shapes: Mapping[str, token_groups.Rows], multiple: int
) -> dict[str, int]:
    """The fewest token positions with one side's rows a multiple of the other's."""
    small, large = sorted(needed, key=lambda side: needed[side])
    best: tuple[int, dict[str, int]] | None = None
    for times in range(1, -(-needed[large] // needed[small]) + 1):
        base = max(needed[small], -(-needed[large] // times))
        base += -base % multiple
        rows = {small: base, large: base * times}
        tokens = sum(count * shapes[side].length for side, count in rows.items())
        if best is None or tokens < best[0]:
            best = tokens, rows
    assert best is not None
    return best[1]
