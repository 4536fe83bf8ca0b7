"""Fill the tables of an objective, which a run reads from a source instead of a checkpoint.

A table such as a corpus' tokens is as large as the corpus and never changes: checkpoints leave it
out and name its fingerprint. Each process reads the rows of its own devices alone.
"""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx

from t5x_style.interfaces.objective import Table, TableSource
from t5x_style.step.optimizers import path_string


class TableError(ValueError):
    """A table without a source, or a source that is not the one a checkpoint was trained with."""


def fill(
    variables: nnx.State, sources: Mapping[str, TableSource], shardings: nnx.State
) -> nnx.State:
    """`variables` with every `Table` read from its source, each part on its own device.

    Args:
      variables: of the objective, concrete or abstract.
      sources: `Objective.table_sources`.
      shardings: of `variables`.

    Raises:
      TableError: a table has no source, a source no table, or it gives other rows than asked for.
    """
    flat = nnx.to_flat_state(variables)
    names = {path_string(path) for path, leaf in flat if isinstance(leaf, Table)}
    if names != set(sources):
        raise TableError(
            f"Objective.table_sources: expected a source for each of the tables {sorted(names)}, "
            f"found {sorted(sources)}"
        )
    where = dict(nnx.to_flat_state(shardings))

    def filled(path: tuple[Any, ...], leaf: Any) -> Any:
        if not isinstance(leaf, Table):
            return leaf
        name = path_string(path)
        return leaf.replace(_read(name, sources[name], leaf, where[path].get_value()))

    return nnx.from_flat_state([(path, filled(path, leaf)) for path, leaf in flat])


def _read(name: str, source: TableSource, leaf: Any, sharding: jax.sharding.Sharding) -> jax.Array:
    shape, dtype = leaf.get_value().shape, leaf.get_value().dtype

    def rows(index: Any) -> np.ndarray:
        start, end, _ = index[0].indices(shape[0])
        found = source.read(start, end)
        if found.shape != (end - start, *shape[1:]) or found.dtype != dtype:
            raise TableError(
                f"table {name}: expected rows {start} to {end - 1} as {np.dtype(dtype).name}"
                f"{[end - start, *shape[1:]]}, its source gives {found.dtype.name}"
                f"{list(found.shape)}"
            )
        return found[(slice(None), *index[1:])]

    return jax.make_array_from_callback(shape, sharding, rows)


def fingerprints(sources: Mapping[str, TableSource]) -> dict[str, str]:
    """Fingerprints by path, which a checkpoint stores."""
    return {name: source.fingerprint for name, source in sorted(sources.items())}


def require_same(saved: Mapping[str, str], sources: Mapping[str, TableSource], where: str) -> None:
    """Raises TableError unless the sources are those of a checkpoint.

    Args:
      saved: what the checkpoint remembers.
      sources: `Objective.table_sources` of this run.
      where: names the checkpoint.
    """
    found = fingerprints(sources)
    different = [
        f"  {name}: expected {saved.get(name, 'no such table')[:16]}, "
        f"found {found.get(name, 'no such table')[:16]}"
        for name in sorted(saved.keys() | found.keys())
        if saved.get(name) != found.get(name)
    ]
    if different:
        raise TableError(
            f"{where} was trained with other tables: what its index holds is not about these "
            "rows.\n" + "\n".join(different) + "\nGive the corpus that it was trained with, or "
            "use another MODEL_DIR and initialise_from its weights."
        )
