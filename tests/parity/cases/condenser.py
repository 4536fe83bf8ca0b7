"""Golden cases `condenser`: losses, activations, all gradients; coCondenser's second loss."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.interop.layout_bert import LAYOUT
from models.losses import contrastive
from models.objectives import cocondenser, condenser
from t5x_style.interfaces.objective import GroupShape
from tests.parity import parity_kit, parity_names
from tests.parity.cases import bert as bert_case
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ("CondenserForPretraining / CoCondenserForPretraining",)

GIN = """
from models.objectives import condenser
from t5x_style.interfaces import objective
parity_kit.build.objective = @condenser.Condenser
condenser.Condenser.config = @bert.BertConfig()
condenser.Condenser.embedding_config = @text_embedding.EmbeddingConfig()
condenser.Condenser.text = @objective.GroupShape()
condenser.Condenser.vocabulary = @contract.Vocabulary()
condenser.Condenser.chunk = 32
condenser.Condenser.mask_rate = 0.99  # only bounds how many labels a row may have
objective.GroupShape.segments = 1
"""


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Compares the case with our objective."""
    model = parity_kit.bound_objective(bindings(case), overrides)
    assert isinstance(model, condenser.Condenser)
    named = names(case)
    parity_kit.fill(model, parity_names.Weights(parity_kit.weights_file(case), named))
    model.eval()
    batch = case.batch
    text = parity_kit.token_group(batch["input_ids"], batch["attention_mask"])
    text["labels"] = jnp.asarray(batch["labels"], jnp.int32)
    values, gradients = parity_kit.value_and_gradients(
        model, {"text": text}, functools.partial(parity_names.export, named)
    )
    truth = case.float64["condenser"]
    losses = {"head_mlm_loss": "head_loss", "late_mlm_loss": "late_loss", "total_loss": "loss"}
    present = {t: o for t, o in losses.items() if t in truth and o in values}
    of_variant = dataclasses.replace(
        case,
        float32=case.float32 | case.float32["condenser"],
        float64=case.float64 | truth,
    )
    return [
        *(parity_kit.loss(of_variant, theirs, values[ours]) for theirs, ours in present.items()),
        *_activations(case, model, text),
        *parity_kit.gradients(of_variant, gradients, group_of),
        *_with_pairs(case, model, text),
    ]


def names(case: Case) -> list[parity_names.Named]:
    """A BERT with its MLM head, and the layers of `c_head`."""
    layers = case.config["n_head_layers"]
    return [
        *parity_names.encoder_and_head(case.bert, "", "lm.", "bert"),
        *parity_names.decoder(case.bert, layers, "c_head."),
    ]


def group_of(name: str) -> str:
    """`c_head`, or as in BERT's cases."""
    return "c_head" if name.startswith("c_head.") else bert_case.group_of(name)


def bindings(case: Case) -> list[str]:
    """The system's gin for this case's sizes."""
    rows, length = case.batch["labels"].shape
    config = case.config
    sizes = [f"bert.BertConfig.{k} = {v!r}" for k, v in dataclasses.asdict(case.bert).items()]
    vocabulary = parity_kit.vocabulary_lines(case)
    return [
        vocabulary[0],
        GIN,
        *vocabulary[1:],
        *sizes,
        f"objective.GroupShape.rows = {rows}",
        f"objective.GroupShape.length = {length}",
        f"condenser.Condenser.skip_from = {config['skip_from']}",
        f"condenser.Condenser.head_layers = {config['n_head_layers']}",
        f"condenser.Condenser.late_mlm = {config['late_mlm']}",
    ]


def _activations(
    case: Case, model: condenser.Condenser, text: dict[str, jax.Array]
) -> list[Quantity]:
    early, late = model.early_and_late(text)
    memory, condensed = model.condense(text, early, late)
    real = case.batch["attention_mask"] == 1
    return [
        parity_kit.activation(case, "cls_embedding", late[:, 0]),
        parity_kit.activation(case, "skip_hidden", early, real),
        parity_kit.activation(case, "head_input", memory, real),
        parity_kit.activation(case, "head_output", condensed, real),
    ]


def _with_pairs(
    case: Case, plain: condenser.Condenser, text: dict[str, jax.Array]
) -> list[Quantity]:
    """coCondenser's losses and norms of all gradients; rows 2i and 2i + 1 are of one document."""
    batch = {
        side: {name: array[first::2] for name, array in text.items()}
        for first, side in enumerate(cocondenser.SIDES)
    }
    ids = jnp.arange(len(batch["query"]["tokens"]), dtype=jnp.int32)[:, None]
    batch["query"]["example_id"] = ids
    batch["passage"] |= {"example_id": ids, "document_id": ids, "relevance": jnp.ones_like(ids)}
    shape = GroupShape(len(ids), text["tokens"].shape[1], 1)
    model = cocondenser.CoCondenser(
        case.bert, plain.embedding_config, plain.vocabulary, shape, shape, 0.99, plain.chunk,
        plain.skip_from, contrastive.ContrastiveConfig(), plain.head_layers, plain.late_mlm,
        rngs=nnx.Rngs(0),
    )  # fmt: skip
    nnx.update(model, nnx.state(plain, nnx.Param))
    model.eval()
    values, gradients = parity_kit.value_and_gradients(
        model, batch, functools.partial(parity_names.export, names(case))
    )
    variant = dataclasses.replace(
        case, float32=case.float32["cocondenser"], float64=case.float64["cocondenser"]
    )
    norms = {name: float(np.linalg.norm(array)) for name, array in gradients.items()}
    floor = parity_kit.noise_floor(variant, "grad_norm_params")
    compared = [
        parity_kit.loss(variant, "contrastive_loss", values["contrastive"]),
        parity_kit.loss(variant, "total_loss", values["loss"]),
        *(
            Quantity(
                name,
                abs(norms[LAYOUT.canonical(name)] - truth),
                parity_kit.GRADIENT_RTOL * truth + floor,
            )
            for name, truth in variant.float64["grad_norm_params"].items()
        ),
    ]
    return [dataclasses.replace(one, name=f"cocondenser {one.name}") for one in compared]
