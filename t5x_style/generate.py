"""Stage: generate texts with a trained model, as written.jsonl: translations, summaries.

Requests are answered in parts; stopped and started again, the stage writes the parts that are
missing, and ends with the bytes of a run that was not stopped. Batches are of one shape, so that
the model is compiled once. In several processes each batch is spread over all of them, and process
0 writes the file.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np
import tqdm
from jax.experimental import multihost_utils

from t5x_style.checkpoints import restored_model
from t5x_style.distributed import progress, startup
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.objective import GENERATE, function_of
from t5x_style.retrieval import resumable_parts
from t5x_style.workflow import fingerprints

WRITTEN = "written.jsonl"

# (token group, language [B], key) -> tokens [B, N, T] and scores [B, N], the best first
Write = Callable[[Mapping[str, Any], jax.Array, jax.Array], Any]

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"generate": {"name": "generate", "version": 1, "outputs": ["written"], "program": True}}


class Request(Protocol):
    """A text to write.

    Attributes:
      id, name: of a document; the name is equal of documents that say the same.
      source, target: languages, of the document and of what is written.
    """

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def target(self) -> str: ...


class Batch(Protocol):
    """Attributes:
    evidence: token group of B rows, of which a text is written each.
    language: int32 [B], the token that it begins with.
    request: int [B], number of the request; negative where a row is of none.
    """

    @property
    def evidence(self) -> Mapping[str, np.ndarray]: ...
    @property
    def language(self) -> np.ndarray: ...
    @property
    def request(self) -> np.ndarray: ...


class Requests(Protocol):
    """Documents and languages, as batches of one shape.

    Attributes:
      passage_length, passage_prefix, passage_layout, tokenizer_fingerprint: how the documents were
        tokenized, as in `Contract`.
      fingerprint: of all of them, and of the shape of batches.
      notes: sentences for people: what of the documents is left out or not read.
    """

    passage_length: int
    passage_prefix: str
    passage_layout: str
    tokenizer_fingerprint: str
    fingerprint: str
    notes: Sequence[str]

    @property
    def requests(self) -> Sequence[Request]:
        """All, in order."""
        ...

    def batches(self, start: int, end: int) -> Iterator[Batch]:
        """Requests `start` to `end` - 1 alone, the rows of each in order."""
        ...

    def text(self, written: Sequence[np.ndarray]) -> str:
        """Of a request, from the tokens written of its rows, int [T] each."""
        ...


def generate(
    model: restored_model.Trained, requests: Requests, part_size: int, seed: int, model_dir: str
) -> dict[str, str]:
    """Writes a line {"id", "name", "from", "to", "text", "score"} for each request, in order.

    A text is of the best hypothesis; the score of a request is the mean over its rows of what the
    model says of theirs: log p in nats, over the number of tokens to the power of the length
    penalty.

    Args:
      model: writes; its objective decides how (`decoding.GenerationConfig`).
      requests: what.
      part_size: requests in a part: what a kill costs at most.
      seed: of drawing; decides nothing where the best tokens are taken. What is drawn depends on
        the shape of batches and on part_size, too, and not on the mesh.
      model_dir: where written.jsonl appears when it is complete.

    Raises:
      FunctionError: the model writes no texts.
      ContractError: the documents were tokenized otherwise than the model's contract says.
      PartitioningError: the rows of a batch do not divide by the mesh.
    """
    write = function_of(model.functions, GENERATE, "a model that writes texts, such as MARGE")
    _check(requests, model.contract)
    count = len(requests.requests)
    version = fingerprints.digest([model.fingerprint, requests.fingerprint, seed])
    job = resumable_parts.ResumableParts(model_dir, version, count, part_size)
    first = jax.process_index() == 0
    missing = resumable_parts.agreed(job.missing() if first else [], len(job.bounds))
    if first:
        for note in requests.notes:
            print(f"generate: {note}", file=sys.stderr)
    if first and len(missing) < len(job.bounds):
        kept = len(job.bounds) - len(missing)
        print(f"generate: {kept} of {len(job.bounds)} parts are there", file=sys.stderr)
    bounds = [job.bounds[number] for number in missing]
    total, begin = sum(end - start for start, end in bounds), time.perf_counter()
    with progress.progress(total, "generate", "texts") as bar:
        for number, (start, end) in zip(missing, bounds, strict=True):
            lines = _written(model, write, requests, start, end, jax.random.key(seed), bar)
            if first:
                job.write(number, lines)
    if first:
        job.join(WRITTEN)
        seconds = time.perf_counter() - begin
        print(f"generate: {total:,} texts in {seconds:.1f} s", file=sys.stderr, flush=True)
    if jax.process_count() > 1:  # no process reports an end that the writer has not reached
        multihost_utils.sync_global_devices("generate: written")
    return {"written": WRITTEN}


def _check(requests: Requests, contract: Contract) -> None:
    names = ("passage_length", "passage_prefix", "passage_layout", "tokenizer_fingerprint")
    found: dict[str, Any] = {name: getattr(requests, name) for name in names}
    contract.require(dataclasses.replace(contract, **found), "the token store that is read")


def _written(
    model: restored_model.Trained,
    write: Write,
    requests: Requests,
    start: int,
    end: int,
    key: jax.Array,
    bar: "tqdm.tqdm[Any]",
) -> list[str]:
    """The lines of requests `start` to `end` - 1."""
    tokens: dict[int, list[np.ndarray]] = {number: [] for number in range(start, end)}
    scores: dict[int, list[float]] = {number: [] for number in range(start, end)}
    of_part = jax.random.fold_in(key, start)
    begun = {-1}
    for number, batch in enumerate(requests.batches(start, end)):
        found = _best(model.partitioner, write, batch, jax.random.fold_in(of_part, number))
        for request, text, score in zip(batch.request.tolist(), *found, strict=True):
            if request >= 0:
                tokens[request].append(text)
                scores[request].append(float(score))
        bar.update(len({*batch.request.tolist()} - begun))
        begun.update(batch.request.tolist())
    return [
        _line(requests.requests[n], requests.text(tokens[n]), float(np.mean(scores[n])))
        for n in range(start, end)
    ]


def _best(
    partitioner: Partitioner, write: Write, batch: Batch, key: jax.Array
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [B, T] and scores [B] of the best hypothesis of each row."""
    rows = len(batch.language)
    partitioner.check_rows(rows, "a batch of requests")
    local_rows = partitioner.local_rows(rows)
    groups = {"evidence": batch.evidence, "given": {"language": batch.language}}
    local = {
        group: {name: array[local_rows] for name, array in features.items()}
        for group, features in groups.items()
    }
    placed = partitioner.place_batch(local, dict.fromkeys(groups, rows))
    tokens, scores = write(placed["evidence"], placed["given"]["language"], key)
    return _fetched(tokens)[:, 0], _fetched(scores)[:, 0]


def _fetched(array: jax.Array) -> np.ndarray:
    """The whole array, in every process."""
    if not array.is_fully_addressable:
        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def _line(request: Request, text: str, score: float) -> str:
    record = {
        "id": request.id,
        "name": request.name,
        "from": request.source,
        "to": request.target,
        "text": text,
        "score": round(score, 6),
    }
    return json.dumps(record, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    from t5x_style import stage

    startup.start()
    stage.main("t5x_style.generate.generate")
