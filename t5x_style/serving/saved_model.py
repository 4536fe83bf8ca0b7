"""A trained objective's functions as a TensorFlow SavedModel, which needs no JAX to run.

Each function that embeds becomes a signature from token ids to its representations, one output for
each array:

    embedding                                       dense: float32 [b, D]
    sparse_segments, _tokens, _weights              sparse: int32, int32 and float32 [b, e]
    multi_vector_segments, _vectors                 multi_vector: int32 [b, e], float32 [b, e, d]

Where segments are 1, the entry belongs to the text of the row; where they are 0, it is padding. A
reader of questions with passages, "[CLS] question [SEP] body [SEP]", adds signatures:

    answer    start, end int32 [b]; score, log_probability float32 [b]
    fill      log_probability float32 [b, M, V], of each token for each of the first M [MASK]s

Functions that embed have a second signature on texts where the graph can tokenize them
(`text_signatures`). Ids, masks and texts are checked inside the graph, so that a bad request is an
error wherever the model is served: an id outside the vocabulary would give a vector like any
other, or NaN.
"""

import dataclasses
import functools
import re
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_style.checkpoints.restored_model import Restored
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.objective import ANSWER, EMBED, FILL
from t5x_style.interfaces.representation import (
    DENSE,
    SIDES,
    Representations,
    function_name,
    named_arrays,
)
from t5x_style.step import jitted_functions

PLATFORMS = ("cpu", "cuda", "tpu")
DEFAULT = "serving_default"  # the signature that clients get who name none
READING = (ANSWER, FILL)  # kinds of functions of questions with passages, and their signatures
# What TensorFlow's XLA knows without JAX: checks of symbolic shapes, and sharding marks.
_PORTABLE_CALLS = frozenset({"shape_assertion", "Sharding"})


Outputs = dict[str, jax.Array]


class ExportError(ValueError):
    """The objective cannot be exported, or what was exported is not the model."""


@dataclasses.dataclass(frozen=True)
class Portable:
    """A model cut down to what the functions need that are exported.

    Attributes:
      functions: signature -> f(arrays, tokens [B, L] int32, mask [B, L] int32) -> output name ->
        array [B, ...].
      arrays: path -> array, of the parameters and variables that some function uses.
      max_lengths: signature -> tokens that a text may have.
      contract: of the model.
    """

    functions: Mapping[str, Callable[..., Outputs]]
    arrays: Mapping[str, np.ndarray]
    max_lengths: Mapping[str, int]
    contract: Contract


@dataclasses.dataclass(frozen=True)
class TextSignature:
    """A signature that takes texts, of a function that embeds.

    Attributes:
      function: the signature on tokens that it calls.
      inputs: a TensorFlow function from text, string [b], to input_ids and attention_mask.
      warmups: texts, one for each length that a batch is padded to.
    """

    function: str
    inputs: Callable[[Any], Mapping[str, Any]]
    warmups: tuple[str, ...]


@functools.cache
def cpu_only_tensorflow() -> Any:
    """TensorFlow, imported on first use (it takes seconds) and kept away from accelerators."""
    import tensorflow as tf

    for kind in ("GPU", "TPU"):
        if tf.config.list_physical_devices(kind):
            tf.config.set_visible_devices([], kind)
    return tf


def signatures(model: Restored) -> dict[str, str]:
    """Signature -> the name of the function that it calls.

    Raises:
      ExportError: none embeds, or several embed one side, so that signatures would be equal.
    """
    names = [name for name, function in model.functions.items() if function.kind == EMBED]
    if not names:
        raise ExportError(
            "nothing to export: expected an objective with functions of kind 'embed', found "
            f"{ {name: function.kind for name, function in model.functions.items()} }"
        )
    found = {function_name(str(model.functions[name].side)): name for name in names}
    if len(found) < len(names):
        raise ExportError(f"expected at most one embed function of a side, found {names}")
    reads = {one.kind: name for name, one in model.functions.items() if one.kind in READING}
    return found | reads


def lengths(model: Restored) -> dict[str, int]:
    """Signature -> the most tokens that the contract allows a text; errors as of `signatures`."""
    contract = model.contract
    of_sides = {side: int(getattr(contract, f"{side}_length")) for side in SIDES}
    both = sum(of_sides.values())
    return {
        signature: of_sides.get(str(model.functions[name].side), both)
        for signature, name in signatures(model).items()
    }


def kinds(model: Restored) -> tuple[str, ...]:
    """Of representations that all signatures that embed give; errors as of `signatures`."""
    called = [model.functions[name] for name in signatures(model).values()]
    made = [function.representations for function in called if function.kind == EMBED]
    return tuple(kind for kind in made[0] if all(kind in one for one in made))


def outputs(found: Representations) -> Outputs:
    """Output name -> array [B, ...] of a batch of one text a row."""
    named = {
        f"{kind}_{name}": array
        for kind, one in found.items()
        if kind != DENSE
        for name, array in named_arrays(kind, one).items()
    }
    return {"embedding": found[DENSE][:, 0], **named} if DENSE in found else named


def read_outputs(found: Mapping[str, jax.Array]) -> Outputs:
    """Output name -> array [B, ...] of a batch of one question with a passage a row."""
    return {name: one[:, 0] if one.ndim == 2 else one for name, one in found.items()}


class _Group(dict[str, jax.Array]):
    """A token group with what ids and a mask can tell."""

    def __missing__(self, feature: str) -> jax.Array:
        raise ExportError(
            f"an embed function reads the feature {feature!r}, which token ids and a mask cannot "
            f"tell; a SavedModel can give it {sorted(self)}"
        )


def token_group(tokens: jax.Array, mask: jax.Array) -> dict[str, jax.Array]:
    """One text a row, from its first place on.

    Args:
      tokens: [B, L] int32.
      mask: [B, L] int32, ones and then zeros.

    Returns:
      tokens, positions, segment_ids [B, L] int32; cls_at [B, 1] int32; segment_valid [B, 1] bool.
    """
    rows, length = tokens.shape
    return _Group(
        tokens=tokens,
        positions=jnp.arange(length, dtype=jnp.int32)[None, :] * mask,
        segment_ids=mask,
        cls_at=jnp.zeros((rows, 1), jnp.int32),
        segment_valid=jnp.ones((rows, 1), jnp.bool_),
    )


def portable(model: Restored) -> Portable:
    """What is exported of a model; lowers each function for all of `PLATFORMS`.

    Raises:
      ExportError: see `lengths`; or a function calls a kernel that TensorFlow does not have, or
        reads a feature that ids and a mask cannot tell.
    """
    max_lengths = lengths(model)
    paths, leaves, treedef = _flat((model.params, model.variables))
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    functions = {
        signature: _from_leaves(model, name, treedef)
        for signature, name in signatures(model).items()
    }
    used: set[int] = set()
    for signature, function in functions.items():
        used |= _traced(signature, function, shapes)
    kept = sorted(used)

    def call(function: Callable[..., Outputs]) -> Callable[..., Outputs]:
        def embed(arrays: Mapping[str, jax.Array], tokens: jax.Array, mask: jax.Array) -> Outputs:
            given: list[Any] = list(shapes)  # those that are not kept are never read
            for index in kept:
                given[index] = arrays[paths[index]]
            return function(given, tokens, mask)

        return embed

    arrays = {paths[index]: np.asarray(leaves[index]) for index in kept}
    calls = {signature: call(function) for signature, function in functions.items()}
    return Portable(calls, arrays, max_lengths, model.contract)


def _flat(states: tuple[nnx.State, nnx.State]) -> tuple[list[str], list[Any], Any]:
    """Paths, as 'encoder/embeddings/word/embedding', leaves, and how they go together again."""
    found, treedef = jax.tree_util.tree_flatten_with_path(states)
    # The last key of a path leads into the Variable, the first tells parameters from others.
    paths = ["/".join(str(getattr(k, "key", k)) for k in path[1:-1]) for path, _ in found]
    return paths, [leaf for _, leaf in found], treedef


def _from_leaves(model: Restored, name: str, treedef: Any) -> Callable[..., Outputs]:
    """f(leaves, tokens, mask) -> all that it gives, by output name."""
    function = jitted_functions.pure_function(model.graphdef, name)
    kinds = model.functions[name].representations

    def call(leaves: Sequence[Any], tokens: jax.Array, mask: jax.Array) -> Outputs:
        given = *jax.tree_util.tree_unflatten(treedef, leaves), token_group(tokens, mask)
        return outputs(function(*given, kinds=kinds)) if kinds else read_outputs(function(*given))

    return call


def _traced(name: str, embed: Callable[..., Outputs], shapes: Sequence[Any]) -> set[int]:
    """Numbers of the leaves that a function uses, after a look at the kernels that it calls."""
    rows, length = jax.export.symbolic_shape("b, s")
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    jitted = jax.jit(embed)
    lowered = jax.export.export(jitted, platforms=PLATFORMS)(shapes, tokens, tokens)
    # Composites too (erf is one): TensorFlow 2.20 does not expand those of unknown sizes.
    calls = set(re.findall(r"(?:custom_call @|composite \")([\w.$]+)", lowered.mlir_module()))
    calls -= _PORTABLE_CALLS
    if calls:
        raise ExportError(
            f"{name} calls {sorted(calls)}, which TensorFlow does not have. Export the model with "
            "the plain form of these operations, such as attention = 'plain'."
        )
    jaxpr = jitted.trace(shapes, tokens, tokens).jaxpr.jaxpr
    read = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    return {index for index in range(len(shapes)) if id(jaxpr.invars[index]) in read}


def save(
    folder: Path,
    model: Portable,
    default: str,
    assets: Mapping[str, Path],
    texts: Mapping[str, TextSignature] = types.MappingProxyType({}),
) -> None:
    """Writes the SavedModel: a signature for each function, and DEFAULT as another name of one.

    Inputs input_ids and attention_mask, int32 [b, s], or text, string [b]; outputs as in the
    module's docstring.

    Args:
      folder: is made; saved_model.pb, variables/ and assets/ go there.
      model: what to save.
      default: the function that DEFAULT names.
      assets: name -> file, copied into assets/ under its own name.
      texts: name -> signature that takes texts.
    """
    tf = cpu_only_tensorflow()
    from orbax.export import ExportManager, JaxModule, ServingConfig

    def method(name: str) -> Callable[..., Outputs]:
        function = model.functions[name]

        def embed(arrays: Mapping[str, Any], inputs: Mapping[str, Any]) -> Outputs:
            return function(arrays, inputs["input_ids"], inputs["attention_mask"])

        return embed

    names = list(model.functions)
    shapes = {"input_ids": "(b, s)", "attention_mask": "(b, s)"}
    platforms = {"native_serialization_platforms": PLATFORMS, "with_gradient": False}
    module = JaxModule(
        dict(model.arrays),
        {name: method(name) for name in names},
        trainable=False,
        input_polymorphic_shape={name: shapes for name in names},
        jax2tf_kwargs={name: platforms for name in names},
    )
    specs = [tf.TensorSpec((None, None), tf.int32, name=name) for name in shapes]
    configs = [
        ServingConfig(
            signature_key=[name, DEFAULT] if name == default else name,
            method_key=name,
            input_signature=specs,
            tf_preprocessor=_checked(model.max_lengths[name], model.contract.vocabulary_size),
        )
        for name in names
    ]
    configs += [
        ServingConfig(
            signature_key=name,
            method_key=one.function,
            input_signature=[tf.TensorSpec((None,), tf.string, name="text")],
            tf_preprocessor=one.inputs,
        )
        for name, one in texts.items()
    ]
    configs[0].extra_trackable_resources = {
        name: tf.saved_model.Asset(str(path)) for name, path in assets.items()
    }
    ExportManager(module, configs).save(str(folder))


def _checked(max_length: int, vocabulary_size: int) -> Callable[[Any, Any], dict[str, Any]]:
    """A TensorFlow function that hands ids and mask on once each check has passed."""
    tf = cpu_only_tensorflow()

    def shapes(ids: Any, mask: Any) -> list[Any]:
        shape = tf.shape(ids)
        return [
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

    def contents(ids: Any, mask: Any) -> list[Any]:
        last = vocabulary_size - 1
        count = tf.reduce_sum(mask, axis=1)
        return [
            refuse(
                (ids < 0) | (ids > last),
                ids,
                f"input_ids: expected ids from 0 to {last}, of the tokenizer, padding included;",
            ),
            refuse((mask != 0) & (mask != 1), mask, "attention_mask: expected 0 and 1 only;"),
            refuse(count == 0, count, "attention_mask: a row is all padding, without a token;"),
            refuse(
                mask[:, 1:] > mask[:, :-1],
                mask[:, 1:],
                "attention_mask: expected ones and then zeros (padding on the right only);",
            ),
        ]

    # Control dependencies, so that no vector is computed from what a check refuses.
    def checked(input_ids: Any, attention_mask: Any) -> dict[str, Any]:
        # At run time: TensorFlow believes the ranks that a signature declares, whatever comes.
        ids, mask = (tf.ensure_shape(x, (None, None)) for x in (input_ids, attention_mask))
        with tf.control_dependencies(shapes(ids, mask)):
            ids, mask = tf.identity(ids), tf.identity(mask)
        with tf.control_dependencies(contents(ids, mask)):
            return {"input_ids": tf.identity(ids), "attention_mask": tf.identity(mask)}

    return tf.autograph.experimental.do_not_convert(checked)
