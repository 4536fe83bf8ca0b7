"""MARGE's loss in NumPy and float64, written from the paper's equations, a text at a time.

No packing, no stacked layers, no masks: lists of tokens, and loops over documents and heads.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import erf, log_softmax, softmax

Parameters = Mapping[str, np.ndarray]  # our path -> array; layers are stacked


class SubBatch(NamedTuple):
    """Targets with their languages' tokens, and the evidence that each of them reads."""

    targets: Sequence[Sequence[int]]
    languages: Sequence[int]
    evidence: Sequence[Sequence[int]]


class Sizes(NamedTuple):
    """What the arrays do not say."""

    vocabulary: int
    relevance_layers: int


def loss(parameters: Parameters, batch: Sequence[SubBatch], sizes: Sizes) -> float:
    """Nats a token: the mean of -log p over all tokens of all targets after their first."""
    told = [one for sub_batch in batch for one in _told(parameters, sub_batch, sizes)]
    return -float(np.mean(np.concatenate(told)))


def _told(p: Parameters, sub_batch: SubBatch, sizes: Sizes) -> list[np.ndarray]:
    """log p of each token of each target."""
    encoded = [encode(p, tokens) for tokens in sub_batch.evidence]  # the states after each layer
    memory = [states[-1] for states in encoded]
    vectors = [states[sizes.relevance_layers][0] for states in encoded]
    found = []
    for tokens, language in zip(sub_batch.targets, sub_batch.languages, strict=True):
        own = encode(p, tokens)[sizes.relevance_layers][0]
        bias = p["beta"] * np.concatenate(
            [np.full(len(z), _cosine(own, g)) for z, g in zip(memory, vectors, strict=True)]
        )
        hidden = decode(p, [language, *tokens[1:-1]], np.concatenate(memory), bias)
        table = p["encoder/embeddings/word/embedding"][: sizes.vocabulary]
        logits = hidden @ table.T + p["bias"][: sizes.vocabulary]
        found.append(log_softmax(logits, axis=1)[np.arange(len(tokens) - 1), tokens[1:]])
    return found


def encode(p: Parameters, tokens: Sequence[int]) -> list[np.ndarray]:
    """The states [L, D] of a document: of the embeddings, and after each layer."""
    at = "encoder/embeddings/"
    x = p[at + "word/embedding"][list(tokens)] + p[at + "position/embedding"][: len(tokens)]
    states = [_norm(x + p[at + "type/embedding"][0], p, at + "norm", ())]
    everything = np.zeros((len(tokens), len(tokens)))
    for layer in range(len(p["encoder/layers/mlp_norm/scale"])):
        x, name = states[-1], "encoder/layers/"
        a = x + _attend(x, x, everything, p, name + "attention", layer)
        a = _norm(a, p, name + "attention_norm", layer)
        states.append(_feed(a, p, name, layer))
    return states


def decode(
    p: Parameters, tokens: Sequence[int], memory: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """[T, D], to predict each next token from; `bias` [K] is of the tokens that are read."""
    x = p["encoder/embeddings/word/embedding"][list(tokens)]
    x = _norm(x + p["decoder/position/embedding"][: len(tokens)], p, "decoder/norm", ())
    future = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for name in ("decoder/base/", "decoder/layers/"):
        for layer in range(len(p[name + "mlp_norm/scale"])):
            a = x + _attend(x, x, future, p, name + "attention", layer)
            a = _norm(a, p, name + "attention_norm", layer)
            if name == "decoder/layers/":
                a = a + _attend(a, memory, bias[None], p, name + "cross", layer)
                a = _norm(a, p, name + "cross_norm", layer)
            x = _feed(a, p, name, layer)
    return x


def _attend(
    x: np.ndarray, memory: np.ndarray, bias: np.ndarray, p: Parameters, name: str, layer: int
) -> np.ndarray:
    def project(states: np.ndarray, which: str) -> np.ndarray:
        kernel, offset = p[f"{name}/{which}/kernel"][layer], p[f"{name}/{which}/bias"][layer]
        return np.einsum("ld,dhk->hlk", states, kernel) + offset[:, None]

    query, key, value = project(x, "query"), project(memory, "key"), project(memory, "value")
    out = np.zeros_like(x) + p[f"{name}/out/bias"][layer]
    for head in range(len(query)):
        scores = query[head] @ key[head].T / np.sqrt(query.shape[-1]) + bias
        out = out + softmax(scores, axis=1) @ value[head] @ p[f"{name}/out/kernel"][layer][head]
    return out


def _feed(a: np.ndarray, p: Parameters, name: str, layer: int) -> np.ndarray:
    inner = a @ p[name + "mlp/wi/kernel"][layer] + p[name + "mlp/wi/bias"][layer]
    inner = inner / 2 * (1 + erf(inner / np.sqrt(2)))
    outer = inner @ p[name + "mlp/wo/kernel"][layer] + p[name + "mlp/wo/bias"][layer]
    return _norm(a + outer, p, name + "mlp_norm", layer)


def _norm(x: np.ndarray, p: Parameters, name: str, layer: int | tuple[()]) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return unit * p[name + "/scale"][layer] + p[name + "/bias"][layer]


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))
