"""Golden cases `m3`: every loss with its gradients, and what is searched.

In the official training padding takes part in MaxSim, as vectors of zeros. Ours leaves it out, as
stored vectors do; here it is put back.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from input_pipelines.batches import repeated_cls, token_groups
from input_pipelines.store.token_store import Passages
from models.losses import tile_scores
from models.networks import pooling, text_embedding
from models.objectives import m3
from t5x_style.interfaces.objective import Batch, Group
from t5x_style.interfaces.representation import (
    DENSE,
    MULTI_VECTOR,
    PASSAGE,
    QUERY,
    SEGMENTS,
    SPARSE,
)
from tests.parity import parity_kit
from tests.parity.cases import bert as bert_case
from tests.parity.cases import gradcache, simlm_finetune
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ("XLMRobertaModel(no pooler)+colbert_linear+sparse_linear",)

# Variant -> bindings; of all kinds, unless it says another.
DENSE_ALONE = [
    "joint_losses.JointLossConfig.weights = {'dense': 1.0}",
    "joint_losses.JointLossConfig.in_sum = {'dense': 1.0}",
]
VARIANTS: dict[str, list[str]] = {
    "no_teacher": [],
    "no_teacher_self_distill": ["m3.WithPadding.distil_after = 0"],
    "teacher_m3_kd_self_distill": [
        "m3.WithPadding.distil_after = 0",
        "joint_losses.JointLossConfig.teacher = 'm3_kd'",
    ],
    "teacher_kl_div_self_distill": [
        "m3.WithPadding.distil_after = 0",
        "joint_losses.JointLossConfig.teacher = 'kl'",
    ],
    "dense_only": DENSE_ALONE,
    "dense_only_teacher_m3_kd": [
        *DENSE_ALONE,
        "joint_losses.JointLossConfig.teacher = 'm3_kd'",
    ],
    "dense_only_teacher_kl_div_no_in_batch": [
        *DENSE_ALONE,
        "joint_losses.JointLossConfig.teacher = 'kl'",
        "joint_losses.JointLossConfig.batch_negatives = False",
    ],
}
WITH_WEIGHTS = "no_teacher_self_distill"  # whose gradients of parameters the case holds
METRICS = {
    "dense_loss": "loss_dense",
    "sparse_loss": "loss_sparse",
    "multivector_loss": "loss_multi_vector",
    "ensemble_loss": "loss_all",
    "self_distill_dense_loss": "distilled_dense",
    "self_distill_sparse_loss": "distilled_sparse",
    "self_distill_multivector_loss": "distilled_multi_vector",
}

WEIGHTS = {"dense": 1.0, "sparse": 0.1, "multi_vector": 1.0}
IN_SUM = {"dense": 1.0, "sparse": 0.3, "multi_vector": 1.0}
GIN = f"""
from models.losses import joint_losses
from t5x_style.interfaces import objective
from tests.parity.cases import m3
parity_kit.build.objective = @m3.WithPadding
m3.WithPadding.config = @bert.BertConfig()
m3.WithPadding.embedding_config = @text_embedding.EmbeddingConfig()
m3.WithPadding.vocabulary = @contract.Vocabulary()
m3.WithPadding.query = @query/objective.GroupShape()
m3.WithPadding.passage = @passage/objective.GroupShape()
m3.WithPadding.loss_config = @joint_losses.JointLossConfig()
m3.WithPadding.cells = 1000  # several tiles
joint_losses.JointLossConfig.weights = {WEIGHTS}
joint_losses.JointLossConfig.in_sum = {IN_SUM}
text_embedding.EmbeddingConfig.normalise = True
query/objective.GroupShape.segments = 1
passage/objective.GroupShape.segments = 1
"""


class WithPadding(m3.M3):
    """M3 whose passages have vectors of zeros at padding, and states that may be given."""

    def represent(
        self, side: str, group: Group, kinds: Sequence[str], key: jax.Array | None = None
    ) -> dict[str, Any]:
        hidden = group.get("states")
        if hidden is None:
            hidden = self.encoder(group["tokens"], group["positions"], group["segment_ids"])
        made = dict(self.of_states(side, hidden, group, kinds))
        if side == PASSAGE and MULTI_VECTOR in kinds:
            behind_cls = (group["positions"] > 0).astype(jnp.int32)
            made[MULTI_VECTOR] = {**made[MULTI_VECTOR], SEGMENTS: behind_cls}
        return made


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """All variants from given states; one of them with all parameters; and inference."""
    found = []
    for variant, bindings in VARIANTS.items():
        model = _model(case, [*bindings, *overrides])
        found += _from_states(case, variant, model)
        if variant == WITH_WEIGHTS:
            found += [*_from_tokens(case, variant, model), *_inference(case, model)]
            found += _several_cls(case, model)
    return found


def _model(case: Case, overrides: list[str]) -> WithPadding:
    config = case.config
    queries, passages = (case.batch[f"{side}_input_ids"] for side in ("query", "passage"))
    lines = [
        *parity_kit.vocabulary_lines(case),
        f"contract.Vocabulary.sep = {config['eos_token_id']}",
        GIN,
        f"m3.WithPadding.group_size = {config['group_size']}",
        f"m3.WithPadding.vector_size = {config['colbert_dim']}",
        f"text_embedding.EmbeddingConfig.temperature = {config['temperature']}",
    ]
    for side, array in (("query", queries), ("passage", passages)):
        lines += [f"{side}/objective.GroupShape.rows = {array.shape[0]}"]
        lines += [f"{side}/objective.GroupShape.length = {array.shape[1]}"]
    model = parity_kit.objective_from_gin(case, lines, overrides)
    assert isinstance(model, WithPadding)
    return model


def groups(case: Case) -> Batch:
    """Query i's positive is passage i * group_size, and its teacher's scores are in its row."""
    batch = gradcache.groups(case)
    taught = jnp.asarray(case.batch["teacher_scores"]).reshape(-1, 1)
    return {**batch, "passage": {**batch["passage"], "teacher_score": taught}}


def _from_states(case: Case, variant: str, model: WithPadding) -> list[Quantity]:
    """The losses, and their gradients with respect to the states of real tokens."""
    graph, state = nnx.split(model)
    batch = groups(case)

    def total(states: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        given = {side: {**batch[side], "states": array} for side, array in states.items()}
        loss, metrics = nnx.merge(graph, state).loss(given, jax.random.key(0))
        return loss.value(), {name: metric.value() for name, metric in metrics.items()}

    states = {side: jnp.asarray(case.arrays[f"{side}_hidden"]) for side in batch}
    run = jax.jit(jax.value_and_grad(total, has_aux=True))
    (loss, metrics), gradients = run(states)
    values = {"total_loss": loss} | {name: metrics.get(ours) for name, ours in METRICS.items()}
    found = [
        _loss(variant, name, float(values[name]), truth)
        for name, truth in case.float64[variant].items()
        if name in values
    ]
    for side, gradient in gradients.items():
        name = f"{variant}/grad_{side}_hidden"
        real = case.batch[f"{side}_attention_mask"].astype(bool)
        one = parity_kit.activation(case, name, gradient, real)
        found.append(dataclasses.replace(one, tolerance=simlm_finetune.GRADIENT_ATOL))
    return found


def _loss(variant: str, name: str, ours: float, truth: float) -> Quantity:
    tolerance = simlm_finetune.LOW_TEMPERATURE_RTOL * abs(truth)
    return Quantity(f"{variant}: {name}", abs(ours - truth), tolerance, f"{ours:.7g}")


def _from_tokens(case: Case, variant: str, model: WithPadding) -> list[Quantity]:
    values, gradients = parity_kit.value_and_gradients(model, groups(case))
    truth = case.float64[variant]
    of_variant = dataclasses.replace(
        case, float32=case.float32 | case.float32[variant], float64=case.float64 | truth
    )
    found = [
        _loss(variant, "total_loss", values["loss"], truth["total_loss"]),
        *parity_kit.gradients(of_variant, gradients, _group_of),
    ]
    return [dataclasses.replace(q, name=f"{variant}, from tokens: {q.name}") for q in found]


def _group_of(name: str) -> str:
    head = name.split(".")[0]
    return head if head.endswith("_linear") else bert_case.group_of(name)


def _inference(case: Case, model: WithPadding) -> list[Quantity]:
    """Representations and scores of all pairs; stored vectors have no padding."""
    batch, kinds = groups(case), model.kinds

    @nnx.jit
    def run(model: WithPadding, batch: Batch) -> tuple[Any, Any, Any]:
        query, padded = (model.represent(side, batch[side], kinds) for side in (QUERY, PASSAGE))
        trimmed = m3.M3.represent(model, PASSAGE, batch[PASSAGE], kinds)
        scores = {
            kind: tile_scores.scores(kind, query[kind], padded[kind], (1, 1))[:, 0, :, 0]
            for kind in kinds
        }
        args = (query[MULTI_VECTOR], trimmed[MULTI_VECTOR], (1, 1))
        return query, scores, tile_scores.scores(MULTI_VECTOR, *args)[:, 0, :, 0]

    query, scores, trimmed = run(model, batch)
    ordered = [scores[kind] for kind in (DENSE, SPARSE, MULTI_VECTOR)]

    def mixed(*weights: float) -> jax.Array:
        return sum(w * s for w, s in zip(weights, ordered, strict=False)) / sum(weights)

    found = {
        "q_dense": query[DENSE][:, 0],
        "q_sparse_vocab": _over_vocabulary(query[SPARSE], case.config["vocab_size"]),
        "infer_dense": scores[DENSE],
        "infer_sparse": scores[SPARSE],
        "infer_multivector_padded": scores[MULTI_VECTOR],
        "infer_multivector_trimmed": trimmed,
        "infer_combined_0_4_0_2_0_4": mixed(0.4, 0.2, 0.4),
        "infer_combined_default_1_1_1": mixed(1, 1, 1),
        "infer_sparse_plus_dense": mixed(0.4, 0.2),
    }
    return [parity_kit.activation(case, name, array) for name, array in found.items()]


def _several_cls(case: Case, model: WithPadding) -> list[Quantity]:
    """MCLS: our pipeline repeats [CLS] where the case has it, our pooling takes their mean."""
    every, given = case.config["mcls_interval"], case.batch["mcls_input_ids"]
    mask = case.batch["mcls_attention_mask"].astype(bool)
    inserted = (np.arange(given.shape[1]) % (every + 1) == 0) & (np.arange(given.shape[1]) > 0)
    plain = mask & ~(inserted & (given == case.config["cls_token_id"]))
    passages = Passages(given[plain], np.ones(plain.sum(), bool), plain.sum(axis=1))
    passages = repeated_cls.repeat(passages, every)
    slots = np.arange(len(given))[:, None]
    group = {
        name: jnp.asarray(array)
        for name, array in token_groups.build_group(passages, slots, given.shape[1]).items()
    }
    np.testing.assert_array_equal(np.asarray(group["tokens"])[mask], given[mask])
    hidden = model.encoder(group["tokens"], group["positions"], group["segment_ids"])
    mean = pooling.of_states(hidden, group, pooling.MCLS)
    vectors = text_embedding.finished(mean, group, model.embedding_config)
    return [
        parity_kit.activation(case, "mcls_hidden", hidden, mask),
        parity_kit.activation(case, "mcls_mean_of_cls", mean[:, 0]),
        parity_kit.activation(case, "mcls_embedding", vectors[:, 0]),
    ]


def _over_vocabulary(sparse: dict[str, jax.Array], size: int) -> np.ndarray:
    """[B, V] of rows with one text each."""
    tokens, weights = np.asarray(sparse["tokens"]), np.asarray(sparse["weights"])
    found = np.zeros((len(tokens), size), np.float32)
    kept = np.asarray(sparse[SEGMENTS]) > 0
    rows = np.broadcast_to(np.arange(len(tokens))[:, None], tokens.shape)
    found[rows[kept], tokens[kept]] = weights[kept]
    return found
