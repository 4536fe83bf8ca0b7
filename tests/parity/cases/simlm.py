"""Golden cases `simlm`: losses, activations and all gradients, from the official samples."""

import dataclasses
import functools
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from models.interop import hf_config
from models.losses import cross_entropy
from models.objectives import simlm
from tests.parity import parity_kit, parity_names
from tests.parity.cases import bert as bert_case
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ("ReplaceLM",)

GIN = """
from models.objectives import simlm
from t5x_style.interfaces import objective
parity_kit.build.objective = @simlm.SimLM
simlm.SimLM.config = @encoder/bert.BertConfig()
simlm.SimLM.generator_config = @generator/bert.BertConfig()
simlm.SimLM.embedding_config = @text_embedding.EmbeddingConfig()
simlm.SimLM.text = @objective.GroupShape()
simlm.SimLM.vocabulary = @contract.Vocabulary()
simlm.SimLM.chunk = 32
objective.GroupShape.segments = 1
"""


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Compares the case with our objective."""
    model = parity_kit.bound_objective(bindings(case), overrides)
    assert isinstance(model, simlm.SimLM)
    named = names(case)
    parity_kit.fill(model, parity_names.Weights(parity_kit.weights_file(case), named))
    model.eval()
    text = corrupted(case, model)
    values, gradients = parity_kit.value_and_gradients(
        model, {"text": text}, functools.partial(parity_names.export, named)
    )
    losses = {"total_loss": "loss", "encoder_loss": "encoder_loss", "decoder_loss": "decoder_loss"}
    if model.generator_weight:
        losses["generator_loss_used"] = "generator_loss"
    return [
        *(parity_kit.loss(case, theirs, values[ours]) for theirs, ours in losses.items()),
        parity_kit.loss(case, "replace_ratio", values["replaced_share"]),
        *_generator(case, model, text),
        *_activations(case, model, text),
        *_gradients(case, model, gradients),
    ]


def _gradients(case: Case, model: simlm.SimLM, ours: Mapping[str, np.ndarray]) -> list[Quantity]:
    """A frozen generator's are zero, and the case lists none."""
    if model.generator_weight:
        return parity_kit.gradients(case, ours, group_of)
    frozen = [array for name, array in ours.items() if name.startswith("generator.")]
    largest = max(float(np.abs(array).max()) for array in frozen)
    rest = {name: array for name, array in ours.items() if not name.startswith("generator.")}
    norms = {n: v for n, v in case.float64["grad_norm_groups"].items() if n != "generator"}
    without = dataclasses.replace(case, float64=case.float64 | {"grad_norm_groups": norms})
    return [
        Quantity("gradient of the frozen generator", largest, 0.0),
        *parity_kit.gradients(without, rest, group_of),
    ]


def bindings(case: Case) -> list[str]:
    """The system's gin for this case's sizes and rates."""
    rows, length = case.batch["labels"].shape
    config = case.config
    weight = 0.0 if config["rlm_freeze_generator"] else config["rlm_generator_mlm_weight"]
    sizes = []
    for part in ("encoder", "generator"):
        fields = vars(bert_config(case, part)).items()
        sizes += [f"{part}/bert.BertConfig.{name} = {value!r}" for name, value in fields]
    vocabulary = parity_kit.vocabulary_lines(_with_vocabulary(case))
    return [
        vocabulary[0],
        GIN,
        *vocabulary[1:],
        *sizes,
        f"objective.GroupShape.rows = {rows}",
        f"objective.GroupShape.length = {length}",
        # Rates only bound how many labels a row may have; what is masked comes from the case.
        "simlm.SimLM.encoder_mask_rate = 0.98",
        "simlm.SimLM.decoder_mask_rate = 0.99",
        f"simlm.SimLM.decoder_layers = {config['rlm_decoder_layers']}",
        f"simlm.SimLM.generator_weight = {weight}",
    ]


def bert_config(case: Case, part: str) -> Any:
    """Sizes of the `encoder` or the `generator`."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(case.config[part]))
        return hf_config.config_from_hf(folder, "float32", "none", 128)


def _with_vocabulary(case: Case) -> Case:
    config = {**case.config, "vocab_size": case.config["encoder"]["vocab_size"]}
    return dataclasses.replace(case, config=config)


def corrupted(case: Case, model: simlm.SimLM) -> dict[str, jax.Array]:
    """The group `text` as `SimLM.corrupt` leaves it, but with the official masks and samples."""
    batch = case.batch
    clean = np.where(batch["labels"] >= 0, batch["labels"], batch["enc_input_ids"])
    text = parity_kit.token_group(clean, batch["enc_attention_mask"], batch["enc_token_type_ids"])
    names = {
        "encoder_tokens": "enc_sampled_input_ids",
        "decoder_tokens": "dec_sampled_input_ids",
        "generator_tokens": "enc_input_ids",
        "generator_labels": "enc_labels",
    }
    text |= {ours: jnp.asarray(batch[theirs], jnp.int32) for ours, theirs in names.items()}
    labels = simlm.labels_of(text, model.vocabulary)
    if not np.array_equal(labels, batch["labels"]):
        raise parity_kit.CaseError(f"{case.folder}: labels are not all tokens but special ones.")
    return text | {"encoder_labels": labels, "decoder_labels": labels}


def _generator(case: Case, model: simlm.SimLM, text: dict[str, jax.Array]) -> list[Quantity]:
    """Its loss and logits on both inputs."""
    generator, found = model.generator, []
    assert generator is not None
    for side in ("enc", "dec"):
        tokens = jnp.asarray(case.batch[f"{side}_input_ids"], jnp.int32)
        labels = jnp.asarray(case.batch[f"{side}_labels"], jnp.int32)
        loss = generator.loss(text, tokens, labels, tokens.shape[1], None)
        name = f"generator_mlm_loss_{side}_input"
        found.append(parity_kit.loss(case, name, float(loss.value())))
        states = generator.head.transform(generator.states(text, tokens, None))
        logits = states @ generator.encoder.word_table.T + generator.head.bias[...]
        masked = np.asarray(logits)[np.asarray(labels) >= 0][:, : generator.config.vocab_size]
        found.append(parity_kit.activation(case, f"generator_logits_at_{side}_masked", masked))
    return found


def _activations(case: Case, model: simlm.SimLM, text: dict[str, jax.Array]) -> list[Quantity]:
    hidden = model.encode(text)
    memory, decoded = model.decode(text, hidden)
    real = case.batch["enc_attention_mask"] == 1

    def token_loss(states: jax.Array) -> jax.Array:
        table, bias = model.encoder.word_table, model.head.bias[...]
        size = {"vocab_size": model.config.vocab_size, "chunk": 7}
        return cross_entropy.cross_entropy(
            model.head.transform(states), table, bias, text["encoder_labels"], **size
        )

    return [
        parity_kit.activation(case, "cls_embedding", hidden[:, 0]),
        parity_kit.activation(case, "encoder_last_hidden_state", hidden, real),
        parity_kit.activation(case, "decoder_input_hidden", memory, real),
        parity_kit.activation(case, "decoder_hidden", decoded, real),
        parity_kit.activation(case, "encoder_token_loss", token_loss(hidden)),
        parity_kit.activation(case, "decoder_token_loss", token_loss(decoded)),
    ]


def names(case: Case) -> list[parity_names.Named]:
    """The encoder with its head, the decoder's layers, the generator."""
    encoder, generator = (bert_config(case, part) for part in ("encoder", "generator"))
    return [
        *parity_names.encoder_and_head(encoder, "", "encoder.", "bert"),
        *parity_names.decoder(encoder, case.config["rlm_decoder_layers"], "decoder."),
        *parity_names.encoder_and_head(generator, "generator/", "generator.", "electra"),
    ]


def group_of(name: str) -> str:
    """`decoder.K`, `generator`, or as in BERT's cases."""
    first, second = name.split(".")[:2]
    if first == "decoder":
        return f"decoder.{second}"
    return first if first == "generator" else bert_case.group_of(name.removeprefix("bert.encoder."))
