"""Texts to write from given texts: fine-tunes MARGE to translate or to summarise.

Names define what belongs together: the document of one collection is the evidence, that of
another collection the target. Nothing is retrieved, and the plan is the same from first to last.
"""

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from input_pipelines.batches.token_groups import NONE
from input_pipelines.gather.documents import parts_of
from input_pipelines.marge.chunk_layout import ChunkTable
from input_pipelines.marge.document_grouping import SubBatches, SubBatchRules
from input_pipelines.marge.plan_batches import PlannedBatches, pack
from input_pipelines.marge.sub_batch_pipeline import SubBatchPipeline
from input_pipelines.store.token_store import StoreError, TokenStore

READ = ("chunk", "document")
Collections = tuple[str, str]  # from, to: languages "de", or "LANGUAGE/SHARD" each


class WrittenPairs(PlannedBatches):
    """Batches whose sub-batches have one target each, with its source texts.

    Attributes:
      counts: sub-batches of each pair of collections, "de -> en".
      fingerprint: of all that decides what is in a step.
    """

    def __init__(
        self,
        store: str | TokenStore,
        *,
        pairs: Sequence[Collections],
        read: str,
        evidence: int,
        rows: int,
        length: int,
        segments: int,
        chunk_length: int,
        seed: int,
        tokenizer: str,
    ):
        """
        Args:
          store: token store folder, prepared with `chunk_layout.Chunks`.
          pairs: from which collection to which. Languages, whose documents of one shard and name
            belong together; or LANGUAGE/SHARD, as 'fr/articles' and 'fr/summaries', whose documents
            of one name do.
          read: 'chunk': chunk n of a document is written from chunk n of the other; 'document': its
            first chunk from the first chunks of the other.
          evidence: chunks that are read for a target at most; 1 where `read` is 'chunk'.
          rows, length, segments, chunk_length, seed, tokenizer: see `SubBatchPipeline`.

        Raises:
          ValueError, StoreError: a value out of range, or collections that share no name.
          TokenizerError: a language without a token.
        """
        if read not in READ or evidence < 1 or (read == "chunk" and evidence != 1):
            raise ValueError(
                f"WrittenPairs: expected read 'chunk' with evidence 1, or 'document' with 1 or "
                f"more, found {read!r} with {evidence}"
            )
        pairs = [(one, other) for one, other in pairs]
        repeated = [pair for n, pair in enumerate(pairs) if pair in pairs[:n]]
        if repeated:
            raise ValueError(f"WrittenPairs.pairs: expected each pair once, found {repeated} again")
        chunks = SubBatchPipeline(
            store,
            rows=rows,
            length=length,
            segments=segments,
            chunk_length=chunk_length,
            rules=SubBatchRules(documents=evidence + 1),
            only_first=False,
            seed=seed,
            tokenizer=tokenizer,
        )
        found, self.counts = _found(chunks.store, chunks.table, pairs, evidence, read == "chunk")
        arrays = pack(found, chunks.store.lengths, chunks.shape, seed, version=0)
        if len(arrays["target"]) < rows:
            raise StoreError(
                f"token store {chunks.store.folder}: expected pairs for {rows} rows of a batch, "
                f"found {len(arrays['target'])} rows of them ({self.counts}); make batches smaller"
            )
        super().__init__(chunks.store, chunks.languages, arrays, chunks.shape, seed)
        content = json.dumps([chunks.fingerprint, [list(pair) for pair in pairs], read, evidence])
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()


def _found(
    store: TokenStore,
    table: ChunkTable,
    pairs: Sequence[Collections],
    max_chunks: int,
    by_chunk: bool,
) -> tuple[SubBatches, dict[str, int]]:
    """Targets and evidence, [G, max_chunks] each, and how many there are of each pair."""
    documents = _documents(store, table)
    targets: list[list[int]] = []
    evidence: list[list[int]] = []
    counts = {}
    for one, other in pairs:
        given, wanted = (_of_collection(documents, name, store.folder) for name in (one, other))
        if one == other or ("/" in one) != ("/" in other):
            raise ValueError(
                "WrittenPairs.pairs: expected two languages, or two of LANGUAGE/SHARD, that are "
                f"not the same, found {(one, other)}"
            )
        before = len(targets)
        for key in (key for key in given if key in wanted):
            (first, count), (target, of_target) = given[key], wanted[key]
            if by_chunk:
                targets += [[target + n] for n in range(min(count, of_target))]
                evidence += [[first + n] for n in range(min(count, of_target))]
            else:
                targets.append([target])
                evidence.append([first + n for n in range(min(count, max_chunks))])
        counts[f"{one} -> {other}"] = len(targets) - before
        if len(targets) == before:
            raise StoreError(
                f"token store {store.folder}: expected documents of one name in {one!r} and "
                f"{other!r}, found {len(given)} and {len(wanted)} that share none"
            )
    if not targets:
        raise ValueError("WrittenPairs.pairs: expected one or more, found none")
    return SubBatches(_filled(targets, max_chunks), _filled(evidence, max_chunks), {}), counts


def _documents(store: TokenStore, table: ChunkTable) -> dict[tuple[str, str, str], tuple[int, int]]:
    """Language, shard and name -> first chunk, and how many there are."""
    first, counts = np.unique(table.document, return_counts=True)
    return {
        parts_of(store.ids[row].rpartition("#")[0]): (row, count)
        for row, count in zip(first.tolist(), counts.tolist(), strict=True)
    }


def _of_collection(
    documents: dict[tuple[str, str, str], tuple[int, int]], name: str, folder: str
) -> dict[str, tuple[int, int]]:
    """Identifier of a document within this collection -> its chunks."""
    language, _, shard = name.partition("/")
    found = {
        called if shard else f"{shard_of}/{called}": chunks
        for (spoken, shard_of, called), chunks in documents.items()
        if spoken == language and shard in ("", shard_of)
    }
    if not found:
        known = sorted({f"{spoken}/{shard_of}" for spoken, shard_of, _ in documents})
        raise StoreError(
            f"token store {folder}: expected documents of {name!r}, found those of {known[:20]}"
        )
    return found


def _filled(lists: Sequence[Sequence[int]], width: int) -> np.ndarray:
    out = np.full((len(lists), width), NONE, np.int64)
    for row, values in enumerate(lists):
        out[row, : len(values)] = values
    return out
