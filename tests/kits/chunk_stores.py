"""Token stores of documents in chunks, for tests: a tokenizer with languages, and a store."""

import json

from input_pipelines.marge import chunk_layout
from input_pipelines.sources import text_sources
from input_pipelines.store import prepare
from input_pipelines.tokenizers import tokenization


def _jsonl(path):
    return text_sources.Jsonl([str(path)], ["id"], "title", "text", "", 1_000_000)


def make_tokenizer(folder, documents, languages, size=300):
    """A tokenizer of these texts that has a token for each language; its folder.

    Args:
      folder: pathlib folder of a stage.
      documents: {id: text}, ids "LANGUAGE/SHARD/NAME".
      languages: codes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "documents.jsonl", documents)
    (folder / "languages.json").write_text(json.dumps(sorted(languages)))
    made = tokenization.train_tokenizer(
        str(folder),
        _jsonl(folder / "documents.jsonl"),
        *(size, 200, 1, False, False, 0, 0, 0),
        languages=str(folder / "languages.json"),
    )
    return str(folder / made["tokenizer"])


def make_store(folder, documents, tokenizer, length=16, max_chunks=0):
    """A token store of documents in chunks; its folder. Arguments as `make_tokenizer`'s."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "documents.jsonl", documents)
    made = prepare.prepare(
        str(folder),
        _jsonl(folder / "documents.jsonl"),
        *(tokenizer, "documents", "train", "passage", length, "", 10_000, 1, 0),
        layout=chunk_layout.Chunks(max_chunks=max_chunks),
    )
    return str(folder / made["store"])


def write(path, documents):
    """Lines of documents.jsonl."""
    rows = ({"id": name, "title": "", "text": text} for name, text in documents.items())
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
