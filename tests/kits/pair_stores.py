"""Token stores whose tokens count up, so that a test sees at once what was cut from where."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from input_pipelines.pairs.pair_corpus import PairCorpus
from input_pipelines.store import block_layout, layouts, store_writer
from input_pipelines.store.text_parts import document_of
from input_pipelines.store.token_store import Passages
from tests.kits.tiny_stores import CLS, FINGERPRINT, SEP

FIRST = 5  # ids below are special


@dataclasses.dataclass(frozen=True)
class Text:
    """A passage: pieces of each word of its title, and of each word of its sentences."""

    name: str
    sentences: Sequence[Sequence[int]]
    title: Sequence[int] = ()
    titled: str | None = None  # passages with the same name here have the same title


@dataclasses.dataclass
class Rows:
    """Rows of texts, and the three tables of `text_parts`."""

    tokens: list[np.ndarray]
    word_starts: list[np.ndarray]
    titles: list[tuple[int, int]]
    sentences: list[tuple[int, int, int]]
    pages: list[int]


def rows_of(texts: Sequence[Text], layout: str, vocabulary: int | None = None) -> Rows:
    """Tokens FIRST, FIRST + 1, ... through all texts; with `vocabulary`, modulo its size."""
    made = Rows([], [], [], [], [])
    at = 0
    titles: dict[str, np.ndarray] = {}

    def next_tokens(count: int) -> np.ndarray:
        nonlocal at
        at += count
        numbers = np.arange(at - count, at)
        return FIRST + (numbers if vocabulary is None else numbers % (vocabulary - FIRST))

    for row, text in enumerate(texts):
        title = next_tokens(sum(text.title))
        if text.titled is not None:
            title = titles.setdefault(text.titled, title)
        starts = [_starts([1]), _starts(text.title)]
        parts = [np.array([CLS]), title]
        made.titles.append((1, 1 + len(title)))
        if layout == layouts.TITLE_AND_BODY:
            parts.append(np.array([SEP]))
            starts.append(_starts([1]))
        length = sum(map(len, parts))
        for sentence in text.sentences:
            parts.append(next_tokens(sum(sentence)))
            starts.append(_starts(sentence))
            made.sentences.append((row, length, length + sum(sentence)))
            length += sum(sentence)
        made.tokens.append(np.concatenate([*parts, [SEP]]).astype(np.int32))
        made.word_starts.append(np.concatenate([*starts, _starts([1])]))
        shown = text.titled or (text.name if text.title else "")
        made.pages.append(block_layout.page(shown, document_of(text.name)))
    return made


def _starts(words: Sequence[int]) -> np.ndarray:
    """Pieces of words -> which pieces start one."""
    starts = np.zeros(sum(words), np.bool_)
    starts[(np.cumsum(words) - np.array(words, int)).astype(int)] = True
    return starts


class MemoryStore:
    """What `PairCorpus` needs of a token store, without files."""

    def __init__(self, texts: Sequence[Text], layout: str = layouts.TEXT, tables: bool = True):
        self.folder = "memory"
        self.rows = rows_of(texts, layout)
        self.ids = [text.name for text in texts]
        self.lengths = np.array([len(tokens) for tokens in self.rows.tokens])
        names = ("title.npy", "sentences.npy", "page.npy") if tables else ()
        self.manifest = {"layout": layout, "prefix": "", "files": dict.fromkeys(names)}

    def table(self, name: str) -> np.ndarray:
        if name == "page":
            return np.array(self.rows.pages)
        if name == "title":
            return np.array(self.rows.titles).reshape(-1, 2)
        return np.array(self.rows.sentences, np.int64).reshape(-1, 3)

    def read(self, rows: np.ndarray) -> Passages:
        tokens = [self.rows.tokens[row] for row in rows]
        starts = [self.rows.word_starts[row] for row in rows]
        return Passages(np.concatenate(tokens), np.concatenate(starts), self.lengths[rows])


def corpus_of(
    texts: Sequence[Text],
    layout: str = layouts.TEXT,
    query_length: int = 32,
    passage_length: int = 64,
    tables: bool = True,
) -> PairCorpus:
    store = MemoryStore(texts, layout, tables)
    return PairCorpus(store, query_length, passage_length)  # type: ignore[arg-type]


def write_texts(
    folder: Path,
    texts: Sequence[Text],
    *,
    layout: str = layouts.TEXT,
    vocabulary: int | None = None,
    tables: bool = True,
    prefix: str = "",
    prompt: Sequence[int] = (),
) -> str:
    """A finished store of these texts, each with the tokens of a prompt after [CLS]."""
    folder.mkdir()
    made = rows_of(texts, layout, vocabulary)
    made.tokens = [np.insert(one, np.ones(len(prompt), int), prompt) for one in made.tokens]
    made.word_starts = [np.insert(one, np.ones(len(prompt), int), True) for one in made.word_starts]
    records = [
        store_writer.StoreRecord(text.name, "", "", "", tokens, starts)
        for text, tokens, starts in zip(texts, made.tokens, made.word_starts, strict=True)
    ]
    path = folder / store_writer.shard_name("tiny", "train", 0, 1)
    summary = store_writer.StoreSummary(
        name="tiny", split="train", kind="passage", tokenizer_fingerprint=FINGERPRINT,
        vocabulary_size=300, max_length=99, prefix=prefix, layout=layout, total_words=0,
        truncated=0, dropped={},
    )  # fmt: skip
    arrays = {
        "title": np.array(made.titles, np.int32).reshape(-1, 2),
        "sentences": np.array(made.sentences, np.int32).reshape(-1, 3),
        "page": np.array(made.pages, np.int64),
    }
    store_writer.finish(
        str(folder), [store_writer.write_shard(str(path), records)],
        np.array([len(tokens) for tokens in made.tokens]), [text.name for text in texts], summary,
        arrays if tables else None,
    )  # fmt: skip
    return str(folder)


def some_texts(count: int, seed: int = 0) -> list[Text]:
    """Documents of two passages, "d3#0" and "d3#1", with titles and one to four sentences."""
    rng = np.random.default_rng(seed)

    def words(least: int, most: int) -> list[int]:
        return rng.integers(1, 4, rng.integers(least, most + 1)).tolist()

    return [
        Text(
            f"d{row // 2}#{row % 2}",
            [words(3, 7) for _ in range(rng.integers(1, 5))],
            words(1, 3),
        )
        for row in range(count)
    ]
