"""A trained model ready for use: its functions with parameters, checked against its contract."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from t5x_style.checkpoints import checkpointing, checksums
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.joint_texts import JointTexts
from t5x_style.interfaces.objective import SCORE, ModelFunction, embedding_function, function_of
from t5x_style.interfaces.representation import (
    DENSE,
    Representation,
    Representations,
    function_name,
    none_of,
)
from t5x_style.interfaces.texts import EncodeSource
from t5x_style.mining import pair_scoring
from t5x_style.retrieval import encoding
from t5x_style.step import jitted_functions, static_tables
from t5x_style.step.train_state import MakeObjective


@dataclasses.dataclass(frozen=True)
class Trained:
    """Attributes:
    functions: what the objective offers, jitted, by name; called with a token group.
    contract: of the objective, equal to the one saved in training.
    partitioner: the mesh that the parameters lie on.
    fingerprint: of the checkpoint.
    restored: what the functions were made of; an export needs it.
    """

    functions: Mapping[str, ModelFunction]
    contract: Contract
    partitioner: Partitioner
    fingerprint: str
    restored: "Restored | None" = None

    def encode(self, side: str, source: EncodeSource, kind: str = DENSE) -> Representation:
        """As `text_encoder.TextEncoder.encode`."""
        return self.represent(side, source, (kind,))[kind]

    def represent(self, side: str, source: EncodeSource, kinds: Sequence[str]) -> Representations:
        """As `text_encoder.TextEncoder.represent`."""
        represent = self._represent(side, source, kinds)
        if not source.ids:
            return {kind: none_of(kind) for kind in kinds}
        count, name = len(source.ids), function_name(side)
        (found,) = encoding.represent_parts(
            represent, [source], count, self.partitioner, name, report=True
        )
        return found

    def encode_parts(
        self, side: str, source: EncodeSource, bounds: Sequence[tuple[int, int]]
    ) -> Iterator[np.ndarray]:
        """`represent_parts` of dense vectors alone.

        Yields:
          [end - start, D] float32.
        """
        return (part[DENSE] for part in self.represent_parts(side, source, bounds, (DENSE,)))

    def represent_parts(
        self,
        side: str,
        source: EncodeSource,
        bounds: Sequence[tuple[int, int]],
        kinds: Sequence[str],
    ) -> Iterator[Representations]:
        """The representations of the texts `start` to `end - 1` of a source, part after part.

        Args:
          side: 'query' or 'passage'.
          source: holds the texts.
          bounds: (start, end) of each part.
          kinds: of representations, all of one forward pass.

        Yields:
          by kind, of the part's texts in their order.

        Raises:
          ContractError: as `encode`, at once.
          RepresentationError: the model does not offer all of the kinds; at once.
        """
        represent = self._represent(side, source, kinds)
        parts = (source.part(start, end) for start, end in bounds)
        count = sum(end - start for start, end in bounds)
        name = function_name(side)
        return encoding.represent_parts(
            represent, parts, count, self.partitioner, name, report=True
        )

    def score_parts(
        self,
        texts: JointTexts,
        parts: Iterable[pair_scoring.Pairs],
        count: int,
    ) -> Iterator[np.ndarray]:
        """Scores pairs of a query and a passage with a re-ranker.

        Args:
          texts: where the pairs come from.
          parts: query ids and passage ids of each part's pairs.
          count: pairs in all of them together.

        Yields:
          [n] float32, of each part.

        Raises:
          FunctionError: the model is no re-ranker.
          ContractError: the texts were tokenized otherwise than the model's contract says.
        """
        score = function_of(self.functions, SCORE, "a re-ranker, such as a cross-encoder")
        pair_scoring.check_texts(texts, self.contract)
        return pair_scoring.score_parts(score, texts, parts, count, self.partitioner, report=True)

    def _represent(
        self, side: str, source: EncodeSource, kinds: Sequence[str]
    ) -> encoding.Represent:
        function = embedding_function(self.functions, side, kinds)
        encoding.check_source(source, self.contract, side)
        return functools.partial(function, kinds=tuple(kinds))


@dataclasses.dataclass(frozen=True)
class Restored:
    """A trained objective in parts.

    Attributes:
      graphdef: merge(graphdef, params, variables) is the module.
      params, variables: with arrays; on the mesh they were restored to.
      functions: what the objective offers, by name.
      contract: of the objective, equal to the one saved in training.
    """

    graphdef: nnx.GraphDef
    params: nnx.State
    variables: nnx.State
    functions: Mapping[str, ModelFunction]
    contract: Contract


def restore(
    objective: MakeObjective, checkpoint: str, partitioner: Partitioner, step: int | None = None
) -> Restored:
    """Loads what a training stage left.

    Args:
      objective: the factory that was trained, with the same configuration.
      checkpoint: folder of the training stage, with checkpoints/ and contract.json.
      partitioner: mesh to put the parameters on.
      step: which checkpoint; the best by development metric by default, or else the newest.

    Raises:
      ContractError: the objective's contract is not the one saved in training.
      CheckpointError: the checkpoint is not there, damaged, or of another architecture.
      FileNotFoundError: there is no such folder, or no contract in it.
    """
    if not Path(checkpoint).is_dir():
        raise FileNotFoundError(f"{checkpoint}: not found. Expected the folder of a training stage")
    abstract = nnx.eval_shape(lambda: objective(rngs=nnx.Rngs(0)))
    contract = abstract.contract()
    saved = Contract.load(checkpoint).pooled(contract.pooling)
    if saved.similarity == "cosine" and contract.normalise:
        # Lengths are no part of a cosine: an index, which takes inner products, needs unit vectors.
        saved = dataclasses.replace(saved, normalise=True)
    contract.require(saved.cut_to(contract.token_vector_size, checkpoint), checkpoint)
    parts: Any = nnx.split(abstract, nnx.Param, ...)
    graphdef, *states = parts
    placed = [
        jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            state,
            partitioner.shardings(state),
        )
        for state in states
    ]
    params, variables = checkpointing.load(checkpoint, placed[0], placed[1], step)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, placed[1])
    variables = static_tables.fill(variables, abstract.table_sources(), shardings)
    return Restored(graphdef, params, variables, abstract.functions(), contract)


def load(
    objective: MakeObjective, checkpoint: str, partitioner: Partitioner, step: int | None = None
) -> Trained:
    """`restore`, with the functions compiled; arguments and errors as there."""
    model = restore(objective, checkpoint, partitioner, step)
    return _compiled(model, partitioner, fingerprint(checkpoint, step))


def _compiled(model: Restored, partitioner: Partitioner, fingerprint: str) -> Trained:
    jitted = jitted_functions.jitted_functions(model.graphdef, model.functions, partitioner.mesh)
    functions = jitted_functions.bound(jitted, model.params, model.variables)
    return Trained(functions, model.contract, partitioner, fingerprint, model)


def untrained(objective: MakeObjective, partitioner: Partitioner, seed: int) -> Trained:
    """A model as it begins, to compare a trained one with.

    Args:
      objective: the factory.
      partitioner: mesh to put the parameters on.
      seed: of the parameters.
    """

    def states() -> Any:
        return nnx.split(objective(rngs=nnx.Rngs(seed)), nnx.Param, ...)[1:]

    abstract = nnx.eval_shape(lambda: objective(rngs=nnx.Rngs(seed)))
    (params, variables), _ = partitioner.init(states)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, variables)
    variables = static_tables.fill(variables, abstract.table_sources(), shardings)
    parts = (params, variables, abstract.functions(), abstract.contract())
    return _compiled(
        Restored(nnx.graphdef(abstract), *parts), partitioner, f"untrained, seed {seed}"
    )


def fingerprint(checkpoint: str, step: int | None = None) -> str:
    """Of the weights of a training stage, as `Trained.fingerprint`; errors as in `restore`.

    Args:
      checkpoint: folder of the training stage.
      step: which checkpoint, as in `restore`.
    """
    return checksums.recorded(checkpointing.find(checkpoint, step, ("meta",)))
