"""Compile the trainer's step for a slice and read its cost from the program."""

import dataclasses
import math
import re
import time
from typing import Any

import jax

from t5x_style.accelerators.generations import Chip
from t5x_style.accelerators.slices import Slices
from t5x_style.interfaces import objective
from t5x_style.preflight import collectives, flops, hlo, largest, traffic
from t5x_style.preflight.collectives import LINKS
from t5x_style.preflight.configuration import Training
from t5x_style.step import compiled_step, train_state, train_step

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_REFUSALS = (
    r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)",
    r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm",
)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes of HBM on one device.

    Attributes:
      arguments: state and batch.
      temporaries: everything between, at the worst moment.
      outputs: results other than the new state, which replaces the old one.
      program: the code itself.
      limit: what a device has for programs.
    """

    arguments: int
    temporaries: int
    outputs: int
    program: int
    limit: int

    @property
    def total(self) -> int:
        return self.arguments + self.temporaries + self.outputs + self.program


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Least seconds of a step by each of four peaks; None where no program was compiled.

    Attributes:
      compute: products over the bfloat16 peak.
      hbm: the program's own traffic over the HBM's bandwidth.
      ici: bytes that a device must send inside its slice, over all of its links.
      dcn: bytes that a device must send to other slices; 0 for a single slice.
    """

    compute: float
    hbm: float | None
    ici: float | None
    dcn: float | None

    @property
    def bound(self) -> float:
        """No step is faster, if each overlaps with the others entirely."""
        return max(self.compute, self.hbm or 0.0, self.ici or 0.0, self.dcn or 0.0)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of one step of one training on one slice.

    Attributes:
      parameters: trainable numbers.
      rows: of each token group, in all.
      requires_full_batch: of the objective: micro-batches are then no remedy.
      flops: as they run, rematerialised products included; of all devices together.
      after_update_flops: those among them that `after_update` runs, such as to refresh an index.
      model_flops: three times those of the loss, the usual measure of utilisation.
      unknown_loops: loops with products whose trips depend on data; counted as one trip.
      collectives, hbm_traffic, largest_arrays: of the compiled program; None if the compiler
        refused it.
      seconds: that compilation took.
    """

    topology: Slices
    mesh: dict[str, int]
    parameters: int
    rows: dict[str, int]
    requires_full_batch: bool
    memory: Memory
    flops: float
    after_update_flops: float
    model_flops: float
    unknown_loops: int
    roofline: Roofline
    collectives: list[collectives.Collective] | None
    hbm_traffic: int | None
    largest_arrays: list[largest.Made] | None
    seconds: float

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.memory.limit


@dataclasses.dataclass(frozen=True)
class Traced:
    """The step of one training, for one bucket of shapes.

    Attributes:
      step: of `compiled_step.trace`; its `lower().compile()` is the slice's program.
      loss: the jaxpr of the loss of a corrupted batch, without gradient.
      after_update: the jaxpr of what follows an update.
      module: the objective, without arrays.
      parameters: trainable numbers.
      rows: of each token group, in all.
      argument_bytes: of state and batch, on each device.
    """

    step: Any
    loss: Any
    after_update: Any
    module: objective.Objective
    parameters: int
    rows: dict[str, int]
    argument_bytes: int


def examine(training: Training, topology: Slices) -> Cost:
    """Checks, traces and compiles the step for every bucket of shapes; returns the costliest.

    Raises:
      PartitioningError, BatchError, ValueError: what `Trainer` would refuse.
    """
    costs = [_cost(one, training, topology) for one in trace(training)]
    return max(costs, key=lambda cost: (cost.memory.total, cost.flops))


def trace(training: Training) -> list[Traced]:
    """Checks and traces the step that the trainer would run, for every bucket of shapes."""
    partitioner = training.partitioner
    definition, state, shardings = train_state.create(
        training.objective,
        training.optimizer,
        partitioner,
        training.seed,
        training.micro_batches,
        corrupted=training.corrupted,
        abstract=True,
    )
    module = definition.module(state.params, state.variables)
    step = compiled_step.jit(definition, partitioner, shardings)
    found = []
    for specs in module.batch_specs():
        compiled_step.check(module, specs, partitioner, training.micro_batches)
        found.append(
            Traced(
                step=compiled_step.trace(step, partitioner, state, specs),
                loss=_loss(definition, partitioner, state, specs),
                after_update=_after_update(definition, partitioner, state),
                module=module,
                parameters=sum(leaf.size for leaf in jax.tree.leaves(state.params)),
                rows=compiled_step.rows_of(specs),
                argument_bytes=_bytes_per_device(state)
                + _bytes_per_device(specs, partitioner.batch_sharding),
            )
        )
    return found


def _loss(definition: Any, partitioner: Any, state: Any, specs: Any) -> Any:
    def before_loss(params: Any, variables: Any, batch: Any, key: Any) -> Any:
        module = definition.module(params, variables)
        return train_step.before_loss(definition, module, batch, key, key)

    def loss(params: Any, variables: Any, batch: Any, key: Any) -> jax.Array:
        module: objective.Objective = definition.module(params, variables)
        module.train()
        with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
            return module.loss(batch, key)[0].value()

    arguments = (state.params, state.variables)
    batch = jax.eval_shape(before_loss, *arguments, specs, state.key)
    return jax.make_jaxpr(loss)(*arguments, batch, state.key)


def _after_update(definition: Any, partitioner: Any, state: Any) -> Any:
    def after_update(params: Any, variables: Any, step: Any, key: Any) -> Any:
        with jax.sharding.use_abstract_mesh(partitioner.mesh.abstract_mesh):
            return train_step.after_update(definition, params, variables, step, key)

    return jax.make_jaxpr(after_update)(state.params, state.variables, state.step, state.key)


def products(training: Training) -> tuple[float, float]:
    """FLOPs of a step's products as run, and of those after the update; compiles nothing."""
    found = trace(training)
    return (
        sum(flops.count(one.step.jaxpr).flops for one in found),
        sum(flops.count(one.after_update).flops for one in found),
    )


def _cost(traced: Traced, training: Training, topology: Slices) -> Cost:
    counted = flops.count(traced.step.jaxpr)
    device = topology.generation.device
    begin = time.perf_counter()
    said: list[collectives.Collective] | None = None
    moved: int | None = None
    made: list[largest.Made] | None = None
    try:
        compiled = traced.step.lower().compile()
    except jax.errors.JaxRuntimeError as error:
        memory = _refused(str(error), traced.argument_bytes, device.hbm)
        if memory is None:
            raise
    else:
        memory = _memory(compiled.memory_analysis(), device.hbm)
        program = hlo.parse(compiled.as_text())
        said = collectives.collect(program, topology.all_devices // topology.count)
        moved = traffic.hbm_bytes(program)
        made = largest.largest(program)
    return Cost(
        topology=topology,
        mesh={name: int(size) for name, size in training.partitioner.mesh.shape.items()},
        parameters=traced.parameters,
        rows=traced.rows,
        requires_full_batch=traced.module.requires_full_batch,
        memory=memory,
        flops=counted.flops,
        after_update_flops=flops.count(traced.after_update).flops,
        model_flops=3 * flops.count(traced.loss).flops,
        unknown_loops=counted.unknown_loops,
        roofline=_roofline(counted.flops / topology.all_devices, moved, said, device),
        collectives=said,
        hbm_traffic=moved,
        largest_arrays=made,
        seconds=time.perf_counter() - begin,
    )


def _roofline(
    products: float, moved: int | None, said: list[collectives.Collective] | None, device: Chip
) -> Roofline:
    """Of one device: FLOPs, bytes between it and its HBM, and collectives."""
    sent = {link: None if said is None else collectives.sent_bytes(said, link) for link in LINKS}
    return Roofline(
        compute=products / device.flops,
        hbm=_seconds(moved, device.hbm_bandwidth),
        ici=_seconds(sent["ici"], device.ici_bandwidth),
        dcn=_seconds(sent["dcn"], device.dcn_bandwidth),
    )


def _seconds(size: int | None, bandwidth: float) -> float | None:
    return None if size is None else size / bandwidth


def _memory(analysis: Any, limit: float) -> Memory:
    return Memory(
        arguments=analysis.argument_size_in_bytes,
        temporaries=analysis.temp_size_in_bytes,
        # the new state lies where the old one, which is donated, lay
        outputs=analysis.output_size_in_bytes - analysis.alias_size_in_bytes,
        program=analysis.generated_code_size_in_bytes,
        limit=int(limit),
    )


def _refused(message: str, arguments: int, limit: float) -> Memory | None:
    """Memory of a program that the compiler refused as too large; None for another refusal.

    Its message gives the sum; what is not arguments must be temporaries.
    """
    match = next(filter(None, (re.search(one, message) for one in _REFUSALS)), None)
    if match is None:
        return None
    needed = int(float(match[1]) * _UNITS[match[2]])
    return Memory(arguments, max(needed - arguments, 0), 0, 0, int(limit))


def _bytes_per_device(tree: Any, sharding: Any = None) -> int:
    """Of shapes in their own shardings, or all in one."""

    def size(leaf: Any) -> int:
        shape = (sharding or leaf.sharding).shard_shape(leaf.shape)
        return math.prod(shape) * getattr(leaf.dtype, "itemsize", 8)  # a key is two words

    return sum(size(leaf) for leaf in jax.tree.leaves(tree))
