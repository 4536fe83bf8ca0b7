"""PyTorch: the peer of benchmarks/marge_step.py, MARGE's equations as a careful user writes them.

Every chunk is a separate row, so that no attention is computed between chunks that do not see
each other; post-LN layers, PyTorch's scaled_dot_product_attention, logits only where a token is
predicted. Modules are named as ours, so that `load` finds their weights.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

EPSILON = 1e-12


class Sizes(NamedTuple):
    """What `Marge` is built of; `after` is the layer of the encoder after which g is read."""

    vocabulary: int
    width: int
    heads: int
    encoder_positions: int
    decoder_positions: int
    layers: int
    after: int
    base: int
    upper: int


class Chunks(NamedTuple):
    """Tokens [R, S, T] of R sub-batches with S chunks each; `real` bool, False at padding."""

    tokens: torch.Tensor
    real: torch.Tensor


def chunks(group: Mapping[str, np.ndarray], device: str) -> Chunks:
    """A packed group's chunks, a row for each."""
    ids = group["segment_ids"]
    count, max_chunks = len(ids), int(ids.max())
    sizes = np.stack([(ids == 1 + number).sum(axis=1) for number in range(max_chunks)], axis=1)
    tokens = np.zeros((count, max_chunks, sizes.max()), np.int64)
    real = np.arange(sizes.max()) < sizes[:, :, None]
    tokens[real] = group["tokens"][ids > 0]  # both go row by row, chunk by chunk
    return Chunks(torch.from_numpy(tokens).to(device), torch.from_numpy(real).to(device))


class Attention(nn.Module):
    """Queries of x [N, T, D] to keys and values of `memory` [N, K, D]."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x, memory, mask=None, causal=False):
        def split(y: torch.Tensor) -> torch.Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        read = F.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(memory)), split(self.value(memory)),
            attn_mask=mask, is_causal=causal,
        )  # fmt: skip
        return self.out(read.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two products and the activation between them."""

    def __init__(self, width: int):
        super().__init__()
        self.wi, self.wo = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.wo(F.gelu(self.wi(x)))


class Layer(nn.Module):
    """LN(x + Self(x)), LN(x + Cross(x, evidence)) where it crosses, LN(x + FFN(x))."""

    def __init__(self, sizes: Sizes, crosses: bool):
        super().__init__()
        width, heads = sizes.width, sizes.heads
        self.attention = Attention(width, heads)
        self.attention_norm = nn.LayerNorm(width, EPSILON)
        self.cross = Attention(width, heads) if crosses else None
        self.cross_norm = nn.LayerNorm(width, EPSILON) if crosses else None
        self.mlp, self.mlp_norm = FeedForward(width), nn.LayerNorm(width, EPSILON)

    def forward(self, x, mask=None, memory=None, bias=None):
        """x: [N, T, D]; in a decoder `memory` [R, K, D], `bias` [R, 1, S T, K], R S being N."""
        x = self.attention_norm(x + self.attention(x, x, mask, causal=mask is None))
        if self.cross is not None:
            together = x.reshape(len(memory), -1, x.shape[-1])  # whose keys and values are the same
            x = self.cross_norm(x + self.cross(together, memory, bias).view_as(x))
        return self.mlp_norm(x + self.mlp(x))


class Embeddings(nn.Module):
    """Words, positions and the one type that there is."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.word = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position = nn.Embedding(sizes.encoder_positions, sizes.width)
        self.types = nn.Embedding(2, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, EPSILON)

    def forward(self, tokens):
        positions = self.position.weight[: tokens.shape[-1]]
        return self.norm(self.word(tokens) + positions + self.types.weight[0])


class Encoder(nn.Module):
    """Returns the states after its first layers, too."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.after = sizes.after
        self.embeddings = Embeddings(sizes)
        self.layers = nn.ModuleList(Layer(sizes, False) for _ in range(sizes.layers))

    def forward(self, given: Chunks, only_g: bool = False):
        """States [R S, T, D], None with `only_g`; and g at unit length, [R, S, D]."""
        x = self.embeddings(given.tokens.flatten(0, 1))
        mask = given.real.flatten(0, 1)[:, None, None]
        for layer in self.layers[: self.after]:
            x = layer(x, mask)
        g = F.normalize(x[:, 0].unflatten(0, given.tokens.shape[:2]), dim=-1)
        if only_g:
            return None, g
        for layer in self.layers[self.after :]:
            x = layer(x, mask)
        return x, g


class Decoder(nn.Module):
    """Layers without cross-attention below those with it."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.position = nn.Embedding(sizes.decoder_positions, sizes.width)
        self.norm = nn.LayerNorm(sizes.width, EPSILON)
        self.base = nn.ModuleList(Layer(sizes, False) for _ in range(sizes.base))
        self.layers = nn.ModuleList(Layer(sizes, True) for _ in range(sizes.upper))

    def forward(self, words, memory, bias):
        """[R S, T, D] of words as many; padding is after each text, which looks back alone."""
        x = self.norm(words + self.position.weight[: words.shape[1]])
        for layer in (*self.base, *self.layers):
            x = layer(x, None, memory, bias)
        return x


class Marge(nn.Module):
    """Encoder, g after its first layers, decoder over all evidence of a sub-batch."""

    def __init__(self, sizes: Sizes):
        super().__init__()
        self.encoder, self.decoder = Encoder(sizes), Decoder(sizes)
        self.beta = nn.Parameter(torch.ones(()))
        self.bias = nn.Parameter(torch.zeros(sizes.vocabulary))

    def forward(self, target: Chunks, evidence: Chunks, language: int) -> torch.Tensor:
        """The mean of -log p over the tokens that are predicted."""
        states, given = self.encoder(evidence)
        _, wanted = self.encoder(target, only_g=True)
        relevance = wanted @ given.transpose(1, 2)  # [R, S_target, S_evidence]
        memory = states.reshape(len(given), -1, states.shape[-1])
        length = evidence.tokens.shape[2]
        bias = self.beta * relevance.repeat_interleave(length, dim=2)
        bias = bias.masked_fill(~evidence.real.flatten(1)[:, None], -torch.inf)
        bias = bias.repeat_interleave(target.tokens.shape[2], dim=1)[:, None]

        tokens, real = target.tokens.flatten(0, 1), target.real.flatten(0, 1)
        begun = torch.cat([torch.full_like(tokens[:, :1], language), tokens[:, 1:]], dim=1)
        hidden = self.decoder(self.encoder.embeddings.word(begun), memory, bias)
        decoded = hidden[:, :-1][real[:, 1:]]
        logits = F.linear(decoded, self.encoder.embeddings.word.weight, self.bias)
        return F.cross_entropy(logits, tokens[:, 1:][real[:, 1:]])


def load(model: Marge, arrays: Mapping[str, np.ndarray]) -> None:
    """Our parameters, by their paths; layers lie along a leading axis in ours."""
    names = {nn.Linear: "kernel", nn.LayerNorm: "scale", nn.Embedding: "embedding"}
    for name, parameter in model.named_parameters():
        *parts, leaf = name.split(".")
        owner = model.get_submodule(".".join(parts))
        leaf = names[type(owner)] if leaf == "weight" else leaf
        numbers = [int(part) for part in parts if part.isdigit()]
        path = "/".join([part for part in parts if not part.isdigit()] + [leaf])
        path = path.replace("/types/", "/type/")  # which is a method of every module
        array = arrays[path][numbers[0]] if numbers else arrays[path]
        if leaf == "kernel":
            array = array.reshape(parameter.shape[::-1]).T
        elif not parts or isinstance(owner, nn.Embedding):
            array = array[: len(parameter)] if parameter.ndim else array  # ours may be padded
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(np.array(array)).reshape(parameter.shape))
