"""Whole texts, with tables of where their titles and sentences are: for pairs from text alone.

Next to the rows three tables are stored, which `pair_kinds` reads:

    title      int32 [N, 2]  tokens start to end - 1 of the row are its title; start = end: none
    sentences  int32 [n, 3]  row, and its tokens start to end - 1: each whole sentence of a body
    page       int64 [N]     equal for rows with the same title; of one record, where that has none
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from input_pipelines.sources.text_sources import Record
from input_pipelines.store import block_layout
from input_pipelines.store.layouts import TEXT, Plain, Rows
from input_pipelines.store.store_writer import StoreRecord
from input_pipelines.tokenizers import tokenization


def document_of(name: str) -> str:
    """'doc#3' -> 'doc': the document of a passage by its id; other ids are documents themselves."""
    document, _, number = name.rpartition("#")
    return document if document and number.isdigit() else name


@dataclasses.dataclass(frozen=True)
class TextsWithParts(Plain):
    """A layout (`layouts.Layout`) with the rows of `layouts.WholeTexts`, and three tables.

    Attributes:
      language: of the text, as two letters; decides where sentences end.
    """

    language: str = "en"

    @property
    def name(self) -> str:
        """See `Layout`; the rows are those of `WholeTexts`, so models treat them alike."""
        return TEXT

    @property
    def numbers(self) -> Mapping[str, str]:
        """See `Layout`."""
        return {"sentences": "rows"}

    def rows(
        self,
        records: Sequence[Record],
        tokenizer: tokenization.Tokenizer,
        length: int,
        prefix: str,
    ) -> Rows:
        """See `Layout`."""
        texts = [prefix + tokenization.join_title(r.title, r.text) for r in records]
        cls, sep = (np.array([tokenizer.vocabulary[role]], np.int32) for role in ("cls", "sep"))
        special = np.ones(1, np.bool_)
        rows, titles, sentences, pages, truncated = [], [], [], [], 0
        for number, (record, text, all_of_it) in enumerate(
            zip(records, texts, tokenizer.pieces(texts), strict=True)
        ):
            room = length - 2
            truncated += len(all_of_it.tokens) > room
            tokens = np.concatenate([cls, all_of_it.tokens[:room], sep])
            words = np.concatenate([special, all_of_it.word_starts[:room], special])
            rows.append(
                StoreRecord(record.id, record.title, record.text, record.source, tokens, words)
            )
            begins = all_of_it.offsets[:, 0]
            body_at = len(text) - len(record.text)  # characters before the body
            title, body = np.searchsorted(begins, [len(prefix), body_at]).tolist()
            if not record.title:
                title = body
            titles.append(np.minimum([title, body], min(room, len(begins))) + 1)
            spans = self._sentences(record.text, begins - body_at)
            spans = spans[(spans[:, 1] <= room) & (spans[:, 0] < spans[:, 1])] + 1
            sentences.append(np.insert(spans, 0, number, axis=1))
            pages.append(block_layout.page(record.title, document_of(record.id)))
        tables: dict[str, np.ndarray] = {
            "title": np.array(titles, np.int32).reshape(-1, 2),
            "sentences": np.concatenate([np.zeros((0, 3)), *sentences]).astype(np.int32),
            "page": np.array(pages, np.int64),
        }
        return Rows(rows, truncated, tables)

    def _sentences(self, body: str, begins: np.ndarray) -> np.ndarray:
        """First piece and end of each sentence, int64 [n, 2].

        Args:
          body: the text.
          begins: int64 [pieces], the character of the body at which each piece begins.
        """
        starts = [start for start, _ in block_layout.split(body, self.language)]
        cuts = np.append(np.searchsorted(begins, starts), len(begins)).astype(np.int64)
        return np.stack([cuts[:-1], cuts[1:]], axis=1)
