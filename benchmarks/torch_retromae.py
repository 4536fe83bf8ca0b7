"""PyTorch and transformers: the peer of benchmarks/train_step.py, and parts of that of encode.py.

RetroMAE as a careful user writes it: Hugging Face's BertForMaskedLM with its fused attention, one
decoder layer, a head over every position, fused AdamW. Formulas of docs/retromae.md.
"""

import numpy as np
import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForMaskedLM

from benchmarks.shapes import SIZES
from input_pipelines.store.token_store import TokenStore

IGNORED = -100


def hugging_face_config(size: str, vocabulary: int, length: int) -> BertConfig:
    """An encoder without dropout, with PyTorch's fused attention.

    Args:
        size: a key of SIZES.
        vocabulary: rows of the word table.
        length: of the longest row, in tokens.
    """
    layers, width, heads = SIZES[size]
    return BertConfig(
        vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers,
        num_attention_heads=heads, intermediate_size=4 * width,
        max_position_embeddings=max(512, length), hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
    )  # fmt: skip


def padded(
    store: TokenStore, chosen: np.ndarray, length: int, width: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Passages one a row, cut at `length` tokens.

    Args:
        store: where they are.
        chosen: [B] int, their rows in the store.
        length: in tokens.
        width: of the rows; None: the longest passage's.

    Returns:
        Tokens [B, width] int64, 0 where a row is free; and how many each row has, [B] int64.
    """
    passages = store.read(chosen)
    sizes = np.minimum(passages.lengths, length).astype(np.int64)
    tokens = np.zeros((len(sizes), width or sizes.max()), np.int64)
    starts = np.concatenate([[0], np.cumsum(passages.lengths)])
    for row, size in enumerate(sizes):
        tokens[row, :size] = passages.tokens[starts[row] : starts[row] + size]
    return tokens, sizes


class DecoderLayer(torch.nn.Module):
    """One post-LN layer whose queries, and the residual, differ from its keys and values."""

    def __init__(self, config: BertConfig):
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.query, self.key, self.value, self.out = (
            torch.nn.Linear(width, width) for _ in range(4)
        )
        self.wi = torch.nn.Linear(width, config.intermediate_size)
        self.wo = torch.nn.Linear(config.intermediate_size, width)
        self.attention_norm = torch.nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.mlp_norm = torch.nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(self, query, memory, visible):
        """query, memory [B, L, D]; visible [B, L, L] bool -> [B, L, D]."""

        def split(x):
            return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k, v = split(self.query(query)), split(self.key(memory)), split(self.value(memory))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible[:, None])
        a = self.attention_norm(query + self.out(attended.transpose(1, 2).flatten(2)))
        return self.mlp_norm(a + self.wo(F.gelu(self.wi(a))))


class RetroMAE(torch.nn.Module):
    """Encoder loss on masked tokens plus decoder loss on all tokens, in nats."""

    def __init__(self, config: BertConfig):
        super().__init__()
        self.lm = BertForMaskedLM(config)
        self.decoder = DecoderLayer(config)

    def forward(self, batch):
        """Batch of `masked_batch` -> scalar loss."""
        bert = self.lm.bert
        hidden = bert(batch["masked"], attention_mask=batch["attention_mask"])[0]
        cls = hidden[:, :1]
        clean = bert.embeddings(batch["tokens"])
        memory = torch.cat([cls, clean[:, 1:]], dim=1)
        positions = bert.embeddings.position_embeddings.weight[: clean.shape[1]]
        decoded = self.decoder(positions + cls, memory, batch["visible"])
        return self._loss(hidden, batch["masked_labels"]) + self._loss(decoded, batch["labels"])

    def _loss(self, hidden, labels):
        logits = self.lm.cls(hidden)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def masked_batch(tokens: torch.Tensor, lengths: torch.Tensor, mask_id: int, generator) -> dict:
    """Masks a padded batch: 30 % of the tokens for the encoder, half of the keys of each row.

    Args:
      tokens: [B, L] int64.
      lengths: [B] int64.
      mask_id: of [MASK].
      generator: of the random numbers.
    """
    rows, length = tokens.shape
    at = torch.arange(length)
    real = at < lengths[:, None]
    inner = (at > 0) & (at < lengths[:, None] - 1)
    selected = (torch.rand(rows, length, generator=generator) < 0.3) & inner
    hidden = torch.rand(rows, length, length, generator=generator) < 0.5
    visible = real[:, None] & ~(hidden & inner[:, None]) & ~torch.eye(length, dtype=torch.bool)
    visible[:, 0, 1] |= True  # no row may see nothing
    return {
        "tokens": tokens,
        "masked": tokens.masked_fill(selected, mask_id),
        "attention_mask": real.long(),
        "masked_labels": tokens.masked_fill(~selected, IGNORED),
        "labels": tokens.masked_fill(~inner, IGNORED),
        "visible": visible,
    }
