"""BERT's tokenizer as operations of TensorFlow's core, on all characters of a batch at once.

    texts -> code points -> what the tokenizer makes of them (`code_points`) -> words -> pieces

A word is cut into the longest pieces of the vocabulary from its start on. For each character, a
walk through a tree of the vocabulary finds the longest piece that begins there; which of these
pieces follow each other from the start of a word on is then found in log2 steps of doubled length.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from t5x_style.serving import saved_model
from t5x_style.serving.text_signatures.code_points import (
    ALONE,
    ITSELF,
    NOTHING,
    PAGE,
    SPACE,
    CodePoints,
)

_BITS = 21  # of a code point
_START, _INSIDE = 0, 1  # roots of the tree: of pieces that begin a word, and of the others
_ROOTS = 2


@dataclasses.dataclass(frozen=True)
class WordPiece:
    """A tokenizer of BERT's kind.

    Attributes:
      points: what it makes of code points.
      vocabulary: piece -> id.
      continuing: what pieces begin with that do not begin a word.
      unknown: id of a word that has no pieces.
      longest_word: characters; a longer word is unknown.
      split_case: whether words end where the case changes, "forward" before "Fill", first of all.
    """

    points: CodePoints
    vocabulary: Mapping[str, int]
    continuing: str
    unknown: int
    longest_word: int
    split_case: bool


def tokenizer(spec: WordPiece) -> Callable[[Any], Any]:
    """A tf.function from texts, string [b] in UTF-8, to a RaggedTensor of their ids, int32 [b, n].

    Without special tokens; what is no UTF-8 becomes U+FFFD.
    """
    tf = saved_model.cpu_only_tensorflow()
    keys, ids = tree(spec.vocabulary, spec.continuing)

    def tokenize(texts: Any) -> Any:
        with tf.device("/CPU:0"):  # an accelerator has no operations on strings
            points = tf.strings.unicode_decode(texts, "UTF-8", errors="replace")
            flat, rows = points.flat_values, tf.cast(points.value_rowids(), tf.int32)
            if spec.split_case:
                flat, rows = _with_spaces(flat, rows)
            flat, classes, rows = _normalised(flat, rows, spec.points)
            flat, starts, rows = _in_words(flat, classes, rows)
            found, rows = _pieces(flat, starts, rows, keys, ids, spec)
            count = tf.shape(texts, tf.int64)[0]
            return tf.RaggedTensor.from_value_rowids(found, tf.cast(rows, tf.int64), count)

    signature = [tf.TensorSpec((None,), tf.string)]
    return tf.function(tokenize, input_signature=signature, autograph=False)


def tree(vocabulary: Mapping[str, int], continuing: str) -> tuple[np.ndarray, np.ndarray]:
    """The edges of the tree of a vocabulary, in ascending order.

    Edge e leads from node `keys[e] >> 21` by code point `keys[e] & 0x1fffff` to node e + 2.

    Returns:
      keys: int64 [E].
      ids: int32 [E], of the piece that ends there; -1: none does.
    """
    paths = [(_START, piece, token) for piece, token in vocabulary.items()]
    paths += [
        (_INSIDE, piece.removeprefix(continuing), token)
        for piece, token in vocabulary.items()
        if piece.startswith(continuing)
    ]
    keys: list[int] = []
    ids: list[int] = []
    depth = 0
    while paths := [path for path in paths if len(path[1]) > depth]:
        taken = [(node << _BITS) | ord(piece[depth]) for node, piece, _ in paths]
        new = sorted(set(taken))
        numbers = {key: number for number, key in enumerate(new, len(keys))}
        keys += new
        ids += [-1] * len(new)
        for key, (_, piece, token) in zip(taken, paths, strict=True):
            if len(piece) == depth + 1:
                ids[numbers[key]] = token
        paths = [
            (_ROOTS + numbers[key], piece, token)
            for key, (_, piece, token) in zip(taken, paths, strict=True)
        ]
        depth += 1
    return np.array(keys, np.int64), np.array(ids, np.int32)


def _before(values: Any, first: Any) -> Any:
    """Each value's predecessor, and `first` where there is none."""
    tf = saved_model.cpu_only_tensorflow()
    return tf.concat([tf.constant([first], values.dtype), values], 0)[:-1]


def _after(values: Any, last: Any) -> Any:
    tf = saved_model.cpu_only_tensorflow()
    return tf.concat([values, tf.constant([last], values.dtype)], 0)[1:]


def _repeated(counts: Any) -> tuple[Any, Any]:
    """The number of each entry, as often as `counts` says; and 0, 1, ... for each of them."""
    tf = saved_model.cpu_only_tensorflow()
    at = tf.repeat(tf.range(tf.size(counts)), counts)
    first = tf.cumsum(counts, exclusive=True)
    return at, tf.range(tf.size(at)) - tf.gather(first, at)


def _with_spaces(flat: Any, rows: Any) -> tuple[Any, Any]:
    """Code points with a space where the case changes, by `wordpiece.CASE_CHANGE`."""
    tf = saved_model.cpu_only_tensorflow()

    def within(values: Any, first: str, last: str) -> Any:
        return (values >= ord(first)) & (values <= ord(last))

    last = tf.where(_before(rows, -1) == rows, _before(flat, 0), 0)
    following = tf.where(_after(rows, -1) == rows, _after(flat, 0), 0)
    ended = within(last, "a", "z") | within(last, "0", "9")
    ended |= within(last, "A", "Z") & within(following, "a", "z")
    changes = within(flat, "A", "Z") & ended
    at, number = _repeated(1 + tf.cast(changes, tf.int32))
    space = tf.gather(changes, at) & (number == 0)
    return tf.where(space, ord(" "), tf.gather(flat, at)), tf.gather(rows, at)


def _normalised(flat: Any, rows: Any, points: CodePoints) -> tuple[Any, Any, Any]:
    """What code points become: code points, their classes, and their rows."""
    tf = saved_model.cpu_only_tensorflow()
    page = tf.gather(points.pages, flat // PAGE)
    kind = tf.gather(points.kinds, page * PAGE + flat % PAGE)
    first = tf.gather(points.starts, kind)
    at, number = _repeated(tf.gather(points.starts, kind + 1) - first)
    output = tf.gather(first, at) + number
    made, classes = tf.gather(points.outputs, output), tf.gather(points.classes, output)
    made, rows = tf.where(made == ITSELF, tf.gather(flat, at), made), tf.gather(rows, at)
    if points.orders.any():
        order = tf.gather(points.orders, output)
        # A run of marks ends at any other character, and with the text.
        run = tf.cumsum(tf.cast((order == 0) | (_before(rows, -1) != rows), tf.int32))
        sorted_at = tf.argsort(run * (int(points.orders.max()) + 1) + order, stable=True)
        made, classes, rows = (tf.gather(one, sorted_at) for one in (made, classes, rows))
    kept = classes != NOTHING
    return tuple(tf.boolean_mask(one, kept) for one in (made, classes, rows))


def _in_words(flat: Any, classes: Any, rows: Any) -> tuple[Any, Any, Any]:
    """Code points without spaces, whether a word starts at them, and their rows."""
    tf = saved_model.cpu_only_tensorflow()
    starts = (_before(rows, -1) != rows) | (classes == ALONE)
    ended = _before(classes, SPACE)
    starts |= (ended == ALONE) | (ended == SPACE)
    kept = classes != SPACE
    return tuple(tf.boolean_mask(one, kept) for one in (flat, starts, rows))


def _pieces(
    flat: Any, starts: Any, rows: Any, keys: np.ndarray, ids: np.ndarray, spec: WordPiece
) -> tuple[Any, Any]:
    """Ids of the pieces of all words, and their rows."""
    tf = saved_model.cpu_only_tensorflow()
    word = tf.cumsum(tf.cast(starts, tf.int32)) - 1
    sizes = tf.math.segment_sum(tf.ones_like(word), word)
    end = tf.gather(tf.cumsum(sizes), word)
    length, token = _longest(flat, starts, end, keys, ids)
    size = tf.size(flat)
    known = length > 0
    jump = tf.where(known, tf.range(size) + length, size)  # `size` is where no piece leads on
    jump = tf.concat([jump, [size]], 0)
    reached = tf.concat([tf.cast(starts, tf.int32), [0]], 0)
    for _ in range(spec.longest_word.bit_length()):
        reached = tf.tensor_scatter_nd_max(reached, jump[:, None], reached)
        jump = tf.gather(jump, jump)
    begins = reached[:-1] > 0
    stuck = tf.math.segment_max(tf.cast(begins & ~known, tf.int32), word)
    unknown = tf.gather((stuck > 0) | (sizes > spec.longest_word), word)
    kept = tf.where(unknown, starts, begins)
    found = tf.where(unknown, spec.unknown, token)
    return tf.boolean_mask(found, kept), tf.boolean_mask(rows, kept)


def _longest(
    flat: Any, starts: Any, end: Any, keys: np.ndarray, ids: np.ndarray
) -> tuple[Any, Any]:
    """The longest piece that begins at each code point: its length, 0 for none, and its id."""
    tf = saved_model.cpu_only_tensorflow()

    def step(depth: Any, at: Any, node: Any, length: Any, token: Any) -> tuple[Any, ...]:
        key = tf.bitwise.left_shift(tf.cast(node, tf.int64), _BITS)
        key += tf.cast(tf.gather(flat, at + depth), tf.int64)
        edge = tf.minimum(tf.searchsorted(keys, key), len(keys) - 1)
        there = tf.gather(keys, edge) == key
        at, edge = tf.boolean_mask(at, there), tf.boolean_mask(edge, there)
        piece = tf.gather(ids, edge)
        ends = piece >= 0
        where = tf.boolean_mask(at, ends)[:, None]
        depth += 1
        lengths = tf.fill(tf.shape(where)[:1], depth)
        length = tf.tensor_scatter_nd_update(length, where, lengths)
        token = tf.tensor_scatter_nd_update(token, where, tf.boolean_mask(piece, ends))
        on = at + depth < tf.gather(end, at)
        return depth, tf.boolean_mask(at, on), tf.boolean_mask(edge, on) + _ROOTS, length, token

    every = tf.range(tf.size(flat))
    nothing = tf.zeros_like(every)
    state = 0, every, tf.where(starts, _START, _INSIDE), nothing, nothing
    any_size = tf.TensorShape([None])
    shapes = tf.TensorShape([]), *[any_size] * 4
    done = tf.while_loop(lambda depth, at, *_: tf.size(at) > 0, step, state, shapes)
    return done[3], done[4]
