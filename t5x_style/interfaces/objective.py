"""The interface between the engine and everything that can be trained: a network and its loss.

The engine calls, once a step and in this order: `corrupt` -> `retrieve` -> gradient of `loss` ->
optimizer -> `after_update`. It knows nothing else of a model.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_style.interfaces import representation
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.metrics import MetricLimit, MetricSum

Batch = dict[str, dict[str, jax.Array]]
Group = Mapping[str, Any]  # a token group: feature -> array, see `GroupShape.spec`
Spec = Mapping[str, Mapping[str, Any]]  # leaves have .shape and .dtype

EMBED = "embed"
# Other kinds: scores of pairs [B, S]; logits of classes [B, S, C]; spans of texts; texts; words for
# the [MASK]s of texts.
SCORE, CLASSIFY, ANSWER, GENERATE, FILL = "score", "classify", "answer", "generate", "fill"
KINDS = (EMBED, SCORE, CLASSIFY, ANSWER, GENERATE, FILL, "metrics")


class BatchError(ValueError):
    """A batch is not what the objective expects; the message lists every feature that differs."""


class FunctionError(ValueError):
    """A model offers no function of the kind that is asked for."""


@dataclasses.dataclass(frozen=True)
class GroupShape:
    """The size of a token group: `rows` of `length` tokens, with up to `segments` segments."""

    rows: int
    length: int
    segments: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(
                    f"GroupShape.{field.name}: expected at least 1, "
                    f"found {getattr(self, field.name)}"
                )

    def spec(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The features that every token group has; DESIGN's Batch, as shapes and dtypes."""
        per_token, per_segment = (self.rows, self.length), (self.rows, self.segments)
        return {
            "tokens": jax.ShapeDtypeStruct(per_token, jnp.int32),
            "positions": jax.ShapeDtypeStruct(per_token, jnp.int32),
            "segment_ids": jax.ShapeDtypeStruct(per_token, jnp.int32),
            "word_starts": jax.ShapeDtypeStruct(per_token, jnp.bool_),
            "cls_at": jax.ShapeDtypeStruct(per_segment, jnp.int32),
            "segment_valid": jax.ShapeDtypeStruct(per_segment, jnp.bool_),
            "example_id": jax.ShapeDtypeStruct(per_segment, jnp.int32),
        }


@dataclasses.dataclass(frozen=True)
class ModelFunction:
    """Something a trained objective can do for others; calling it calls `call`.

    One of kind EMBED is called with a token group and `kinds`, a static tuple of kinds among its
    `representations`, and returns a dict of these by kind, as `interfaces.representation` says.

    Attributes:
      call: takes what `inputs` describes, returns what `outputs` describes.
      inputs: name -> shape and dtype; rows may vary when it is called.
      outputs: in words, for instance '[B, S, D] float32'.
      kind: one of KINDS; what the engine may use it for.
      side: of EMBED 'query' or 'passage', which texts it embeds; None of other kinds.
      representations: of EMBED the kinds that it can return; () of other kinds.
    """

    call: Callable[..., Any]
    inputs: Mapping[str, Any]
    outputs: str
    kind: str
    side: str | None = None
    representations: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"ModelFunction.kind: expected one of {KINDS}, found {self.kind!r}")
        if self.kind == EMBED:
            if self.side not in representation.SIDES:
                raise ValueError(
                    f"ModelFunction.side: expected one of {representation.SIDES} of a function "
                    f"that embeds, found {self.side!r}"
                )
            representation.require_kinds(
                self.representations, representation.KINDS, "ModelFunction.representations"
            )
        elif self.side is not None or self.representations:
            raise ValueError(
                f"ModelFunction: expected no side and no representations of kind {self.kind!r}, "
                f"found {self.side!r} and {self.representations}"
            )

    def __call__(self, *inputs: Any, **static: Any) -> Any:
        return self.call(*inputs, **static)


def dense_functions(
    embed: Callable[[Group], jax.Array], query: GroupShape, passage: GroupShape
) -> dict[str, ModelFunction]:
    """The functions of an objective that makes one vector of each text, the same way on both sides.

    Args:
      embed: token group -> [B, S, D] float32, without dropout.
      query, passage: shapes of the groups.
    """

    def call(group: Group, kinds: tuple[str, ...]) -> representation.Representations:
        return {representation.DENSE: embed(group)}

    sides = {representation.QUERY: query, representation.PASSAGE: passage}
    return {
        representation.function_name(side): ModelFunction(
            *(call, shape.spec(), "[B, S, D] float32", EMBED),
            side=side,
            representations=(representation.DENSE,),
        )
        for side, shape in sides.items()
    }


def embedding_function(
    functions: Mapping[str, ModelFunction], side: str, kinds: Sequence[str]
) -> ModelFunction:
    """The function that embeds a side as all of these kinds.

    Raises:
      RepresentationError: there is none; the message lists what the objective offers.
    """
    representation.require_kinds(kinds, representation.KINDS, f"what embeds a {side}")
    offered = {name: one for name, one in functions.items() if one.kind == EMBED}
    for function in offered.values():
        if function.side == side and set(kinds) <= set(function.representations):
            return function
    embeds = [f"a {one.side} as {[*one.representations]}" for one in offered.values()]
    raise representation.RepresentationError(
        f"the objective offers {sorted(functions)}; expected a function that embeds a {side!r} as "
        f"{[*kinds]}, found such that embed {', '.join(embeds) or 'nothing'}"
    )


def function_of(functions: Mapping[str, ModelFunction], kind: str, model: str) -> ModelFunction:
    """The function of a kind other than EMBED.

    Args:
      functions: that an objective offers.
      kind: one of KINDS.
      model: what offers such a function, in words, for the message.

    Raises:
      FunctionError: there is none.
    """
    for function in functions.values():
        if function.kind == kind:
            return function
    raise FunctionError(
        f"expected {model}, with a function of kind {kind!r}; found a model that offers "
        f"{sorted(functions)}. Name the checkpoint of such a model"
    )


def embedder(
    functions: Mapping[str, ModelFunction], side: str, kind: str = representation.DENSE
) -> Callable[[Group], Any]:
    """A function from a token group to its representation of one kind; errors as above."""
    function = embedding_function(functions, side, (kind,))
    return lambda group: function(group, kinds=(kind,))[kind]


class Table(nnx.Variable):
    """A Variable that is read from a source when a run starts or resumes, and never saved."""


@dataclasses.dataclass(frozen=True)
class TableSource:
    """Where a `Table` comes from.

    Attributes:
      fingerprint: of the content: a run does not resume with another.
      read: rows start to end - 1, [end - start, ...] in the table's dtype.
    """

    fingerprint: str
    read: Callable[[int, int], np.ndarray]


class Objective(nnx.Module):
    """A network and its loss. Subclasses take frozen configurations and `*, rngs: nnx.Rngs`.

    Attributes:
      requires_full_batch: whether the loss of an example depends on the others in its batch
        (in-batch negatives). The engine then refuses micro-batches, which would change the loss.
    """

    requires_full_batch: bool = False

    @property
    def frozen_paths(self) -> tuple[str, ...]:
        """Regular expressions of the paths of parameters that no optimizer may change.

        The loss gives them no gradient, and weight decay alone would wear them down.
        """
        return ()

    @property
    def limits(self) -> tuple[MetricLimit, ...]:
        """Limits on metrics of `loss`; checked whenever they are logged."""
        return ()

    def table_sources(self) -> dict[str, TableSource]:
        """Source of each `Table` that the module holds: by path, parts joined by '/'."""
        return {}

    def on_train_start(self, key: jax.Array) -> None:
        """Before step 0: sees the first parameters, random or imported.

        May change what `after_update` may. Does not run where a checkpoint is resumed.
        """

    def batch_specs(self) -> list[dict[str, dict[str, jax.ShapeDtypeStruct]]]:
        """One specification of a global batch for each bucket of shapes."""
        raise NotImplementedError

    def contract(self) -> Contract:
        """Contract that turns text into a vector under this objective."""
        raise NotImplementedError

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Corrupt a clean batch; runs under stop_gradient.

        A step skips it where the source of the batch has done it: `ModelDependentSource.corrupts`.
        """
        return batch

    def retrieve(self, batch: Batch, key: jax.Array) -> Batch:
        """Attaches evidence from an index that the module holds; runs under stop_gradient."""
        return batch

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """A pure function of a corrupted batch: the loss in nats, and metrics by name."""
        raise NotImplementedError

    def after_update(self, step: jax.Array, key: jax.Array) -> None:
        """Sees the updated parameters. May change Variables that are not parameters, in place."""

    def functions(self) -> dict[str, ModelFunction]:
        """Functions of the trained objective, by name; at most one embeds a side."""
        return {}


def check_batch(expected: Spec, found: Spec, where: str) -> None:
    """Compares groups, features, shapes and dtypes.

    Args:
      expected: a specification from `Objective.batch_specs`.
      found: what the pipeline gives; leaves have `shape` and `dtype`.
      where: named in the message.

    Raises:
      BatchError: with one line for each feature that is missing, unexpected or different.
    """
    want = {(g, f): leaf for g, features in expected.items() for f, leaf in features.items()}
    have = {(g, f): leaf for g, features in found.items() for f, leaf in features.items()}
    lines = []
    for group, feature in sorted(want.keys() | have.keys()):
        name = f"{group}.{feature}"
        if (group, feature) not in have:
            lines.append(f"  {name}: expected {_describe(want[group, feature])}, found nothing")
        elif (group, feature) not in want:
            lines.append(f"  {name}: not expected, found {_describe(have[group, feature])}")
        elif _describe(want[group, feature]) != _describe(have[group, feature]):
            lines.append(
                f"  {name}: expected {_describe(want[group, feature])}, "
                f"found {_describe(have[group, feature])}"
            )
    if lines:
        raise BatchError(
            f"{where} does not give the batch that the objective expects:\n"
            + "\n".join(lines)
            + "\nSizes come from the gin macros for rows, length and segments: the pipeline and "
            "the objective must be bound to the same ones."
        )


def _describe(leaf: Any) -> str:
    return f"{jnp.dtype(leaf.dtype).name}{list(leaf.shape)}"
