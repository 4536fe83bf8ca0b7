"""Inputs of a SavedModel's signatures on tokens: names, axes, and the checks inside the graph."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from t5x_style.interfaces.objective import GENERATE


def of(signature: str) -> dict[str, tuple[str, ...]]:
    """Input name -> names of its axes, in the order in which they are given; all are int32."""
    texts: dict[str, tuple[str, ...]] = {"input_ids": ("b", "s"), "attention_mask": ("b", "s")}
    return {**texts, "language": ("b",)} if signature == GENERATE else texts


def symbolic(signature: str) -> list[jax.ShapeDtypeStruct]:
    """The inputs of a signature, of any sizes, for `jax.export`."""
    axes = dict(zip("bs", jax.export.symbolic_shape("b, s"), strict=True))
    return [
        jax.ShapeDtypeStruct([axes[axis] for axis in names], jnp.int32)
        for names in of(signature).values()
    ]


def checked(tf: Any, max_length: int, vocabulary_size: int) -> Callable[..., dict[str, Any]]:
    """A TensorFlow function that returns its inputs once each check has passed.

    Args:
      tf: the module.
      max_length: tokens that a text may have.
      vocabulary_size: ids are below it.
    """

    def shapes(ids: Any, mask: Any, *language: Any) -> list[Any]:
        shape = tf.shape(ids)
        of_language = [
            tf.debugging.Assert(
                tf.equal(shape[0], tf.shape(one)[0]),
                ["language: expected one token for each row of", shape, "found", tf.shape(one)],
            )
            for one in language
        ]
        return [
            *of_language,
            tf.debugging.Assert(
                tf.reduce_all(tf.equal(shape, tf.shape(mask))),
                ["attention_mask: expected the shape of input_ids", shape, "found", tf.shape(mask)],
            ),
            tf.debugging.Assert(
                shape[0] > 0,
                ["input_ids: expected at least 1 row, found an empty batch", shape],
            ),
            tf.debugging.Assert(
                (shape[1] > 0) & (shape[1] <= max_length),
                [f"input_ids: expected 1 to {max_length} tokens a row, found", shape[1]],
            ),
        ]

    def refuse(bad: Any, values: Any, message: str) -> Any:
        """`bad`, `values`: of equal shape; the message gains the first bad place and value."""
        details = ["at", tf.where(bad)[:1], "found", tf.boolean_mask(values, bad)[:1]]
        return tf.debugging.Assert(~tf.reduce_any(bad), [message, *details])

    def contents(ids: Any, mask: Any, *language: Any) -> list[Any]:
        last = vocabulary_size - 1
        count = tf.reduce_sum(mask, axis=1)
        known = f"expected ids from 0 to {last}, of the tokenizer"
        return [
            refuse((ids < 0) | (ids > last), ids, f"input_ids: {known}, padding included;"),
            *(refuse((one < 0) | (one > last), one, f"language: {known};") for one in language),
            refuse((mask != 0) & (mask != 1), mask, "attention_mask: expected 0 and 1 only;"),
            refuse(count == 0, count, "attention_mask: a row is all padding, without a token;"),
            refuse(
                mask[:, 1:] > mask[:, :-1],
                mask[:, 1:],
                "attention_mask: expected ones and then zeros (padding on the right only);",
            ),
        ]

    # Control dependencies, so that no vector is computed from what a check refuses.
    def returned(input_ids: Any, attention_mask: Any, *language: Any) -> dict[str, Any]:
        # At run time: TensorFlow believes the ranks that a signature declares, whatever comes.
        given = [tf.ensure_shape(x, (None, None)) for x in (input_ids, attention_mask)]
        given += [tf.ensure_shape(x, (None,)) for x in language]
        with tf.control_dependencies(shapes(*given)):
            given = [tf.identity(one) for one in given]
        with tf.control_dependencies(contents(*given)):
            names = of(GENERATE)  # of which others have the first
            return {name: tf.identity(one) for name, one in zip(names, given, strict=False)}

    return tf.autograph.experimental.do_not_convert(returned)
