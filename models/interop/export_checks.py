"""Checks of `export_hf`, before anything is written."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tokenizers

from models.interop import published_layout
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.representation import DENSE, MULTI_VECTOR, SPARSE

COLBERT = "colbert"  # a contract's pooling
# What is written of a model: part -> whether it must be there.
_RETRIEVER = {
    "encoder": True,
    "head": False,
    "decoder": False,
    "sparse": False,
    "multi_vector": False,
}
_POOLED = {"encoder": True, "pooler": True}
_RERANKER = {"encoder": True, "pooler": True, "classifier": True}


class ExportError(ValueError):
    """The weights cannot be written as asked; the message lists each problem."""


def is_reranker(contract: Contract) -> bool:
    """Whether the model scores pairs, and has no vectors."""
    return contract.similarity == "score"


def kinds(arrays: Mapping[str, np.ndarray], contract: Contract) -> tuple[str, ...]:
    """Of representations that M3's `encoder/` makes; of another model, its vector alone or none."""
    if is_reranker(contract) or contract.pooling in ("splade", COLBERT):
        return ()
    parts = {path.split("/")[0] for path in arrays}
    return (DENSE, *(kind for kind in (SPARSE, MULTI_VECTOR) if kind in parts))


def require_fit(
    arrays: Mapping[str, np.ndarray],
    config: TokenEncoderConfig,
    contract: Contract,
    vocabulary: Vocabulary,
) -> None:
    """Raises ExportError unless weights, sizes, contract and tokenizer belong together."""
    several = arrays.get("multi_vector/dense/kernel")
    vector = None if several is None else several.shape[1]  # as the training chose
    shapes = published_layout.of_config(config).shapes(
        config, vector=vector, in_pair=is_reranker(contract)
    )
    kind, parts = "retriever", _RETRIEVER
    if is_reranker(contract):
        kind, parts = "re-ranker", _RERANKER
    elif contract.pooling == "pooler":
        kind, parts = "retriever with a pooler", _POOLED
    problems = []
    for path, array in sorted(arrays.items()):
        if path not in shapes:
            problems.append(f"{path}: Hugging Face files have no such parameter")
        elif path.split("/")[0] not in parts:
            problems.append(f"{path}: not a part of a {kind}, as the training's contract has it")
        elif array.shape != shapes[path]:
            problems.append(
                f"{path}: {type(config).__name__} says {shapes[path]}, found {array.shape}"
            )
    problems += [
        f"{path}: missing"
        for path in shapes
        if parts.get(path.split("/")[0]) and path not in arrays
    ]
    if contract.vocabulary_size != config.vocab_size:
        problems.append(
            f"vocabulary: trained with {contract.vocabulary_size} tokens, "
            f"{type(config).__name__}.vocab_size is {config.vocab_size}"
        )
    if contract.tokenizer_fingerprint != vocabulary.fingerprint:
        problems.append(
            f"tokenizer: trained with {contract.tokenizer_fingerprint[:12]}, found "
            f"{vocabulary.fingerprint[:12]}"
        )
    if problems:
        raise ExportError(
            "cannot be exported:\n  "
            + "\n  ".join(problems)
            + "\nGive the model file and the tokenizer of the training, and list in export.unused "
            "what may be left out."
        )


def pair_separators(file: Path, types: int) -> int:
    """Counts the [SEP] that a tokenizer.json puts between two texts: 1 (BERT's) or 2 (RoBERTa's).

    `input_pipelines.tokenizers.tokenization.pair_separators` counts them for a training, where the
    types of tokens are not known.

    Args:
        file: tokenizer.json.
        types: of tokens that the encoder has; with 1 they make no difference.

    Raises:
        ExportError: it joins two texts otherwise than our re-ranker, which reads `[CLS] query [SEP]
            passage [SEP]` or `[CLS] query [SEP] [SEP] passage [SEP]`, the types 1 from the passage
            on.
    """
    backend = tokenizers.Tokenizer.from_file(str(file))
    backend.no_padding()
    backend.no_truncation()
    one, pair = backend.encode("a"), backend.encode("a", "a")
    ids, expected = one.ids + one.ids[1:], [0] * len(one.ids) + [1] * (len(one.ids) - 1)
    doubled = one.ids + one.ids[-1:] + one.ids[1:]
    if pair.ids == doubled and types == 1 and len(one.ids) > 2:
        return 2
    if pair.ids != ids or len(one.ids) < 3 or (types > 1 and pair.type_ids != expected):
        raise ExportError(
            f"{file}: a re-ranker's pairs are [CLS] query [SEP] passage [SEP]: expected the ids "
            f"{ids} with the types {expected} for the pair of 'a' and 'a' (or, of an encoder "
            f"without token types, {doubled}), found {pair.ids} with {pair.type_ids}. Use a "
            "tokenizer whose post_processor joins pairs like BERT's or RoBERTa's."
        )
    return 1
