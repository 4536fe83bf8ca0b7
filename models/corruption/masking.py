"""Masks and replacements, drawn on the device, per segment of a packed row and keyed by example.

Every random number is a function of (key, example, purpose, draw, position in the segment), which
are counters of threefry. So a passage gets the same masks alone or packed, wherever it sits, and
however long the row is and however many devices there are.

The masks are those of Hugging Face's whole-word collator, which RetroMAE and SimLM use:

  units    words; special tokens such as [CLS] and [SEP] belong to none
  budget   min(max_predictions, max(1, round(n * rate))), n the segment's tokens, specials included,
           halves rounded to even
  walk     units in random order: stop when the budget is reached, skip a unit that would exceed it,
           take all tokens of the others

The walk is sequential, yet needs no sort and no step per unit: what it takes next is always the
first untaken unit, in random order, that still fits (what was skipped once never fits again). So a
prefix is found by bisection on the random numbers and the few units that remain are picked one by
one. On two CPU cores this is several times faster than sorting [rows, masks, length].

Letters: B rows, L row length, S segments a row, K draws a row (lanes), each for one segment.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from t5x_style.interfaces.contract import Vocabulary

IGNORED = -100
MAX_PREDICTIONS = 512  # the official collators' default
BASE_MASKS = 256

# What a random number is for. Changing a number changes every run's masks.
_ENCODER_UNITS, _REPLACEMENT, _DECODER_UNITS, _DECODER_CHOICE = range(4)

_BISECTIONS = 10

Group = Mapping[str, jax.Array]


@dataclasses.dataclass(frozen=True)
class WholeWordMask:
    """How many whole words to select, and which tokens never belong to a word.

    Attributes:
      rate: share of a segment's tokens, specials included in the count.
      outside_units: ids that no unit contains. The official code names [CLS] and [SEP] only, so
        [UNK] is selected like a word; with a tokenizer whose specials are <s> and </s> name these,
        else they are masked too (RetroMAE issue 14).
      max_predictions: at most this many tokens a segment. The official default of 512 lowers the
        rate of segments longer than 512 / rate; raise it for those.
    """

    rate: float
    outside_units: tuple[int, ...]
    max_predictions: int = MAX_PREDICTIONS

    def __post_init__(self) -> None:
        if not 0.0 < self.rate <= 1.0:
            raise ValueError(f"mask rate: expected more than 0 and at most 1, found {self.rate}")
        if self.max_predictions < 1:
            raise ValueError(f"max_predictions: expected at least 1, found {self.max_predictions}")

    def budgets(self, length: int) -> np.ndarray:
        """[length + 1] int32: the budget of a segment of 0..length tokens.

        A table, because float32 on the device would round some halves to the other side.
        """
        counts = [max(1, round(n * self.rate)) for n in range(1, length + 1)]
        return np.minimum([0, *counts], self.max_predictions).astype(np.int32)

    def row_budget(self, length: int, segments: int) -> int:
        """The most tokens that can be selected in a row of `length` tokens, over all packings.

        Exact, by dynamic programming over up to `segments` segments; a segment selects neither more
        than its budget nor more tokens than it has.
        """
        one = np.minimum(self.budgets(length), np.arange(length + 1))  # [length + 1]
        best = one.copy()
        for _ in range(min(segments, length) - 1):
            longer = [np.max(best[: n + 1] + one[n::-1]) for n in range(length + 1)]
            if np.array_equal(longer, best):
                break
            best = np.asarray(longer)
        return int(best[length])


class Units(NamedTuple):
    """The words of a packed row, seen from each token; all [B, L].

    Attributes:
      eligible: whether the token belongs to a unit.
      start: position in its segment of the first token of the token's unit.
      size: how many tokens that unit has.
    """

    eligible: jax.Array
    start: jax.Array
    size: jax.Array


def units(group: Group, outside_units: tuple[int, ...]) -> Units:
    """Groups tokens into words, as whole-word collators do.

        tokens        [CLS]  play  ##ing  [SEP]  ##x  y      ("##x" opens its segment's first unit
        word_starts     1     1      0      1     0   1       where no unit precedes it)
        start           -     1      1      -     1   .

    Args:
      group: `tokens`, `segment_ids`, `positions`, `word_starts`, each [B, L].
      outside_units: ids that belong to no unit.
    """
    segment_ids, positions = group["segment_ids"], group["positions"]
    column = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)[None]
    eligible = (segment_ids > 0) & ~is_any(group["tokens"], outside_units)
    # The last eligible column up to each one; the unit before a token must be in its own segment.
    last = jax.lax.cummax(jnp.where(eligible, column, -1), axis=1)
    before = jnp.pad(last[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    opens = eligible & (group["word_starts"] | (before < column - positions))
    first = jnp.maximum(jax.lax.cummax(jnp.where(opens, column, -1), axis=1), 0)  # [B, L] columns
    count = jax.vmap(lambda at, one: jnp.zeros_like(at).at[at].add(one))
    sizes = count(first, eligible.astype(jnp.int32))
    start = jnp.take_along_axis(positions, first, axis=1)
    return Units(eligible, start, jnp.take_along_axis(sizes, first, axis=1))


def is_any(tokens: jax.Array, ids: tuple[int, ...]) -> jax.Array:
    """Whether each token is one of `ids`."""
    found = jnp.zeros(tokens.shape, bool)
    for one in ids:
        found |= tokens == one
    return found


def inner_labels(group: Group) -> jax.Array:
    """[B, L] int32: every token but the first and last of each segment, -100 elsewhere."""
    segment_ids = group["segment_ids"]
    following = jnp.pad(segment_ids[:, 1:], ((0, 0), (0, 1)))
    inner = (segment_ids > 0) & (group["positions"] > 0) & (following == segment_ids)
    return jnp.where(inner, group["tokens"], IGNORED)


def segment_lengths(segment_ids: jax.Array, segments: int) -> jax.Array:
    """[B, S] int32: the tokens of each segment, 0 where there is none."""
    numbers = jnp.arange(1, segments + 1, dtype=segment_ids.dtype)
    return jnp.sum(segment_ids[:, None, :] == numbers[:, None], axis=2, dtype=jnp.int32)


# --- selection ------------------------------------------------------------------------------------


def select_words(
    words: Units, segment_ids: jax.Array, numbers: jax.Array, segment: jax.Array, budget: jax.Array
) -> jax.Array:
    """The walk over units in random order, for each of K lanes.

    Args:
      words: of the rows.
      segment_ids: [B, L].
      numbers: [B, K, L] uint32, random, equal within a unit; the order of a lane's units. Units
        with equal numbers are ordered by position.
      segment: [B, K] int32, the segment id (from 1) that a lane is about.
      budget: [B, K] int32, 0 for lanes that select nothing.

    Returns:
      [B, K, L] bool, the selected tokens.
    """
    mine = words.eligible[:, None, :] & (segment_ids[:, None, :] == segment[:, :, None])
    cut = _bisect(numbers, mine, budget)
    taken = mine & (numbers < cut[:, :, None])
    left = budget - jnp.sum(taken, axis=2, dtype=jnp.int32)
    size = jnp.where(mine, words.size[:, None, :], jnp.iinfo(jnp.int32).max)
    start = words.start[:, None, :]

    def fitting(taken: jax.Array, left: jax.Array) -> jax.Array:
        return (size <= left[:, :, None]) & ~taken

    def pick(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        taken, left = state
        candidates = fitting(taken, left)
        lowest = jnp.min(jnp.where(candidates, numbers, _LARGEST), axis=2, keepdims=True)
        ties = candidates & (numbers == lowest)
        unit = jnp.min(jnp.where(ties, start, jnp.iinfo(jnp.int32).max), axis=2, keepdims=True)
        new = ties & (start == unit)
        return taken | new, left - jnp.sum(new, axis=2, dtype=jnp.int32)

    def unfinished(state: tuple[jax.Array, jax.Array]) -> jax.Array:
        return jnp.any(fitting(*state))

    return jax.lax.while_loop(unfinished, pick, (taken, left))[0]


_LARGEST = np.uint32(0xFFFFFFFF)


def _bisect(numbers: jax.Array, mine: jax.Array, budget: jax.Array) -> jax.Array:
    """[B, K] uint32 cuts: the units below a cut fit the budget together.

    Close to the largest such cut, not exactly it: the picking that follows makes it exact.
    """
    numbers = jnp.where(mine, numbers, _LARGEST)

    def halve(i: int, cut: jax.Array) -> jax.Array:
        higher = cut | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        below = jnp.sum(numbers < higher[:, :, None], axis=2, dtype=jnp.int32)
        return jnp.where(below <= budget, higher, cut)

    return jax.lax.fori_loop(0, _BISECTIONS, halve, jnp.zeros(budget.shape, jnp.uint32))


# --- random numbers -------------------------------------------------------------------------------


def _fold(keys: jax.Array, counters: jax.Array) -> jax.Array:
    """fold_in, elementwise over arrays of keys and counters of one shape."""
    fold = jax.random.fold_in
    for _ in range(counters.ndim):
        fold = jax.vmap(fold)
    return fold(keys, counters)


def _words(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two random uint32 from each key that nothing else is drawn from."""
    data = jax.random.key_data(keys)
    return data[..., 0], data[..., -1]


def _example_keys(key: jax.Array, example_id: jax.Array, purpose: int) -> jax.Array:
    """A key for each example, of the shape of `example_id`."""
    keys = jnp.broadcast_to(key, example_id.shape)
    return _fold(_fold(keys, example_id), jnp.full_like(example_id, purpose))


def _by_token(per_segment: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """[B, S] -> [B, L]: the value of each token's segment; padding gets the first segment's."""
    return jnp.take_along_axis(per_segment, jnp.maximum(segment_ids - 1, 0), axis=1)


def _by_lane(keys: jax.Array, counters: jax.Array) -> jax.Array:
    """Random uint32 [B, K, L] from keys [B, K] and counters [B, L]."""
    fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
    return _words(jax.vmap(fold)(keys, counters))[0]


# --- encoder --------------------------------------------------------------------------------------


def whole_word_mask(group: Group, mask: WholeWordMask, key: jax.Array) -> jax.Array:
    """One whole-word mask for each segment: [B, L] bool, the selected tokens.

    Args:
      group: a clean token group.
      mask: rate, cap and what is never selected.
      key: of the step.
    """
    words = units(group, mask.outside_units)
    segment_ids, example_id = group["segment_ids"], group["example_id"]
    keys = _example_keys(key, example_id, _ENCODER_UNITS)  # [B, S]
    lengths = segment_lengths(segment_ids, example_id.shape[1])
    budget = jnp.asarray(mask.budgets(segment_ids.shape[1]))[lengths]
    lanes = jnp.broadcast_to(jnp.arange(1, lengths.shape[1] + 1), lengths.shape)
    chosen = select_words(words, segment_ids, _by_lane(keys, words.start), lanes, budget)
    return jnp.any(chosen, axis=1)


def replace_selected(
    group: Group, selected: jax.Array, vocabulary: Vocabulary, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """BERT's 80/10/10: [MASK], a uniform random id of the whole vocabulary, or unchanged.

    Args:
      group: a clean token group.
      selected: [B, L] bool. Special tokens, [UNK] among them, are dropped from it.
      vocabulary: of the tokens.
      key: of the step.

    Returns:
      (tokens [B, L] int32, labels [B, L] int32: the original id where selected, else -100).
    """
    tokens = group["tokens"]
    selected = selected & ~is_any(tokens, vocabulary.special_ids)
    keys = _token_keys(group, _REPLACEMENT, key)
    choice, number = _words(keys)
    random_id = (number % np.uint32(vocabulary.size)).astype(jnp.int32)
    eight_tenths, nine_tenths = (np.uint32(0.8 * 2**32), np.uint32(0.9 * 2**32))
    other = jnp.where(choice < nine_tenths, random_id, tokens)
    new = jnp.where(choice < eight_tenths, vocabulary.mask, other)
    return jnp.where(selected, new, tokens), jnp.where(selected, tokens, IGNORED)


def mask_and_label(
    group: Group, mask: WholeWordMask, vocabulary: Vocabulary, key: jax.Array
) -> dict[str, jax.Array]:
    """The group as BERT is trained on it: `tokens` replaced, and `labels` as `replace_selected`."""
    selected = whole_word_mask(group, mask, key)
    tokens, labels = replace_selected(group, selected, vocabulary, key)
    return {**group, "tokens": tokens, "labels": labels}


def mask_selected(
    group: Group, selected: jax.Array, vocabulary: Vocabulary
) -> tuple[jax.Array, jax.Array]:
    """[MASK] wherever selected: as `replace_selected`, without chance."""
    tokens = group["tokens"]
    selected = selected & ~is_any(tokens, vocabulary.special_ids)
    return jnp.where(selected, vocabulary.mask, tokens), jnp.where(selected, tokens, IGNORED)


def token_numbers(group: Group, key: jax.Array) -> jax.Array:
    """[B, L] uint32: a random number for each token, from its example and position."""
    return _words(_token_keys(group, _REPLACEMENT, key))[1]


def _token_keys(group: Group, purpose: int, key: jax.Array) -> jax.Array:
    """A key for each token, [B, L], from its example and its position in the segment."""
    example_id = _by_token(group["example_id"], group["segment_ids"])
    return _fold(_example_keys(key, example_id, purpose), group["positions"])


# --- RetroMAE's decoder ---------------------------------------------------------------------------


def decoder_visibility(
    group: Group, mask: WholeWordMask, base_masks: int, key: jax.Array
) -> jax.Array:
    """RetroMAE's position-specific attention mask.

    For a segment of n tokens min(n, base_masks) whole-word masks are drawn. Each row picks one of
    them with replacement; it sees the tokens of its segment except that mask's and its own.

    Args:
      group: a clean token group.
      mask: rate, cap and what is never hidden from others ([CLS] and [SEP]).
      base_masks: the official code draws 256; FlagEmbedding's copy 128.
      key: of the step.

    Returns:
      [B, L, L] bool, row = query, column = key; False everywhere at padding.
    """
    segment_ids, example_id = group["segment_ids"], group["example_id"]
    length, segments = segment_ids.shape[1], example_id.shape[1]
    lengths = segment_lengths(segment_ids, segments)
    draws = jnp.minimum(lengths, base_masks)  # [B, S]
    first = jnp.cumsum(draws, axis=1) - draws  # [B, S] the first lane of each segment
    hidden = _base_masks(group, mask, key, lengths, draws, min(length, segments * base_masks))
    # Each query's lane: the first of its segment plus a uniform choice.
    number, _ = _words(_token_keys(group, _DECODER_CHOICE, key))
    count = jnp.maximum(_by_token(draws, segment_ids), 1).astype(jnp.uint32)
    lane = _by_token(first, segment_ids) + (number % count).astype(jnp.int32)  # [B, L]
    hidden = jnp.take_along_axis(hidden, lane[:, :, None], axis=1)  # [B, L, L]
    same = (segment_ids[:, :, None] == segment_ids[:, None, :]) & (segment_ids[:, :, None] > 0)
    return same & ~hidden & ~jnp.eye(length, dtype=bool)


def _base_masks(
    group: Group,
    mask: WholeWordMask,
    key: jax.Array,
    lengths: jax.Array,
    draws: jax.Array,
    lanes: int,
) -> jax.Array:
    """[B, K, L] bool: the base masks of all segments of a row, one after the other in K lanes."""
    words = units(group, mask.outside_units)
    ends = jnp.cumsum(draws, axis=1)  # [B, S]
    lane = jnp.arange(lanes, dtype=jnp.int32)
    segment = jnp.sum(lane[None, :, None] >= ends[:, None, :], axis=2)  # [B, K], S for idle lanes
    valid = segment < draws.shape[1]
    segment = jnp.minimum(segment, draws.shape[1] - 1)
    per_segment = (ends - draws, group["example_id"], lengths)
    first, example_id, length = (jnp.take_along_axis(x, segment, axis=1) for x in per_segment)
    keys = _fold(_example_keys(key, example_id, _DECODER_UNITS), lane - first)
    budget = jnp.asarray(mask.budgets(group["tokens"].shape[1]))[length]
    numbers = _by_lane(keys, words.start)
    budget = jnp.where(valid, budget, 0)
    return select_words(words, group["segment_ids"], numbers, segment + 1, budget)
