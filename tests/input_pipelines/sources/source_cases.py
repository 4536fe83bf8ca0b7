"""Every text source on small files of the same four texts, and a malformed line for each format."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from input_pipelines.batches.translation_rows import TranslationFile
from input_pipelines.gather import documents, language_sentences, translated_documents
from input_pipelines.sources import (
    beir,
    bitext,
    bitext_tables,
    bucc,
    labelled_pair_files,
    mixtures,
    msmarco,
    passage_splitter,
    squad_questions,
    sts,
    text_sources,
    triples,
    wiki_dump,
    xquad,
)
from input_pipelines.sources.text_sources import TextSource

TEXTS = (
    "the sea is blue and wide",
    "Größe, Maß und Übermaß",
    "東京タワー は 高い",
    "a smile \N{SLIGHTLY SMILING FACE} and e\N{COMBINING ACUTE ACCENT}",
)
BYTES = 1 << 20
BAD_JSON, BAD_UTF8 = b'{"id": ', b"\xff\xfe"
HEADER = ["query-id\tcorpus-id\tscore"]
Lines = list[str]


@dataclass(frozen=True)
class Case:
    """How a source is made.

    Attributes:
      files: the lines of each file, of the texts that are given.
      source: of the folder of these files.
      broken: file -> a malformed line; the first of these files is the one that is quoted.
      at: lines before the malformed one.
    """

    files: Callable[[Sequence[str]], Mapping[str, Lines]]
    source: Callable[[str], TextSource]
    broken: Mapping[str, bytes] = field(default_factory=dict)
    at: int = 1

    def write(self, folder: Path, texts: Sequence[str] = TEXTS, broken: bool = False) -> TextSource:
        """Writes the files, perhaps with the malformed line, and returns the source."""
        for name, lines in self.files(texts).items():
            rows = [line.encode() for line in lines]
            if broken and name in self.broken:
                rows.insert(self.at, self.broken[name])
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(b"".join(row + b"\n" for row in rows))
        return self.source(str(folder))

    def place(self, folder: Path) -> str:
        """File and line of the malformed line."""
        return f"{folder / next(iter(self.broken))}:{self.at + 1}"


def _rows(texts: Sequence[str], **more: str) -> Lines:
    """JSON lines with ids and the fields that formats ask for."""
    return [
        json.dumps({"id": f"t{i}", "_id": f"t{i}", "title": "", "text": text, **more})
        for i, text in enumerate(texts)
    ]


def _jsonl(folder: str) -> text_sources.Jsonl:
    return text_sources.Jsonl([f"{folder}/a.jsonl"], ["id"], "title", "text", "", BYTES)


def _lines(folder: str, name: str = "a.txt") -> text_sources.Lines:
    return text_sources.Lines([f"{folder}/{name}"], BYTES)


def _beir(texts: Sequence[str]) -> dict[str, Lines]:
    judged = [f"t{i}\tt0\t1" for i in range(len(texts))]
    return {
        "queries.jsonl": _rows(texts),
        "corpus.jsonl": _rows(texts),
        "qrels/test.tsv": HEADER + judged,
    }


def _dump(texts: Sequence[str]) -> Lines:
    articles = (
        [f'<doc id="{i}" title="Article {i}">', f"Article {i}", "", text, "</doc>"]
        for i, text in enumerate(texts)
    )
    return [line for article in articles for line in article]


def _translations(texts: Sequence[str]) -> Lines:
    both = zip(texts, reversed(texts), strict=True)
    return [
        json.dumps({"id": str(i), "source": a, "target": b, "pair": ["de", "en"]})
        for i, (a, b) in enumerate(both)
    ]


def _sides(texts: Sequence[str]) -> dict[str, Lines]:
    return {"x.de-en.de": list(texts), "x.de-en.en": [f"en {text}" for text in texts]}


def _squad(texts: Sequence[str]) -> Lines:
    def question(i: int, text: str) -> dict[str, object]:
        answers = [{"text": text, "answer_start": 0}]
        return {"id": f"q{i}", "question": "what?", "answers": answers}

    return [
        json.dumps({"title": f"T{i}", "para": 0, "context": text, "qas": [question(i, text)]})
        for i, text in enumerate(texts)
    ]


def _table(texts: Sequence[str]) -> Lines:
    rows = [f"{text}\tenglish\td{i}" for i, text in enumerate(texts)]
    return ["de\ten\tdoc", *rows] if texts else []


def _columns(folder: str, document: str = "") -> bitext_tables.Columns:
    codes = {"de": "de", "en": "en"}
    return bitext_tables.Columns("table", f"{folder}/a.tsv", codes, "en", BYTES, (), document)


CASES: dict[str, Case] = {
    "jsonl": Case(lambda texts: {"a.jsonl": _rows(texts)}, _jsonl, {"a.jsonl": BAD_JSON}),
    "lines": Case(lambda texts: {"a.txt": list(texts)}, _lines, {"a.txt": BAD_UTF8}),
    "beir_passages": Case(
        _beir, lambda at: beir.BeirCorpus(at, BYTES), {"corpus.jsonl": b'{"_id": "x"}'}
    ),
    "beir_queries": Case(
        _beir, lambda at: beir.BeirQueries(at, ("test",), BYTES), {"queries.jsonl": b"[]"}
    ),
    "msmarco": Case(
        lambda texts: {"a.tsv": [f"{i}\t{text}" for i, text in enumerate(texts)]},
        lambda at: msmarco.Tsv(f"{at}/a.tsv"),
        {"a.tsv": b"no tab"},
    ),
    "wikipedia_dump": Case(
        lambda texts: {"AA/wiki_00": _dump(texts)},
        lambda at: wiki_dump.WikiExtracted(at),
        {"AA/wiki_00": b"text of no article"},
        at=5,
    ),
    "articles": Case(
        lambda texts: {"a.jsonl": _rows(texts)},
        lambda at: passage_splitter.Chunked(_jsonl(at), 90, 0),
        {"a.jsonl": BAD_JSON},
    ),
    "chain": Case(
        lambda texts: {"a.txt": list(texts[:2]), "a.jsonl": _rows(texts[2:])},
        lambda at: mixtures.Chain([_lines(at), _jsonl(at)]),
        {"a.jsonl": BAD_JSON},
    ),
    "mixture": Case(
        lambda texts: {"a.txt": list(texts[:2]), "a.jsonl": _rows(texts[2:])},
        lambda at: mixtures.Mixture([("a", _lines(at), 1.0), ("b", _jsonl(at), 2.0)], 0.7),
        {"a.jsonl": BAD_JSON},
    ),
    "languages": Case(
        lambda texts: {"de.jsonl": _rows(texts[:2]), "ja.jsonl": _rows(texts[2:])},
        lambda at: language_sentences.mixture(at, 0.3),
        {"ja.jsonl": BAD_JSON},
    ),
    "bitext": Case(
        _sides,
        lambda at: bitext.Sides([bitext.MosesFolder("opus", at)]),
        {"x.de-en.de": BAD_UTF8, "x.de-en.en": b"its translation"},
    ),
    "bitext_table": Case(
        lambda texts: {"a.tsv": _table(texts)},
        lambda at: bitext.Sides([_columns(at)]),
        {"a.tsv": b"one cell"},
    ),
    "documents": Case(
        lambda texts: {"a.jsonl": _rows(texts, lang="de")},
        lambda at: documents.DocumentFiles([f"{at}/a.jsonl"], "all", name_field="id"),
        {"a.jsonl": BAD_JSON},
    ),
    "translated_documents": Case(
        lambda texts: {"a.tsv": _table(texts)},
        lambda at: translated_documents.TranslatedDocuments([_columns(at, "doc")]),
        {"a.tsv": b"one cell"},
    ),
    "translations": Case(
        lambda texts: {"a.jsonl": _translations(texts)},
        lambda at: TranslationFile(f"{at}/a.jsonl"),
        {"a.jsonl": BAD_JSON},
    ),
    "triples": Case(
        lambda texts: {"a.tsv": [f"question\t{text}\tno answer" for text in texts]},
        lambda at: triples.Texts(f"{at}/a.tsv", queries=False),
        {"a.tsv": b"one column"},
    ),
    "labelled_pairs": Case(
        lambda texts: {
            "a.jsonl": [
                json.dumps({"id": str(i), "first": "one", "second": text, "label": "yes"})
                for i, text in enumerate(texts)
            ]
        },
        lambda at: labelled_pair_files.PairLines(f"{at}/a.jsonl", ["yes", "no"]),
        {"a.jsonl": BAD_JSON},
    ),
    "bucc": Case(
        lambda texts: {"de-en.test.de": [f"{i}\t{text}" for i, text in enumerate(texts)]},
        lambda at: bucc.BuccSentences(at, ["de-en"], ["test"], "source"),
        {"de-en.test.de": b"no tab"},
    ),
    "sts": Case(
        lambda texts: {"a.tsv": [f"4.5\t{text}\tanother" for text in texts]},
        lambda at: sts.SimilarSentences(
            sts.SimilarityFiles({"en": f"{at}/a.tsv"}, 0, 1, 2), "first"
        ),
        {"a.tsv": b"much\tone\ttwo"},
    ),
    "squad_questions": Case(
        lambda texts: {"a.jsonl": _squad(texts)},
        lambda at: squad_questions.AskedPassages(at, "a.jsonl"),
        {"a.jsonl": BAD_JSON},
    ),
    "xquad": Case(
        lambda texts: {"xquad.en.jsonl": _squad(texts)},
        lambda at: xquad.ParallelQuestions(at, "xquad.{language}.jsonl", ["en"], "sentences"),
        {"xquad.en.jsonl": BAD_JSON},
    ),
}
