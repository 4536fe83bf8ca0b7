"""Pairs of texts in two languages with one of three classes, for tests."""

import json

import numpy as np

from input_pipelines.sources.labelled_pair_files import PairLines
from input_pipelines.tokenizers import tokenization

CLASSES = ("different", "same", "neither")
COUNTS = {"de": 30, "en": 50}


def lines():
    """Lines of a file of pairs; the classes take turns."""
    rng = np.random.default_rng(0)
    for language, count in COUNTS.items():
        for number in range(count):
            texts = [" ".join(f"{language}{word}" for word in rng.integers(0, 20, length))
                     for length in rng.integers(1, 9, 2)]  # fmt: skip
            label = CLASSES[number % 3]
            name = f"{language}/{number}"
            yield {"id": name, "first": texts[0], "second": texts[1], "label": label}


def write(path, rows):
    """A file with these lines; its path as text."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def tokenizer_of(root):
    """Writes pairs.jsonl and `tokenizer/` of it to a folder; the pairs as a source."""
    source = PairLines(write(root / "pairs.jsonl", lines()), CLASSES)
    tokenization.train_tokenizer(str(root), source, 200, 100, 1, False, False, 0, 0, 0)
    return source
