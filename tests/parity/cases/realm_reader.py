"""Golden cases `realm_reader`: scores of spans, both losses, the best span, all gradients."""

import dataclasses
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.corruption import evidence_layout
from models.losses import span_scores
from models.objectives import open_qa
from t5x_style.interfaces.metrics import MetricSum
from tests.parity import parity_kit, parity_names
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ("RealmReader",)
# Where the loss is found -> what the batch calls its answers.
VARIANTS = {"answerable": "", "no_answer": "_none", "answer_only_in_unread_blocks": "_unread"}

GIN = """
from models.objectives import open_qa
from models.networks import projected_encoder
from models.networks import span_head
from t5x_style.interfaces import objective
from t5x_style.retrieval import device_index
text_embedding.EmbeddingConfig.passage_layout = 'title_and_body'
parity_kit.build.objective = @open_qa.OpenQA
open_qa.OpenQA.config = @bert.BertConfig()
open_qa.OpenQA.reader_config = @bert.BertConfig()
open_qa.OpenQA.projection = @projected_encoder.ProjectionConfig()
open_qa.OpenQA.spans = @span_head.SpanConfig()
open_qa.OpenQA.embedding_config = @text_embedding.EmbeddingConfig()
open_qa.OpenQA.vocabulary = @contract.Vocabulary()
open_qa.OpenQA.query = @objective.GroupShape()
open_qa.OpenQA.corpus = None
open_qa.OpenQA.index_config = @device_index.DeviceIndexConfig()
open_qa.OpenQA.answers = (1, 2)
objective.GroupShape.rows = 1
objective.GroupShape.segments = 1
device_index.DeviceIndexConfig.max_staleness_steps = None
device_index.DeviceIndexConfig.dtype = 'float32'
"""


def bindings(case: Case, query_length: int) -> list[str]:
    """The system's gin for this case's sizes."""
    config = case.config
    return [
        *parity_kit.vocabulary_lines(case),
        *GIN.splitlines(),
        f"open_qa.OpenQA.beam = {config['searcher_beam_size']}",
        f"open_qa.OpenQA.read = {config['reader_beam_size']}",
        f"objective.GroupShape.length = {query_length}",
        f"span_head.SpanConfig.widths = {config['max_span_width']}",
        f"span_head.SpanConfig.hidden = {config['span_hidden_size']}",
        f"span_head.SpanConfig.layer_norm_eps = {config['reader_layer_norm_eps']}",
        f"projected_encoder.ProjectionConfig.size = {config['retriever_proj_size']}",
        f"device_index.DeviceIndexConfig.dimension = {config['retriever_proj_size']}",
        *(f"bert.BertConfig.{k} = {v!r}" for k, v in vars(case.bert).items()),
    ]


def named(case: Case, prefix: str = "") -> list[parity_names.Named]:
    """Encoder and span scores of the reader."""
    return [
        *parity_names.realm_reader(case.bert, prefix),
        *parity_names.span_head(case.bert, case.config["span_hidden_size"], prefix),
    ]


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Compares the case with the reader of `OpenQA`; its embedders have no part in it."""
    model = parity_kit.bound_objective(bindings(case, 8), overrides)
    assert isinstance(model, open_qa.OpenQA)
    names = named(case)
    _fill(model, parity_names.Weights(parity_kit.weights_file(case), names).arrays())
    model.eval()
    joint = joint_of(case.batch, case.config["reader_beam_size"])
    found = [_readable(case, joint), *_best_span(case, model, joint)]
    for variant, suffix in VARIANTS.items():
        found += _variant(case, model, joint, variant, suffix)
    return found


def joint_of(given: Mapping[str, np.ndarray], read: int) -> dict[str, jax.Array]:
    """The blocks that are read, after their question."""
    return parity_kit.token_group(given["input_ids"][:read], given["attention_mask"][:read])


def _fill(model: open_qa.OpenQA, arrays: Mapping[str, np.ndarray]) -> None:
    """The reader's weights; the embedders keep theirs."""
    wanted = parity_kit.parameters(model)
    ours = {path for path in wanted if path.split("/")[0] in ("reader", "head")}
    if ours != arrays.keys():
        raise parity_kit.CaseError(f"the reader's parameters differ: {ours ^ arrays.keys()}")
    pairs = []
    for path, array in arrays.items():
        rows = [(0, wanted[path].shape[0] - len(array)), *[(0, 0)] * (array.ndim - 1)]
        value = wanted[path].replace(jnp.asarray(np.pad(array, rows)))
        pairs.append((tuple(path.split("/")), value))
    nnx.update(model, nnx.from_flat_state(pairs))


def _body(case: Case, joint: Mapping[str, jax.Array]) -> jax.Array:
    lengths = jnp.sum(joint["segment_ids"] > 0, axis=1)
    return evidence_layout.in_body(joint["tokens"], lengths, case.config["sep_token_id"])


def _readable(case: Case, joint: Mapping[str, jax.Array]) -> Quantity:
    """How many tokens are wrongly (un)readable; we find a body by the place of [SEP]."""
    theirs = case.batch["block_mask"][: case.config["reader_beam_size"]].astype(bool)
    return Quantity("block_mask", float(np.sum(np.asarray(_body(case, joint)) != theirs)), 0.0)


def _best_span(
    case: Case, model: open_qa.OpenQA, joint: Mapping[str, jax.Array]
) -> Iterable[Quantity]:
    """Scores of all spans, and the best one of each block and of all."""
    scores = np.asarray(model._span_scores(joint, None))
    start, end = case.arrays["candidate_starts"], case.arrays["candidate_ends"]
    valid = case.arrays["span_mask"].astype(bool)
    ours = np.asarray(span_scores.readable_spans(_body(case, joint), model.head.widths))
    yield Quantity("span_mask", float(np.sum(ours[:, start, end - start] != valid)), 0.0)
    found = scores[:, start, end - start]
    yield parity_kit.activation(case, "span_logits_without_retriever", found, valid)
    relevance = case.batch["relevance_score"][: len(found), None]
    yield parity_kit.activation(case, "reader_logits", found + relevance, valid)
    answers = {name: np.asarray(array)[:, 0] for name, array in model.answer(joint).items()}
    block = int(np.argmax(answers["score"] + relevance[:, 0]))
    truth = case.float64["answerable"]
    for name, value in (
        ("block_idx", block),
        ("start_pos", answers["start"][block]),
        ("end_pos", answers["end"][block]),
    ):
        yield Quantity(f"answer/{name}", abs(float(value) - truth[name]), 0.0)


def _variant(
    case: Case,
    model: open_qa.OpenQA,
    joint: Mapping[str, jax.Array],
    variant: str,
    suffix: str,
) -> Iterable[Quantity]:
    given, truth = case.batch, case.float64[variant]
    shape = (1, len(joint["tokens"]), joint["tokens"].shape[1], model.head.widths)
    spans = span_scores.readable_spans(_body(case, joint), model.head.widths)
    starts, ends = (given[f"{name}_positions{suffix}"] for name in ("start", "end"))
    correct = spans_at(starts, ends, shape[1:])
    theirs = case.arrays[f"{variant}/reader_correct"].astype(bool)
    at = case.arrays["candidate_starts"], case.arrays["candidate_ends"]
    ours = (correct & np.asarray(spans))[:, at[0], at[1] - at[0]]
    yield Quantity(f"{variant}/reader_correct", float(np.sum(ours != theirs)), 0.0)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    relevance = jnp.asarray(given["relevance_score"])[None]
    holds = jnp.asarray(given[f"has_answers{suffix}"].astype(bool))[None]

    def losses(params: nnx.State, relevance: jax.Array) -> tuple[jax.Array, dict[str, MetricSum]]:
        scores = nnx.merge(graph, params, rest)._span_scores(joint, None).reshape(shape)
        loss, metrics = span_scores.span_losses(
            relevance, holds, scores, spans.reshape(shape), jnp.asarray(correct).reshape(shape)
        )
        return loss.value(), metrics

    graded = jax.jit(jax.value_and_grad(losses, argnums=(0, 1), has_aux=True))
    (loss, metrics), (of_params, of_relevance) = graded(params, relevance)
    values = {"loss": loss} | {
        name: metrics[name].value() for name in ("reader_loss", "retriever_loss")
    }
    for name, value in values.items():
        tolerance = parity_kit.LOSS_RTOL * abs(truth[name])
        yield Quantity(f"{variant}/{name}", abs(float(value) - truth[name]), tolerance)
    yield parity_kit.activation(case, f"{variant}/grad_relevance_score", of_relevance[0])
    yield from _gradients(case, variant, of_params)


def spans_at(starts: np.ndarray, ends: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """[K, L, W] bool from positions [S, A], both ends inclusive, -1 where there is none."""
    correct = np.zeros(shape, bool)
    for block, row in enumerate(zip(starts[: shape[0]], ends[: shape[0]], strict=True)):
        for start, end in zip(*row, strict=True):
            if start >= 0 and end - start < shape[2]:
                correct[block, start, end - start] = True
    return correct


def _gradients(case: Case, variant: str, gradients: nnx.State) -> Iterable[Quantity]:
    flat = {"/".join(map(str, p)): np.asarray(v[...]) for p, v in nnx.to_flat_state(gradients)}
    ours = parity_names.export(named(case), flat, case.bert.vocab_size)
    if variant == "answerable":
        both = {
            kind: {**getattr(case, kind), "grad_norm_groups": getattr(case, kind)[variant][GROUPS]}
            for kind in ("float32", "float64")
        }
        yield from parity_kit.gradients(dataclasses.replace(case, **both), ours, group_of)
        return
    for group, expected in case.float64[variant][GROUPS].items():
        members = [a for name, a in ours.items() if group in ("__total__", group_of(name))]
        norm = float(np.sqrt(sum(np.sum(np.square(a, dtype=np.float64)) for a in members)))
        tolerance = parity_kit.GRADIENT_RTOL * expected
        yield Quantity(f"{variant}/{GROUPS}[{group}]", abs(norm - expected), tolerance)


GROUPS = "grad_norm_groups"


def group_of(name: str) -> str:
    """The case's group of a parameter, by its canonical name."""
    parts = name.removeprefix("bert.").split(".")
    return ".".join(parts[:3]) if parts[0] == "encoder" else parts[0]
