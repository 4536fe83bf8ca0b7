"""Golden cases `gradcache`: encoding in chunks gives the gradients of the whole batch at once."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from models.objectives import bi_encoder
from tests.parity import parity_kit
from tests.parity.cases import bert as bert_case
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ("BertModel (no pooler), shared by queries and passages",)

VARIANTS = ("raw_dot", "cosine_temperature")

GIN = """
from models.objectives import bi_encoder
from models.losses import contrastive
from t5x_style.interfaces import objective
parity_kit.build.objective = @bi_encoder.BiEncoder
bi_encoder.BiEncoder.config = @bert.BertConfig()
bi_encoder.BiEncoder.embedding_config = @text_embedding.EmbeddingConfig()
bi_encoder.BiEncoder.vocabulary = @contract.Vocabulary()
bi_encoder.BiEncoder.contrastive_config = @contrastive.ContrastiveConfig()
bi_encoder.BiEncoder.query = @query/objective.GroupShape()
bi_encoder.BiEncoder.passage = @passage/objective.GroupShape()
query/objective.GroupShape.segments = 1
passage/objective.GroupShape.segments = 1
"""


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Both variants, whole and in the smallest and the largest number of equal chunks."""
    queries = case.batch["query_input_ids"].shape[0]
    divisors = [n for n in range(2, queries) if queries % n == 0]
    return [
        quantity
        for variant in VARIANTS
        for chunks in sorted({1, *divisors[:1], *divisors[-1:]})
        for quantity in _compare(case, variant, chunks, overrides)
    ]


def _compare(case: Case, variant: str, chunks: int, overrides: list[str]) -> list[Quantity]:
    bound = [f"bi_encoder.BiEncoder.encode_chunks = {chunks}"]
    if variant == "cosine_temperature":
        bound += ["text_embedding.EmbeddingConfig.similarity = 'cosine'"]
        bound += [f"text_embedding.EmbeddingConfig.temperature = {case.config['temperature']}"]
    model = parity_kit.objective_from_gin(case, bindings(case), [*bound, *overrides])
    assert isinstance(model, bi_encoder.BiEncoder)
    batch = groups(case)
    values, gradients = parity_kit.value_and_gradients(model, batch)
    truth = case.float64[variant]
    error = abs(values["loss"] - truth["loss"])
    of_variant = dataclasses.replace(
        case, float32=case.float32 | case.float32[variant], float64=case.float64 | truth
    )
    checked = [
        Quantity("loss", error, parity_kit.LOSS_RTOL * abs(truth["loss"])),
        *parity_kit.gradients(of_variant, gradients, bert_case.group_of),
        *_vectors(case, model, batch),
    ]
    if variant != VARIANTS[-1]:  # whose probes the case holds
        checked = [q for q in checked if not q.name.startswith("grad_probe")]
    return [dataclasses.replace(q, name=f"{variant}, {chunks} chunks: {q.name}") for q in checked]


def bindings(case: Case) -> list[str]:
    """The system's gin for this case's sizes; ids are of no importance here."""
    lines = parity_kit.vocabulary_lines(case)
    for group in ("query", "passage"):
        rows, length = case.batch[f"{group}_input_ids"].shape
        lines += [f"{group}/objective.GroupShape.rows = {rows}"]
        lines += [f"{group}/objective.GroupShape.length = {length}"]
    return [lines[0], GIN, *lines[1:]]


def groups(case: Case) -> dict[str, dict[str, jax.Array]]:
    """Query i's positive is passage i * group_size."""
    query, passage = (
        parity_kit.token_group(case.batch[f"{g}_input_ids"], case.batch[f"{g}_attention_mask"])
        for g in ("query", "passage")
    )
    given = jnp.arange(passage["tokens"].shape[0], dtype=jnp.int32)[:, None]
    size = case.config["group_size"]
    facts = {
        "example_id": given // size,
        "document_id": given,
        "relevance": (given % size == 0).astype(jnp.int32),
    }
    return {"query": query, "passage": {**passage, **facts}}


def _vectors(
    case: Case, model: bi_encoder.BiEncoder, batch: dict[str, dict[str, jax.Array]]
) -> list[Quantity]:
    """The vectors, which are compared before they are brought to unit length."""
    if model.embedding_config.similarity == "cosine":
        return []
    queries, passages = nnx.jit(lambda model, batch: model.embed(batch))(model, batch)
    found = {"query_emb": queries.vectors, "passage_emb": passages.vectors}
    return [parity_kit.activation(case, name, array) for name, array in found.items()]
