"""Exact search, Seismic and bm25s over the same weights: recall@10 against queries a second.

    python -m benchmarks.sparse_index --texts=wiki_en.jsonl.gz --questions=dev-v1.1.jsonl.gz
    python -m benchmarks.sparse_index --embeddings=FOLDER --queries=FOLDER

The first form takes the weights of BM25 for passages of 100 words, cut from the field `text` of
each line, and 1 for each stem of SQuAD's questions, so that bm25s answers the same. The second
form takes what an encoder wrote (`t5x_style.encode_corpus` with kind 'sparse'), without bm25s.
Settings take their turns in several rounds on all cores; the median counts. Recall is the share of
the exact ten.
"""

import gzip
import itertools
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import code_hash, index_table
from benchmarks.index_table import K, Setting
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.index import IndexRecord
from t5x_style.interfaces.representation import SPARSE, Entries
from t5x_style.retrieval import bm25, encoding, exact_index, seismic_index
from t5x_style.retrieval.sparse import postings

_TEXTS = flags.DEFINE_string("texts", None, "Lines with a text each, jsonl.gz.")
_QUESTIONS = flags.DEFINE_string("questions", None, "SQuAD's paragraphs with questions, jsonl.gz.")
_EMBEDDINGS = flags.DEFINE_string("embeddings", None, "Sparse representations of passages.")
_QUERIES = flags.DEFINE_string("queries", None, "And of queries.")
_PASSAGES = flags.DEFINE_integer("passages", 100_000, "Passages that are cut from the texts.")
_COUNT = flags.DEFINE_integer("count", 1_000, "Queries that are asked.")
_BATCH = flags.DEFINE_integer("batch", 250, "Queries asked at a time.")
_SEISMIC = flags.DEFINE_bool("seismic", True, "Whether Seismic is built, which takes minutes.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds; the median counts.")

WORDS = 100  # of a passage
# Of no model: nothing that is measured depends on it
CONTRACT = Contract("cls", True, "cosine", 1.0, 1, WORDS, WORDS, "", "", "text", 1 << 17, "bm25")
# summary_energy, and of each (query_cut, heap_factor)
SETTINGS = {0.4: ((10, 0.9), (10, 0.7)), 1.0: ((5, 0.9), (10, 1.0), (10, 0.9), (20, 0.8))}


def passages() -> Iterator[str]:
    """Of so many words, in the order of the texts."""
    with gzip.open(_TEXTS.value, "rt", encoding="utf-8") as lines:
        for line in lines:
            words = json.loads(line)["text"].split()
            for first in range(0, len(words), WORDS):
                yield " ".join(words[first : first + WORDS])


def questions() -> Iterator[str]:
    """SQuAD's, in its order."""
    with gzip.open(_QUESTIONS.value, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield from (asked["question"] for asked in json.loads(line)["qas"])


def with_bm25() -> tuple[Entries, Entries, list[Setting]]:
    """(passages with BM25's weights, queries with ones, bm25s itself)."""
    import bm25s
    import scipy.sparse

    stems = bm25.stem(itertools.islice(passages(), _PASSAGES.value))
    started = time.perf_counter()
    peer = bm25s.BM25(method="lucene", k1=bm25.K1, b=bm25.B)
    peer.index(stems, show_progress=False)
    seconds = time.perf_counter() - started
    table = scipy.sparse.csc_matrix(
        (peer.scores["data"], peer.scores["indices"], peer.scores["indptr"]),
        shape=(len(stems), len(peer.scores["indptr"]) - 1),
    ).tocsr()
    held = _entries(table)
    every = list(questions())
    step = max(1, len(every) // _COUNT.value)
    asked = [peer.get_tokens_ids(one) for one in bm25.stem(every[::step][: _COUNT.value])]
    rows = [np.unique(one, return_counts=True) for one in asked]
    counts = np.cumsum([0, *(len(tokens) for tokens, _ in rows)])
    queries = Entries(
        counts,
        {
            "tokens": np.concatenate([tokens for tokens, _ in rows]).astype(np.int32),
            "weights": np.concatenate([times for _, times in rows]).astype(np.float32),
        },
    )
    cores = len(os.sched_getaffinity(0))

    def search(given: Entries) -> np.ndarray:
        tokens = np.repeat(given.arrays["tokens"], given.arrays["weights"].astype(np.int64))
        ends = np.concatenate([[0], np.cumsum(given.arrays["weights"])])[given.offsets[1:-1]]
        lists = np.split(tokens, ends.astype(np.int64))
        found = peer.retrieve(
            [one.tolist() for one in lists], k=K, show_progress=False, n_threads=cores
        )
        return np.asarray(found.documents)

    return held, queries, [Setting("bm25s", f"bm25s, {cores} threads", seconds, search)]


def _entries(table: Any) -> Entries:
    """Of a scipy matrix [N, tokens]."""
    arrays = {"tokens": table.indices.astype(np.int32), "weights": table.data.astype(np.float32)}
    return Entries(table.indptr.astype(np.int64), arrays)


def by_token(held: Entries) -> Setting:
    """What `exact_index.ExactSparse` searches by."""
    started = time.perf_counter()
    made = postings.Postings(held)
    seconds = time.perf_counter() - started
    return Setting("by token", "by token", seconds, lambda given: made.search(given, K)[1])


def seismic(held: Entries, root: Path) -> Iterator[Setting]:
    """Several searches of each index, which is written to a folder and opened again."""
    record = IndexRecord([str(row) for row in range(len(held))], CONTRACT)
    for energy, searches in SETTINGS.items():
        folder = root / f"{energy}"
        folder.mkdir()
        started = time.perf_counter()
        seismic_index.Seismic(summary_energy=energy).build(held, record).save(folder)
        seconds = time.perf_counter() - started
        for cut, factor in searches:
            name = f"Seismic, energy {energy}, query_cut {cut}, heap {factor}"
            index = seismic_index.Seismic(query_cut=cut, heap_factor=factor).load(folder, record)
            yield Setting(
                "Seismic", name, seconds, lambda given, index=index: index.search(given, K)[1]
            )


def main(_: list[str]) -> None:
    """Prints the table."""
    if _TEXTS.value:
        held, queries, peers = with_bm25()
    else:
        held = encoding.load_embeddings(_EMBEDDINGS.value, SPARSE).passages[:]
        queries = encoding.load_embeddings(_QUERIES.value, SPARSE).passages[: _COUNT.value]
        peers = []
    _, truth = exact_index.top_k(queries, held, K, SPARSE)

    def exact(given: Entries) -> np.ndarray:
        return exact_index.top_k(given, held, K, SPARSE)[1]

    with tempfile.TemporaryDirectory() as folder:
        settings = [Setting("exact", "every passage", 0.0, exact), by_token(held), *peers]
        if _SEISMIC.value:
            settings += seismic(held, Path(folder))
        rows = index_table.measured(settings, queries, truth, _BATCH.value, _ROUNDS.value)
    weights = held.offsets[-1] / len(held), queries.offsets[-1] / len(queries)
    print("weights of a passage {:.0f}, of a query {:.0f}".format(*weights))
    index_table.show(rows, f"{len(held):,} passages", len(queries), _BATCH.value)


if __name__ == "__main__":
    code_hash.announce("sparse_index")
    app.run(main)
