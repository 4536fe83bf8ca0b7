"""Writes a trained model as folders that transformers and sentence-transformers open.

From the checkpoint of a training stage: `encoder/`; `masked_lm/` where it has an MLM head;
`pretraining/`, RetroMAE's whole state under the official names (`lm.*`, `c_head.*`), where it has a
decoder.  Of a re-ranker, `cross_encoder/` alone.  All four can be read again by `import_hf`, so
that anyone can continue.  M3's heads lie in `encoder/`, a file each, as FlagEmbedding has them; its
vectors of tokens are `multi_vector/` once more, a MultiVectorEncoder of sentence-transformers.  Of
SPLADE, `sparse_encoder/` alone, a SparseEncoder; of ColBERT, `multi_vector/` alone.
"""

import dataclasses
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers
from safetensors.numpy import save_file

from models.interop import (
    export_checks,
    hf_config,
    layout_bert,
    model_cards,
    published_layout,
    punctuation,
    sentence_kinds,
    sentence_modules,
    torch_pickle,
)
from models.networks import token_representations
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocabulary.json")
# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "export": {
        "name": "export_huggingface",
        "version": 1,
        "outputs": [
            "encoder",
            "masked_lm",
            "pretraining",
            "cross_encoder",
            "multi_vector",
            "sparse_encoder",
        ],
    }
}


class Weights(Protocol):
    """Something with weights, such as the checkpoint of a training stage."""

    def arrays(self) -> Mapping[str, np.ndarray]:
        """Path -> array."""


def export(
    model_dir: str,
    checkpoint: str,
    weights: Weights,
    config: TokenEncoderConfig,
    vocabulary: Vocabulary,
    tokenizer: str,
    unused: Sequence[str] = (),
    hybrid: str | None = None,
    token_vector_size: int | None = None,
) -> dict[str, str]:
    """Writes what a training stage left for other libraries.

    Args:
        model_dir: stage folder.
        checkpoint: folder of the training stage, for its contract.
        weights: of that stage.
        config: the encoder that was trained.
        vocabulary, tokenizer: of the tokenizer that it was trained with, and its folder.
        unused: regular expressions for paths of parameters that may be left out.
        hybrid: folder of a contract that says how the kinds of M3 are searched as one
            (`hybrid_weights.keep`); `encoder/` gets that contract, and its card the weights. None:
            neither.
        token_vector_size: how many first dimensions the vectors of tokens have in what is written,
            one of those that M3 or ColBERT was trained for; None: all.

    Returns:
        name -> folder in model_dir, of `encoder` and those of `masked_lm`, `pretraining` and
        `multi_vector` that there are; of a re-ranker, of `cross_encoder`; of SPLADE, of
        `sparse_encoder`; of ColBERT, of `multi_vector`.

    Raises:
        ExportError: the weights have other shapes than config says, or parts that Hugging Face
            files have no place for, or the tokenizer is another than in training, or it joins the
            pairs of a re-ranker in another way than ours.
        ContractError: `hybrid` is of another model, or combines a kind that this one does not make;
            or the model was not trained for `token_vector_size`.
        ValueError: see `hf_config.config_to_hf`.
    """
    whole = weights.arrays()
    size = _kept(whole, token_vector_size)
    contract = Contract.load(checkpoint).cut_to(size, checkpoint)
    given = _of_embedder(_cut(whole, size), contract)
    arrays = {
        path: array
        for path, array in given.items()
        if not any(re.search(pattern, path) for pattern in unused)
    }
    export_checks.require_fit(arrays, config, contract, vocabulary)
    if hybrid is not None:
        contract = contract.combined(hybrid, export_checks.kinds(arrays, contract))
    # A projection to fewer dimensions gives all that it has.
    contract = dataclasses.replace(contract, token_vector_size=None, trained_token_vector_sizes=())
    writer = _Writer(config, contract, vocabulary, Path(tokenizer))
    folder, parts = Path(model_dir), {path.split("/")[0] for path in arrays}
    if export_checks.is_reranker(contract):
        writer.cross_encoder(folder / "cross_encoder", arrays)
        return {"cross_encoder": "cross_encoder"}
    if contract.pooling == "splade":
        writer.sparse_encoder(folder / "sparse_encoder", arrays)
        return {"sparse_encoder": "sparse_encoder"}
    if contract.pooling == export_checks.COLBERT:
        writer.multi_vector(folder / "multi_vector", arrays)
        return {"multi_vector": "multi_vector"}
    writer.encoder(folder / "encoder", _parts(arrays, "encoder", "pooler"))
    writer.combination(folder / "encoder")
    writer.m3_heads(folder / "encoder", _parts(arrays, "sparse", "multi_vector"))
    written = {"encoder": "encoder"}
    if "multi_vector" in parts:
        writer.multi_vector(folder / "multi_vector", _parts(arrays, "encoder", "multi_vector"))
        written["multi_vector"] = "multi_vector"
    if "head" in parts:
        writer.masked_lm(folder / "masked_lm", _parts(arrays, "encoder", "head"))
        written["masked_lm"] = "masked_lm"
    if "decoder" in parts:
        writer.pretraining(folder / "pretraining", arrays)
        written["pretraining"] = "pretraining"
    return written


def _of_embedder(arrays: Mapping[str, np.ndarray], contract: Contract) -> Mapping[str, np.ndarray]:
    """Split an embedder into encoder and pooler."""
    if contract.pooling != "pooler":
        return arrays
    return {path.removeprefix("embedder/"): array for path, array in arrays.items()}


def size_of_token_vectors(arrays: Mapping[str, np.ndarray]) -> int | None:
    """Of the vectors of tokens that a model makes, by its parameters; None: it makes none."""
    kernel = arrays.get("multi_vector/dense/kernel")
    return None if kernel is None else int(kernel.shape[1])


def _kept(arrays: Mapping[str, np.ndarray], size: int | None) -> int | None:
    """As `token_vector_size` of a contract."""
    whole = size_of_token_vectors(arrays)
    if whole is None:
        return size
    return token_representations.kept_size(size, whole, "export.token_vector_size")


def _cut(arrays: Mapping[str, np.ndarray], size: int | None) -> Mapping[str, np.ndarray]:
    """With the projection of token states cut to `size` dimensions; None: unchanged."""
    head = ("multi_vector/dense/kernel", "multi_vector/dense/bias")
    return {path: array[..., :size] if path in head else array for path, array in arrays.items()}


def _parts(arrays: Mapping[str, np.ndarray], *parts: str) -> dict[str, np.ndarray]:
    return {path: array for path, array in arrays.items() if path.split("/")[0] in parts}


def max_tokens(contract: Contract, config: TokenEncoderConfig, tokenizer: Path) -> int:
    """One length for queries and passages, since sentence-transformers has one.

    A re-ranker reads both in one text, with one [CLS] and what the tokenizer puts between them.

    Raises:
        ExportError: see `export_checks.pair_separators`.
    """
    lengths = contract.query_length, contract.passage_length
    if not export_checks.is_reranker(contract):
        return max(lengths)
    file = tokenizer / "tokenizer.json"
    return sum(lengths) + export_checks.pair_separators(file, config.type_vocab) - 2


class _Writer:
    """Writes folders for one encoder, under its contract and with its tokenizer."""

    def __init__(
        self,
        config: TokenEncoderConfig,
        contract: Contract,
        vocabulary: Vocabulary,
        tokenizer: Path,
    ) -> None:
        self.config, self.contract, self.tokenizer = config, contract, tokenizer
        self.vocabulary = vocabulary
        self.layout = published_layout.of_config(config)
        self.variant = self.layout.variant_of(config)
        self.max_tokens = max_tokens(contract, config, tokenizer)

    @property
    def _without_pooler(self) -> dict[str, Any]:
        """For transformers' model, which would make a pooler up, with a warning."""
        left = self.variant not in self.layout.with_pooler
        return {} if left else {"add_pooling_layer": False}

    def encoder(self, folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """A sentence-transformers folder, whose root is one of transformers.

        A pooler is in both: transformers' model returns what it gives as `pooler_output`.
        """
        base = self._spelled("bert.")
        named = self._named(arrays)
        pooler = {
            name: named[self._spelled(name)]
            for name in sentence_modules.POOLER.values()
            if self.contract.pooling == "pooler"
        }
        left = self.variant not in self.layout.with_pooler
        tensors = {
            name.removeprefix(base): array
            for name, array in named.items()
            if not (left and name.startswith(f"{base}pooler."))
        }
        self._model(folder, tensors, self.layout.base_models[self.variant])
        arguments = {} if pooler else self._without_pooler
        sentence_modules.write(folder, self.contract, self.max_tokens, arguments, pooler)
        card = model_cards.retriever(self.contract, self.max_tokens)
        (folder / "README.md").write_text(card, encoding="utf-8")

    def combination(self, folder: Path) -> None:
        """The contract, where it says how several kinds are searched as one."""
        if self.contract.combination is not None:
            self.contract.save(folder)

    def m3_heads(self, folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """Each head that there is as a dict of tensors, which FlagEmbedding opens by torch.load."""
        named = self._named(arrays)
        for head in layout_bert.M3_HEADS:
            start = f"{head}."
            tensors = {n.removeprefix(start): a for n, a in named.items() if n.startswith(start)}
            if tensors:
                torch_pickle.write(folder / f"{head}.pt", tensors)
                self._name_eos(folder / "tokenizer_config.json")

    def _name_eos(self, path: Path) -> None:
        """FlagEmbedding gives no weight to the last token of a text if it is called so."""
        settings = json.loads(path.read_text("utf-8"))
        backend = tokenizers.Tokenizer.from_file(str(self.tokenizer / "tokenizer.json"))
        settings.setdefault("eos_token", backend.id_to_token(self.vocabulary.sep))
        sentence_modules.write_json(path, settings)

    def multi_vector(self, folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """A folder that sentence-transformers opens as a MultiVectorEncoder."""
        base, head = self._spelled("bert."), f"{layout_bert.M3_HEADS[1]}."
        named = self._named(arrays)
        tensors = {
            name.removeprefix(base): a for name, a in named.items() if name[: len(base)] == base
        }
        self._model(folder, tensors, self.layout.base_models[self.variant])
        projection = {n.removeprefix(head): a for n, a in named.items() if n.startswith(head)}
        sentence_kinds.write_multi_vector(
            folder, self.contract, self._interaction(), projection, self._without_pooler
        )
        card = model_cards.multi_vector(self.contract, int(projection["weight"].shape[0]))
        (folder / "README.md").write_text(card, encoding="utf-8")

    def _interaction(self) -> sentence_kinds.LateInteraction:
        """ColBERT's, or M3's."""
        backend = tokenizers.Tokenizer.from_file(str(self.tokenizer / "tokenizer.json"))
        if self.contract.pooling != export_checks.COLBERT:
            cls_token = backend.id_to_token(self.vocabulary.cls)
            sides = ("query", "document")
            return sentence_kinds.LateInteraction([cls_token], sides, "meanmaxsim", augmented=False)
        skipped = [backend.id_to_token(one) for one in punctuation.token_ids(str(self.tokenizer))]
        return sentence_kinds.LateInteraction(skipped, ("document",), "maxsim", augmented=True)

    def masked_lm(self, folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """A folder that transformers opens with its MLM head, tied to the word table."""
        self._model(folder, self._named(arrays), self.layout.masked_lms[self.variant])

    def sparse_encoder(self, folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """A folder that sentence-transformers opens as a SparseEncoder, transformers as an MLM."""
        self.masked_lm(folder, arrays)
        sentence_kinds.write_sparse(folder, self.contract, self.max_tokens)
        card = model_cards.sparse(self.contract, self.max_tokens)
        (folder / "README.md").write_text(card, encoding="utf-8")

    def pretraining(self, folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """RetroMAE's state: encoder and head under `lm.`, the decoder as `c_head.`."""
        tensors = {
            name if name.startswith("c_head.") else f"lm.{name}": array
            for name, array in self._named(arrays).items()
        }
        self._model(folder, tensors, "RetroMAEForPretraining")

    def cross_encoder(self, folder: Path, arrays: Mapping[str, np.ndarray]) -> None:
        """A folder that sentence-transformers opens as a CrossEncoder, transformers as well."""
        variant = self.layout.pair_variant_of(self.config)
        canonical = self.layout.export_arrays(arrays, self.config.vocab_size)
        tensors = {self.layout.spelled(n, variant, in_pair=True): a for n, a in canonical.items()}
        more = hf_config.score_fields() | self.layout.pair_fields(self.config)
        self._model(folder, tensors, self.layout.pair_models[variant], more)
        card = model_cards.reranker(self.contract, self.max_tokens)
        (folder / "README.md").write_text(card, encoding="utf-8")

    def _named(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        canonical = self.layout.export_arrays(arrays, self.config.vocab_size)
        return {self._spelled(name): array for name, array in canonical.items()}

    def _spelled(self, name: str) -> str:
        return self.layout.spelled(name, self.variant)

    def _model(
        self,
        folder: Path,
        tensors: Mapping[str, np.ndarray],
        architecture: str,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Weights, config.json (with the fields `more`) and tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)  # of this stage, if it was killed before
        whole = {
            name: np.ascontiguousarray(array, np.float32) for name, array in sorted(tensors.items())
        }
        save_file(whole, folder / "model.safetensors", {"format": "pt"})
        fields = hf_config.config_to_hf(self.config, self.vocabulary.pad, architecture)
        sentence_modules.write_json(folder / "config.json", fields | dict(more or {}))
        self._tokenizer(folder)

    def _tokenizer(self, folder: Path) -> None:
        for name in _TOKENIZER_FILES:
            shutil.copyfile(self.tokenizer / name, folder / name)
        settings = json.loads((self.tokenizer / "tokenizer_config.json").read_text("utf-8"))
        inputs = ["input_ids", "attention_mask"]
        if self.config.type_vocab > 1:
            inputs.insert(1, "token_type_ids")
        settings |= {
            "model_max_length": self.max_tokens,
            "model_input_names": inputs,
            # "[SEP]" in a text is text to our tokenizer; only it places special tokens.
            "split_special_tokens": True,
        }
        sentence_modules.write_json(folder / "tokenizer_config.json", settings)
