"""Articles of passages, their first sections, and the links between them.

A file says so, JSON lines with one for each passage, as `article_passages.gather` writes them:

    {"_id": "12#0", "article": "12", "section": 0, "links": ["34", "56"]}

`section` counts from 0, the text before the first heading; `links` are articles that the passage
links to. Without a file articles follow from the ids of passages, "12#0", "12#1", or from their
titles, and the first passage of an article takes the place of its first section.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from input_pipelines.batches import token_groups
from input_pipelines.pairs.pair_corpus import PairCorpus
from input_pipelines.sources import text_sources
from input_pipelines.sources.text_sources import BadRecords, FieldError
from input_pipelines.store.text_parts import document_of
from input_pipelines.store.token_store import StoreError, TokenStore

_LINE_BYTES = 1 << 24


@dataclasses.dataclass(frozen=True)
class Articles:
    """The article of each passage, and the articles that it links to.

    Attributes:
      number: int64 [N], the article of each row, counted from 0.
      in_first: bool [N], whether a row is of its article's first section.
      link_rows: int64 [L], ascending: the rows that hold links.
      link_targets: int64 [L], the article that each links to: another than its row's, each once.
    """

    number: np.ndarray
    in_first: np.ndarray
    link_rows: np.ndarray
    link_targets: np.ndarray

    def digest(self) -> str:
        """sha256 hex of all of it."""
        joined = hashlib.sha256()
        for table in (self.number, self.in_first, self.link_rows, self.link_targets):
            joined.update(hashlib.sha256(np.ascontiguousarray(table).tobytes()).digest())
        return joined.hexdigest()


def articles_of(corpus: PairCorpus, links: str | None) -> Articles:
    """The articles of a corpus.

    Args:
      corpus: the passages.
      links: the file that the module describes; None: articles follow from ids or titles.

    Raises:
      StoreError: the file does not name a passage of the corpus.
      SourceError: the file cannot be read, or a line is malformed.
    """
    return _read(links, corpus.store) if links else _by_ids(corpus.store)


def _by_ids(store: TokenStore) -> Articles:
    pages: Sequence[int] | None = None
    if "page.npy" in store.manifest["files"]:
        pages = store.table("page").tolist()
    numbers: dict[str | int, int] = {}
    number = np.empty(len(store.ids), np.int64)
    for row, name in enumerate(store.ids):
        document = document_of(name)
        key = pages[row] if document == name and pages is not None else document
        number[row] = numbers.setdefault(key, len(numbers))
    in_first = np.zeros(len(number), np.bool_)
    in_first[np.unique(number, return_index=True)[1]] = True
    none = np.zeros(0, np.int64)
    return Articles(number, in_first, none, none)


def _read(path: str, store: TokenStore) -> Articles:
    rows = {name: row for row, name in enumerate(store.ids)}
    number = np.full(len(rows), token_groups.NONE, np.int64)
    in_first = np.zeros(len(rows), np.bool_)
    numbers: dict[str, int] = {}
    found: list[tuple[int, str]] = []
    bad = BadRecords(0)
    for at, line, value in text_sources.json_lines(path, _LINE_BYTES, bad):
        try:
            name, article, section, links = _fields(value)
        except FieldError as error:
            bad.add(f"{path}:{at}", error.reason, str(error), line)
            continue
        if (row := rows.get(name)) is not None:
            number[row] = numbers.setdefault(article, len(numbers))
            in_first[row] = section == 0
            found += [(row, target) for target in links]
    if (missing := np.flatnonzero(number == token_groups.NONE)).size:
        raise StoreError(
            f"{path}: expected a line for each passage of {store.folder}, found none for "
            f"{missing.size:,} of {len(rows):,}, the first is {store.ids[missing[0]]!r}. Prepare "
            "the store from the corpus that was written with this file "
            "(gin_configs/runs/collections/article_passages.gin)"
        )
    pairs = [(row, numbers[target]) for row, target in found if target in numbers]
    table = np.unique(np.array(pairs, np.int64).reshape(-1, 2), axis=0)
    table = table[number[table[:, 0]] != table[:, 1]]
    return Articles(number, in_first, table[:, 0], table[:, 1])


def _fields(value: Mapping[str, object]) -> tuple[str, str, int, list[str]]:
    """Passage, article, section and links of a line; FieldError for a malformed one."""
    name = text_sources.text_field(value, "_id", is_id=True)
    article = text_sources.text_field(value, "article", is_id=True)
    section, links = value.get("section"), value.get("links")
    if not isinstance(section, int) or isinstance(section, bool) or section < 0:
        raise FieldError("bad_section", f"field 'section': expected 0 or more, found {section!r}")
    if not isinstance(links, list) or not all(isinstance(one, str) for one in links):
        raise FieldError("bad_links", "field 'links': expected a list of ids of articles")
    return name, article, section, links
