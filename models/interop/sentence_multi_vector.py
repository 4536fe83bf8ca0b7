"""The files that make an encoder's folder a MultiVectorEncoder of sentence-transformers.

It exists from version 6 on. A vector for each token but [CLS]: the encoder, a projection, unit
length, and a mask without [CLS].
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from models.interop import sentence_modules
from t5x_style.interfaces.contract import Contract

_SHARED = "sentence_transformers.base.modules"
_OWN = "sentence_transformers.multi_vector_encoder.modules"
# Folder of a module -> its class; the encoder lies in the root.
_CLASSES = {
    "": f"{_SHARED}.transformer.Transformer",
    "1_Dense": f"{_SHARED}.dense.Dense",
    "2_Normalize": f"{_SHARED}.normalize.Normalize",
    "3_MultiVectorMask": f"{_OWN}.multi_vector_mask.MultiVectorMask",
}
_TOKENS = {"module_input_name": "token_embeddings", "module_output_name": "token_embeddings"}


def write(
    folder: Path, contract: Contract, cls_token: str, projection: Mapping[str, np.ndarray]
) -> None:
    """Adds them to a folder that holds the encoder and its tokenizer.

    Args:
        folder: of the encoder.
        contract: prefixes and lengths.
        cls_token: how the tokenizer spells [CLS].
        projection: 'weight' [d, D] and 'bias' [d].
    """
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": name}
        for number, (path, name) in enumerate(_CLASSES.items())
    ]
    sentence_modules.write_json(folder / sentence_modules.MODULES, listed)
    for path, content in _settings(contract, cls_token, projection["weight"].shape).items():
        (folder / path).parent.mkdir(exist_ok=True)
        sentence_modules.write_json(folder / path, content)
    tensors = {
        f"linear.{name}": np.ascontiguousarray(array, np.float32)
        for name, array in projection.items()
    }
    save_file(tensors, folder / "1_Dense/model.safetensors", {"format": "pt"})


def _settings(
    contract: Contract, cls_token: str, sizes: tuple[int, ...]
) -> dict[str, dict[str, Any]]:
    """File -> what it says."""
    return {
        "sentence_bert_config.json": {
            "transformer_task": "feature-extraction",
            "model_args": {"add_pooling_layer": False},
            "query_length": contract.query_length,
            "document_length": contract.passage_length,
        },
        "config_sentence_transformers.json": {
            "model_type": "MultiVectorEncoder",
            "prompts": {"query": contract.query_prefix, "document": contract.passage_prefix},
            "default_prompt_name": None,
            "similarity_fn_name": "meanmaxsim",
        },
        "1_Dense/config.json": {
            "in_features": sizes[1],
            "out_features": sizes[0],
            "bias": True,
            "activation_function": "torch.nn.modules.linear.Identity",
            **_TOKENS,
        },
        "2_Normalize/config.json": dict(_TOKENS),
        "3_MultiVectorMask/config.json": {
            "skiplist_words": [cls_token],
            "skiplist_tasks": ["query", "document"],
            "keep_only_token_ids": None,
        },
    }
