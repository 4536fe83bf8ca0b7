"""Warm-up requests of a SavedModel: the bytes of the official classes, for each shape."""

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from t5x_style.serving import saved_model, warmup_requests

# PredictionLog of tensorflow-serving-api 2.21, SerializeToString(deterministic=True)
OFFICIAL = (
    "32680a660a0d1a0b656d6265645f7175657279122c0a0e617474656e74696f6e5f6d61736b121a080312081202080112"
    "020803220c01000000010000000100000012270a09696e7075745f696473121a080312081202080112020803220c0000"
    "00000000000000000000"
)


def tokens(length):
    ids = np.zeros((1, length), np.int32)
    return {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def test_a_request_has_the_bytes_of_the_official_classes() -> None:
    assert warmup_requests.request("embed_query", tokens(3)).hex() == OFFICIAL


def test_sizes_above_127_take_two_bytes() -> None:
    made = warmup_requests.request("embed_query", tokens(64))
    size = made[1] & 127 | made[2] << 7
    assert made[0] == 6 << 3 | 2
    assert size == len(made) - 3


@pytest.mark.parametrize(
    ("longest", "expected"),
    [(8, [8]), (16, [16]), (48, [16, 32, 48]), (256, [16, 32, 64, 128, 256])],
)
def test_lengths_double_up_to_the_longest(longest, expected) -> None:
    assert list(warmup_requests.lengths(longest)) == expected


def test_every_signature_has_a_request_for_each_length(tmp_path) -> None:
    warmup_requests.write(tmp_path, "embed_query", {"embed_query": 32, "embed_passage": 64})
    tf = saved_model.cpu_only_tensorflow()
    found = [one.numpy() for one in tf.data.TFRecordDataset(str(tmp_path / warmup_requests.FILE))]
    assert found == [
        warmup_requests.request(signature, tokens(length))
        for signature, lengths in (
            ("embed_query", (16, 32)),
            ("embed_passage", (16, 32, 64)),
            ("serving_default", (16, 32)),
        )
        for length in lengths
    ]


def test_a_request_of_a_model_that_writes_has_a_language(tmp_path) -> None:
    warmup_requests.write(tmp_path, "generate", {"embed_query": 8, "generate": 20})
    tf = saved_model.cpu_only_tensorflow()
    records = tf.data.TFRecordDataset(str(tmp_path / warmup_requests.FILE))
    found = []
    for record in records.as_numpy_iterator():
        name, inputs = parsed(record)
        found.append((name, inputs["input_ids"].shape[1]))
        shapes = {one: array.shape for one, array in inputs.items()}
        length = inputs["input_ids"].shape[1]
        texts = dict.fromkeys(tokens(length), (1, length))
        assert shapes == (texts if name == "embed_query" else texts | {"language": (1,)})
        assert all(array.dtype == "int32" for array in inputs.values())
        assert inputs["attention_mask"].all()
    sizes = [("generate", 16), ("generate", 20), ("serving_default", 16), ("serving_default", 20)]
    assert found == [("embed_query", 8), *sizes]


def parsed(record):
    """A PredictionLog's signature and inputs, by the fields of the official protocol buffers."""
    log = message_factory.GetMessageClass(prediction_log()).FromString(record)
    request = log.predict_log.request
    tf = saved_model.cpu_only_tensorflow()
    inputs = {name: tf.make_ndarray(tensor) for name, tensor in request.inputs.items()}
    return request.model_spec.signature_name, inputs


def prediction_log():
    """Its descriptor, with the fields that a warm-up request has."""
    saved_model.cpu_only_tensorflow()  # brings the descriptor of TensorProto
    file = descriptor_pb2.FileDescriptorProto(name="log.proto", package="warmup", syntax="proto3")
    file.dependency.append("tensorflow/core/framework/tensor.proto")
    of = descriptor_pb2.FieldDescriptorProto
    fields = {
        "PredictionLog": [("predict_log", 6, ".warmup.PredictLog")],
        "PredictLog": [("request", 1, ".warmup.PredictRequest")],
        "PredictRequest": [("model_spec", 1, ".warmup.ModelSpec")],
        "ModelSpec": [("signature_name", 3, None)],
    }
    for message, ones in fields.items():
        made = file.message_type.add(name=message)
        for name, number, kind in ones:
            made.field.add(
                name=name, number=number, label=of.LABEL_OPTIONAL,
                **({"type": of.TYPE_MESSAGE, "type_name": kind} if kind else
                   {"type": of.TYPE_STRING}),
            )  # fmt: skip
    request = file.message_type[2]
    entry = request.nested_type.add(name="InputsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=of.LABEL_OPTIONAL, type=of.TYPE_STRING)
    tensor = {"type": of.TYPE_MESSAGE, "type_name": ".tensorflow.TensorProto"}
    entry.field.add(name="value", number=2, label=of.LABEL_OPTIONAL, **tensor)
    inputs = {"type": of.TYPE_MESSAGE, "type_name": ".warmup.PredictRequest.InputsEntry"}
    request.field.add(name="inputs", number=2, label=of.LABEL_REPEATED, **inputs)
    pool = descriptor_pool.Default()
    pool.Add(file)
    return pool.FindMessageTypeByName("warmup.PredictionLog")
