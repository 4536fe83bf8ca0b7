"""A model's functions as portable programs: files that need JAX to run, and none of our code.

    programs/embed_query.stablehlo     one for each function, by jax.export, for cpu, cuda and tpu;
             answer.stablehlo          of a reader, too: `answer` or `fill`
             score.stablehlo           of a re-ranker: how well a question and a passage go together
    programs/parameters.safetensors    what they are called with, once for all of them

A program takes token ids and a mask of any batch and length; outputs have the names of a SavedModel
(`serving.saved_model`). Neither file can carry code that Python would run.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from t5x_style.serving import saved_model
from t5x_style.serving.saved_model import Outputs, Portable

FOLDER = "programs"
_PARAMETERS = "parameters.safetensors"
_SUFFIX = ".stablehlo"
_PLATFORMS = {"gpu": "cuda"}  # what JAX calls a backend -> and a platform of a program


class ProgramError(ValueError):
    """Files that are no programs, or programs that this version of JAX does not run."""


def write(folder: Path, model: Portable) -> None:
    """Writes the files into an existing folder.

    Args:
      folder: FOLDER of a bundle.
      model: of `saved_model.portable`.
    """
    safetensors.numpy.save_file(
        {path: np.ascontiguousarray(array) for path, array in model.arrays.items()},
        folder / _PARAMETERS,
    )
    rows, length = jax.export.symbolic_shape("b, s")
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    arrays = {
        path: jax.ShapeDtypeStruct(array.shape, array.dtype) for path, array in model.arrays.items()
    }
    for name, function in model.functions.items():
        exported = jax.export.export(jax.jit(function), platforms=saved_model.PLATFORMS)
        program = exported(arrays, tokens, tokens).serialize()
        (folder / f"{name}{_SUFFIX}").write_bytes(program)


class Programs:
    """The programs of a folder, on this process's first device.

    Attributes:
      names: of the functions.
    """

    def __init__(self, folder: Path) -> None:
        """Reads the folder.

        Raises:
          ProgramError: there is none, a file is damaged, or a program does not run here.
        """
        files = sorted(folder.glob(f"*{_SUFFIX}"))
        if not files:
            raise ProgramError(f"{folder}: expected programs (*{_SUFFIX}), found none")
        names = [file.name.removesuffix(_SUFFIX) for file in files]
        exported = {name: read_program(folder, name) for name in names}
        self._calls = {name: jax.jit(one.call) for name, one in exported.items()}
        self._outputs = {
            name: jax.tree.unflatten(one.out_tree, one.out_avals) for name, one in exported.items()
        }
        self._arrays = read_parameters(folder)
        self.names = tuple(self._calls)
        self._compiled: dict[tuple[str, tuple[int, ...]], Any] = {}
        self._locks: dict[tuple[str, tuple[int, ...]], threading.Lock] = {}

    @property
    def compiled(self) -> int:
        """How many programs were compiled: one for each function and shape."""
        return len(self._compiled)

    def output_shape(self, name: str, output: str) -> tuple[Any, ...]:
        """The shape of an output of a function; sizes of batches are symbols."""
        return tuple(self._outputs[name][output].shape)

    def compile(self, name: str, shape: tuple[int, ...]) -> None:
        """Compiles a function for batches of a shape, once; from any thread.

        Args:
          name: of the function.
          shape: (b, s).
        """
        with self._locks.setdefault((name, shape), threading.Lock()):
            if (name, shape) in self._compiled:
                return
            tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
            lowered = self._calls[name].lower(self._arrays, tokens, tokens)
            self._compiled[name, shape] = lowered.compile()

    def __call__(self, name: str, tokens: np.ndarray, mask: np.ndarray) -> Outputs:
        """What a function makes of texts, still on the device; compiled first for a new shape.

        Args:
          name: of the function.
          tokens: [b, s] int32.
          mask: [b, s] int32, ones and then zeros.
        """
        self.compile(name, tokens.shape)
        found: Outputs = self._compiled[name, tokens.shape](self._arrays, tokens, mask)
        return found


def read_program(folder: Path, name: str) -> jax.export.Exported:
    """A function of a folder, f(arrays, tokens, mask).

    Raises:
      ProgramError: it is damaged, or does not run here.
    """
    file = folder / f"{name}{_SUFFIX}"
    try:
        exported = jax.export.deserialize(bytearray(file.read_bytes()))
    except Exception as error:  # flatbuffers and MLIR raise whatever they meet
        raise ProgramError(
            f"{file}: JAX {jax.__version__} cannot read this program ({error}). Make the bundle "
            "again with this version, or install the one that its manifest names."
        ) from error
    platform = jax.default_backend()
    known = [_PLATFORMS.get(one, one) for one in exported.platforms]
    if _PLATFORMS.get(platform, platform) not in known:
        raise ProgramError(f"{file}: is for {known}, but this process runs on {platform}")
    return exported


def read_parameters(folder: Path) -> Mapping[str, jax.Array]:
    """What all functions of a folder are called with first.

    Raises:
      ProgramError: the file is damaged.
    """
    file = folder / _PARAMETERS
    try:
        arrays = safetensors.numpy.load_file(file)
    except (safetensors.SafetensorError, OSError) as error:
        raise ProgramError(f"{file}: expected a whole safetensors file: {error}") from error
    return {path: jnp.asarray(array) for path, array in arrays.items()}
