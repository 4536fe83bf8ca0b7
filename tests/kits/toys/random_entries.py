"""Random sparse and multi-vector representations, and their scores as the definitions say."""

import numpy as np

from t5x_style.interfaces.representation import Entries


def entries(kind: str, count: int, seed: int = 0, empty: float = 0.2) -> Entries:
    """Up to seven entries of each text; some have none."""
    random = np.random.default_rng(seed)
    counts = np.where(random.random(count) < empty, 0, random.integers(1, 8, count))
    total = int(counts.sum())
    if kind == "multi_vector":
        arrays = {"vectors": random.normal(size=(total, 4)).astype(np.float32)}
    else:
        tokens = [random.choice(30, n, replace=False) for n in counts]
        weights = random.uniform(0.1, 2, total).astype(np.float32)
        arrays = {"tokens": np.concatenate(tokens).astype(np.int32), "weights": weights}
    return Entries(np.concatenate([[0], np.cumsum(counts)]), arrays)


def texts_of(held: Entries) -> list[dict[str, np.ndarray]]:
    return [held[n : n + 1].arrays for n in range(len(held))]


def plain_score(kind: str, query, passage) -> float:
    """One pair, written as the definition is; -inf where nothing is in common."""
    if kind == "sparse":
        weights = dict(zip(passage["tokens"].tolist(), passage["weights"].tolist(), strict=True))
        both = [t for t in query["tokens"].tolist() if t in weights]
        own = dict(zip(query["tokens"].tolist(), query["weights"].tolist(), strict=True))
        return sum(own[t] * weights[t] for t in both) if both else -np.inf
    if not len(query["vectors"]) or not len(passage["vectors"]):
        return -np.inf
    return sum(max(float(q @ p) for p in passage["vectors"]) for q in query["vectors"])


def plain_scores(kind: str, queries: Entries, passages: Entries) -> np.ndarray:
    return np.array(
        [[plain_score(kind, q, p) for p in texts_of(passages)] for q in texts_of(queries)]
    )
