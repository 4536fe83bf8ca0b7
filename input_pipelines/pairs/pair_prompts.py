"""Prompts of published encoders, such as 'passage: ', in pairs that are cut from passages.

In a store the prompt of the texts follows each [CLS]. A crop of a passage begins after this prompt,
and gets the prompt of queries.
"""

import numpy as np

from input_pipelines.store.token_store import Passages, StoreError, TokenStore
from input_pipelines.tokenizers.tokenization import Tokenizer

_CHECKED = 64  # rows of a store


def tokens_of(prefix: str, tokenizer: str | None) -> Passages:
    """The tokens of a prompt as one text, without special ones; none of ''.

    Args:
      prefix: as in a contract; a space at its end belongs to the text that follows.
      tokenizer: folder.

    Raises:
      ValueError: there is a prompt, and no tokenizer.
    """
    if not prefix:
        return Passages(np.zeros(0, np.int32), np.zeros(0, np.bool_), np.zeros(1, np.int32))
    if tokenizer is None:
        raise ValueError(
            f"pairs: the prompt {prefix!r} has to be tokenized: expected PairMixture.tokenizer, a "
            "tokenizer's folder, found None"
        )
    (found,) = Tokenizer(tokenizer).pieces([prefix.rstrip()])
    size = np.array([len(found.tokens)], np.int32)
    return Passages(found.tokens, found.word_starts, size)


def require_stored(store: TokenStore, prompt: Passages) -> None:
    """Raises StoreError unless the texts of a store have these tokens after [CLS]."""
    count = len(prompt.tokens)
    rows = np.unique(np.linspace(0, len(store.lengths) - 1, _CHECKED).astype(np.int64))
    rows = rows[store.lengths[rows] > count + 1]
    if not count or not len(rows):
        return
    texts = store.read(rows)
    starts = np.cumsum(texts.lengths) - texts.lengths + 1
    found = texts.tokens[starts[:, None] + np.arange(count)]
    if wrong := np.flatnonzero((found != prompt.tokens).any(axis=1)).tolist():
        raise StoreError(
            f"{store.folder}: expected each text to begin with the tokens of its prompt "
            f"{store.manifest['prefix']!r}, {prompt.tokens.tolist()}, found "
            f"{found[wrong[0]].tolist()} in row {rows[wrong[0]]}: this tokenizer joins a prompt "
            "with what follows. Use labelled pairs alone, or an encoder without prompts"
        )


def put_before(texts: Passages, prompt: Passages) -> Passages:
    """Texts with a prompt after the first token, [CLS], of each."""
    count, number = len(prompt.tokens), len(texts.lengths)
    if not count:
        return texts
    places = np.repeat(np.cumsum(texts.lengths) - texts.lengths + 1, count)
    return Passages(
        np.insert(texts.tokens, places, np.tile(prompt.tokens, number)),
        np.insert(texts.word_starts, places, np.tile(prompt.word_starts, number)),
        texts.lengths + np.asarray(count, texts.lengths.dtype),
    )
