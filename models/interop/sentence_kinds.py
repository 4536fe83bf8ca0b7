"""The files that make an encoder's folder one of sentence-transformers' models of other kinds.

`MultiVectorEncoder`, from version 6 on: a vector for each token, by a projection, unit length, and
a mask of those that count.  `SparseEncoder`: SPLADE's weights of words, from an MLM head.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import save_file

from models.interop import sentence_modules
from t5x_style.interfaces.contract import Contract

_SHARED = "sentence_transformers.base.modules"
_MULTI_VECTOR = "sentence_transformers.multi_vector_encoder.modules"
_SPARSE = "sentence_transformers.sparse_encoder.modules"
# Folder of a module -> its class; the encoder lies in the root.
_MULTI_VECTOR_CLASSES = {
    "": f"{_SHARED}.transformer.Transformer",
    "1_Dense": f"{_SHARED}.dense.Dense",
    "2_Normalize": f"{_SHARED}.normalize.Normalize",
    "3_MultiVectorMask": f"{_MULTI_VECTOR}.multi_vector_mask.MultiVectorMask",
}
_SPARSE_CLASSES = {
    "": f"{_SPARSE}.mlm_transformer.MLMTransformer",
    "1_SpladePooling": f"{_SPARSE}.splade_pooling.SpladePooling",
}
_TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}


class LateInteraction(NamedTuple):
    """Settings of late interaction: the vectors that count, and their comparison.

    Attributes:
        skipped: tokens without a vector, as the tokenizer spells them.
        sides: of what they are skipped, 'query' and 'document'.
        similarity: 'maxsim', a sum over the query's vectors, or 'meanmaxsim'.
        augmented: whether queries are filled with [MASK] up to their length.
    """

    skipped: Sequence[str]
    sides: Sequence[str]
    similarity: str
    augmented: bool


def write_multi_vector(
    folder: Path,
    contract: Contract,
    interaction: LateInteraction,
    projection: Mapping[str, np.ndarray],
    model_args: Mapping[str, Any],
) -> None:
    """Adds what a MultiVectorEncoder needs to a folder with the encoder and its tokenizer.

    Args:
        folder: of the encoder.
        contract: prefixes and lengths.
        interaction: of the vectors.
        projection: 'weight' [d, D] and, where there is one, 'bias' [d].
        model_args: for the constructor of transformers' model.
    """
    size, width = projection["weight"].shape
    dense = {
        "in_features": width,
        "out_features": size,
        "bias": "bias" in projection,
        "activation_function": "torch.nn.modules.linear.Identity",
        **_TOKENS,
    }
    mask = {
        "skiplist_words": list(interaction.skipped),
        "skiplist_tasks": list(interaction.sides),
        "keep_only_token_ids": None,
    }
    encoder = {
        "transformer_task": "feature-extraction",
        "model_args": dict(model_args),
        "query_length": contract.query_length,
        "document_length": contract.passage_length,
    }
    if interaction.augmented:
        length = {"length": contract.query_length}
        encoder["query_expansion"] = {"strategy": "fixed", "attend": True, **length}
    settings = {"": encoder, "1_Dense": dense, "2_Normalize": _TOKENS, "3_MultiVectorMask": mask}
    _write(folder, _MULTI_VECTOR_CLASSES, settings)
    _write_model(folder, contract, "MultiVectorEncoder", interaction.similarity)
    tensors = {
        f"linear.{name}": np.ascontiguousarray(array, np.float32)
        for name, array in projection.items()
    }
    save_file(tensors, folder / "1_Dense/model.safetensors", {"format": "pt"})


def write_sparse(folder: Path, contract: Contract, max_tokens: int) -> None:
    """Adds what a SparseEncoder needs to a folder with an encoder, its MLM head and its tokenizer.

    Args:
        folder: of the encoder.
        contract: prefixes.
        max_tokens: at which a text is cut.
    """
    pooling = {
        "pooling_strategy": "max",
        "activation_function": "relu",
        "embedding_dimension": contract.vocabulary_size,
    }
    encoder = {"transformer_task": "fill-mask", "max_seq_length": max_tokens}
    _write(folder, _SPARSE_CLASSES, {"": encoder, "1_SpladePooling": pooling})
    _write_model(folder, contract, "SparseEncoder", "dot")


def _write(folder: Path, classes: Mapping[str, str], settings: Mapping[str, Any]) -> None:
    """The list of modules, and the settings of each."""
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": name}
        for number, (path, name) in enumerate(classes.items())
    ]
    sentence_modules.write_json(folder / sentence_modules.MODULES, listed)
    for path, content in settings.items():
        (folder / path).mkdir(exist_ok=True)
        name = f"{path}/config.json" if path else "sentence_bert_config.json"
        sentence_modules.write_json(folder / name, dict(content))


def _write_model(folder: Path, contract: Contract, model_type: str, similarity: str) -> None:
    settings = {
        "model_type": model_type,
        "prompts": {"query": contract.query_prefix, "document": contract.passage_prefix},
        "default_prompt_name": None,
        "similarity_fn_name": similarity,
    }
    sentence_modules.write_json(folder / "config_sentence_transformers.json", settings)
