"""Is a SavedModel the model it was made from? Loaded back, it must give the same numbers."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from t5x_style.checkpoints.restored_model import Restored
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.objective import GENERATE, ModelFunction
from t5x_style.serving import saved_model
from t5x_style.step import jitted_functions

# What TensorFlow says of a program's calling convention that is newer than itself.
_TOO_NEW = re.compile(r"XlaCallModuleOp with version \d+ is not supported[^\n]*")
_ROWS = (1, 5, 2)  # rows of the compared batches; TensorFlow compiles each shape


@dataclasses.dataclass(frozen=True)
class Difference:
    """The largest absolute difference of two outputs of the same text, and where it was.

    Attributes:
      value: of one component; NaN where one of the outputs is, infinite where ids differ.
      where: the row, the batch and the output, in words.
    """

    value: float
    where: str


def compare(folder: Path, model: Restored, vocabulary: Vocabulary) -> dict[str, Difference]:
    """Signature -> its largest difference from the model, over rows as a tokenizer makes them.

    Batches of several sizes, from one token a row to as many as the contract allows, with rows of
    different lengths and any ids at padding.

    Args:
      folder: of the SavedModel; TensorFlow loads it in this process.
      model: that it was made from.
      vocabulary: ids are drawn from it.

    Raises:
      ExportError: the program is newer than the TensorFlow of this process.
    """
    tf = saved_model.cpu_only_tensorflow()
    try:
        return _compared(folder, model, vocabulary)
    except tf.errors.InvalidArgumentError as error:
        if found := _TOO_NEW.search(str(error)):
            raise saved_model.ExportError(
                f"TensorFlow {tf.__version__} does not run the programs that JAX writes here "
                f"({found[0]}). Install the two versions that setup.py names: pip install -e ."
            ) from error
        raise


def _compared(folder: Path, model: Restored, vocabulary: Vocabulary) -> dict[str, Difference]:
    """See `compare`."""
    signatures = saved_model.cpu_only_tensorflow().saved_model.load(str(folder)).signatures
    max_lengths = saved_model.lengths(model)
    jitted = jitted_functions.jitted_functions(model.graphdef, model.functions)
    functions = jitted_functions.bound(jitted, model.params, model.variables)
    names = saved_model.signatures(model)
    return {
        name: max(
            (
                _difference(
                    name,
                    signatures[name],
                    functions[names[name]],
                    group,
                )
                for group in _inputs(name, max_lengths[name], vocabulary)
            ),
            # NaN compares as nothing; here it is the worst.
            key=lambda found: np.inf if np.isnan(found.value) else found.value,
        )
        for name in max_lengths
    }


def require(differences: Mapping[str, Difference], tolerance: float) -> float:
    """The largest of all differences; ExportError where one is above `tolerance`, or NaN."""
    wrong = [
        f"  {name}: {found.value:.3g} at {found.where}"
        for name, found in differences.items()
        if not found.value <= tolerance
    ]
    if wrong:
        raise saved_model.ExportError(
            f"the SavedModel does not give the model's vectors; expected differences of at most "
            f"{tolerance:g}, found\n"
            + "\n".join(wrong)
            + "\nNothing was published. A model that computes in bfloat16 rounds differently under "
            "another compiler: export it with dtype = 'float32', or bind export.export.tolerance."
        )
    return max(found.value for found in differences.values())


def groups(max_length: int, vocabulary: Vocabulary) -> Iterator[dict[str, np.ndarray]]:
    """Token groups of unpacked rows, [CLS] ... [SEP] and padding; the same at every call.

    tokens, positions, segment_ids int32 [B, L]; cls_at int32 [B, 1]; segment_valid bool [B, 1].
    """
    rng = np.random.default_rng(0)
    for rows, length in zip(_ROWS, (1, max_length // 2 + 1, max_length), strict=True):
        tokens = rng.integers(0, vocabulary.size, (rows, length), np.int32)
        counts = np.linspace(length, 1, rows).astype(np.int64)  # the first row is full
        mask = np.arange(length) < counts[:, None]
        tokens[np.arange(rows), counts - 1] = vocabulary.sep
        tokens[:, 0] = vocabulary.cls
        tokens[-1, counts[-1] :] = vocabulary.pad  # other rows have any ids there
        yield {
            "tokens": tokens,
            "positions": np.where(mask, np.arange(length), 0).astype(np.int32),
            "segment_ids": mask.astype(np.int32),
            "cls_at": np.zeros((rows, 1), np.int32),
            "segment_valid": np.ones((rows, 1), bool),
        }


def _inputs(name: str, max_length: int, vocabulary: Vocabulary) -> Iterator[dict[str, np.ndarray]]:
    """`groups`; of a signature that reads with a [SEP] and a [MASK] inside of texts.

    Of one that writes texts with `language`, int32 [B]: what these begin with, any ids.
    """
    for group in groups(max_length, vocabulary):
        length = group["tokens"].shape[1]
        if name in saved_model.READING and length > 4:
            tokens = group["tokens"]
            longer = group["segment_ids"].sum(axis=1) > length // 2
            tokens[tokens == vocabulary.mask] = vocabulary.unk  # more than are filled give NaN
            tokens[longer, 1] = vocabulary.mask
            tokens[longer, length // 2 - 1] = vocabulary.sep
        if name == GENERATE:
            rows = len(group["tokens"])
            first = np.random.default_rng(rows).integers(0, vocabulary.size, rows, np.int32)
            group["language"] = first
        yield group


def _difference(
    name: str, signature: Any, function: ModelFunction, group: Mapping[str, Any]
) -> Difference:
    tokens, mask = group["tokens"], group["segment_ids"]
    inputs = {"input_ids": tokens, "attention_mask": mask}
    if kinds := function.representations:
        given = saved_model.outputs(function(group, kinds=kinds))
    elif name == GENERATE:
        inputs["language"] = group["language"]
        given = saved_model.written_outputs(function(group, group["language"]))
    else:
        given = saved_model.read_outputs(function(group))
    tf = saved_model.cpu_only_tensorflow()
    made = signature(**{one: tf.constant(array) for one, array in inputs.items()})
    expected = {output: np.asarray(array) for output, array in given.items()}
    found = {output: array.numpy() for output, array in made.items()}
    shapes = [{output: one.shape for output, one in side.items()} for side in (expected, found)]
    if shapes[0] != shapes[1]:
        raise saved_model.ExportError(
            f"{name}: expected outputs {shapes[0]} of the SavedModel, found {shapes[1]}"
        )
    value, output, row = largest_difference(found, expected)
    where = f"row {row} ({mask[row].sum()} tokens) of a batch of {list(tokens.shape)}"
    return Difference(value, f"{where}, output {output}")


def largest_difference(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> tuple[float, str, int]:
    """The largest difference of all outputs, as of `Difference`, its output, and its row.

    Args:
      found, expected: output -> [B, ...], of equal shapes.
    """
    table = np.stack([_by_row(found[output], array) for output, array in expected.items()])
    at, row = np.unravel_index(np.argmax(table), table.shape)  # of a NaN, if there is one
    return float(table[at, row]), [*expected][at], int(row)


def _by_row(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """[B] float64: the largest absolute difference in each row; NaN where there is one.

    Of ids, which are near each other by chance alone: 0 where all are equal, otherwise infinite. A
    row without any entry does not differ.
    """
    if expected.dtype.kind in "iu":
        difference = np.where(found == expected, 0.0, np.inf)
    else:
        same = found == expected  # among them infinities, of texts without a span
        wide = found.astype(np.float64), expected.astype(np.float64)
        difference = np.abs(np.subtract(*wide, out=np.zeros(same.shape), where=~same))
    return np.asarray(difference.reshape(len(difference), -1).max(axis=1, initial=0.0))
