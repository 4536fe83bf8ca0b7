"""Hugging Face folders of a few numbers, in each family's spelling."""

import dataclasses
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from models.interop import hf_config
from models.interop.layout_bert import LAYOUT
from tests.kits import tiny_models

CONFIG = tiny_models.CONFIG
CONFIGS = {
    "bert": CONFIG,
    "roberta": dataclasses.replace(CONFIG, position_offset=2, type_vocab=1, layer_norm_eps=1e-5),
    "electra": dataclasses.replace(CONFIG, embedding_size=8),
}
PADS = {"bert": 0, "roberta": 1, "electra": 0}
UNUSED = ("pooler", "classifier", "next_sentence", "sparse", "multi_vector")


def random_arrays(family: str = "bert", seed: int = 0) -> dict[str, np.ndarray]:
    """Our path -> array of encoder, MLM head and decoder, without padding rows."""
    rng = np.random.default_rng(seed)
    config = dataclasses.replace(CONFIGS[family], vocab_multiple=1)
    shapes = LAYOUT.shapes(config)
    wanted = {path: shape for path, shape in shapes.items() if path.split("/")[0] not in UNUSED}
    return {path: rng.normal(size=shape).astype(np.float32) for path, shape in wanted.items()}


def official(family: str = "bert") -> dict[str, np.ndarray]:
    """The same under the names of a family."""
    exported = LAYOUT.export_arrays(random_arrays(family), CONFIG.vocab_size)
    return {LAYOUT.spelled(n, family): np.ascontiguousarray(a) for n, a in exported.items()}


def write(folder: Path, tensors: dict[str, np.ndarray], family: str = "bert") -> Path:
    """A folder with these tensors and the config.json of the family."""
    fields = hf_config.config_to_hf(CONFIGS[family], PADS[family], "Any")
    (folder / "config.json").write_text(json.dumps(fields))
    save_file(tensors, folder / "model.safetensors")
    return folder
