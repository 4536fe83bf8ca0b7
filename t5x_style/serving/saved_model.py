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

A model that writes texts from a document adds one, with a third input, `language`, int32 [b], the
token that each text begins with:

    generate  tokens int32 [b, N, T], scores float32 [b, N]: N hypotheses, the best first

Functions that embed have a second signature on texts where the graph can tokenize them
(`text_signatures`). Ids, masks and texts are checked inside the graph, so that a bad request is an
error wherever the model is served: an id outside the vocabulary would give a vector like any
other, or NaN.
"""

import dataclasses
import functools
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_style.checkpoints.restored_model import Restored
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.objective import ANSWER, EMBED, FILL, GENERATE, SCORE
from t5x_style.interfaces.representation import (
    DENSE,
    PASSAGE,
    SIDES,
    Representations,
    function_name,
    named_arrays,
)
from t5x_style.serving import signature_inputs
from t5x_style.step import jitted_functions

PLATFORMS = ("cpu", "cuda", "tpu")
DEFAULT = "serving_default"  # the signature that clients get who name none
READING = (ANSWER, FILL)  # kinds of functions that read a passage for a question
JOINT = (*READING, SCORE)  # and all kinds of functions of a question with a passage
# What TensorFlow's XLA knows without JAX: checks of symbolic shapes, and sharding marks.
_PORTABLE_CALLS = frozenset({"shape_assertion", "Sharding"})


Outputs = dict[str, jax.Array]


class ExportError(ValueError):
    """The objective cannot be exported, or what was exported is not the model."""


@dataclasses.dataclass(frozen=True)
class Portable:
    """A model cut down to what the functions need that are exported.

    Attributes:
      functions: signature -> f(arrays, *inputs) -> output name -> array [B, ...]; inputs as
        `signature_inputs.of` says.
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
      ExportError: none embeds or scores pairs, or several embed one side, so that signatures would
        be equal.
    """
    names = [name for name, function in model.functions.items() if function.kind == EMBED]
    if not names and not any(one.kind == SCORE for one in model.functions.values()):
        raise ExportError(
            "nothing to export: expected an objective with functions of kind 'embed', or one of "
            "kind 'score', found "
            f"{ {name: function.kind for name, function in model.functions.items()} }"
        )
    found = {function_name(str(model.functions[name].side)): name for name in names}
    if len(found) < len(names):
        raise ExportError(f"expected at most one embed function of a side, found {names}")
    others = (*JOINT, GENERATE)
    return found | {one.kind: name for name, one in model.functions.items() if one.kind in others}


def lengths(model: Restored) -> dict[str, int]:
    """Signature -> the most tokens that the contract allows a text; errors as of `signatures`."""
    contract = model.contract
    of_sides = {side: int(getattr(contract, f"{side}_length")) for side in SIDES}
    both = sum(of_sides.values())
    # A document is written from in parts, each as long as a passage.
    known = {function_name(side): length for side, length in of_sides.items()}
    known[GENERATE] = of_sides[PASSAGE]
    return {signature: known.get(signature, both) for signature in signatures(model)}


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


def read_outputs(found: Mapping[str, jax.Array] | jax.Array) -> Outputs:
    """Output name -> array [B, ...] of a batch of one question with a passage a row."""
    if not isinstance(found, Mapping):  # scores of pairs
        found = {SCORE: found}
    return {name: one[:, 0] if one.ndim == 2 else one for name, one in found.items()}


def written_outputs(found: Sequence[jax.Array]) -> Outputs:
    """Output name -> array [B, ...] of a batch of texts that were written."""
    tokens, scores = found
    return {"tokens": tokens, "scores": scores}


class _Group(dict[str, jax.Array]):
    """A token group with the features that ids and a mask give."""

    def __missing__(self, feature: str) -> jax.Array:
        raise ExportError(
            f"a function reads the feature {feature!r}, which token ids and a mask do "
            f"not give; a SavedModel has {sorted(self)}"
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


def portable(
    model: Restored, leave_out: Collection[str] = (), in_tensorflow: bool = True
) -> Portable:
    """What is exported of a model; lowers each function for all of `PLATFORMS`.

    A re-ranker, which no SavedModel is made of, has a function of pairs, `score`: float32 [b].

    Args:
      model: with functions that embed.
      leave_out: signatures that are not exported.
      in_tensorflow: whether TensorFlow is to run it, which lacks some operations.

    Raises:
      ExportError: see `lengths`; or a function calls a kernel that TensorFlow does not have, where
        it is to run it, or reads a feature that ids and a mask do not give.
    """
    max_lengths = lengths(model)
    paths, leaves, treedef = _flat((model.params, model.variables))
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    functions = {
        signature: _from_leaves(model, name, treedef)
        for signature, name in signatures(model).items()
        if signature not in leave_out
    }
    used: set[int] = set()
    for signature, function in functions.items():
        used |= _traced(signature, function, shapes, in_tensorflow)
    kept = sorted(used)

    def call(function: Callable[..., Outputs]) -> Callable[..., Outputs]:
        def of_arrays(arrays: Mapping[str, jax.Array], *inputs: jax.Array) -> Outputs:
            given: list[Any] = list(shapes)  # those that are not kept are never read
            for index in kept:
                given[index] = arrays[paths[index]]
            return function(given, *inputs)

        return of_arrays

    arrays = {paths[index]: np.asarray(leaves[index]) for index in kept}
    calls = {signature: call(function) for signature, function in functions.items()}
    return Portable(calls, arrays, max_lengths, model.contract)


def _flat(states: tuple[nnx.State, nnx.State]) -> tuple[list[str], list[Any], Any]:
    """Paths, as 'encoder/embeddings/word/embedding', leaves, and how they go together again."""
    found, treedef = jax.tree_util.tree_flatten_with_path(states)
    # The last key of a path leads into the Variable, the first says whether it is a parameter.
    paths = ["/".join(str(getattr(k, "key", k)) for k in path[1:-1]) for path, _ in found]
    return paths, [leaf for _, leaf in found], treedef


def _from_leaves(model: Restored, name: str, treedef: Any) -> Callable[..., Outputs]:
    """f(leaves, *inputs) -> all that it gives, by output name; `inputs` says which."""
    function = jitted_functions.pure_function(model.graphdef, name)
    kinds, writes = model.functions[name].representations, model.functions[name].kind == GENERATE
    if writes and "key" in model.functions[name].inputs:
        raise ExportError(
            f"{name} draws tokens by a key, which a signature does not have: a SavedModel would "
            "write the same text each time. Expected a model that takes the best tokens: export "
            "it with decoding.GenerationConfig.temperature = None, top_k = 0 and top_p = 1.0."
        )

    def call(
        leaves: Sequence[Any], tokens: jax.Array, mask: jax.Array, *language: jax.Array
    ) -> Outputs:
        given = *jax.tree_util.tree_unflatten(treedef, leaves), token_group(tokens, mask)
        if writes:
            return written_outputs(function(*given, *language))
        return outputs(function(*given, kinds=kinds)) if kinds else read_outputs(function(*given))

    return call


def _traced(
    name: str, embed: Callable[..., Outputs], shapes: Sequence[Any], in_tensorflow: bool
) -> set[int]:
    """Numbers of the leaves that a function uses, after a look at the kernels that it calls."""
    given = signature_inputs.symbolic(name)
    jitted = jax.jit(embed)
    if in_tensorflow:
        _require_known(name, jax.export.export(jitted, platforms=PLATFORMS)(shapes, *given))
    jaxpr = jitted.trace(shapes, *given).jaxpr.jaxpr
    read = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    return {index for index in range(len(shapes)) if id(jaxpr.invars[index]) in read}


def _require_known(name: str, lowered: jax.export.Exported) -> None:
    """Raises ExportError for kernels that TensorFlow does not have."""
    # Composites too (erf is one): TensorFlow 2.20 does not expand those of unknown sizes.
    calls = set(re.findall(r"(?:custom_call @|composite \")([\w.$]+)", lowered.mlir_module()))
    calls -= _PORTABLE_CALLS
    if calls:
        raise ExportError(
            f"{name} calls {sorted(calls)}, which TensorFlow does not have. Export the model with "
            "the plain form of these operations, such as attention = 'plain'."
        )


def save(
    folder: Path,
    model: Portable,
    default: str,
    assets: Mapping[str, Path],
    texts: Mapping[str, TextSignature] = types.MappingProxyType({}),
) -> None:
    """Writes the SavedModel: a signature for each function, and DEFAULT as another name of one.

    Inputs as `signature_inputs.of` says, or text, string [b]; outputs as in the module's docstring.

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

        def by_name(arrays: Mapping[str, Any], given: Mapping[str, Any]) -> Outputs:
            return function(arrays, *(given[one] for one in signature_inputs.of(name)))

        return by_name

    def specs(name: str) -> list[Any]:
        axes = signature_inputs.of(name).items()
        return [tf.TensorSpec((None,) * len(axis), tf.int32, name=one) for one, axis in axes]

    def shapes(name: str) -> dict[str, str]:
        return {one: f"({', '.join(axes)})" for one, axes in signature_inputs.of(name).items()}

    names, words = list(model.functions), model.contract.vocabulary_size
    platforms = {"native_serialization_platforms": PLATFORMS, "with_gradient": False}
    module = JaxModule(
        dict(model.arrays),
        {name: method(name) for name in names},
        trainable=False,
        input_polymorphic_shape={name: shapes(name) for name in names},
        jax2tf_kwargs={name: platforms for name in names},
    )
    configs = [
        ServingConfig(
            signature_key=[name, DEFAULT] if name == default else name,
            method_key=name,
            input_signature=specs(name),
            tf_preprocessor=signature_inputs.checked(tf, model.max_lengths[name], words),
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
