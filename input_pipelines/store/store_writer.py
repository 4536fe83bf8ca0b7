"""Writes a token store: ArrayRecord shards of `tf.train.Example`, TFDS metadata, and a manifest.

Folder:

    <name>-<split>.array_record-00000-of-000NN   the shards (TFDS names; ArrayRecord group_size:1)
    features.json, dataset_info.json             TFDS metadata: tfds.builder_from_directory opens it
    lengths.npy                                  int32 [N], tokens of each row, specials included
    ids.json                                     list of N strings, row -> record id
    sentences.npy, spans.npy, minhash.npy, page.npy   of stores of blocks, see `blocks`
    title.npy, sentences.npy, page.npy           of texts with parts, see `text_parts`
    manifest.json                                written last and atomically: no manifest, no store

Record (row r of the store = record r counted through the shards in order), parsed by
`example_proto.parse`:

    id, title, text, source   UTF-8 bytes (always present, possibly empty)
    tokens                    int64 list, WITH special tokens, at most `max_length`
    word_starts               int64 list of 0/1, as long as `tokens`; special tokens are 1

`manifest.json`:

    format                 "kennel-token-store"
    format_version         2
    name, split, kind      strings; kind is "passage", "query" or "text"
    count                  int, N
    shards                 [{"file", "count", "bytes", "sha256"}] in row order
    files                  {"lengths.npy": {"bytes", "sha256"}, "ids.json": {"bytes", "sha256"}}
    tokenizer_fingerprint  str, that of the tokenizer folder's vocabulary.json
    vocabulary_size        int, true size of the tokenizer
    max_length             int, the length at which records were cut
    prefix                 str, put before each text
    layout                 "text", title, a space, text; "title_and_body", [SEP] between them;
                           "translation:48", so too, each side cut at 48; "labelled_pairs:48:a|b",
                           that with classes; "question_windows:32:64", question [SEP] window
    total_tokens           int, sum of lengths
    total_words            int, sum of word_starts (special tokens included)
    truncated              int, records that were cut
    dropped                {reason: int}, records that are not in the store
    fingerprint            sha256 hex of all of the above: names this store's exact content
"""

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter

from input_pipelines.store import example_proto

FORMAT = "kennel-token-store"
FORMAT_VERSION = 2
MANIFEST = "manifest.json"
KINDS = ("passage", "query", "text")
_NAME = re.compile(r"[a-z][a-z0-9_]*")  # TFDS derives the dataset's name from the file's


@dataclasses.dataclass(frozen=True)
class StoreRecord:
    """One row: its texts and its tokens (int [n], specials included; word_starts bool [n])."""

    id: str
    title: str
    text: str
    source: str
    tokens: np.ndarray
    word_starts: np.ndarray


@dataclasses.dataclass(frozen=True)
class ShardInfo:
    """Manifest entry of one shard: file name, records, size in bytes, sha256 hex."""

    file: str
    count: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class StoreSummary:
    """Arguments of `finish` besides the shards; fields as in the manifest (module docstring)."""

    name: str
    split: str
    kind: str
    tokenizer_fingerprint: str
    vocabulary_size: int
    max_length: int
    prefix: str
    layout: str
    total_words: int
    truncated: int
    dropped: Mapping[str, int]

    def __post_init__(self) -> None:
        check_names(self.name, self.split, self.kind)


def check_names(name: str, split: str, kind: str) -> None:
    """Raises ValueError unless these can be those of a store."""
    for field, value in (("name", name), ("split", split)):
        if not _NAME.fullmatch(value):
            raise ValueError(
                f"token store {field}={value!r}: expected lower-case letters, digits and "
                "underscores, starting with a letter (TFDS reads it from the file names)"
            )
    if kind not in KINDS:
        raise ValueError(f"token store kind={kind!r}: expected one of {', '.join(KINDS)}")


def file_sha256(path: str) -> str:
    """sha256 hex of a file, read in pieces."""
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def shard_name(name: str, split: str, shard: int, shards: int) -> str:
    """File name of a shard, as TFDS has it."""
    return f"{name}-{split}.array_record-{shard:05d}-of-{shards:05d}"


def write_shard(path: str, records: Iterable[StoreRecord]) -> ShardInfo:
    """Writes one ArrayRecord file; equal records give equal bytes.

    `group_size:1` as in TFDS: one record a block, so reading a row decodes that row alone.
    """
    writer = ArrayRecordWriter(path, "group_size:1")
    count = 0
    try:
        for record in records:
            if len(record.tokens) != len(record.word_starts):
                raise ValueError(
                    f"record {record.id!r}: {len(record.tokens)} tokens but "
                    f"{len(record.word_starts)} word_starts; expected as many"
                )
            writer.write(example_proto.serialize(vars(record)))
            count += 1
    finally:
        writer.close()
    return ShardInfo(os.path.basename(path), count, os.path.getsize(path), file_sha256(path))


def finish(
    folder: str,
    shards: Sequence[ShardInfo],
    lengths: np.ndarray,
    ids: Sequence[str],
    summary: StoreSummary,
    tables: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Completes a folder whose shards lie in it under their final names.

    Args:
      folder: where the shards are.
      shards: in row order.
      lengths: int [N], tokens of each row.
      ids: N record ids, row order.
      summary: the rest of the manifest.
      tables: further arrays that a layout made (`blocks`), each in a file of its name.

    Returns:
      The manifest, as written.

    Raises:
      ValueError: the counts of shards, lengths and ids differ, or nothing is to be stored.
    """
    count = sum(shard.count for shard in shards)
    if not count == len(lengths) == len(ids):
        raise ValueError(
            f"token store {folder}: the shards hold {count} records, but there are "
            f"{len(lengths)} lengths and {len(ids)} ids; expected the same number of each"
        )
    if not count:
        raise ValueError(f"token store {folder}: no record to store; expected at least one")
    lengths = np.asarray(lengths, dtype=np.int32)
    np.save(os.path.join(folder, "lengths.npy"), lengths)
    with open(os.path.join(folder, "ids.json"), "w", encoding="utf-8") as f:
        json.dump(list(ids), f, ensure_ascii=False)
    files = ["lengths.npy", "ids.json", *(f"{name}.npy" for name in tables or {})]
    for name, array in (tables or {}).items():
        np.save(os.path.join(folder, f"{name}.npy"), array)
    _write_tfds_metadata(folder, shards, summary)
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        **dataclasses.asdict(summary),
        "count": count,
        "shards": [dataclasses.asdict(shard) for shard in shards],
        "files": {name: _describe(folder, name) for name in files},
        "total_tokens": int(lengths.sum()),
    }
    manifest["dropped"] = dict(sorted(summary.dropped.items()))
    canonical = json.dumps(manifest, sort_keys=True).encode()
    manifest["fingerprint"] = hashlib.sha256(canonical).hexdigest()
    write_json_atomically(os.path.join(folder, MANIFEST), manifest)
    return manifest


def write_json_atomically(path: str, value: Any) -> None:
    """Writes JSON so that a reader sees the old file or the new one, never a part."""
    temporary = f"{path}.tmp"
    with open(temporary, "w", encoding="utf-8") as f:
        json.dump(value, f, ensure_ascii=False, indent=1, sort_keys=True)
        f.write("\n")
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


def _describe(folder: str, name: str) -> dict[str, int | str]:
    path = os.path.join(folder, name)
    return {"bytes": os.path.getsize(path), "sha256": file_sha256(path)}


def _write_tfds_metadata(folder: str, shards: Sequence[ShardInfo], summary: StoreSummary) -> None:
    """Writes features.json and dataset_info.json next to the shards."""
    import tensorflow_datasets as tfds  # slow, and needed here only

    text = tfds.features.Text()
    features = tfds.features.FeaturesDict(
        {
            "id": text,
            "title": text,
            "text": text,
            "source": text,
            "tokens": tfds.features.Tensor(shape=(None,), dtype=np.int32),
            "word_starts": tfds.features.Tensor(shape=(None,), dtype=np.bool_),
        }
    )
    template = tfds.core.ShardedFileTemplate(
        data_dir=folder,
        dataset_name=summary.name,
        split=summary.split,
        filetype_suffix="array_record",
    )
    split = tfds.core.SplitInfo(
        name=summary.split,
        shard_lengths=[shard.count for shard in shards],
        num_bytes=sum(shard.bytes for shard in shards),
        filename_template=template,
    )
    tfds.folder_dataset.write_metadata(
        data_dir=folder, features=features, split_infos=[split], version="1.0.0", check_data=False,
        description=f"Kennel token store {summary.name}, split {summary.split}.",
    )  # fmt: skip
