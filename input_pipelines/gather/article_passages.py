"""Passages of articles, with the sections and links that they have.

Reads what WikiExtractor writes, its version 2 with `--links --sections` and its version 3 with
`--html`, in text form or in JSON form, escaped or not:

    Anarchism is a <a href="Political%20philosophy">political philosophy</a> ...
    Section::::Etymology.
    ...

A line is a heading if it is "## X", "Section::::X", "== X ==" or "<h2>X</h2>". A section is cut
into passages separately, so that no passage is of two sections; headings are left out. A link is
found by its article's title as MediaWiki compares titles: "_" is a space, the first letter is upper
case, and what follows "#" is left out. Redirects are not followed: a dump in this form has none.
"""

import collections
import contextlib
import html
import json
import os
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, TextIO

from input_pipelines.sources import passage_splitter
from input_pipelines.sources.text_sources import BadRecords, SourceError, TextSource

_SPACE = (
    "\ue000"  # takes the place of spaces within links; of a private use area, so no text has it
)
LINKS, REPORT = "links.jsonl", "report.json"
_LINK = re.compile(r'<a href="([^"<>]*)">(.*?)</a>', re.DOTALL)
_ANCHOR = re.compile(r"</?a\b[^<>]*>")
_STYLE = re.compile(r"</?(?:b|i|ul|ol|li|dl|dt|dd)>")
_HEADING = re.compile(r"\s*(#{2,6} .*|Section::::.*|(={2,6})[^=].*\2|<h([2-6])>.*</h\3>)\s*")

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "gather": {
        "name": "article_passages",
        "version": 1,
        "outputs": ["corpus", "links", "report"],
        "check": "check",
    }
}


def gather(
    model_dir: str, source: TextSource, words: int, min_words: int, max_bad_records: int
) -> dict[str, str]:
    """The job of a stage: corpus.jsonl of passages, and a file of their sections and links.

    Args:
      model_dir: stage folder.
      source: articles, with headings and links in their texts; it is read twice.
      words: of a passage, at most; a link counts as one.
      min_words: shorter passages are left out, those of first sections aside.
      max_bad_records: malformed records that are skipped before the run stops.

    Returns:
      "corpus", a folder with corpus.jsonl; "links", for `pair_articles`; "report": paths in the
      folder. A passage's id is that of its article with "#" and a number.

    Raises:
      SourceError: no article, no heading in any, or too many malformed records.
      ValueError: a number out of range.
    """
    check(words, min_words, max_bad_records)
    ids = _ids_by_title(source)
    bad = BadRecords(max_bad_records, "article_passages.gather")
    counts: collections.Counter[str] = collections.Counter()
    os.makedirs(os.path.join(model_dir, "corpus"), exist_ok=True)
    with contextlib.ExitStack() as stack:
        corpus, links = (
            stack.enter_context(open(os.path.join(model_dir, name), "w", encoding="utf-8"))
            for name in (os.path.join("corpus", "corpus.jsonl"), LINKS)
        )
        for article in source.records(bad):
            number = 0
            for section, text in _sections(article.text, counts):
                for passage in _passages(text, words, 0 if section == 0 else min_words):
                    name = f"{article.id}#{number}"
                    number += 1
                    _write(corpus, _id=name, title=article.title, text=_ANCHOR.sub("", passage))
                    found = _links(passage, ids, counts)
                    _write(links, _id=name, article=article.id, section=section, links=found)
            counts["articles"] += number > 0
            counts["passages"] += number
    _require_headings(source, counts)
    report = {**counts, "malformed": dict(bad.counts), "examples": bad.examples}
    with open(os.path.join(model_dir, REPORT), "w", encoding="utf-8") as file:
        json.dump(report, file, ensure_ascii=False, indent=1)
    return {"corpus": "corpus", "links": LINKS, "report": REPORT}


def check(words: int, min_words: int, max_bad_records: int) -> None:
    """Check arguments before `gather` runs; ValueError: a number out of range."""
    BadRecords(max_bad_records)
    if not 0 <= min_words <= words or words < 1:
        raise ValueError(
            "article_passages.gather: expected 1 or more words and min_words from 0 to words, "
            f"found words={words}, min_words={min_words}"
        )


def _write(file: TextIO, **row: Any) -> None:
    file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _ids_by_title(source: TextSource) -> dict[str, str]:
    ids: dict[str, str] = {}
    for article in source.records(BadRecords.counted_before()):
        if article.title.strip():
            ids.setdefault(_as_title(article.title), article.id)
    return ids


def _as_title(text: str) -> str:
    """A title, or what a link names, as MediaWiki compares them."""
    title = " ".join(text.partition("#")[0].replace("_", " ").split()).removeprefix(":").strip()
    return title[:1].upper() + title[1:]


def _sections(text: str, counts: collections.Counter[str]) -> Iterator[tuple[int, str]]:
    """(number, text) of each section; 0 is what is before the first heading."""
    lines: list[str] = []
    number = 0
    for line in _STYLE.sub("", html.unescape(text)).split("\n"):
        if _HEADING.fullmatch(line) is None:
            lines.append(line)
            continue
        yield number, "\n".join(lines)
        counts["headings"] += 1
        lines, number = [], number + 1
    yield number, "\n".join(lines)


def _passages(text: str, words: int, min_words: int) -> list[str]:
    """A section in pieces of at most `words` words, each with the links that are whole in it."""
    kept = _LINK.sub(lambda link: re.sub(r"\s", _SPACE, link[0]), text)  # a link is not cut
    pieces = passage_splitter.split_words(kept, words)
    return [
        piece.replace(_SPACE, " ").strip() for piece in pieces if len(piece.split()) >= min_words
    ]


def _links(passage: str, ids: Mapping[str, str], counts: collections.Counter[str]) -> list[str]:
    """The articles that a passage links to, each once, in the order of the passage."""
    named = [_as_title(urllib.parse.unquote(target)) for target, _ in _LINK.findall(passage)]
    found = [ids[title] for title in named if title in ids]
    counts["links"] += len(found)
    counts["links_to_no_article"] += len(named) - len(found)
    return list(dict.fromkeys(found))


def _require_headings(source: TextSource, counts: collections.Counter[str]) -> None:
    """Raises SourceError for text whose sections cannot be known."""
    if not counts["passages"]:
        raise SourceError(f"article_passages.gather: expected articles, found none in {source}")
    if not counts["headings"]:
        raise SourceError(
            f"article_passages.gather: none of {counts['articles']:,} articles has a heading (a "
            "line such as '## History' or 'Section::::History'), so that first sections are not "
            f"known: {source}. Extract the dump with headings and links (WikiExtractor 2: --links "
            "--sections; 3: --html)"
        )
