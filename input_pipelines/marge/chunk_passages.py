"""Chunks of documents as passages of a collection whose source is their language.

The passages are the chunks that a model reads, with the ids of the token store: vectors of the
store are vectors of the passages, and no text is tokenized twice.
"""

import collections
import json
import logging
import os

from input_pipelines.marge.chunk_layout import ChunkTable
from input_pipelines.store.token_store import TokenStore

_log = logging.getLogger(__name__)

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"write_chunks": {"name": "chunk_passages", "version": 1, "outputs": ["corpus", "report"]}}


def write_chunks(store: str, model_dir: str) -> dict[str, str]:
    """The job of a stage: writes corpus/corpus.jsonl and report.json, passages of each language.

    Args:
      store: a token store of `chunk_layout.Chunks`.
      model_dir: stage folder.

    Returns:
      {"corpus": the folder, "report": report.json}, relative to model_dir. Each line of
      corpus.jsonl has "_id" (LANGUAGE/SHARD/NAME#NUMBER), "title" (empty; a document's is in its
      first chunk), "text" and "source" (LANGUAGE), in the order of the store.

    Raises:
      StoreError: the store holds no chunks.
    """
    opened = TokenStore.open(store)
    table = ChunkTable.of(opened)
    folder = os.path.join(model_dir, "corpus")
    os.makedirs(folder, exist_ok=True)
    counts: collections.Counter[str] = collections.Counter()
    with open(os.path.join(folder, "corpus.jsonl"), "w", encoding="utf-8") as file:
        for row, number in enumerate(table.language.tolist()):
            chunk, language = opened.text(row), table.languages[number]
            record = {"_id": chunk.id, "title": "", "text": chunk.text, "source": language}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            counts[language] += 1
    report = {"passages": counts.total(), "languages": dict(sorted(counts.items()))}
    with open(os.path.join(model_dir, "report.json"), "w", encoding="utf-8") as file:
        json.dump(report, file, ensure_ascii=False, indent=1)
    _log.info("%d passages of %d languages", counts.total(), len(counts))
    return {"corpus": "corpus", "report": "report.json"}
