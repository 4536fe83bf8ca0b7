"""The passages that pairs are cut from, with their metadata."""

import collections
import functools
import itertools

import numpy as np
from absl import logging

from input_pipelines.batches import token_groups
from input_pipelines.pairs.pair_cuts import Words
from input_pipelines.pairs.text_arrays import TextArrays
from input_pipelines.store import layouts, mixing
from input_pipelines.store.text_parts import document_of
from input_pipelines.store.token_store import StoreError, TokenStore

PREPARE = "runs/stores/passages_in_parts.gin"
_SAMPLE = 1000  # passages that are looked at for copies


class PairCorpus:
    """Passages with the metadata that kinds of pairs need; tables are read on first use.

    Attributes:
      store: of the passages, layout 'text' or 'title_and_body'.
      texts: its rows, cut to `passage_length`.
      query_length, passage_length: tokens of a text, specials included.
      prompt: tokens of the prompt that each text of the store begins with, after [CLS].
      query_room, passage_room: tokens of a query or passage that is cut out, at most, specials and
        prompt aside.
    """

    def __init__(
        self,
        store: TokenStore,
        query_length: int,
        passage_length: int,
        prompt: int = 0,
        query_prompt: int = 0,
    ):
        """
        Args:
          store: see the class; `query_length`, `passage_length`, `prompt`, too.
          query_prompt: tokens of the prompt that a query gets that is cut out.

        Raises:
          ValueError: lengths too short for a token between prompt and [SEP].
          StoreError: rows of a layout whose texts are no passages.
        """
        found = store.manifest["layout"]
        if found not in (layouts.TEXT, layouts.TITLE_AND_BODY):
            raise StoreError(
                f"{store.folder}: expected passages of layout {layouts.TEXT!r} or "
                f"{layouts.TITLE_AND_BODY!r} to make pairs of, found {found!r}"
            )
        self.store = store
        self.titles_apart = found == layouts.TITLE_AND_BODY
        self.query_length, self.passage_length, self.prompt = query_length, passage_length, prompt
        self.query_room = query_length - 2 - query_prompt
        self.passage_room = passage_length - 2 - prompt
        if min(self.query_room, self.passage_room) < 1:
            raise ValueError(
                f"pairs: expected room for a token besides [CLS], [SEP] and the prompt, of "
                f"{query_prompt} tokens in queries and {prompt} in passages; found the lengths "
                f"{query_length} and {passage_length}"
            )
        self.texts = TextArrays(store, passage_length)

    def __len__(self) -> int:
        return len(self.texts)

    def warn_of_copies(self) -> None:
        """Log a warning if half of the passages, or more, have the same tokens.

        No model can distinguish equal passages, so a crop of one has many correct answers. Checks
        at most `_SAMPLE` passages at equal distances, each cut to `passage_length` tokens.
        """
        if len(self) < 2:
            return
        rows = np.unique(np.linspace(0, len(self) - 1, _SAMPLE).astype(np.int64))
        passages = self.texts.take(rows)
        tokens = np.split(passages.tokens, np.cumsum(passages.lengths)[:-1])
        texts = [one.tobytes() for one in tokens]
        ((text, count),) = collections.Counter(texts).most_common(1)
        if 2 * count >= len(rows):
            first = int(rows[texts.index(text)])
            logging.warning(
                "pairs: %d of %d passages of %s hold the same tokens as row %d, cut to %d tokens: "
                "no training can distinguish them. Remove the copies from the corpus, or allow "
                "longer passages if they only begin alike",
                *(count, len(rows), self.store.folder, first, self.passage_length),
            )

    @property
    def ends(self) -> np.ndarray:
        """Place of the [SEP] at the end of each passage: int64 [N], tokens of its row."""
        return self.texts.lengths - 1

    @functools.cached_property
    def titles(self) -> np.ndarray | None:
        """Tokens start to end - 1 of each passage's title, int64 [N, 2]; None: not known."""
        if self.titles_apart:  # [CLS] title [SEP] body [SEP]
            ends = np.zeros(len(self), np.int64)
            for rows, passages in self.texts.chunks():
                first = np.cumsum(passages.lengths) - passages.lengths
                seps = np.flatnonzero(passages.tokens == passages.tokens[-1])
                ends[rows] = seps[np.searchsorted(seps, first)] - first
            return np.stack([np.ones_like(ends), ends], axis=1)
        if "title.npy" not in self.store.manifest["files"]:
            return None
        return np.minimum(self.store.table("title").astype(np.int64), self.ends[:, None])

    @functools.cached_property
    def bodies(self) -> np.ndarray:
        """The first token after each passage's title, int64 [N]; 1 where titles are not known."""
        if self.titles is None:
            return np.ones(len(self), np.int64)
        after = self.titles[:, 1] + self.titles_apart
        return np.minimum(after, self.ends)

    @property
    def texts_from(self) -> np.ndarray:
        """The first token of what crops are cut from, int64 [N]: the body where it has a [SEP]
        before it, else the whole text without its prompt."""
        if self.titles_apart:
            return self.bodies
        return np.minimum(np.full(len(self), 1 + self.prompt, np.int64), self.ends)

    @functools.cached_property
    def words(self) -> np.ndarray:
        """Words of what crops are cut from: int64 [N]."""
        counts = np.zeros(len(self), np.int64)
        for rows, passages in self.texts.chunks():
            words = Words(passages)
            counts[rows] = words.count(words.first + self.texts_from[rows], words.last)
        return counts

    @functools.cached_property
    def title_numbers(self) -> np.ndarray:
        """Equal for passages with the same title, int64 [N]; -1 where there is none."""
        titles = self.required_titles()
        hashes = np.zeros(len(self), np.uint64)
        for rows, passages in self.texts.chunks():
            first = np.cumsum(passages.lengths) - passages.lengths
            start, end = (first[:, None] + titles[rows]).T
            place = token_groups.within(passages.lengths)
            words = passages.tokens.astype(np.uint64)
            mixed = mixing.mix64(words + (place.astype(np.uint64) << 32))
            sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed, dtype=np.uint64)])
            hashes[rows] = sums[end] - sums[start]
        _, numbers = np.unique(hashes, return_inverse=True)
        return np.where(titles[:, 1] > titles[:, 0], numbers, token_groups.NONE)

    @functools.cached_property
    def following(self) -> np.ndarray:
        """The next passage of the same document, int64 [N]; -1 where there is none.

        Two rows that follow each other are of one document if their ids differ only in the number
        after the last '#' (as `prepare` numbers blocks and passages), or if they have the same
        title, which the store's table `page` says. Without that table only ids count.
        """
        documents = map(document_of, self.store.ids)
        same = np.array([a == b for a, b in itertools.pairwise(documents)], dtype=np.bool_)
        if "page.npy" in self.store.manifest["files"]:
            page = self.store.table("page")
            same |= page[1:] == page[:-1]
        found = np.full(len(self), token_groups.NONE, np.int64)
        found[:-1][same] = np.flatnonzero(same) + 1
        return found

    def sentences(self) -> np.ndarray:
        """Row, start and end of each sentence within the passages as cut: int64 [n, 3].

        Raises:
          StoreError: the store has no such table.
        """
        if "sentences.npy" not in self.store.manifest["files"]:
            raise StoreError(self._no_table("sentences"))
        table = self.store.table("sentences").astype(np.int64)
        return table[table[:, 2] <= self.ends[table[:, 0]]]

    def required_titles(self) -> np.ndarray:
        """`titles`; StoreError where they are not known."""
        if self.titles is None:
            raise StoreError(self._no_table("titles"))
        return self.titles

    def _no_table(self, what: str) -> str:
        return (
            f"{self.store.folder} does not say where {what} are: pairs of them need a store that "
            f"was prepared with gin_configs/{PREPARE} or gin_configs/runs/stores/blocks.gin. "
            "Prepare it so, or give this kind of pair the weight 0."
        )
