"""Golden cases `retromae_collator`: the statistics of our masks against the official collator's.

Not exact: two samples of the same distribution. The tolerance of a rate is five standard errors of
the difference plus one draw; a histogram passes if chi-square has p > 1e-4.
"""

from typing import Any

import numpy as np

from models.corruption.masking import IGNORED
from t5x_style.interfaces.objective import Objective
from tests.parity import parity_kit
from tests.parity import parity_statistics as statistics
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ()  # config.json names none: the parent folder's name says it

GIN = """
from models.objectives import retromae
from t5x_style.interfaces import objective
parity_kit.build.objective = @retromae.RetroMAE
retromae.RetroMAE.config = @bert.BertConfig()
bert.BertConfig.hidden = 8
bert.BertConfig.layers = 1
bert.BertConfig.heads = 1
bert.BertConfig.mlp = 8
retromae.RetroMAE.embedding_config = @text_embedding.EmbeddingConfig()
retromae.RetroMAE.text = @objective.GroupShape()
retromae.RetroMAE.vocabulary = @contract.Vocabulary()
retromae.RetroMAE.chunk = 32
objective.GroupShape.segments = 1
"""


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Compares all lists of the case with what `RetroMAE.corrupt` draws."""
    names = sorted({key.split("/")[0] for key in case.batch})
    return [quantity for name in names for quantity in _one_list(case, name, overrides)]


def _one_list(case: Case, name: str, overrides: list[str]) -> list[Quantity]:
    longest = case.config["max_seq_length"] - 2
    inner = case.batch[f"{name}/token_ids"][:longest]
    subword = case.batch[f"{name}/is_subword"][:longest]
    tokens = np.asarray(
        [case.config["cls_token_id"], *inner, case.config["sep_token_id"]], np.int32
    )
    starts = np.asarray([True, *(subword == 0), True])
    objective = parity_kit.bound_objective(_bindings(case, len(tokens)), overrides)
    drawn = _draw(objective, tokens, starts)
    truth = case.float32[name]
    return [
        *_rates(case, name, drawn),
        *_histograms(name, truth, drawn),
        *_replacements(name, truth, tokens, drawn, case.config["mask_token_id"]),
        _shared_masks(name, truth, drawn["visible"]),
    ]


def _bindings(case: Case, length: int) -> list[str]:
    return [
        *parity_kit.vocabulary_lines(case),
        GIN,
        f"bert.BertConfig.vocab_size = {case.config['vocab_size']}",
        f"bert.BertConfig.max_positions = {length}",
        f"objective.GroupShape.rows = {statistics.ROWS}",
        f"objective.GroupShape.length = {length}",
        f"retromae.RetroMAE.encoder_mask_rate = {case.config['encoder_mlm_probability']}",
        f"retromae.RetroMAE.decoder_mask_rate = {case.config['decoder_mlm_probability']}",
    ]


def _draw(objective: Objective, tokens: np.ndarray, starts: np.ndarray) -> dict[str, np.ndarray]:
    """Masks of DRAWS examples, all this text: visible [n, L, L], selected and new tokens [n, L]."""
    features = ("decoder_visible", "encoder_labels", "encoder_tokens")
    visible, labels, drawn = statistics.corrupted(objective, tokens, starts, features)
    return {"visible": visible, "selected": labels != IGNORED, "tokens": drawn}


def _rates(case: Case, name: str, drawn: dict[str, np.ndarray]) -> list[Quantity]:
    their_n = case.config["n_samples"]
    pairs = {"decoder_visible_rate": "visible", "encoder_masked_rate": "selected"}
    return [
        statistics.rate(
            f"{name}/{rate}",
            drawn[ours].mean(0),
            case.arrays[f"{name}/{rate}"],
            statistics.DRAWS,
            their_n,
        )
        for rate, ours in pairs.items()
    ]


def _histograms(name: str, truth: dict[str, Any], drawn: dict[str, np.ndarray]) -> list[Quantity]:
    hidden = ~drawn["visible"]
    others = hidden.sum(2) - np.diagonal(hidden, axis1=1, axis2=2)  # [n, L]
    counts = {
        "decoder_hidden_count_hist_excl_self": others,
        "encoder_masked_count_hist": drawn["selected"].sum(1),
    }
    return [statistics.histogram(f"{name}/{key}", ours, truth[key]) for key, ours in counts.items()]


def _replacements(
    name: str, truth: dict[str, Any], tokens: np.ndarray, drawn: dict[str, np.ndarray], mask: int
) -> list[Quantity]:
    selected, new = drawn["selected"], drawn["tokens"]
    ours = {
        "mask_frac": new[selected] == mask,
        "non_mask_frac": new[selected] != mask,
        "unchanged_frac": (new == tokens)[selected],
    }
    their_n = sum(int(k) * v for k, v in truth["encoder_masked_count_hist"].items())
    expected = truth["encoder_replacement"]
    if not their_n and not selected.any():  # every word is longer than the budget
        return []
    if not their_n or not selected.any():
        return [Quantity(f"{name}/encoder_replacement", np.inf, 1.0, "only one side masks")]
    return [
        statistics.rate(f"{name}/{key}", chosen.mean(), expected[key], chosen.size, their_n)
        for key, chosen in ours.items()
    ]


def _shared_masks(name: str, truth: dict[str, Any], visible: np.ndarray) -> Quantity:
    """How often two random rows agree outside their own columns."""
    rng = np.random.default_rng(0)
    agreeing = []
    for block in visible:
        i, j = rng.choice(np.arange(1, block.shape[0]), 2, replace=False)
        agreeing.append(np.array_equal(np.delete(block[i], [i, j]), np.delete(block[j], [i, j])))
    key = "prob_two_rows_share_base_mask"
    return statistics.rate(
        f"{name}/{key}", np.mean(agreeing), truth[key], len(agreeing), truth["n_pairs"]
    )
