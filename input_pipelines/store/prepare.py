"""Tokenize a source on all cores into a token store that can be read by row number.

The source is read once, in order, and cut into chunks of `shard_size` records. A worker tokenizes a
chunk and writes one shard, so the store does not depend on how many workers there are. Next to each
finished shard is a receipt (hash of the shard, of the chunk and of the settings). A run that was
killed and is started again reads the source again but tokenizes only the chunks that have no valid
receipt.
"""

import collections
import concurrent.futures
import dataclasses
import hashlib
import itertools
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

import numpy as np

from input_pipelines.sources.text_sources import BadRecords, Record, SourceError, TextSource
from input_pipelines.store import cut_texts, layouts, store_writer, worker_pool
from input_pipelines.store.cut_texts import CutTexts
from input_pipelines.store.layouts import WHOLE_TEXTS, Layout
from input_pipelines.store.store_writer import ShardInfo, StoreSummary
from input_pipelines.tokenizers import tokenization

_log = logging.getLogger(__name__)
PARTS = "parts"  # folder of unfinished shards and their receipts, inside the store's folder

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "prepare": {"name": "prepare", "version": 1, "outputs": ["report", "store"], "check": "check"}
}


@dataclasses.dataclass(frozen=True)
class _Job:
    """Settings that a shard's bytes depend on, in addition to its records."""

    tokenizer: str
    fingerprint: str
    length: int
    prefix: str
    layout: Layout

    def key(self) -> str:
        """Same key, same tokens: the tokenizer counts by its content, not by its folder."""
        value: list[Any] = [self.fingerprint, self.length, self.prefix]
        value += [store_writer.FORMAT_VERSION, repr(self.layout)]
        return hashlib.sha256(json.dumps(value).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class _Receipt:
    """Receipt of a finished shard: its inputs, its hash, and its part of the manifest."""

    job: str
    records: str
    shard: ShardInfo
    lengths: list[int]
    ids: list[str]
    words: int
    truncated: int
    tables: str  # sha256 hex of the file next to the shard
    cut_off: list[int] | None = None  # None also of a shard that earlier code has written


def prepare(
    model_dir: str,
    source: TextSource,
    tokenizer: str,
    name: str,
    split: str,
    kind: str,
    length: int,
    prefix: str,
    shard_size: int,
    workers: Annotated[int, "operational"],
    max_bad_records: int,
    layout: Layout = WHOLE_TEXTS,
) -> dict[str, str]:
    """Writes the token store of a source.

    Args:
      model_dir: stage folder; the store goes into `store/` in it.
      source: what to tokenize; records without title and text are dropped and counted.
      tokenizer: a tokenizer folder.
      name, split: of the store (lower-case, as TFDS has them).
      kind: "passage", "query" or "text".
      length: tokens at which a text is cut, specials included.
      prefix: put before each text, as some retrievers want it ("query: ").
      shard_size: records a shard.
      workers: processes; 0 for one a core.
      max_bad_records: malformed records that are skipped before the run stops.
      layout: how records become rows, and what is stored with these.

    Returns:
      {"store": the folder, "report": report.json}, relative to model_dir; next to these is
      cut_texts.json, where the layout counts what it cuts (see `cut_texts`), and a line is printed.

    Raises:
      SourceError: nothing to store, or too many malformed records.
      tokenization.TokenizerError: the tokenizer folder is damaged.
    """
    loaded = tokenization.Tokenizer(tokenizer)
    check(name, split, kind, length, shard_size, workers, max_bad_records)
    summary = StoreSummary(
        name, split, kind, loaded.fingerprint, loaded.size, length, prefix, layout.name, 0, 0, {}
    )
    folder = os.path.join(model_dir, "store")
    parts = os.path.join(folder, PARTS)
    _clear_finished(folder)
    os.makedirs(parts, exist_ok=True)
    layout = layout.fitted(_titles(source) if layout.wants_titles else None, parts)
    job = _Job(tokenizer, loaded.fingerprint, length, prefix, layout)
    bad = BadRecords(max_bad_records, "prepare.prepare")
    empty: collections.Counter[str] = collections.Counter()
    started = time.monotonic()
    chunks = _chunks(_not_empty(source.records(bad), empty), shard_size)
    receipts, reused = _make_shards(chunks, job, parts, workers or os.cpu_count() or 1)
    if not receipts:
        raise SourceError(
            f"nothing to store: {source} has no record with a title or a text "
            f"({empty['empty']} empty, {bad.counts.total()} malformed). Expected at least one; "
            "correct the file that they come from"
        )
    summary = dataclasses.replace(
        summary,
        total_words=sum(r.words for r in receipts),
        truncated=sum(r.truncated for r in receipts),
        dropped={**bad.counts, **empty},
    )
    manifest, tables = _finish(folder, receipts, summary, layout)
    report = {
        "count": manifest["count"], "total_tokens": manifest["total_tokens"],
        "truncated": manifest["truncated"], "dropped": manifest["dropped"],
        "tables": tables, "bad_records": bad.examples,
        "shards": len(receipts), "shards_reused": reused,
        "seconds": round(time.monotonic() - started, 2),
    }  # fmt: skip
    store_writer.write_json_atomically(os.path.join(model_dir, "report.json"), report)
    _log.info("%s/%s: %s", name, split, report)
    _report_cut_texts(model_dir, receipts, manifest)
    return {"store": "store", "report": "report.json"}


def _report_cut_texts(
    model_dir: str, receipts: Sequence[_Receipt], manifest: Mapping[str, Any]
) -> None:
    """Writes `cut_texts.json` and prints its line, where the layout counts what it cuts."""
    parts = [receipt.cut_off for receipt in receipts if receipt.cut_off is not None]
    if len(parts) < len(receipts):
        return
    found = CutTexts(
        kind=manifest["kind"],
        length=manifest["max_length"],
        texts=manifest["count"],
        kept=manifest["total_tokens"],
        cut_off=[tokens for part in parts for tokens in part],
    )
    store_writer.write_json_atomically(os.path.join(model_dir, cut_texts.FILE), found.as_dict())
    print(f"{manifest['name']}/{manifest['split']}: {found.text()}", flush=True)


def _titles(source: TextSource) -> list[str]:
    """Every title once; malformed records are counted when the source is read for its texts."""
    records = source.records(BadRecords.counted_before())
    return list(dict.fromkeys(record.title for record in records if record.title))


def check(
    name: str,
    split: str,
    kind: str,
    length: int,
    shard_size: int,
    workers: int,
    max_bad_records: int,
) -> None:
    """Check arguments before the job runs.

    Raises:
      ValueError: a number below its bound, or a name that no store can have.
    """
    BadRecords(max_bad_records)
    store_writer.check_names(name, split, kind)
    for field, value, smallest in (
        ("length", length, 3),  # [CLS], one token, [SEP]
        ("shard_size", shard_size, 1),
        ("workers", workers, 0),
    ):
        if value < smallest:
            raise ValueError(f"prepare.{field}: expected at least {smallest}, found {value}")


def _clear_finished(folder: str) -> None:
    """Takes away the manifest and shards of an earlier finished store, but not its parts."""
    for file in os.listdir(folder) if os.path.isdir(folder) else ():
        path = os.path.join(folder, file)
        if os.path.isfile(path):
            os.remove(path)


def _not_empty(records: Iterator[Record], empty: collections.Counter[str]) -> Iterator[Record]:
    for record in records:
        if record.title.strip() or record.text.strip():
            yield record
        else:
            empty["empty"] += 1


def _chunks(records: Iterator[Record], size: int) -> Iterator[list[Record]]:
    while chunk := list(itertools.islice(records, size)):
        yield chunk


def _make_shards(
    chunks: Iterator[list[Record]], job: _Job, parts: str, workers: int
) -> tuple[list[_Receipt], int]:
    """Receipts of all chunks in order, and how many were there already.

    At most two chunks a worker are in memory. A single chunk is not worth starting a process for.
    """
    first = list(itertools.islice(chunks, 2))
    if len(first) < 2:
        workers = 1
    receipts: dict[int, _Receipt] = {}
    reused = 0
    with worker_pool.executor(workers) as executor, _Progress("tokenizing") as progress:
        waiting: dict[concurrent.futures.Future[_Receipt], int] = {}
        for number, chunk in enumerate(itertools.chain(first, chunks)):
            receipt = _valid_receipt(parts, number, job.key(), _records_hash(chunk))
            if receipt is not None:
                receipts[number] = receipt
                reused += 1
                progress.add(len(chunk))
                continue
            waiting[executor.submit(_make_shard, chunk, job, parts, number)] = number
            if len(waiting) >= 2 * workers:
                _collect(waiting, receipts, progress)
        while waiting:
            _collect(waiting, receipts, progress)
    return [receipts[number] for number in sorted(receipts)], reused


def _collect(
    waiting: dict[concurrent.futures.Future[_Receipt], int],
    receipts: dict[int, _Receipt],
    progress: "_Progress",
) -> None:
    """Waits until at least one shard is done and takes its receipt."""
    done, _ = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
    for future in done:
        receipt = future.result()
        receipts[waiting.pop(future)] = receipt
        progress.add(len(receipt.ids))


_loaded: dict[str, tokenization.Tokenizer] = {}


def _make_shard(chunk: list[Record], job: _Job, parts: str, number: int) -> _Receipt:
    """Tokenizes a chunk, writes its shard, then its receipt."""
    if job.tokenizer not in _loaded or _loaded[job.tokenizer].fingerprint != job.fingerprint:
        _loaded[job.tokenizer] = tokenization.Tokenizer(job.tokenizer)
    tokenizer = _loaded[job.tokenizer]
    tokenizer.require(job.fingerprint, "this run")
    made = job.layout.rows(chunk, tokenizer, job.length, job.prefix)
    path = os.path.join(parts, f"{number:05d}.array_record")
    np.savez(_tables_path(parts, number), **made.tables)  # type: ignore[arg-type]
    receipt = _Receipt(
        job=job.key(),
        records=_records_hash(chunk),
        shard=store_writer.write_shard(path, made.records),
        lengths=[len(r.tokens) for r in made.records],
        ids=[r.id for r in made.records],
        words=sum(int(r.word_starts.sum()) for r in made.records),
        truncated=made.truncated,
        cut_off=None if made.cut_off is None else list(made.cut_off),
        tables=store_writer.file_sha256(_tables_path(parts, number)),
    )
    store_writer.write_json_atomically(_receipt_path(parts, number), dataclasses.asdict(receipt))
    return receipt


def _records_hash(chunk: Sequence[Record]) -> str:
    lines = (json.dumps([r.id, r.title, r.text, r.source]).encode() for r in chunk)
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


def _tables_path(parts: str, number: int) -> str:
    return os.path.join(parts, f"{number:05d}.npz")


def _receipt_path(parts: str, number: int) -> str:
    return os.path.join(parts, f"{number:05d}.json")


def _valid_receipt(parts: str, number: int, job: str, records: str) -> _Receipt | None:
    """The receipt of a shard that is whole and was made of the same records the same way."""
    path = _receipt_path(parts, number)
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8") as f:
        value = json.load(f)
    if set(value) != {field.name for field in dataclasses.fields(_Receipt)}:
        return None  # of an earlier version of this file
    receipt = _Receipt(**{**value, "shard": ShardInfo(**value["shard"])})
    shard = os.path.join(parts, receipt.shard.file)
    if (receipt.job, receipt.records) != (job, records) or not os.path.isfile(shard):
        return None
    for file, sha256 in (
        (shard, receipt.shard.sha256),
        (_tables_path(parts, number), receipt.tables),
    ):
        if not os.path.isfile(file) or store_writer.file_sha256(file) != sha256:
            return None
    return receipt


def _finish(
    folder: str, receipts: Sequence[_Receipt], summary: StoreSummary, layout: Layout
) -> tuple[dict[str, Any], dict[str, int]]:
    """Gives the shards their final names, writes metadata and manifest, removes the parts.

    Returns the manifest, and of each table how many lines it has.

    A shard is linked, not moved, so that a kill in between leaves the parts complete.
    """
    shards, tables = [], []
    for number, receipt in enumerate(receipts):
        with np.load(_tables_path(os.path.join(folder, PARTS), number)) as file:
            tables.append(dict(file))
        file = store_writer.shard_name(summary.name, summary.split, number, len(receipts))
        os.link(os.path.join(folder, PARTS, receipt.shard.file), os.path.join(folder, file))
        shards.append(dataclasses.replace(receipt.shard, file=file))
    joined = layouts.joined(tables, [len(r.ids) for r in receipts], layout)
    manifest = store_writer.finish(
        folder,
        shards,
        np.array([n for r in receipts for n in r.lengths]),
        [id_ for r in receipts for id_ in r.ids],
        summary,
        joined,
    )
    shutil.rmtree(os.path.join(folder, PARTS))
    return manifest, {name: len(table) for name, table in joined.items()}


class _Progress:
    """A bar on a terminal, a line every five seconds elsewhere."""

    def __init__(self, label: str):
        self._label = label
        self._done = 0
        self._started = self._said = time.monotonic()

    def __enter__(self) -> Self:
        self._bar: Any = None
        if sys.stderr.isatty():
            from rich import progress

            columns = ("{task.description}", "{task.completed:,} records", "{task.speed:,.0f}/s")
            self._bar = progress.Progress(
                progress.SpinnerColumn(), progress.TextColumn(columns[0]),
                progress.TextColumn(columns[1]), progress.TimeElapsedColumn(), transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(self._label, total=None)
            self._bar.start()
        return self

    def add(self, records: int) -> None:
        self._done += records
        now = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, advance=records)
        elif now - self._said > 5.0:
            self._said = now
            rate = self._done / (now - self._started)
            _log.info("%s: %d records, %.0f a second", self._label, self._done, rate)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
