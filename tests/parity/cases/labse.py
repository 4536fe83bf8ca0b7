"""Golden cases `labse`: both directions with every margin and scale, and the encoder end to end."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.interop import import_hf, layout_bert
from models.losses import contrastive
from models.networks import text_embedding
from models.objectives import labse
from tests.parity import parity_kit
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ("BertModel (with pooler)",)

GIN = """
from models.objectives import labse
from models.losses import contrastive
from t5x_style.interfaces import objective
parity_kit.build.objective = @labse.LaBSE
text_embedding.EmbeddingConfig.pooling = 'pooler'
text_embedding.EmbeddingConfig.similarity = 'cosine'
text_embedding.EmbeddingConfig.temperature = 0.1
labse.LaBSE.config = @bert.BertConfig()
labse.LaBSE.embedding_config = @text_embedding.EmbeddingConfig()
labse.LaBSE.vocabulary = @contract.Vocabulary()
labse.LaBSE.contrastive_config = @contrastive.ContrastiveConfig()
labse.LaBSE.source = @source/objective.GroupShape()
labse.LaBSE.target = @target/objective.GroupShape()
source/objective.GroupShape.segments = 1
target/objective.GroupShape.segments = 1
contrastive.ContrastiveConfig.both_directions = True
contrastive.ContrastiveConfig.margin = 0.3
"""
END_TO_END = "end_to_end_scale10_margin_before_scale"
HARD = "hard_negatives_"


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Compares the case with our loss, and with our objective."""
    variants = {name: name.removeprefix(HARD) for name in case.float64 if name != END_TO_END}
    found = [
        quantity
        for name, of in variants.items()
        for quantity in _variant(case, name, case.config["variants"][of])
    ]
    return [*found, *_end_to_end(case, overrides)]


# --- the loss -------------------------------------------------------------------------------------


def _variant(case: Case, name: str, settings: Mapping[str, float | str]) -> list[Quantity]:
    scale = float(settings["scale"])
    margin = float(settings["margin"]) / (scale if settings["order"] == "after" else 1.0)
    given = [jnp.asarray(case.batch[f"{side}_emb"]) for side in ("source", "target")]
    names = ["source", "target"]
    if name.startswith(HARD):
        given.append(jnp.asarray(case.batch["hard_negative_emb"]))
        names.append("hard_negative")
    forward = _loss(scale, contrastive.ContrastiveConfig(margin=margin), given)[0]
    both = contrastive.ContrastiveConfig(margin=margin, both_directions=True)
    total, gradients = _loss(scale, both, given)
    truth = case.float64[name]
    rtol = 10 * parity_kit.LOSS_RTOL if scale == 100 else parity_kit.LOSS_RTOL
    losses = {
        "forward_loss": forward,
        "backward_loss": total - forward,
        "sum_loss": total,
        "mean_loss": total / 2,
    }
    found = [
        Quantity(f"{name}/{key}", abs(value - truth[key]), rtol * abs(truth[key]))
        for key, value in losses.items()
    ]
    for side, gradient in zip(names, gradients, strict=True):
        expected = case.truth(f"{name}/grad_{side}_emb")
        error = float(np.max(np.abs(np.asarray(gradient) - expected)))
        tolerance = parity_kit.GRADIENT_RTOL * float(np.max(np.abs(expected)))
        found.append(Quantity(f"{name}/grad_{side}_emb", error, tolerance))
    return found


def _loss(
    scale: float, config: contrastive.ContrastiveConfig, given: list[jax.Array]
) -> tuple[float, list[jax.Array]]:
    """Loss, and gradients with respect to the given vectors."""

    def loss(given: list[jax.Array]) -> jax.Array:
        units = [text_embedding.unit(vectors) for vectors in given]
        count = len(units[0])
        ids = jnp.arange(count, dtype=jnp.int32)
        everyone = jnp.ones(count, bool)
        sources = contrastive.Queries(units[0], ids, everyone, jnp.zeros((count, 0), jnp.int32))
        extra = sum(map(len, units[2:]))
        numbers = jnp.arange(count + extra, dtype=jnp.int32)
        owner = jnp.where(numbers < count, numbers, (numbers - count) % count)
        targets = contrastive.Passages(
            jnp.concatenate(units[1:]), owner, numbers, numbers < count, numbers >= 0
        )
        return contrastive.info_nce(sources, targets, 1 / scale, config)[0].value()

    value, gradients = jax.jit(jax.value_and_grad(loss))(given)
    return float(value), gradients


# --- the objective --------------------------------------------------------------------------------


def _end_to_end(case: Case, overrides: list[str]) -> list[Quantity]:
    batch, sizes = {}, []
    for side in ("source", "target"):
        tokens, mask = (case.batch[f"{side}_{part}"] for part in ("input_ids", "attention_mask"))
        batch[side] = parity_kit.token_group(tokens, mask)
        for name, size in zip(("rows", "length"), tokens.shape, strict=True):
            sizes.append(f"{side}/objective.GroupShape.{name} = {size}")
    ids = batch["target"]["example_id"]
    batch["target"] |= {"document_id": ids, "relevance": jnp.ones_like(ids)}
    sizes += [f"bert.BertConfig.{k} = {v!r}" for k, v in vars(case.bert).items()]
    lines = [*parity_kit.vocabulary_lines(case), *GIN.splitlines(), *sizes]
    model = parity_kit.bound_objective(lines, overrides)
    assert isinstance(model, labse.LaBSE)
    weights = import_hf.HuggingFace(str(parity_kit.weights_file(case)), case.bert.vocab_size)
    parity_kit.fill(model.embedder, weights)
    model.eval()
    values, gradients = parity_kit.value_and_gradients(model, batch, _export)
    truth = case.float64[END_TO_END]
    error = abs(values["loss"] - truth["sum_loss"])
    vectors = nnx.jit(lambda model, batch: [model.embed(batch[s]) for s in batch])
    return [
        Quantity(f"{END_TO_END}/sum_loss", error, parity_kit.LOSS_RTOL * truth["sum_loss"]),
        *_group_norms(case, gradients),
        *(
            parity_kit.activation(case, f"{side}_sentence_embedding", found)
            for side, found in zip(batch, vectors(model, batch), strict=True)
        ),
    ]


def _export(flat: Mapping[str, np.ndarray], vocab_size: int) -> dict[str, np.ndarray]:
    named = {path.removeprefix("embedder/"): array for path, array in flat.items()}
    return layout_bert.LAYOUT.export_arrays(named, vocab_size)


def _group_norms(case: Case, gradients: Mapping[str, np.ndarray]) -> list[Quantity]:
    expected = case.float64[END_TO_END]["grad_norm_groups"]
    floor = case.float32[END_TO_END]["grad_norm_groups"]
    squares = dict.fromkeys(expected, 0.0)
    for name, gradient in gradients.items():
        square = float(np.sum(np.asarray(gradient, np.float64) ** 2))
        for group in ("__total__", _group(name)):
            squares[group] = squares.get(group, 0.0) + square
    noise = parity_kit.NOISE_FACTOR * max(abs(floor[n] - v) for n, v in expected.items())
    return [
        Quantity(
            f"{END_TO_END}/grad_norm_groups[{name}]",
            abs(squares[name] ** 0.5 - expected.get(name, np.inf)),
            parity_kit.GRADIENT_RTOL * expected.get(name, 0.0) + noise,
        )
        for name in squares
    ]


@functools.cache
def _group(name: str) -> str:
    """`embeddings`, `encoder.layer.N` or `pooler`."""
    parts = name.removeprefix("bert.").split(".")
    return ".".join(parts[:3]) if parts[0] == "encoder" else parts[0]
