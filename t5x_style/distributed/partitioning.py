"""Where arrays live: the mesh, the logical-axis rules, and the shardings of state and batch."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jax
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from t5x_style.distributed import device_grid

# Variables are created abstractly and placed by `out_shardings`; flax's eager placement would fail
# outside a mesh and for devices that are not attached.
nnx.use_eager_sharding(False)

AXES = ("data", "fsdp", "tensor")
BATCH_AXES = ("data", "fsdp")

# Every name that a parameter or a table may carry. None means replicated along that axis.
STANDARD_RULES: tuple[tuple[str, str | tuple[str, ...] | None], ...] = (
    ("vocab", "tensor"),
    ("embed", "fsdp"),
    ("heads", "tensor"),
    ("kv", None),
    ("mlp", "tensor"),
    ("layers", None),
    ("position", None),
    ("type", None),
    ("norm", None),
    ("score", None),
    ("corpus", ("data", "fsdp", "tensor")),
)


class PartitioningError(ValueError):
    """A size does not divide by the mesh, or a logical name has no rule."""


@dataclasses.dataclass(frozen=True)
class MeshShape:
    """How many devices each axis has; `data` = -1 takes all that the others leave.

    Slices are joined along `data` only, so that `fsdp` and `tensor` never cross their network.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1

    def resolve(self, devices: int, slices: int = 1) -> tuple[int, int, int]:
        """The three sizes.

        Args:
          devices: of all slices together.
          slices: equal ones, between which only `data` may be split.

        Raises:
          PartitioningError: the product is not the number of devices, or fsdp and tensor do not
            fit into a slice. It names the nearest meshes that do.
        """
        fixed = self.fsdp * self.tensor
        if self.fsdp < 1 or self.tensor < 1 or self.data == 0 or self.data < -1:
            raise PartitioningError(f"expected mesh axes of at least 1, found {self}")
        data = devices // fixed if self.data == -1 else self.data
        inside = devices // slices
        if data * fixed != devices:
            self._refuse(f"expected a product of {devices}, the number of devices", devices, slices)
        if inside % fixed:
            self._refuse(
                f"expected fsdp x tensor to divide {inside}, the devices of each of {slices} "
                f"slices, found {fixed}; slices are joined along data only",
                devices,
                slices,
            )
        return data, self.fsdp, self.tensor

    def _refuse(self, problem: str, devices: int, slices: int) -> NoReturn:
        near = device_grid.nearest(self.fsdp, self.tensor, devices, slices)
        meshes = "; ".join(f"data={one[0]}, fsdp={one[1]}, tensor={one[2]}" for one in near)
        raise PartitioningError(
            f"mesh data={self.data}, fsdp={self.fsdp}, tensor={self.tensor}: {problem}. "
            f"Nearest meshes: {meshes}. Set partitioning.MeshShape in gin."
        )


class Partitioner:
    """A mesh and the rules that place things on it."""

    def __init__(
        self,
        mesh_shape: MeshShape = MeshShape(),
        rules: tuple[tuple[str, Any], ...] = STANDARD_RULES,
        devices: list[jax.Device] | None = None,
    ):
        """Args:
        mesh_shape: sizes of the axes ('data', 'fsdp', 'tensor').
        rules: (logical name, mesh axis, tuple of axes or None); every name in use needs one.
        devices: all devices by default; a topology's devices to compile for a pod not at hand.
          Of several slices, each gets its own part of the data axis, in the order of their numbers.

        Raises:
          PartitioningError: the mesh does not divide the devices or a slice's; a rule is wrong.
          UnequalSlicesError: slices of different sizes.
        """
        devices = jax.devices() if devices is None else devices
        # Data outermost: gradients cross the slow network between slices, the rest stays inside.
        slices = device_grid.by_slice(devices)
        grid = device_grid.arrange(mesh_shape.resolve(len(devices), len(slices)), slices)
        self.mesh = Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))
        self.rules = tuple((name, _axes(axis)) for name, axis in rules)
        self._check_rules()

    def _check_rules(self) -> None:
        for name, axis in self.rules:
            for one in axis if isinstance(axis, tuple) else (axis,):
                if one is not None and one not in AXES:
                    raise PartitioningError(
                        f"rule for {name!r}: expected mesh axes among {AXES}, found {one!r}"
                    )

    @property
    def batch_sharding(self) -> NamedSharding:
        """Rows over 'data' and 'fsdp', everything else whole."""
        return NamedSharding(self.mesh, PartitionSpec(BATCH_AXES))

    @property
    def ways(self) -> int:
        """Number of parts that the rows of a batch are divided into."""
        return int(np.prod([self.mesh.shape[axis] for axis in BATCH_AXES]))

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def platform(self) -> str:
        """'cpu', 'gpu' or 'tpu': of the mesh, which this process may only compile for."""
        return self.mesh.devices.flat[0].platform

    def shardings(self, abstract: Any) -> Any:
        """The sharding of each leaf of a tree of abstract variables with logical names.

        Leaves without names are replicated. Works for parameters and for an optimizer's state,
        since optax keeps the parameters' metadata on the moments.

        Raises:
          PartitioningError: a logical name has no rule, or an array does not divide by its axes.
        """
        self._require_rules(abstract)
        with nnx.logical_axis_rules(self.rules):
            shardings = nnx.get_named_sharding(abstract, self.mesh)
        jax.tree.map_with_path(self._require_divisible, abstract, shardings)
        return jax.tree.map(lambda s: s if s is not None else self.replicated, shardings)

    def _require_rules(self, abstract: Any) -> None:
        known = {name for name, _ in self.rules}
        for path, names in logical_names(abstract).items():
            for name in names:
                if name is not None and name not in known:
                    raise PartitioningError(
                        f"{path}: logical axis {name!r} has no rule; known names: {sorted(known)}. "
                        "Add it to partitioning.Partitioner.rules."
                    )

    def _require_divisible(self, path: Any, leaf: Any, sharding: NamedSharding) -> None:
        for size, axes in zip(leaf.shape, sharding.spec, strict=False):
            ways = int(np.prod([self.mesh.shape[a] for a in _tuple(axes)]))
            if size % ways:
                raise PartitioningError(
                    f"{jax.tree_util.keystr(path)}: size {size} does not divide by {ways} "
                    f"(mesh axes {axes}). Pad it, or change the mesh."
                )

    def check_rows(self, rows: int, what: str) -> None:
        """Raises PartitioningError unless `rows` divides by the data and fsdp axes."""
        if rows % self.ways:
            raise PartitioningError(
                f"{what}: {rows} rows do not divide by {self.ways}, the devices on mesh axes "
                f"{BATCH_AXES} of {dict(self.mesh.shape)}. Choose a batch that is a multiple of "
                f"{self.ways}, or another mesh."
            )

    def local_rows(self, rows: int) -> np.ndarray:
        """Rows of `rows` global rows that this process must supply: sorted int64 indices."""
        slices = self.batch_sharding.addressable_devices_indices_map((rows,)).values()
        return np.unique(np.concatenate([np.arange(rows)[index] for index in slices]))

    def place_batch(
        self, local: Mapping[str, Mapping[str, np.ndarray]], rows: dict[str, int]
    ) -> Any:
        """Turns this process's rows into global arrays.

        Args:
          local: group -> feature -> this process's rows, in order.
          rows: global number of rows of each group.
        """
        return {
            group: {
                name: jax.make_array_from_process_local_data(
                    self.batch_sharding, array, (rows[group], *array.shape[1:])
                )
                for name, array in features.items()
            }
            for group, features in local.items()
        }

    def init(self, make: Callable[[], Any]) -> tuple[Any, Any]:
        """Runs `make` so that every array is created directly in its sharding.

        Returns:
          the tree and the tree of its shardings.
        """
        shardings = self.abstract(make)[1]
        return jax.jit(make, out_shardings=shardings)(), shardings

    def abstract(self, make: Callable[[], Any]) -> tuple[Any, Any]:
        """Result of `init` with shapes in place of arrays; runs nothing on the mesh."""
        shapes = jax.eval_shape(make)
        shardings = self.shardings(shapes)

        def placed(leaf: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        return jax.tree.map(placed, shapes, shardings), shardings


def gathered(parameter: jax.Array, names: tuple[str | None, ...]) -> jax.Array:
    """A parameter as a network should use it: with the axes named 'embed' whole on every device.

    'fsdp' cuts both the rows of a batch and, by the standard rules, the features of parameters.
    Left alone, the partitioner may bring together the activations, which are much larger. Asked for
    where a parameter is used, as in ZeRO-3 (arXiv:1910.02054), only one layer is whole at a time,
    and its gradient goes back to its pieces. No effect unless the mesh in context
    (`jax.sharding.use_abstract_mesh`) has several devices on 'fsdp': asking at each use also keeps
    the gradients of two uses from being summed before they cross devices.

    Args:
      parameter: already in the dtype of the computation: fewer bytes to gather.
      names: logical name of each axis.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape["fsdp"] == 1:
        return parameter
    free = PartitionSpec.UNCONSTRAINED
    spec = PartitionSpec(*(None if name == "embed" else free for name in names))
    return jax.lax.with_sharding_constraint(parameter, spec)


def logical_names(abstract: Any) -> dict[str, tuple[str | None, ...]]:
    """Path -> logical axis names of every Variable in the tree; () where it carries none."""
    found: dict[str, tuple[str | None, ...]] = {}
    variables = jax.tree_util.tree_leaves_with_path(
        abstract, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )
    for path, leaf in variables:
        if isinstance(leaf, nnx.Variable):
            names = leaf.get_metadata().get("out_sharding") or ()
            found[jax.tree_util.keystr(path)] = tuple(names)
    return found


def _axes(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _tuple(axes: Any) -> tuple[str, ...]:
    if axes is None:
        return ()
    return axes if isinstance(axes, tuple) else (axes,)
