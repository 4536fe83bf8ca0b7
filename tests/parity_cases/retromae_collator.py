"""Golden cases `retromae_collator`: the statistics of our masks against the official collator's.

Not exact: two samples of the same distribution. The tolerance of a rate is five standard errors of
the difference plus one draw; a histogram passes if chi-square has p > 1e-4.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from models.corruption import IGNORED
from t5x_style.objective import Objective
from tests import parity_kit
from tests.parity_kit import Case, Quantity

ARCHITECTURES = ()  # config.json names none: the parent folder's name says it

DRAWS = 8192  # at least 6,000
ROWS = 512
SMALLEST_P = 1e-4

GIN = """
from models import retromae
from t5x_style import objective
parity_kit.build.objective = @retromae.RetroMAE
retromae.RetroMAE.config = @bert.BertConfig()
bert.BertConfig.hidden = 8
bert.BertConfig.layers = 1
bert.BertConfig.heads = 1
bert.BertConfig.mlp = 8
retromae.RetroMAE.embedding_config = @embedding.EmbeddingConfig()
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
        f"objective.GroupShape.rows = {ROWS}",
        f"objective.GroupShape.length = {length}",
        f"retromae.RetroMAE.encoder_mask_rate = {case.config['encoder_mlm_probability']}",
        f"retromae.RetroMAE.decoder_mask_rate = {case.config['decoder_mlm_probability']}",
    ]


def _draw(objective: Objective, tokens: np.ndarray, starts: np.ndarray) -> dict[str, np.ndarray]:
    """Masks of DRAWS examples, all this text: visible [n, L, L], selected and new tokens [n, L]."""
    group = parity_kit.token_group(np.tile(tokens, (ROWS, 1)), np.ones((ROWS, len(tokens)), int))
    group["word_starts"] = jnp.asarray(np.tile(starts, (ROWS, 1)))

    @jax.jit
    def corrupt(example_id: jax.Array) -> dict[str, jax.Array]:
        text = group | {"example_id": example_id[:, None]}
        return objective.corrupt({"text": text}, jax.random.key(2))["text"]

    parts = [corrupt(jnp.arange(at, at + ROWS)) for at in range(0, DRAWS, ROWS)]
    join = functools.partial(np.concatenate, axis=0)
    return {
        "visible": join([np.asarray(p["decoder_visible"]) for p in parts]),
        "selected": join([np.asarray(p["encoder_labels"] != IGNORED) for p in parts]),
        "tokens": join([np.asarray(p["encoder_tokens"]) for p in parts]),
    }


def _rate(name: str, ours: Any, theirs: Any, our_n: float, their_n: float) -> Quantity:
    """Rates cell by cell; the error is in units of the tolerance."""
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    variance = np.clip(theirs * (1 - theirs), 0, None)
    allowed = 5 * np.sqrt(variance * (1 / their_n + 1 / our_n)) + 1 / our_n
    return Quantity(name, float(np.max(np.abs(ours - theirs) / allowed)), 1.0, f"n={our_n:.0f}")


def _rates(case: Case, name: str, drawn: dict[str, np.ndarray]) -> list[Quantity]:
    their_n = case.config["n_samples"]
    pairs = {"decoder_visible_rate": "visible", "encoder_masked_rate": "selected"}
    return [
        _rate(
            f"{name}/{rate}",
            drawn[ours].mean(0),
            case.arrays[f"{name}/{rate}"],
            DRAWS,
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
    return [_histogram(f"{name}/{key}", ours, truth[key]) for key, ours in counts.items()]


def _histogram(name: str, ours: np.ndarray, theirs: dict[str, int]) -> Quantity:
    """Chi-square of homogeneity; the error is -log10 p."""
    theirs_by_value = {int(value): count for value, count in theirs.items()}
    values = sorted(set(theirs_by_value) | set(np.unique(ours).tolist()))
    table = [[theirs_by_value.get(v, 0) for v in values], [int((ours == v).sum()) for v in values]]
    p = 1.0 if len(values) == 1 else stats.chi2_contingency(table, correction=False).pvalue
    return Quantity(name, float(-np.log10(max(p, 1e-300))), -np.log10(SMALLEST_P), f"p={p:.3g}")


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
        _rate(f"{name}/{key}", chosen.mean(), expected[key], chosen.size, their_n)
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
    return _rate(f"{name}/{key}", np.mean(agreeing), truth[key], len(agreeing), truth["n_pairs"])
