"""The embedded corpus: the documentation that this Python installation carries.

`make_corpus` writes a BEIR folder (corpus.jsonl, queries.jsonl, qrels/) from reference topics and
docstrings, and `report.json` that counts everything that was left out and says why. The same
installed versions give the same bytes.
"""

import collections
import dataclasses
import importlib.metadata
import json
import logging
import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from input_pipelines.gather import docstring_queries, docstrings, near_duplicates
from input_pipelines.gather.docstring_queries import Query
from input_pipelines.gather.docstrings import Doc
from input_pipelines.sources import passage_splitter

_log = logging.getLogger(__name__)

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"make_corpus": {"name": "python_docs", "version": 1, "outputs": ["corpus", "report"]}}


@dataclasses.dataclass(frozen=True)
class Passage:
    """One line of corpus.jsonl."""

    id: str
    title: str
    text: str
    source: str


@dataclasses.dataclass(frozen=True)
class QueryRules:
    """Rules by which a summary becomes a query, and queries are split.

    dev, test: target sizes of the held-out splits. min_words, max_words, min_content: of a summary,
    in words (min_content: without function words, distinct). near_duplicate: Jaccard similarity
    of word sets from which a held-out query repeats another. largest_module: the largest share of a
    held-out split that one module may have.
    """

    dev: int
    test: int
    min_words: int
    max_words: int
    min_content: int
    near_duplicate: float
    largest_module: float


class _Collector:
    """Turns Docs into passages and query candidates, counting what is left out."""

    def __init__(
        self, passage_words: int, max_parts: int, min_passage_words: int, rules: QueryRules
    ):
        self._passage_words = passage_words
        self._max_parts = max_parts
        self._min_words = min_passage_words
        self._rules = rules
        self._names: collections.Counter[str] = collections.Counter()
        self.passages: list[Passage] = []
        self.queries: list[Query] = []
        self.dropped: collections.Counter[str] = collections.Counter()

    def add(self, doc: Doc) -> None:
        summary, body = self._query(doc)
        parts = passage_splitter.split_words(body, self._passage_words)
        if not doc.topic and len(parts) > self._max_parts:
            self.dropped["part_past_max_parts"] += len(parts) - self._max_parts
            parts = parts[: self._max_parts]
        # Only a first part may be short; a last part of a few words is a scrap.
        parts = parts[:1] + [p for p in parts[1:] if len(p.split()) >= self._min_words]
        if not parts or len(parts[0].split()) < self._min_words:
            self.dropped["passage_too_short"] += 1
            return
        prefix = "topic:" if doc.topic else ""
        name = prefix + (doc.module.removeprefix("topics.") if doc.topic else doc.name)
        self._names[name] += 1
        if self._names[name] > 1:
            name = f"{name}~{self._names[name]}"
        ids = [name if i == 0 else f"{name}#{i + 1}" for i in range(len(parts))]
        for id_, part in zip(ids, parts, strict=True):
            self.passages.append(Passage(id_, doc.name, part, doc.source))
        if summary:
            self.queries.append(Query(f"q:{name}", summary, doc.module, tuple(ids)))

    def _query(self, doc: Doc) -> tuple[str, str]:
        """(summary, body without it) where the summary can be a query, else ("", all the text)."""
        text = docstring_queries.without_markup(doc.text)
        if doc.topic:
            return "", text
        rules = self._rules
        summary, rest = docstring_queries.summary_and_rest(text)
        why = docstring_queries.uninformative(
            summary, rules.min_words, rules.max_words, rules.min_content
        )
        if not why and len(rest.split()) < self._min_words:
            why = "nothing_after_summary"
        if why:
            self.dropped[f"query_{why}"] += 1
            return "", text
        return summary, rest


def all_docs(packages: Sequence[str]) -> Iterator[Doc]:
    """Topics, compiled modules, then the packages in the given order: earlier wins a duplicate."""
    yield from docstrings.topic_docs()
    yield from docstrings.compiled_docs()
    for package in packages:
        yield from docstrings.package_docs(package)


def drop_duplicates(
    passages: Sequence[Passage], threshold: float, shingle_size: int
) -> tuple[list[Passage], int]:
    """Passages without those that nearly repeat the text of an earlier one."""
    repeats = near_duplicates.duplicate_of([p.text for p in passages], threshold, shingle_size)
    return [p for i, p in enumerate(passages) if i not in repeats], len(repeats)


def select_queries(
    queries: Iterable[Query], passages: Sequence[Passage], rules: QueryRules
) -> tuple[dict[str, list[Query]], dict[str, int]]:
    """Queries of each split, and how many were dropped for which reason."""
    kept_ids = {p.id for p in passages}
    dropped: dict[str, int] = {}
    candidates = [
        dataclasses.replace(q, positives=tuple(i for i in q.positives if i in kept_ids))
        for q in queries
    ]
    # The first part is what answers the summary; without it the query has lost its passage.
    kept = [q for q in candidates if q.id.removeprefix("q:") in q.positives]
    dropped["query_passage_is_a_duplicate"] = len(candidates) - len(kept)
    kept, dropped["query_ambiguous"] = docstring_queries.drop_ambiguous(kept)
    kept, dropped["query_quoted_in_a_passage"] = docstring_queries.drop_quoted(
        kept, [p.text for p in passages]
    )
    splits = docstring_queries.split_by_module(
        kept, {"dev": rules.dev, "test": rules.test}, rules.largest_module
    )
    splits, dropped["query_repeats_another_split"] = docstring_queries.drop_seen_in_training(
        splits, rules.near_duplicate
    )
    return splits, dropped


def make_corpus(
    model_dir: str,
    packages: Sequence[str],
    passage_words: int,
    max_parts: int,
    min_passage_words: int,
    near_duplicate: float,
    shingle_words: int,
    queries: QueryRules,
) -> dict[str, str]:
    """Writes the documentation corpus of this installation as a BEIR folder.

    Args:
      model_dir: stage folder; the corpus goes into `corpus/` in it.
      packages: "stdlib" and names of installed packages, in order of precedence.
      passage_words: the most words of a passage.
      max_parts: the most passages made of one docstring; topics are never cut short.
      min_passage_words: shorter passages are left out.
      near_duplicate: Jaccard similarity from which a passage repeats an earlier one.
      shingle_words: words a shingle in that comparison.
      queries: see QueryRules.

    Returns:
      {"corpus": the folder, "report": report.json}, relative to model_dir.

    Raises:
      docstrings.MissingPackageError: a package is not installed.
      ValueError: nothing is left to write.
    """
    collector = _Collector(passage_words, max_parts, min_passage_words, queries)
    docs = 0
    for doc in all_docs(packages):
        docs += 1
        collector.add(doc)
    passages, repeats = drop_duplicates(collector.passages, near_duplicate, shingle_words)
    if not passages:
        raise ValueError(
            f"no passage left of {docs} docstrings: lower make_corpus.min_passage_words"
        )
    splits, dropped = select_queries(collector.queries, passages, queries)
    dropped |= {**collector.dropped, "passage_near_duplicate": repeats}
    folder = os.path.join(model_dir, "corpus")
    write_beir(folder, passages, splits)
    report = {
        "docstrings_and_topics": docs,
        "passages": len(passages),
        "words": sum(len(p.text.split()) for p in passages),
        "queries": {split: len(found) for split, found in splits.items()},
        "modules": {s: sorted({docstring_queries.module_group(q.module) for q in splits[s]})
                    for s in ("dev", "test")},
        "dropped": dict(sorted(dropped.items())),
        "versions": _versions(packages),
    }  # fmt: skip
    _write_lines(os.path.join(folder, "report.json"), [json.dumps(report, indent=1)])
    _log.info("documentation corpus: %d passages, queries %s", len(passages), report["queries"])
    return {"corpus": "corpus", "report": "corpus/report.json"}


def write_beir(folder: str, passages: Iterable[Passage], splits: dict[str, list[Query]]) -> None:
    """Writes corpus.jsonl, queries.jsonl and qrels/<split>.tsv."""
    os.makedirs(os.path.join(folder, "qrels"), exist_ok=True)
    corpus = ({"_id": p.id, "title": p.title, "text": p.text, "source": p.source} for p in passages)
    _write_json_lines(os.path.join(folder, "corpus.jsonl"), corpus)
    queries = ({"_id": q.id, "text": q.text} for s in docstring_queries.SPLITS for q in splits[s])
    _write_json_lines(os.path.join(folder, "queries.jsonl"), queries)
    for split in docstring_queries.SPLITS:
        rows = [f"{q.id}\t{positive}\t1" for q in splits[split] for positive in q.positives]
        path = os.path.join(folder, "qrels", f"{split}.tsv")
        _write_lines(path, ["query-id\tcorpus-id\tscore", *rows])


def _versions(packages: Sequence[str]) -> dict[str, str]:
    distributions = importlib.metadata.packages_distributions()
    out = {"python": platform.python_version()}
    for package in packages:
        for distribution in sorted(set(distributions.get(package, ()))):
            out[distribution] = importlib.metadata.version(distribution)
    return out


def _write_json_lines(path: str, rows: Iterable[dict[str, Any]]) -> None:
    _write_lines(path, (json.dumps(row, ensure_ascii=False) for row in rows))


def _write_lines(path: str, lines: Iterable[str]) -> None:
    with open(path, "w", encoding="utf-8") as f:
        f.writelines(f"{line}\n" for line in lines)
