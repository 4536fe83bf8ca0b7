"""Writes a trained bag of embeddings as a folder that sentence-transformers opens.

The folder holds a `StaticEmbedding` module: one row for each token, with the token's weight
multiplied in, and the mean of the rows. The mean has the direction of our weighted sum, so vectors
of unit length are the same.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file

from models.interop import model_cards, sentence_modules
from models.interop.export_checks import ExportError
from models.interop.export_hf import Weights
from models.networks import bag
from t5x_style.interfaces.contract import Contract, Vocabulary

_TABLE, _WEIGHT = "encoder/word/embedding", "encoder/token_weight"

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"export": {"name": "export_bag", "version": 1, "outputs": ["encoder"]}}


def export(
    model_dir: str,
    checkpoint: str,
    weights: Weights,
    config: bag.BagConfig,
    vocabulary: Vocabulary,
    tokenizer: str,
) -> dict[str, str]:
    """Writes what a training stage left for sentence-transformers.

    Args:
        model_dir: stage folder.
        checkpoint: folder of the training stage, for its contract.
        weights: of that stage.
        config: the bag that was trained.
        vocabulary, tokenizer: of the tokenizer that it was trained with, and its folder.

    Returns:
        {"encoder": the folder relative to model_dir}.

    Raises:
        ExportError: the checkpoint holds no bag of this size, the tokenizer is another than in
            training, vectors are not brought to unit length, or repeated tokens count less.
    """
    contract = Contract.load(checkpoint)
    rows = token_rows(weights.arrays(), config)
    _require_fit(contract, config, vocabulary)
    folder = Path(model_dir) / "encoder"
    folder.mkdir(parents=True, exist_ok=True)  # of this stage, if it was killed before
    save_file({"embedding.weight": rows}, folder / "model.safetensors", {"format": "pt"})
    max_length = max(contract.query_length, contract.passage_length)
    _write_tokenizer(folder, Path(tokenizer), max_length)
    for name, content in _settings(contract).items():
        sentence_modules.write_json(folder / name, content)
    card = model_cards.retriever(contract, max_length)
    (folder / "README.md").write_text(card, encoding="utf-8")
    return {"encoder": "encoder"}


def token_rows(arrays: Mapping[str, np.ndarray], config: bag.BagConfig) -> np.ndarray:
    """[vocab_size, D] float32: softplus(weight[t]) . table[t], zeros for special tokens.

    Args:
        arrays: path -> array, of a checkpoint.
        config: the bag that was trained.

    Raises:
        ExportError: the arrays are not those of such a bag.
    """
    expected = {
        _TABLE: (config.padded_vocab, config.hidden),
        _WEIGHT: (config.padded_vocab,),
    }
    found = {path: array.shape for path, array in arrays.items()}
    if found != expected:
        raise ExportError(
            f"expected the parameters of a bag of embeddings, {expected}, found {found}: give the "
            "model file of the training"
        )
    weight = np.logaddexp(0.0, arrays[_WEIGHT][: config.vocab_size])
    weight[list(config.special_ids)] = 0.0
    rows = weight[:, None] * arrays[_TABLE][: config.vocab_size]
    return np.ascontiguousarray(rows, np.float32)


def _require_fit(contract: Contract, config: bag.BagConfig, vocabulary: Vocabulary) -> None:
    if config.repetition_exponent != 1:
        raise ExportError(
            "repeated tokens count less in this bag (BagConfig.repetition_exponent "
            f"{config.repetition_exponent}), and sentence-transformers counts each alike: expected "
            "1. The SavedModel of runs/exports/saved_model.gin has the same vectors."
        )
    if not contract.normalise:
        raise ExportError(
            "vectors of this bag do not have unit length (EmbeddingConfig.normalise False), and "
            "sentence-transformers takes means where the bag takes sums: expected normalise True"
        )
    if contract.tokenizer_fingerprint != vocabulary.fingerprint:
        raise ExportError(
            f"trained with tokenizer {contract.tokenizer_fingerprint[:12]}, found "
            f"{vocabulary.fingerprint[:12]}: give the tokenizer of the training"
        )


def _write_tokenizer(folder: Path, tokenizer: Path, max_length: int) -> None:
    """tokenizer.json that cuts as the training did; specials, which the module leaves out, count.

    "[SEP]" in a text is text in training, but a special token here, whose row is zero.
    """
    backend = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    specials = backend.num_special_tokens_to_add(is_pair=False)
    backend.enable_truncation(max_length=max(1, max_length - specials))
    backend.save(str(folder / "tokenizer.json"))


def _settings(contract: Contract) -> dict[str, Any]:
    kinds = {"StaticEmbedding": "", "Normalize": "1_Normalize"}
    return {
        "modules.json": [
            {
                "idx": number,
                "name": str(number),
                "path": path,
                "type": f"sentence_transformers.models.{kind}",
            }
            for number, (kind, path) in enumerate(kinds.items())
        ],
        "config_sentence_transformers.json": {
            "prompts": {"query": contract.query_prefix, "document": contract.passage_prefix},
            "default_prompt_name": None,
            "similarity_fn_name": contract.similarity,
        },
        "1_Normalize/config.json": {},
    }
