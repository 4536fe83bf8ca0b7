"""Golden cases `realm_openqa`: question to answer, retrieval and truncation included."""

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import numpy

from models.interop.layout_bert import LAYOUT
from models.objectives import open_qa
from t5x_style.interfaces.objective import Batch
from t5x_style.retrieval.device_index import DeviceIndex, DeviceIndexConfig
from tests.parity import parity_kit, parity_names
from tests.parity.cases import realm_reader
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ("RealmForOpenQA",)


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Compares the case with `OpenQA`, in training (a wide beam) and in evaluation (a narrow)."""
    length = case.batch["question_input_ids"].shape[1]
    found: list[Quantity] = []
    for mode, beam in (("train", "searcher_beam_size"), ("eval", "reader_beam_size")):
        bound = [
            *realm_reader.bindings(case, length),
            f"open_qa.OpenQA.beam = {case.config[beam]}",
            *overrides,
        ]
        model = parity_kit.bound_objective(bound, [])
        assert isinstance(model, open_qa.OpenQA)
        _fill(model, case)
        model.eval()
        compared = _mode(case, model, mode)
        found += [dataclasses.replace(one, name=f"{mode}/{one.name}") for one in compared]
    return found


# --- the model ------------------------------------------------------------------------------------


class _Blocks:
    """The case's blocks as rows "[CLS] [SEP] body [SEP]", cut where the official code cuts them."""

    fingerprint = "golden"

    def __init__(self, case: Case) -> None:
        vocabulary = json.loads((case.folder / "vocab.json").read_text())
        text = json.loads((case.folder / "text.json").read_text())
        number = {word: place for place, word in enumerate(vocabulary)}
        room = case.config["reader_seq_len"] - case.batch["question_input_ids"].shape[1] - 1
        bodies = [[number[word] for word in block.split()][:room] for block in text["blocks"]]
        self.rows, self.length = len(bodies), room + 3
        self.vocabulary_size = case.config["vocab_size"]
        cls, sep = (case.config[f"{name}_token_id"] for name in ("cls", "sep"))
        self._tokens = np.zeros((self.rows, self.length), np.int32)
        for row, body in enumerate(bodies):
            self._tokens[row, : len(body) + 3] = [cls, sep, *body, sep]
        self._lengths = np.array([len(body) + 3 for body in bodies], np.int32)

    def tokens(self, start: int, end: int) -> np.ndarray:
        return self._tokens[start:end]

    def column(self, name: str, start: int, end: int) -> np.ndarray:
        assert name == "length"
        return self._lengths[start:end]


def _named(case: Case) -> list[parity_names.Named]:
    """Question embedder and reader, with the case's names."""
    found = realm_reader.named(case, "reader.")
    behind = ("encoder", "pooler", "project", "norm")
    shapes = LAYOUT.shapes(case.bert, case.config["retriever_proj_size"])
    for path, shape in shapes.items():
        entry = LAYOUT.by_path[path]
        if entry.part in behind:
            names = [LAYOUT.spelled(name, "realm") for name in entry.names(case.bert.layers)]
            names = [f"embedder.{name}" for name in names]
            one = shape[1:] if entry.stacked else shape
            found.append(parity_names.Named(f"embedder/{path}", entry, names, one, entry.stacked))
    return found


def _fill(model: open_qa.OpenQA, case: Case) -> None:
    """The case's weights, and an index of its blocks with its vectors."""
    file = parity_kit.weights_file(case)
    kept = {  # what has no part in the case
        path: np.asarray(variable[...])
        for path, variable in parity_kit.parameters(model).items()
        if path.startswith("block_embedder/")
    }
    arrays = parity_names.Weights(file, _named(case)).arrays() | kept
    parity_kit.fill(model, parity_kit.Arrays(file, arrays))
    corpus = _Blocks(case)
    size = case.config["retriever_proj_size"]
    index = DeviceIndex(corpus, DeviceIndexConfig(size, None, "float32", multiple=8))
    vectors = numpy.load_file(file)["block_emb"]
    padding = ((0, index.padded - corpus.rows), (0, 0))
    index.embeddings[...] = jnp.asarray(np.pad(vectors, padding))
    real = jnp.arange(index.padded) < corpus.rows
    index.row_steps[...] = jnp.where(real, 0, -1).astype(jnp.int32)
    for name, source in index.table_sources().items():
        table = getattr(index, name)
        table[...] = jnp.asarray(source.read(0, index.padded))
    model.index = nnx.data(index)


# --- what is compared -----------------------------------------------------------------------------


def _mode(case: Case, model: open_qa.OpenQA, mode: str) -> Iterable[Quantity]:
    query = parity_kit.token_group(
        case.batch["question_input_ids"], case.batch["question_attention_mask"]
    )
    query["answers"] = jnp.asarray(case.batch["answer_ids"], jnp.int32)[:, None]
    graph, state = nnx.split(model)

    def retrieved(state: Any) -> Batch:
        return nnx.merge(graph, state).retrieve({"query": query}, jax.random.key(0))

    batch = jax.jit(retrieved)(state)
    yield from _evidence(case, batch, mode)
    yield from _numbers(case, model, batch, mode)
    yield from _answer(case, model, batch, mode)


def _evidence(case: Case, batch: Batch, mode: str) -> Iterable[Quantity]:
    """What is read, token by token, and where the answers are."""
    truth, joint = case.float64[mode], batch["joint"]
    blocks = len(joint["tokens"])
    for ours, theirs in (("tokens", "input_ids"), ("segment_ids", "attention_mask")):
        official = case.arrays[f"{mode}/concat_{theirs}"][:blocks]
        width = official.shape[1]
        array = np.asarray(joint[ours])
        beyond = np.sum(array[:, width:] != 0)
        yield Quantity(ours, float(np.sum(array[:, :width] != official) + beyond), 0.0)
    starts, ends = (case.arrays[f"{mode}/{name}_positions"] for name in ("start", "end"))
    expected = realm_reader.spans_at(starts, ends, joint["correct"].shape)
    yield Quantity("correct", float(np.sum(np.asarray(joint["correct"]) != expected)), 0.0)
    holds = np.asarray(batch["beam"]["holds"][0])
    yield Quantity("holds", float(np.sum(holds != truth["retriever_correct"])), 0.0)


def _numbers(case: Case, model: open_qa.OpenQA, batch: Batch, mode: str) -> Iterable[Quantity]:
    truth = case.float64[mode]
    asked = model.embedder(batch["query"])[:, 0]
    relevance = jnp.einsum("bd,bsd->bs", asked, batch["beam"]["vectors"], precision="highest")
    scale = max(1.0, float(np.abs(case.truth(f"{mode}/relevance_score")).max()))
    error = float(np.abs(relevance[0] - case.truth(f"{mode}/relevance_score")).max())
    yield Quantity("relevance_score", error, parity_kit.ACTIVATION_ATOL * scale)
    export = functools.partial(_export, _named(case))
    values, gradients = parity_kit.value_and_gradients(model, batch, export)
    for name in ("loss", "reader_loss", "retriever_loss"):
        error = abs(values[name] - truth[name])
        yield Quantity(name, error, parity_kit.LOSS_RTOL * abs(truth[name]))
    for group, expected in truth["grad_norm_groups"].items():
        members = [a for name, a in gradients.items() if group in ("__total__", group_of(name))]
        norm = float(np.sqrt(sum(np.sum(np.square(a, dtype=np.float64)) for a in members)))
        tolerance = parity_kit.GRADIENT_RTOL * expected
        yield Quantity(f"grad_norm_groups[{group}]", abs(norm - expected), tolerance)


def _export(
    named: Iterable[parity_names.Named], ours: Mapping[str, np.ndarray], vocab_size: int
) -> dict[str, np.ndarray]:
    """Gradients under the case's names; what embedded the index has to have none."""
    frozen = [np.abs(array).max() for path, array in ours.items() if path.startswith("block_")]
    if any(frozen):
        raise parity_kit.CaseError("the block embedder got a gradient")
    found = {}
    for one in named:
        parts = list(ours[one.path]) if one.stacked else [ours[one.path]]
        for name, part in zip(one.names, parts, strict=True):
            found[name] = one.entry.to_theirs(np.asarray(part), vocab_size)
    return found


def group_of(name: str) -> str:
    """The case's group of a parameter."""
    model, part, _ = name.split(".", 2)
    if part == "cls":
        return f"{model}.projection"
    return f"{model}.bert" if part == "realm" else f"{model}.{part}"


def _answer(case: Case, model: open_qa.OpenQA, batch: Batch, mode: str) -> Iterable[Quantity]:
    """The predicted span, by `answer` and the relevance of blocks."""
    truth, joint = case.float64[mode], batch["joint"]
    spans = {name: np.asarray(array)[:, 0] for name, array in model.answer(joint).items()}
    relevance = case.truth(f"{mode}/relevance_score")[: len(spans["score"])]
    block = int(np.argmax(spans["score"] + relevance))
    start, end = (int(spans[name][block]) for name in ("start", "end"))
    tokens = np.asarray(joint["tokens"])[block, start : end + 1].tolist()
    for name, ours in (
        ("block_idx", block),
        ("start_pos", start),
        ("end_pos", end),
        ("predicted_answer_ids", tokens),
    ):
        yield Quantity(name, float(ours != truth[name]), 0.0)
