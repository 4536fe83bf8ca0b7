"""Golden cases `simlm_collator`: the statistics of our masks against the official collator's."""

import numpy as np

from models.corruption.masking import IGNORED
from tests.parity import parity_kit
from tests.parity import parity_statistics as statistics
from tests.parity.parity_kit import Case, Quantity

ARCHITECTURES = ()  # config.json names none: the parent folder's name says it

PAD, UNK, CLS, SEP, MASK = range(5)

GIN = """
from models.objectives import simlm
from t5x_style.interfaces import objective
parity_kit.build.objective = @simlm.SimLM
simlm.SimLM.config = @bert.BertConfig()
bert.BertConfig.hidden = 8
bert.BertConfig.layers = 1
bert.BertConfig.heads = 1
bert.BertConfig.mlp = 8
simlm.SimLM.embedding_config = @text_embedding.EmbeddingConfig()
simlm.SimLM.text = @objective.GroupShape()
simlm.SimLM.vocabulary = @contract.Vocabulary()
simlm.SimLM.chunk = 32
simlm.SimLM.generator_config = None
objective.GroupShape.segments = 1
"""


def quantities(case: Case, overrides: list[str]) -> list[Quantity]:
    """Compares all lists of the case with what `SimLM.corrupt` draws, without a generator."""
    names = sorted({key.split("/")[0] for key in case.batch})
    return [quantity for name in names for quantity in _one_list(case, name, overrides)]


def _one_list(case: Case, name: str, overrides: list[str]) -> list[Quantity]:
    tokens = case.batch[f"{name}/input_ids"].astype(np.int32)
    starts = case.batch[f"{name}/is_subword"] == 0
    objective = parity_kit.bound_objective(_bindings(case, len(tokens)), overrides)
    features = ("encoder_tokens", "encoder_labels", "decoder_tokens", "decoder_labels")
    drawn = statistics.corrupted(objective, tokens, starts, features)
    chosen = {"encoder": drawn[1] != IGNORED, "decoder": drawn[3] != IGNORED}
    wrong = [
        ((drawn[0] == MASK) != chosen["encoder"]) & (tokens != MASK),
        ((drawn[2] == MASK) != chosen["decoder"]) & (tokens != MASK),
        chosen["encoder"] & ~chosen["decoder"],
    ]
    found = [
        Quantity(f"{name}/{what}", float(np.sum(where)), 0.0)
        for what, where in zip(("encoder [MASK]", "decoder [MASK]", "superset"), wrong, strict=True)
    ]
    for side, selected in chosen.items():
        key, count = f"{name}/{side}_masked_rate", f"{side}_masked_count_hist"
        their_n = case.config["n_samples"]
        found.append(
            statistics.rate(key, selected.mean(0), case.arrays[key], statistics.DRAWS, their_n)
        )
        theirs = case.float32[name][count]
        found.append(statistics.histogram(f"{name}/{count}", selected.sum(1), theirs))
    return found


def _bindings(case: Case, length: int) -> list[str]:
    size = len(case.config["vocab"])
    ids = {"pad": PAD, "unk": UNK, "cls": CLS, "sep": SEP, "mask": MASK}
    vocabulary = {"size": size, **ids, "fingerprint": "golden", "special_ids": tuple(range(5))}
    return [
        "from t5x_style.interfaces import contract",
        *(f"contract.Vocabulary.{field} = {value!r}" for field, value in vocabulary.items()),
        GIN,
        f"bert.BertConfig.vocab_size = {size}",
        f"bert.BertConfig.max_positions = {length}",
        f"objective.GroupShape.rows = {statistics.ROWS}",
        f"objective.GroupShape.length = {length}",
        f"simlm.SimLM.encoder_mask_rate = {case.config['rlm_encoder_mask_prob']}",
        f"simlm.SimLM.decoder_mask_rate = {case.config['rlm_decoder_mask_prob']}",
        f"simlm.SimLM.max_predictions = {case.config['max_predictions']}",
    ]
