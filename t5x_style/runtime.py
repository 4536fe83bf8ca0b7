"""The process and its devices: distributed start-up, compilation cache."""

import os
from pathlib import Path

import jax


def start() -> None:
    """Joins the other processes, if any, and turns the compilation cache on. Call it once, first.

    Several processes are described by JAX's own variables: JAX_COORDINATOR_ADDRESS,
    JAX_NUM_PROCESSES and JAX_PROCESS_ID. On Cloud TPU set JAX_DISTRIBUTED=1 instead: JAX finds the
    rest out by itself.

    Raises:
      ValueError: only some of the three variables are set.
    """
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    found = {name: os.environ.get(name) for name in names}
    if any(found.values()):
        missing = [name for name, value in found.items() if not value]
        if missing:
            raise ValueError(
                f"to run in several processes set all of {', '.join(names)}; missing: "
                + ", ".join(missing)
            )
        address, count, number = (str(found[name]) for name in names)
        jax.distributed.initialize(address, int(count), int(number))
    elif os.environ.get("JAX_DISTRIBUTED") == "1":
        jax.distributed.initialize()
    _enable_compilation_cache()


def _enable_compilation_cache() -> None:
    """A folder that only its owner can write: a cache entry is a program that will be run."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    path = Path(folder) if folder else Path.home() / ".cache" / "kennel" / "jax"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    jax.config.update("jax_compilation_cache_dir", str(path))
