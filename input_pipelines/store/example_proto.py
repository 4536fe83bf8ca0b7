"""`tf.train.Example` without TensorFlow, for processes that must start fast and hold no device.

The message is declared here from its public field numbers (`tensorflow/core/example/*.proto`), in
a separate descriptor pool, so that it can coexist with TensorFlow's copy in one process. Bytes are
interchangeable with TensorFlow's and TFDS's.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_INT64 = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
_FLOAT = descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT
_BYTES = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
_STRING = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
_ONE = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
_MANY = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
_PACKAGE = "kennel_example"


def _list_message(file: Any, name: str, type_: int) -> None:
    message = file.message_type.add(name=name)
    message.field.add(name="value", number=1, label=_MANY, type=type_)


def _declare() -> Any:
    """Builds the message class `Example { Features { map<string, Feature> } }`."""
    file = descriptor_pb2.FileDescriptorProto(
        name="kennel_example.proto", package=_PACKAGE, syntax="proto3"
    )
    _list_message(file, "BytesList", _BYTES)
    _list_message(file, "FloatList", _FLOAT)
    _list_message(file, "Int64List", _INT64)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (field, kind) in enumerate(
        [("bytes_list", "BytesList"), ("float_list", "FloatList"), ("int64_list", "Int64List")], 1
    ):
        feature.field.add(
            name=field, number=number, label=_ONE, type=_MESSAGE,
            type_name=f".{_PACKAGE}.{kind}", oneof_index=0,
        )  # fmt: skip
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_ONE, type=_STRING)
    entry.field.add(
        name="value", number=2, label=_ONE, type=_MESSAGE, type_name=f".{_PACKAGE}.Feature"
    )
    features.field.add(
        name="feature", number=1, label=_MANY, type=_MESSAGE,
        type_name=f".{_PACKAGE}.Features.FeatureEntry",
    )  # fmt: skip
    example = file.message_type.add(name="Example")
    example.field.add(
        name="features", number=1, label=_ONE, type=_MESSAGE, type_name=f".{_PACKAGE}.Features"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


Example = _declare()


def serialize(features: Mapping[str, str | Iterable[int] | np.ndarray]) -> bytes:
    """One record as bytes, the same bytes for the same features.

    Args:
      features: name -> text (stored as UTF-8 bytes) or a one-dimensional list of integers or bools.
    """
    example = Example()
    for name, value in features.items():
        feature = example.features.feature[name]
        if isinstance(value, str):
            feature.bytes_list.value.append(value.encode("utf-8"))
        else:
            # SetInParent: an empty list is still a present int64 feature for TFDS's parser.
            feature.int64_list.SetInParent()
            feature.int64_list.value.extend(np.asarray(value, dtype=np.int64).tolist())
    return example.SerializeToString(deterministic=True)


def parse(record: bytes) -> dict[str, bytes | np.ndarray]:
    """The features of one record: text as its UTF-8 bytes, integers as int64 [n]."""
    features = Example.FromString(record).features.feature
    out: dict[str, bytes | np.ndarray] = {}
    for name, feature in features.items():
        if feature.WhichOneof("kind") == "bytes_list":
            out[name] = feature.bytes_list.value[0]
        else:
            out[name] = np.array(feature.int64_list.value, dtype=np.int64)
    return out
