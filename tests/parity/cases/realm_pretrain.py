"""Golden cases `realm_pretrain`: marginal likelihood, what goes into it, all gradients; and ICT."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.corruption import evidence_layout
from models.interop.layout_bert import LAYOUT
from models.losses import marginal
from models.networks import projected_encoder
from models.objectives import ict, realm
from t5x_style.interfaces.objective import Batch
from tests.parity import parity_kit, parity_names
from tests.parity.parity_kit import Case, Quantity
from tests.parity.parity_names import Named

ARCHITECTURES = ("RealmScorer(shared embedder)+RealmKnowledgeAugEncoder",)

GIN = """
from models.objectives import ict
from models.networks import projected_encoder
from models.objectives import realm
from models.corruption import span_masks
from models.losses import contrastive
from t5x_style.interfaces import objective
from t5x_style.retrieval import device_index
text_embedding.EmbeddingConfig.passage_layout = 'title_and_body'
realm.REALM.embedding_config = @text_embedding.EmbeddingConfig()
realm.REALM.vocabulary = @contract.Vocabulary()
realm.REALM.projection = @projected_encoder.ProjectionConfig()
realm.REALM.config = @bert.BertConfig()
realm.REALM.reader_config = @bert.BertConfig()
realm.REALM.query = @query/objective.GroupShape()
realm.REALM.spans = 0
realm.REALM.masking = @span_masks.SalientSpan()
realm.REALM.evaluation_masking = @span_masks.SalientSpan()
realm.REALM.corpus = None
realm.REALM.index_config = @device_index.DeviceIndexConfig()
realm.REALM.chunk = 32
device_index.DeviceIndexConfig.max_staleness_steps = None
ict.ICT.embedding_config = @text_embedding.EmbeddingConfig()
ict.ICT.vocabulary = @contract.Vocabulary()
ict.ICT.projection = @projected_encoder.ProjectionConfig()
ict.ICT.config = @bert.BertConfig()
ict.ICT.query = @query/objective.GroupShape()
ict.ICT.passage = @passage/objective.GroupShape()
ict.ICT.removal_rate = 0.9
ict.ICT.contrastive_config = @contrastive.ContrastiveConfig()
"""


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Compares the case with our objectives."""
    model = parity_kit.bound_objective(bindings(case, "realm.REALM"), overrides)
    assert isinstance(model, realm.REALM)
    named = {"embedder": embedder_names(case), "encoder": reader_names(case)}
    _fill(model, case, named)
    model.eval()
    batch = batch_of(case)
    export = functools.partial(_export, named)
    values, gradients = parity_kit.value_and_gradients(model, batch, export)
    return [
        parity_kit.loss(case, "loss", values["loss"]),
        parity_kit.loss(case, "retrieval_utility", values["retrieval_utility"]),
        *_spans(case, model, batch),
        *_activations(case, model, batch),
        *_relevance_gradient(case, model, batch),
        *_gradients(case, gradients),
        *_ict(case, overrides),
    ]


def bindings(case: Case, objective: str, eps: float = 1e-12) -> list[str]:
    """The system's gin for this case's sizes."""
    config = case.config
    ict_rows, query = case.batch["ict_query_input_ids"].shape
    rows = len(case.batch["query_input_ids"]) if objective == "realm.REALM" else ict_rows
    passage = case.batch["ict_block_input_ids"].shape
    sizes = [
        f"parity_kit.build.objective = @{objective}",
        f"realm.REALM.candidates = {case.batch['candidate_input_ids'].shape[1]}",
        f"span_masks.SalientSpan.max_tokens = {config['max_masks']}",
        f"projected_encoder.ProjectionConfig.size = {config['retriever_proj_size']}",
        f"projected_encoder.ProjectionConfig.layer_norm_eps = {eps!r}",
        f"device_index.DeviceIndexConfig.dimension = {config['retriever_proj_size']}",
        *(f"query/objective.GroupShape.{k} = {v}" for k, v in _shape(rows, query)),
        *(f"passage/objective.GroupShape.{k} = {v}" for k, v in _shape(*passage)),
        *(f"bert.BertConfig.{k} = {v!r}" for k, v in vars(case.bert).items()),
    ]
    return [*parity_kit.vocabulary_lines(case), *GIN.splitlines(), *sizes]


def _shape(rows: int, length: int) -> Iterable[tuple[str, int]]:
    return {"rows": rows, "length": length, "segments": 1}.items()


def batch_of(case: Case) -> Batch:
    """The official inputs, hidden tokens and retrieved blocks among them."""
    given = case.batch
    count, length = given["query_input_ids"].shape
    labels = given["labels"][:, :length]
    query = _group(given, "query", (count, length))
    candidate = _group(given, "candidate", (-1, given["candidate_input_ids"].shape[2]))
    joint = _group(given, "joint", (-1, given["joint_input_ids"].shape[2]))
    return {
        "query": {**query, "labels": jnp.asarray(labels, jnp.int32)},
        "candidate": {**candidate, "age": jnp.zeros((len(candidate["tokens"]), 1), jnp.int32)},
        "joint": joint,
    }


def _group(
    given: Mapping[str, np.ndarray], name: str, shape: tuple[int, int]
) -> dict[str, jax.Array]:
    tokens, mask = (given[f"{name}_{part}"].reshape(shape) for part in _PARTS)
    return parity_kit.token_group(tokens, mask)


_PARTS = ("input_ids", "attention_mask")


# --- what is compared -----------------------------------------------------------------------------


def _spans(case: Case, model: realm.REALM, batch: Batch) -> list[Quantity]:
    """The paper's formula, over whole spans."""
    scores = _run(model, lambda model: model.score(batch, None))
    loss, _ = marginal.marginal_likelihood(*scores, "span")
    truth = case.float64["paper_sequence_marginal_nll"]["mean_per_example"]
    name = "paper_sequence_marginal_nll/mean_per_example"
    error = abs(float(loss.value()) - truth)
    return [Quantity(name, error, parity_kit.LOSS_RTOL * abs(truth))]


def _activations(case: Case, model: realm.REALM, batch: Batch) -> list[Quantity]:
    candidates, mask = model.candidates, case.batch["mlm_mask"].astype(bool)
    scores = _run(model, lambda model: model.score(batch, None))
    blocks = _run(model, lambda model: model.embedder(batch["candidate"]))
    joint = batch["joint"]
    types = projected_encoder.token_types(joint, model.vocabulary.sep)
    hidden = _run(
        model,
        lambda model: model.reader(
            joint["tokens"], joint["positions"], joint["segment_ids"], types
        ),
    )
    prior = jax.nn.log_softmax(scores.relevance, axis=1)
    found = {
        "query_emb": _run(model, lambda model: model.embedder(batch["query"])[:, 0]),
        "candidate_emb": blocks.reshape(-1, candidates, blocks.shape[-1]),
        "relevance_score": scores.relevance,
        "candidate_log_prob": prior,
    }
    rows = case.batch["joint_attention_mask"].astype(bool)
    shaped = np.asarray(hidden).reshape(*rows.shape, -1)
    theirs = case.truth("joint_last_hidden_state")
    gold = np.where(mask[:, None], np.asarray(scores.gold), 0.0)
    marginal_log = jax.nn.logsumexp(prior[:, :, None] + scores.gold, axis=1)
    return [
        *_layout(case, model, batch),
        *(_token_types(case, batch, name) for name in ("candidate", "joint")),
        *(_close(case, name, np.asarray(array)) for name, array in found.items()),
        _difference("joint_last_hidden_state", shaped[rows], theirs[rows]),
        _difference(
            "gold_log_prob", gold, np.where(mask[:, None], case.truth("gold_log_prob"), 0.0)
        ),
        _difference(
            "marginal_log_prob",
            np.asarray(marginal_log)[mask],
            case.truth("marginal_log_prob")[mask],
        ),
    ]


def _layout(case: Case, model: realm.REALM, batch: Batch) -> Iterable[Quantity]:
    """Tokens that differ where we lay out the official blocks, the null document among them.

    Not of blocks that the official code cuts for the embedder and shows whole to the reader: ours
    are cut when they are made, so that a title and its body fit.
    """
    given, shape = case.batch, case.batch["candidate_input_ids"].shape
    tokens = jnp.asarray(given["candidate_input_ids"], jnp.int32)[:, 1:]
    lengths = jnp.asarray(given["candidate_attention_mask"].sum(axis=2), jnp.int32)[:, 1:]
    blocks = evidence_layout.with_null(tokens, lengths, model.vocabulary)
    laid = {
        "candidate": evidence_layout.candidate_group(*blocks, batch["query"]),
        "joint": evidence_layout.joint_group(*blocks, batch["query"], model.vocabulary),
    }
    whole = ~given["candidate_attention_mask"].all(axis=2).reshape(-1)  # those that fill no row
    for name, group in laid.items():
        theirs = np.where(given[f"{name}_attention_mask"], given[f"{name}_input_ids"], 0)
        theirs = theirs.reshape(shape[0] * shape[1], -1)
        ours = np.asarray(group["tokens"])
        width = max(ours.shape[1], theirs.shape[1])
        ours, theirs = (np.pad(a, ((0, 0), (0, width - a.shape[1]))) for a in (ours, theirs))
        yield Quantity(f"{name}_input_ids", float(np.sum((ours != theirs)[whole])), 0.0)


def _token_types(case: Case, batch: Batch, name: str) -> Quantity:
    """How many differ from the official ones; we compute them from the place of [SEP]."""
    real = np.asarray(batch[name]["segment_ids"]) > 0
    ours = np.asarray(projected_encoder.token_types(batch[name], case.config["sep_token_id"]))
    theirs = case.batch[f"{name}_token_type_ids"].reshape(ours.shape)
    return Quantity(f"{name}_token_type_ids", float(np.sum((ours != theirs)[real])), 0.0)


def _relevance_gradient(case: Case, model: realm.REALM, batch: Batch) -> list[Quantity]:
    scores = _run(model, lambda model: model.score(batch, None))

    def loss(relevance: jax.Array) -> jax.Array:
        moved = scores._replace(relevance=relevance)
        return marginal.marginal_likelihood(*moved, "token")[0].value()

    return [_close(case, "grad_relevance_score", np.asarray(jax.grad(loss)(scores.relevance)))]


def _close(case: Case, name: str, ours: np.ndarray) -> Quantity:
    return _difference(name, ours, case.truth(name))


def _difference(name: str, ours: np.ndarray, truth: np.ndarray) -> Quantity:
    if ours.shape != truth.shape:
        return Quantity(name, np.inf, 0.0, f"shape {ours.shape}, expected {truth.shape}")
    scale = max(1.0, float(np.abs(truth).max()))
    error = float(np.abs(ours - truth).max())
    return Quantity(name, error, parity_kit.ACTIVATION_ATOL * scale)


def _gradients(case: Case, ours: Mapping[str, np.ndarray]) -> list[Quantity]:
    """Two models, each with separate groups; otherwise as in every case."""
    with_groups = dataclasses.replace(
        case, float32=_with_groups(case.float32), float64=_with_groups(case.float64)
    )
    return parity_kit.gradients(with_groups, ours, group_of)


def _with_groups(expected: Mapping[str, Any]) -> dict[str, Any]:
    """`grad_norm_groups` of both models together."""
    groups = {
        f"{model}/{group}": value
        for model in ("embedder", "encoder")
        for group, value in expected[f"grad_norm_{model}_groups"].items()
    }
    totals = [groups.pop(f"{model}/__total__") for model in ("embedder", "encoder")]
    return {**expected, "grad_norm_groups": groups | {"__total__": float(np.hypot(*totals))}}


def group_of(name: str) -> str:
    """The case's group of a parameter."""
    model, _, rest = name.partition("/")
    if rest.startswith("cls.predictions"):
        return f"{model}/mlm_head"
    if rest.startswith("cls."):
        return f"{model}/projection"
    parts = rest.removeprefix("realm.").split(".")
    return f"{model}/{'.'.join(parts[:3]) if parts[0] == 'encoder' else parts[0]}"


def _ict(case: Case, overrides: list[str]) -> list[Quantity]:
    found = []
    for name, eps in (("ict", 1e-12), ("ict_projection_eps1e-3", 1e-3)):
        model = parity_kit.bound_objective(bindings(case, "ict.ICT", eps), overrides)
        assert isinstance(model, ict.ICT)
        _fill(model, case, {"embedder": embedder_names(case)})
        model.eval()
        given = case.batch
        query = _group(given, "ict_query", given["ict_query_input_ids"].shape)
        block = _group(given, "ict_block", given["ict_block_input_ids"].shape)
        block["document_id"] = block["example_id"]
        block["removed"] = block["segment_valid"]
        values, gradients = parity_kit.value_and_gradients(
            model,
            {"query": query, "passage": block},
            functools.partial(_export, {"embedder": embedder_names(case)}),
        )
        truth = case.float64[name]
        for key in ("loss", "accuracy"):
            error = abs(values[key] - truth[key])
            tolerance = parity_kit.LOSS_RTOL * max(abs(truth[key]), 1e-3)
            found.append(Quantity(f"{name}/{key}", error, tolerance))
        asked, blocks = (
            _run(model, lambda model, group=group: model.embedder(group)[:, 0])
            for group in (query, block)
        )
        arrays = {"query_emb": asked, "block_emb": blocks, "logits": asked @ blocks.T}
        found += [_close(case, f"{name}/{k}", np.asarray(v)) for k, v in arrays.items()]
        for group, expected in truth["grad_norm_groups"].items():
            members = [
                array
                for parameter, array in gradients.items()
                if group in ("__total__", group_of(parameter).removeprefix("embedder/"))
            ]
            norm = float(np.sqrt(sum(np.sum(np.square(m, dtype=np.float64)) for m in members)))
            floor = parity_kit.noise_floor(case, "grad_norm_params")
            found.append(
                Quantity(
                    f"{name}/grad_norm_groups[{group}]",
                    abs(norm - expected),
                    parity_kit.GRADIENT_RTOL * expected + floor,
                )
            )
    return found


def _run(model: Any, call: Callable[[Any], Any]) -> Any:
    """`call(model)`, jitted."""
    graphdef, state = nnx.split(model)
    return jax.jit(lambda state: call(nnx.merge(graphdef, state)))(state)


# --- names ----------------------------------------------------------------------------------------


def embedder_names(case: Case) -> list[Named]:
    """The embedder's parameters with the case's names."""
    return _named(case, {part: f"embedder/{part}" for part in ("encoder", *_BEHIND)})


_BEHIND = ("pooler", "project", "norm")


def reader_names(case: Case) -> list[Named]:
    """The reader's parameters with the case's names."""
    return _named(case, {"encoder": "reader", "head": "head"})


def _named(case: Case, parts: Mapping[str, str]) -> list[Named]:
    """The parameters of some parts of the table of names; part -> where it lies with us."""
    found = []
    shapes = LAYOUT.shapes(case.bert, case.config["retriever_proj_size"])
    for path, shape in shapes.items():
        entry = LAYOUT.by_path[path]
        if entry.part in parts:
            ours = parts[entry.part] + path.removeprefix(entry.part)
            names = [LAYOUT.spelled(name, "realm") for name in entry.names(case.bert.layers)]
            one = shape[1:] if entry.stacked else shape
            found.append(Named(ours, entry, names, one, entry.stacked))
    return found


def _fill(model: Any, case: Case, named: Mapping[str, list[Named]]) -> None:
    """Both files' weights."""
    arrays: dict[str, np.ndarray] = {}
    for kind, members in named.items():
        file = case.folder / f"weights_{kind}.safetensors"
        arrays |= parity_names.Weights(file, members).arrays()
    parity_kit.fill(model, parity_kit.Arrays(case.folder, arrays))


def _export(
    named: Mapping[str, list[Named]], ours: Mapping[str, np.ndarray], vocab_size: int
) -> dict[str, np.ndarray]:
    """Our gradients under the case's names, `embedder/` or `encoder/` before them."""
    found = {}
    for kind, members in named.items():
        for one in members:
            parts = list(ours[one.path]) if one.stacked else [ours[one.path]]
            for name, part in zip(one.names, parts, strict=True):
                found[f"{kind}/{name}"] = one.entry.to_theirs(np.asarray(part), vocab_size)
    return found
