"""Reads a token store by row number: checked on opening, never silently short.

`store_writer` documents the folder. ArrayRecord reports a file that was cut short as empty, without
an exception, so counts and sizes are compared with the manifest on every opening, and hashes on
every opening of a store that is small enough to hash in a second or two.
"""

import functools
import hashlib
import json
import os
import threading
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from input_pipelines.sources.cpu_only_tensorflow import cpu_only_tensorflow
from input_pipelines.store import example_proto
from input_pipelines.store.store_writer import FORMAT, FORMAT_VERSION, MANIFEST, file_sha256

Verify = Literal["auto", "sizes", "full"]
HASH_BELOW_BYTES = 1 << 30  # "auto" hashes stores smaller than this
# Random access: no read-ahead, no thread pool for each shard.
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


class StoreError(ValueError):
    """A token store that is unfinished, damaged, or not the one that was asked for."""


class Passages(NamedTuple):
    """N passages of different lengths, end to end.

    Attributes:
      tokens: int32 [sum of lengths], special tokens included.
      word_starts: bool [sum of lengths].
      lengths: int64 [N].
    """

    tokens: np.ndarray
    word_starts: np.ndarray
    lengths: np.ndarray


@dataclass(frozen=True)
class Text:
    """Texts of a passage, for display."""

    id: str
    title: str
    text: str
    source: str


class TokenStore:
    """A tokenized corpus on disk. Open it with `TokenStore.open`.

    Attributes:
      folder: where it is.
      manifest: as `store_writer` documents it.
      lengths: int32 [N], tokens of each row.
      ids: N record ids.
      records_read: how many records were read from disk since opening.
    """

    def __init__(self, folder: str, manifest: dict[str, Any], lengths: np.ndarray, ids: list[str]):
        self.folder = folder
        self.manifest = manifest
        self.lengths = lengths
        self.ids = ids
        self.records_read = 0
        counts = [shard["count"] for shard in manifest["shards"]]
        self._starts = np.concatenate([[0], np.cumsum(counts)])  # [shards + 1]
        self._readers: dict[int, ArrayRecordReader] = {}
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls, folder: str, tokenizer_fingerprint: str | None = None, verify: Verify = "auto"
    ) -> "TokenStore":
        """Opens a store and checks it against its manifest.

        Args:
          folder: a folder that `prepare` has finished.
          tokenizer_fingerprint: of the tokenizer in use; None does not compare.
          verify: 'sizes' compares record counts and byte sizes of every shard; 'full' also every
            sha256; 'auto' is 'full' for stores under 1 GiB.

        Raises:
          StoreError: says what was expected, what was found, in which file, and what to do.
        """
        if verify not in ("auto", "sizes", "full"):
            raise StoreError(f"verify: expected 'auto', 'sizes' or 'full', found {verify!r}")
        manifest = _read_manifest(folder)
        if tokenizer_fingerprint is not None:
            _require_tokenizer(folder, manifest, tokenizer_fingerprint)
        full = verify == "full" or (verify == "auto" and _bytes(manifest) < HASH_BELOW_BYTES)
        _check_files(folder, manifest, full)
        lengths = np.load(os.path.join(folder, "lengths.npy"), allow_pickle=False)
        with open(os.path.join(folder, "ids.json"), encoding="utf-8") as f:
            ids = json.load(f)
        _check_tables(folder, manifest, lengths, ids)
        return cls(folder, manifest, lengths, ids)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def fingerprint(self) -> str:
        """sha256 hex that names this store's exact content."""
        return self.manifest["fingerprint"]

    @property
    def tokenizer_fingerprint(self) -> str:
        """Fingerprint of the tokenizer that made the store."""
        return self.manifest["tokenizer_fingerprint"]

    @property
    def max_length(self) -> int:
        """Tokens of the longest row."""
        return int(self.lengths.max())

    def require_tokenizer(self, fingerprint: str) -> "TokenStore":
        """Gives the store back if it was made with that tokenizer; else StoreError."""
        _require_tokenizer(self.folder, self.manifest, fingerprint)
        return self

    @functools.cached_property
    def row_of(self) -> dict[str, int]:
        """Record id -> row."""
        return {name: row for row, name in enumerate(self.ids)}

    def table(self, name: str) -> np.ndarray:
        """A table that the store's layout wrote with the rows, mapped into memory.

        Raises:
          StoreError: there is none of that name.
        """
        if f"{name}.npy" not in self.manifest["files"]:
            raise StoreError(
                f"token store {self.folder} has no table {name!r}: it was prepared with another "
                "layout, or before there was one. Run prepare with runs/stores/blocks.gin, or for "
                "translations with runs/stores/translations.gin."
            )
        path = os.path.join(self.folder, f"{name}.npy")
        return np.load(path, mmap_mode="r", allow_pickle=False)

    def read(self, rows: np.ndarray) -> Passages:
        """Tokens of these rows, in this order; rows may repeat.

        Raises:
          StoreError: a row that does not exist, or a record that is damaged.
        """
        rows = np.asarray(rows, dtype=np.int64)
        tf = cpu_only_tensorflow()
        feature = tf.io.RaggedFeature(tf.int64)
        parsed = tf.io.parse_example(
            tf.constant(self._records(rows), tf.string, shape=[len(rows)]),
            {"tokens": feature, "word_starts": feature},
        )
        tokens, words = parsed["tokens"], parsed["word_starts"]
        lengths = np.diff(tokens.row_splits.numpy()).astype(np.int64)
        bad = np.flatnonzero(lengths != self.lengths[rows])
        if len(bad) or len(words.flat_values) != len(tokens.flat_values):
            row = int(rows[bad[0]]) if len(bad) else int(rows[0])
            raise StoreError(
                f"token store {self.folder}: records do not fit lengths.npy; the first is row {row}"
                f" ({self.ids[row]!r}), expected {int(self.lengths[row])} tokens and as many "
                "word_starts. Run prepare again."
            )
        return Passages(
            tokens.flat_values.numpy().astype(np.int32),
            words.flat_values.numpy().astype(np.bool_),
            lengths,
        )

    def text(self, row: int) -> Text:
        """Id, title, text and source of one row; needs no TensorFlow."""
        features = example_proto.parse(self._records(np.array([row], dtype=np.int64))[0])
        names = ("id", "title", "text", "source")
        return Text(*(bytes(features[name]).decode("utf-8") for name in names))

    def _records(self, rows: np.ndarray) -> list[bytes]:
        """Serialized records, [len(rows)]; one batched C++ read for each shard that is touched."""
        if len(rows) and (rows.min() < 0 or rows.max() >= len(self)):
            raise StoreError(
                f"token store {self.folder}: expected rows from 0 to {len(self) - 1}, "
                f"found {int(rows.min())} to {int(rows.max())}"
            )
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        out = np.empty(len(rows), dtype=object)
        with self._lock:
            for shard in np.unique(shards).tolist():
                at = np.flatnonzero(shards == shard)
                at = at[np.argsort(rows[at], kind="stable")]
                out[at] = self._read_shard(shard, rows[at] - self._starts[shard])
            self.records_read += len(rows)
        return out.tolist()

    def _read_shard(self, shard: int, rows: np.ndarray) -> list[bytes]:
        path = os.path.join(self.folder, self.manifest["shards"][shard]["file"])
        if shard not in self._readers:
            self._readers[shard] = ArrayRecordReader(path, _READER_OPTIONS)
        try:
            return self._readers[shard].read(rows.tolist())
        except Exception as error:  # the C++ reader's errors have no common class
            raise StoreError(
                f"token store shard {path} is damaged, or changed since it was opened: {error}. "
                "Run prepare again; open it with verify='full' to see what differs."
            ) from error


def _require_tokenizer(folder: str, manifest: dict[str, Any], expected: str) -> None:
    found = manifest["tokenizer_fingerprint"]
    if expected != found:
        raise StoreError(
            f"token store {folder} was made with another tokenizer: expected fingerprint "
            f"{expected}, found {found} in {MANIFEST}. Run prepare again with this tokenizer, "
            "or point to the tokenizer that the store was made with."
        )


def _bytes(manifest: dict[str, Any]) -> int:
    return sum(shard["bytes"] for shard in manifest["shards"])


def count_of(store: "str | TokenStore") -> int:
    """Texts in a store, as its manifest says; no data is read.

    Args:
      store: a folder, or a store that is open.

    Raises:
      StoreError: the folder holds no finished store.
    """
    return len(store) if isinstance(store, TokenStore) else int(_read_manifest(store)["count"])


def _read_manifest(folder: str) -> dict[str, Any]:
    path = os.path.join(folder, MANIFEST)
    if not os.path.isfile(path):
        raise StoreError(
            f"no {MANIFEST} in {folder}: prepare has not finished, or this is no token store. "
            "Run prepare (it continues where it stopped), or correct the folder."
        )
    try:
        with open(path, encoding="utf-8") as f:
            manifest = json.load(f)
        version = (manifest["format"], manifest["format_version"])
        claimed = manifest.pop("fingerprint")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(
            f"{path} is not a token store's manifest ({error!r}). Run prepare again."
        ) from error
    if version != (FORMAT, FORMAT_VERSION):
        raise StoreError(
            f"{path}: expected format {FORMAT} version {FORMAT_VERSION}, found {version[0]} "
            f"version {version[1]}. Run this version's prepare."
        )
    actual = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    if actual != claimed:
        raise StoreError(
            f"{path} was changed after it was written: expected fingerprint {claimed}, found "
            f"{actual}. Run prepare again."
        )
    return {**manifest, "fingerprint": claimed}


def _check_files(folder: str, manifest: dict[str, Any], full: bool) -> None:
    """Byte sizes, record counts, and with `full` sha256, of every file that the manifest names."""
    tables = [{"file": name, **about} for name, about in manifest["files"].items()]
    for about in [*manifest["shards"], *tables]:
        path = os.path.join(folder, about["file"])
        if not os.path.isfile(path):
            raise StoreError(f"token store file {path} is missing. Run prepare again.")
        _expect(path, "bytes", about["bytes"], os.path.getsize(path))
        if "count" in about:
            _expect(path, "records", about["count"], _count_records(path))
        if full or "count" not in about:  # tables are small, and nothing else would notice a flip
            _expect(path, "sha256", about["sha256"], file_sha256(path))


def _expect(path: str, what: str, expected: int | str, found: int | str) -> None:
    if expected != found:
        raise StoreError(
            f"token store file {path} is damaged: {what}: expected {expected}, found {found}. "
            "Delete the store's folder and run prepare again."
        )


def _count_records(path: str) -> int:
    try:
        reader = ArrayRecordReader(path, _READER_OPTIONS)
        count = reader.num_records()
        reader.close()
    except Exception as error:  # the C++ reader's errors have no common class
        raise StoreError(
            f"token store shard {path} cannot be opened: {error}. Run prepare again."
        ) from error
    return count


def _check_tables(folder: str, manifest: dict[str, Any], lengths: np.ndarray, ids: Any) -> None:
    count = manifest["count"]
    in_shards = sum(shard["count"] for shard in manifest["shards"])
    if not count == len(lengths) == len(ids) == in_shards:
        raise StoreError(
            f"token store {folder}: {MANIFEST} says {count} records, but the shards hold "
            f"{in_shards}, lengths.npy {len(lengths)}, ids.json {len(ids)}. Run prepare again."
        )
    if not count:
        raise StoreError(f"token store {folder} is empty: expected at least one record.")
    if lengths.min() < 1 or int(lengths.sum()) != manifest["total_tokens"]:
        raise StoreError(
            f"token store {folder}: lengths.npy: expected {manifest['total_tokens']} tokens and "
            f"none empty, found {int(lengths.sum())}, shortest {int(lengths.min())}. "
            "Run prepare again."
        )
