"""Precompute the token sequences of each question's answers in a corpus, before training.

On a device an answer can be looked for token by token only. So the corpus is searched beforehand,
by normalised text and by regular expressions (`answers`), and the tokens of what was found are
kept: "the Broncos", "Broncos" and "BRONCOS", where the corpus has all three. A text that holds an
answer then holds one of its forms, if none was left out. A form may occur where no answer does: at
the beginning of a longer word ("Paris" in "Paris ##ian"), or where punctuation joins words.

Folder:

    forms.npy      int32 [n, T], tokens, NO_TOKEN after the end; a question's together, the most
                   frequent first
    first.npy      int64 [Q + 1], the forms of row q of the question store: first[q] to first[q + 1]
    manifest.json  what it was made of, and `fingerprint`, sha256 hex of all
"""

import collections
import concurrent.futures
import dataclasses
import functools
import hashlib
import json
import logging
import os
from typing import Annotated

import numpy as np

from input_pipelines.sources import answers as answers_lib
from input_pipelines.sources import beir
from input_pipelines.sources.answers import Answers, Finder, Span
from input_pipelines.sources.text_sources import BadRecords
from input_pipelines.store import store_writer, worker_pool
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers import tokenization

NO_TOKEN = -1  # as objectives read it, models.losses.span_scores
MANIFEST = "manifest.json"
_ROWS_AT_ONCE = 2048

Form = tuple[int, ...]
Counts = collections.Counter[tuple[int, Form]]  # (row of a question, form) -> texts that hold it

_log = logging.getLogger(__name__)

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"find_forms": {"name": "answer_forms", "version": 1, "outputs": ["answers", "report"]}}


def find_forms(
    corpus: str,
    questions: str,
    answers: str,
    tokenizer: str,
    max_forms: int,
    max_form_length: int,
    workers: Annotated[int, "operational"],
    max_bad_records: int,
    model_dir: str,
) -> dict[str, str]:
    """The job of a stage: looks for the answers of all questions in all rows of a corpus.

    Args:
      corpus: a token store of blocks.
      questions: a token store of questions.
      answers: jsonl of questions with their answers, see `answers.read`, or a BEIR folder whose
        queries have them; ids as in the store, others do not count.
      tokenizer: the folder of the tokenizer that made both stores.
      max_forms: forms that a question keeps, the most frequent ones.
      max_form_length: T, tokens of a form; longer ones are left out.
      workers: processes; 0 for one a core.
      max_bad_records: questions with malformed answers, or with none, that are passed over.
      model_dir: where `answers/` appears.

    Returns:
      {"answers": the folder, "report": report.json}, relative to model_dir.

    Raises:
      StoreError: no question of the store has an answer in the corpus.
      SourceError: more malformed questions than allowed.
    """
    for name, value in (("max_forms", max_forms), ("max_form_length", max_form_length)):
        if value < 1:
            raise ValueError(f"find_forms.{name}: expected at least 1, found {value}")
    loaded = tokenization.Tokenizer(tokenizer)
    asked = TokenStore.open(questions, loaded.fingerprint)
    searched = TokenStore.open(corpus, loaded.fingerprint)
    bad = BadRecords(max_bad_records, "answer_token_forms.find_forms")
    answers = beir.find(answers, "queries.jsonl") if os.path.isdir(answers) else answers
    given = _given(answers, asked, bad)
    job = _Job(corpus, questions, answers, tokenizer)
    counts, unlike = _count(job, len(searched), workers or os.cpu_count() or 1)
    forms, first, report = _kept(counts, len(asked), max_forms, max_form_length)
    if not len(forms):
        raise StoreError(
            f"{answers}: no question has an answer of at most {max_form_length} tokens in {corpus} "
            f"({len(given)} questions, {len(searched)} rows). Is it the right corpus?"
        )
    report |= {
        "questions": len(asked),
        "rows_tokenized_otherwise": unlike,
        "bad_records": dict(bad.counts),
        "examples": bad.examples,
    }
    _write(os.path.join(model_dir, "answers"), forms, first, asked, searched)
    store_writer.write_json_atomically(os.path.join(model_dir, "report.json"), report)
    _log.info("answers: %s", {k: v for k, v in report.items() if k != "examples"})
    return {"answers": "answers", "report": "report.json"}


def _given(path: str, store: TokenStore, bad: BadRecords) -> dict[int, Answers]:
    """Row of the question store -> answers; a question without any is a bad record."""
    read = answers_lib.read(path, bad, store.row_of)
    for name in store.ids:
        if name not in read:
            bad.add(path, "question_without_answers", "this question is not there", name)
    found = {row: read.get(name) for row, name in enumerate(store.ids)}
    return {row: given for row, given in found.items() if given is not None}


# --- searching ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Job:
    """Job of a worker: arguments of `find_forms`."""

    corpus: str
    questions: str
    answers: str
    tokenizer: str


def _count(job: _Job, rows: int, workers: int) -> tuple[Counts, int]:
    """The forms in all rows, and how many rows' texts are tokenized otherwise than they are."""
    ranges = [(start, min(start + _ROWS_AT_ONCE, rows)) for start in range(0, rows, _ROWS_AT_ONCE)]
    workers = min(workers, len(ranges))
    counts: Counts = collections.Counter()
    unlike = 0
    with worker_pool.executor(workers) as executor:
        waiting: set[concurrent.futures.Future[tuple[Counts, int]]] = set()
        for start, end in ranges:
            waiting.add(executor.submit(_search, job, start, end))
            if len(waiting) >= 2 * workers:
                unlike += _collect(waiting, counts)
        while waiting:
            unlike += _collect(waiting, counts)
    return counts, unlike


def _collect(waiting: set[concurrent.futures.Future[tuple[Counts, int]]], counts: Counts) -> int:
    done, _ = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
    unlike = 0
    for future in done:
        waiting.remove(future)
        found, others = future.result()
        counts.update(found)
        unlike += others
    return unlike


@functools.lru_cache(maxsize=1)
def _tools(job: _Job) -> tuple[Finder, list[int], TokenStore, tokenization.Tokenizer]:
    """Tools of a worker, made once for all of its ranges."""
    asked = TokenStore.open(job.questions, verify="sizes")
    given = _given(job.answers, asked, BadRecords.counted_before())
    searched = TokenStore.open(job.corpus, verify="sizes")
    return (
        Finder(list(given.values())),
        list(given),
        searched,
        tokenization.Tokenizer(job.tokenizer),
    )


def _search(job: _Job, start: int, end: int) -> tuple[Counts, int]:
    """`_count` of rows start to end - 1."""
    finder, questions, store, tokenizer = _tools(job)
    counts: Counts = collections.Counter()
    unlike = 0
    passages = store.read(np.arange(start, end))
    bounds = np.concatenate([[0], np.cumsum(passages.lengths)])
    for number, row in enumerate(range(start, end)):
        text = store.text(row).text
        found = finder.find(text)
        if not found:
            continue
        (pieces,) = tokenizer.pieces([text])
        body = _body(passages.tokens[bounds[number] : bounds[number + 1]], tokenizer)
        if not np.array_equal(body, pieces.tokens):
            unlike += 1
            continue
        forms = {(questions[q], _form(span, pieces)) for q, span in found}
        counts.update(one for one in forms if one[1])
    return counts, unlike


def _body(tokens: np.ndarray, tokenizer: tokenization.Tokenizer) -> np.ndarray:
    """The tokens between the first [SEP] of a block and its last."""
    return tokens[int(np.argmax(tokens == tokenizer.vocabulary["sep"])) + 1 : -1]


def _form(span: Span, pieces: tokenization.Pieces) -> Form:
    """The pieces that hold characters of a span."""
    first = int(np.searchsorted(pieces.offsets[:, 1], span[0], side="right"))
    last = int(np.searchsorted(pieces.offsets[:, 0], span[1], side="left"))
    return tuple(pieces.tokens[first:last].tolist())


# --- keeping --------------------------------------------------------------------------------------


def _kept(
    counts: Counts, questions: int, max_forms: int, max_length: int
) -> tuple[np.ndarray, np.ndarray, dict[str, object]]:
    """forms.npy, first.npy, and what is reported."""
    by_question: dict[int, list[tuple[int, Form]]] = collections.defaultdict(list)
    too_long = 0
    for (question, form), count in counts.items():
        if len(form) > max_length:
            too_long += 1
        else:
            by_question[question].append((-count, form))
    kept = [sorted(by_question.get(row, ()))[:max_forms] for row in range(questions)]
    first = np.cumsum([0, *map(len, kept)])
    forms = np.full((int(first[-1]), max_length), NO_TOKEN, np.int32)
    for place, (_, form) in enumerate(one for forms_of in kept for one in forms_of):
        forms[place, : len(form)] = form
    dropped = sum(map(len, by_question.values())) - len(forms)
    report: dict[str, object] = {
        "questions_with_an_answer": sum(map(bool, kept)),
        "forms": len(forms),
        "forms_too_long": too_long,
        "forms_beyond_most": dropped,
    }
    return forms, first.astype(np.int64), report


def _write(
    folder: str, forms: np.ndarray, first: np.ndarray, asked: TokenStore, searched: TokenStore
) -> None:
    os.makedirs(folder, exist_ok=True)
    digest = hashlib.sha256()
    for name, array in (("forms", forms), ("first", first)):
        np.save(os.path.join(folder, f"{name}.npy"), array)
        digest.update(np.ascontiguousarray(array).tobytes())
    about = {"questions": asked.fingerprint, "corpus": searched.fingerprint, "shape": forms.shape}
    digest.update(json.dumps(about).encode())
    manifest = {**about, "fingerprint": digest.hexdigest()}
    store_writer.write_json_atomically(os.path.join(folder, MANIFEST), manifest)


class Forms:
    """The folder that `find_forms` wrote, read and checked.

    Attributes:
      max_length: T.
      corpus: fingerprint of the store that was searched.
      fingerprint: of the content.
    """

    def __init__(self, folder: str, questions: TokenStore):
        """Raises StoreError if the folder is unfinished, damaged, or about other questions."""
        path = os.path.join(folder, MANIFEST)
        if not os.path.isfile(path):
            raise StoreError(f"no {MANIFEST} in {folder}: run the stage that finds answers.")
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        if manifest["questions"] != questions.fingerprint:
            raise StoreError(
                f"{folder} is about the questions of another store than {questions.folder}: "
                "find the answers again."
            )
        self._forms, self._first = (
            np.load(os.path.join(folder, f"{name}.npy"), allow_pickle=False)
            for name in ("forms", "first")
        )
        about = {name: manifest[name] for name in ("questions", "corpus", "shape")}
        digest = hashlib.sha256(self._forms.tobytes() + self._first.tobytes())
        digest.update(json.dumps(about).encode())
        if digest.hexdigest() != manifest["fingerprint"]:
            raise StoreError(f"{folder} is damaged: find the answers again.")
        self.max_length = int(self._forms.shape[1])
        self.corpus = str(manifest["corpus"])
        self.fingerprint = str(manifest["fingerprint"])

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """int64 [Q]: how many forms each question has."""
        return np.diff(self._first)

    def of(self, rows: np.ndarray, count: int) -> np.ndarray:
        """int32 [len(rows), count, T]: questions' first forms, NO_TOKEN where there are fewer.

        Args:
          rows: of the question store.
          count: A.
        """
        place = self._first[rows][:, None] + np.arange(count)[None]
        there = place < self._first[rows + 1][:, None]
        found = self._forms[np.where(there, place, 0)]
        return np.where(there[:, :, None], found, NO_TOKEN)
