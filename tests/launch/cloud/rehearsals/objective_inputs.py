"""The data of each objective, tiny: a tokenizer and token stores of toy texts, by the real jobs."""

import json
from pathlib import Path

from input_pipelines.batches.translation_rows import TranslationFile, Translations
from input_pipelines.marge import chunk_layout
from input_pipelines.sources.text_sources import Jsonl
from input_pipelines.store import block_layout, layouts, prepare, salient_spans
from input_pipelines.tokenizers import tokenization

LENGTH = 40
CITIES = "Oslo Rome Paris Vienna Lisbon Dublin Athens Prague".split()
WORDS = {
    "en": "dog cat house tree river road bread night child book".split(),
    "de": "hund katze haus baum fluss weg brot nacht kind buch".split(),
}
COUNT = 24


def write(folder: Path) -> dict[str, str]:
    """Writes all of it; macro -> path in the folder."""
    texts = {name: _jsonl(folder, name, rows) for name, rows in _texts().items()}
    pairs = _rows(folder / "pairs.jsonl", _pairs())
    everything = Jsonl(
        [path for source in texts.values() for path in source.paths],
        ["id"], "title", "text", "", 1_000_000,
    )  # fmt: skip
    (folder / "languages.json").write_text(json.dumps(sorted(WORDS)))
    tokenization.train_tokenizer(
        str(folder), everything, 400, 200, 1, True, True, 0, 0, 0,
        languages=str(folder / "languages.json"),
    )  # fmt: skip
    blocks = block_layout.Blocks(salient_spans.Rules())
    found = {
        "STORE": _store(folder, "passages", texts["passages"]),
        "QUERY_STORE": _store(folder, "queries", texts["queries"], kind="query"),
        "BLOCKS": _store(folder, "blocks", texts["passages"], blocks),
        "CHUNKS": _store(folder, "chunks", texts["documents"], chunk_layout.Chunks(), length=16),
        "TRANSLATIONS": _store(folder, "pairs", TranslationFile(pairs), Translations(16)),
    }
    negatives = [
        {
            "query_id": f"q{number}",
            "positive_ids": [f"p{number}"],
            "negative_ids": [f"p{(number + 7) % COUNT}"],
        }
        for number in range(COUNT)
    ]
    _rows(folder / "negatives.jsonl", negatives)
    return found | {"TOKENIZER": "tokenizer", "NEGATIVES": "negatives.jsonl"}


def _texts():
    cities = [(CITIES[n % 8], CITIES[(n + 3) % 8], 1800 + n) for n in range(COUNT)]
    passages = [
        {
            "id": f"p{n}",
            "title": f"Year {year}",
            "text": f"A child was born in {first} in {year}. Later it moved to {second} in Europe.",
        }
        for n, (first, second, year) in enumerate(cities)
    ]
    queries = [
        {"id": f"q{n}", "title": "", "text": f"where was a child born in {year}?"}
        for n, (_, _, year) in enumerate(cities)
    ]
    documents = [
        {"id": f"{code}/x/n{n}", "title": "", "text": f"Name{n} {_sentence(code, n)} Name{n}"}
        for n in range(COUNT)
        for code in WORDS
    ]
    return {"passages": passages, "queries": queries, "documents": documents}


def _sentence(code: str, number: int) -> str:
    """Six words that say a number, in each language its own."""
    return " ".join(WORDS[code][number * factor % 10] for factor in (1, 3, 7, 9, 11, 13))


def _pairs():
    return [
        {"id": f"en_de/{n}", "source": _sentence("en", n), "target": _sentence("de", n)}
        for n in range(1, COUNT)
    ]


def _rows(path: Path, rows) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def _jsonl(folder: Path, name: str, rows) -> Jsonl:
    path = _rows(folder / f"{name}.jsonl", rows)
    return Jsonl([path], ["id"], "title", "text", "", 1_000_000)


def _store(
    folder: Path, name: str, source, layout=layouts.WHOLE_TEXTS, kind="passage", length=LENGTH
) -> str:
    made = folder / name
    made.mkdir()
    prepare.prepare(
        str(made), source, str(folder / "tokenizer"), name, "all", kind, length, "", 1000, 1, 0,
        layout,
    )  # fmt: skip
    return f"{name}/store"
