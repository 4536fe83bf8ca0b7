"""Requests that TensorFlow Serving sends itself when it loads a SavedModel, so that none waits.

    <version>/assets.extra/tf_serving_warmup_requests    TFRecords, a PredictionLog in each

A program is compiled for each shape of a batch. There is one request for each signature and each
power of two of tokens, one text each: clients that send one text, padded to such a length, do not
wait for a compilation. Signatures that take texts pad to these lengths themselves. Other shapes
work, and are compiled when they first come.
"""

import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from t5x_style.serving import saved_model, signature_inputs

FILE = "assets.extra/tf_serving_warmup_requests"
_SHORTEST = 16


def write(
    folder: Path,
    default: str,
    max_lengths: Mapping[str, int],
    texts: Mapping[str, Sequence[str]] = types.MappingProxyType({}),
) -> None:
    """Writes FILE.

    Args:
      folder: of the SavedModel.
      default: the function that `saved_model.DEFAULT` names.
      max_lengths: signature -> tokens that a text may have.
      texts: signature that takes texts -> one for each length that it pads them to.
    """
    tf = saved_model.cpu_only_tensorflow()
    path = folder / FILE
    path.parent.mkdir()
    known = {**{name: name for name in max_lengths}, saved_model.DEFAULT: default}
    with tf.io.TFRecordWriter(str(path)) as file:
        for name, signature in known.items():
            for length in lengths(max_lengths[signature]):
                file.write(request(name, _one(length, signature_inputs.of(signature))))
        for signature, made in texts.items():
            for text in made:
                file.write(request(signature, {"text": np.array([text.encode()], object)}))


def lengths(longest: int) -> Iterator[int]:
    """Powers of two from 16 on, and the longest.

    >>> list(lengths(48)), list(lengths(8))
    ([16, 32, 48], [8])
    """
    length = _SHORTEST
    while length < longest:
        yield length
        length *= 2
    yield longest


def _one(length: int, inputs: Iterable[str]) -> dict[str, np.ndarray]:
    """One text of `length` tokens, each the first of the vocabulary, as is its language."""
    ids = np.zeros((1, length), np.int32)
    every = {"input_ids": ids, "attention_mask": np.ones_like(ids), "language": ids[:, 0]}
    return {name: every[name] for name in inputs}


def request(signature: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    """A PredictionLog.

    Numbers of fields: tensorflow_serving/apis/prediction_log.proto, predict.proto and model.proto,
    whose package wants a second TensorFlow.

    Args:
      signature: that is asked for.
      inputs: name -> array, of any shape.
    """
    tf = saved_model.cpu_only_tensorflow()
    asked = _field(1, _field(3, signature.encode()))  # model_spec.signature_name
    for name, array in sorted(inputs.items()):
        tensor = tf.make_tensor_proto(array).SerializeToString()
        asked += _field(2, _field(1, name.encode()) + _field(2, tensor))  # inputs: key, value
    return _field(6, _field(1, asked))  # predict_log.request


def _field(number: int, content: bytes) -> bytes:
    """A field of a protocol buffer whose content is text or a message: tag, size, content."""
    head, size = [number << 3 | 2], len(content)
    while size >= 128:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + content
