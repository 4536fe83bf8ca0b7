"""Encoding a corpus by batches of several sizes, compared with PyTorch and transformers.

    GLIBC_TUNABLES=glibc.malloc.hugetlb=1 \\
        python -m benchmarks.encode --size=mini [--rows=8,16,32,64,128] [--length=128]

Prints passages and tokens that are not padding per second, of the same passages: ours as
`encode_corpus` does it (packed rows, [CLS]) for each number of rows in a batch, and a transformers
BertModel as sentence-transformers runs it, 32 passages at a time, sorted by length and padded to
their longest. They take turns in one process, after a first batch each that is not counted. Nor is
tokenizing. Needs the extra `interop`.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from absl import app, flags
from flax import nnx

from benchmarks import code_hash, corpora
from benchmarks.retromae_step import encoder_config
from benchmarks.shapes import SIZES
from input_pipelines.batches.packed_text import EncodeSource
from input_pipelines.store.token_store import TokenStore
from models.networks import bert, text_embedding
from t5x_style.interfaces import contract
from t5x_style.retrieval import encoding

_SIZE = flags.DEFINE_enum("size", "mini", list(SIZES), "Of the encoder; Turc et al. 2019.")
_ROWS = flags.DEFINE_list("rows", ["8", "16", "32", "64", "128"], "Rows of our batches.")
_LENGTH = flags.DEFINE_integer("length", 128, "Tokens at which passages are cut, and of a row.")
_PASSAGES = flags.DEFINE_integer("passages", 2000, "How many are encoded.")
_ROUNDS = flags.DEFINE_integer("rounds", 3, "Rounds; the median counts.")
_STORE = flags.DEFINE_string("store", "", "A token store; by default of SQuAD's paragraphs.")
_TOKENIZER = flags.DEFINE_string("tokenizer", "", "The tokenizer's folder, with --store.")

SEGMENTS = 16
PEER_BATCH = 32  # passages, sentence-transformers' default


def ours(store: TokenStore, vocabulary: int, rows: int) -> Callable[[], object]:
    """What encodes the passages once, compiled, in batches of `rows` rows."""
    length = _LENGTH.value
    encoder = bert.Encoder(encoder_config(_SIZE.value, vocabulary, length), rngs=nnx.Rngs(0))
    encoder.eval()
    pooled = text_embedding.EmbeddingConfig("cls", False, "dot", 1.0, length, length, "", "")
    graph, state = nnx.split(encoder)

    @jax.jit
    def compiled(state, group):
        return text_embedding.embed(nnx.merge(graph, state), group, pooled)

    source = sampled(store, rows)
    compiled(state, next(iter(source.batches()))).block_until_ready()
    return lambda: encoding.encode(lambda group: compiled(state, group), source)


def sampled(store: TokenStore, rows: int) -> EncodeSource:
    """The same passages whatever the rows of a batch."""
    length = _LENGTH.value
    return EncodeSource(
        store, length, SEGMENTS, rows, segment_length=length, sample=_PASSAGES.value
    )


def peer(store: TokenStore, vocabulary: int, chosen: np.ndarray) -> Callable[[], object]:
    """What encodes the passages `chosen` ([N] int, rows of the store) once."""
    import torch
    from transformers import BertModel

    from benchmarks import torch_retromae

    length = _LENGTH.value
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = torch_retromae.hugging_face_config(_SIZE.value, vocabulary, length)
    model = BertModel(config, add_pooling_layer=False).to(device).eval()
    lengths = np.minimum(store.lengths[chosen], length)
    ordered = chosen[np.argsort(-lengths, kind="stable")]
    batches = []
    for first in range(0, len(ordered), PEER_BATCH):
        tokens, sizes = torch_retromae.padded(store, ordered[first : first + PEER_BATCH], length)
        mask = (np.arange(tokens.shape[1]) < sizes[:, None]).astype(np.int64)
        batches.append((torch.from_numpy(tokens), torch.from_numpy(mask)))

    def encode(batches) -> None:
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16, device == "cuda"):
            for tokens, mask in batches:
                hidden = model(tokens.to(device), attention_mask=mask.to(device))
                hidden.last_hidden_state[:, 0].float().cpu().numpy()

    encode(batches[:1])
    return lambda: encode(batches)


def main(_: list[str]) -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as scratch:
        path, tokenizer = Path(_STORE.value), Path(_TOKENIZER.value)
        if not _STORE.value:
            path, tokenizer = corpora.squad_tokenized(Path(scratch), _LENGTH.value)
        store = TokenStore.open(path)
        vocabulary = contract.Vocabulary.load(str(tokenizer)).size
        runs = {f"kennel, {rows} rows": ours(store, vocabulary, int(rows)) for rows in _ROWS.value}
        chosen = sampled(store, rows=1).rows
        runs[f"PyTorch, {PEER_BATCH} passages"] = peer(store, vocabulary, chosen)
        tokens = int(np.minimum(store.lengths[chosen], _LENGTH.value).sum())
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _round in range(_ROUNDS.value):
            for name, run in runs.items():
                started = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - started)
    print(
        f"{_SIZE.value}: {SIZES[_SIZE.value]} layers, width, heads; {len(chosen):,} passages "
        f"of {tokens / len(chosen):.0f} tokens, rows of {_LENGTH.value}; "
        f"{len(os.sched_getaffinity(0))} cores"
    )
    print(f"{'':<24}{'passages/s':>12}{'tokens/s':>12}{'it / PyTorch':>14}")
    *_, last = seconds
    for name, times in seconds.items():
        ratio = statistics.median(b / a for a, b in zip(times, seconds[last], strict=True))
        took = statistics.median(times)
        print(f"{name:<24}{len(chosen) / took:>12,.0f}{tokens / took:>12,.0f}{ratio:>14.2f}")


if __name__ == "__main__":
    code_hash.announce("encode")
    app.run(main)
