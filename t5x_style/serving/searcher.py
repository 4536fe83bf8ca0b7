"""A trained model that answers questions: of a finished run, or as gin files describe it."""

import dataclasses
import functools
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from t5x_style.checkpoints import restored_model
from t5x_style.configuration import gin_checks, gin_reader
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.objective import embedding_function
from t5x_style.interfaces.reading import Reading
from t5x_style.interfaces.representation import QUERY, Representations
from t5x_style.retrieval import hybrid
from t5x_style.retrieval.answer_reader import reader_of
from t5x_style.retrieval.beir_collection import Passage, Passages
from t5x_style.retrieval.lexical import bm25_fusion
from t5x_style.retrieval.lexical.bm25_fusion import Bm25Fusion, Fusion, FusionError
from t5x_style.retrieval.text_collector import TextCollector
from t5x_style.workflow import links, remote_store
from t5x_style.workflow.store import STAGE_FILE

JOB = "t5x_style.search.search"  # of the stage that leaves what `find_config` looks for
_BY_INDEX = "t5x_style.serving.searcher.Searcher"


class SearchError(ValueError):
    """A question that cannot be asked, or a folder that cannot be searched."""


class QuestionEncoder(Protocol):
    """Tokenizes questions as training did; called with a list of them, returns a token group."""

    folder: str  # of the tokenizer
    length: int
    prefix: str

    @property
    def fingerprint(self) -> str:
        """Of the tokenizer."""
        ...

    def tokens(self, question: str) -> int:
        """How many a question has, specials included, before it is cut at `length`."""
        ...

    def __call__(self, questions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """A token group: a question a row, its one segment valid, `example_id` its number."""
        ...


@dataclasses.dataclass(frozen=True)
class Hit:
    """A passage with its score, see `retrieval.similarity`."""

    score: float
    passage: Passage


@dataclasses.dataclass(frozen=True)
class Answer:
    """A span of a passage, or none.

    Attributes:
      hit: the passage, with its relevance.
      span: characters of its text; None where the reader finds nothing to point at.
      score: of reader and relevance together.
      passage_probability: p(z|x), among the passages that were read.
      span_probability: p(y|z,x), among the spans of the passage.
    """

    hit: Hit
    span: tuple[int, int] | None
    score: float
    passage_probability: float
    span_probability: float

    @property
    def text(self) -> str:
        """The answer; empty where there is none."""
        return "" if self.span is None else self.hit.passage.text[slice(*self.span)]


class AnySearcher(Protocol):
    """What `kennel search` asks and a bundle is made of: a `Searcher`, or a `RerankedSearcher`."""

    @property
    def model(self) -> restored_model.Trained:
        """The trained model."""
        ...

    @property
    def index(self) -> hybrid.Searched | None:
        """Of what the model made of the passages; None: they are found by BM25 alone."""
        ...

    @property
    def tokenizer(self) -> str:
        """Folder of the model's tokenizer."""
        ...

    @property
    def passages(self) -> Passages:
        """That are searched."""
        ...

    @property
    def fusion(self) -> Fusion | None:
        """How BM25's scores are added to those of the model; None: they are not."""
        ...

    @property
    def reads(self) -> bool:
        """Whether `answer` can be asked."""
        ...

    def search(self, question: str, k: int) -> list[Hit]:
        """See `Searcher`."""
        ...

    def answer(self, question: str, k: int) -> list[Answer]:
        """See `Searcher`."""
        ...


class Searcher:
    """A model, an index of what it made of passages, their texts, and perhaps a reader of these."""

    def __init__(
        self,
        model: restored_model.Trained,
        index: hybrid.Searched,
        questions: QuestionEncoder,
        passages: Passages,
        reading: Reading | None = None,
        fusion: Fusion | None = None,
    ):
        """Args:
        model: embeds questions; reads, where `reading` is given.
        index: of what it made of the passages; questions are embedded as its kind, or kinds.
        questions: tokenizes them.
        passages: those of the index.
        reading: makes the texts of the model's reader, for `answer`.
        fusion: how BM25's scores are added to those of the index; None: they are not.

        Raises:
        ContractError: model, index and tokenizer do not belong together.
        FunctionError: `reading` is given, and the model has no reader.
        FusionError: `reading` is given, too, which needs the scores of the model.
        RepresentationError: the model does not embed queries as the kinds of the index.
        SearchError: the index holds a passage that the corpus does not.
        """
        for one in hybrid.indexes(index):
            index_lib.check_contract(one, model.contract, "the index", one.kind)
            index_lib.check_checkpoint(one, model.fingerprint, "the index")
        found = dataclasses.replace(
            model.contract,
            tokenizer_fingerprint=questions.fingerprint,
            query_length=questions.length,
            query_prefix=questions.prefix,
        )
        model.contract.require(found, "the tokenizer of questions")
        unknown = next((name for name in index.ids if name not in passages), None)
        if unknown is not None:
            raise SearchError(
                f"{passages.path}: the index holds passage {unknown!r}, which is not there; the "
                "index was built from another corpus"
            )
        kinds = hybrid.asked_kinds(index)
        represent = embedding_function(model.functions, QUERY, kinds)
        self._represent = functools.partial(represent, kinds=kinds)
        self.model, self.index = model, index
        self.questions, self.passages = questions, passages
        self._reader = None if reading is None else reader_of(model, reading)
        if fusion is not None and fusion.reranked is not None:
            raise FusionError(
                "expected how BM25's scores are added to those of the index, found those of a "
                "re-ranker of BM25's hits. Name the evaluation's fusion of this model "
                "(FUSION_SYSTEM), or search by gin_configs/runs/indexes/search_reranked.gin"
            )
        if fusion is not None and reading is not None:
            raise FusionError(
                "expected reading or fusion, found both: an answer needs the scores of the model, "
                "and a fusion has sums with those of BM25"
            )
        self.fusion = fusion
        self._fused: Bm25Fusion | None = None  # made for the first question

    @property
    def tokenizer(self) -> str:
        """See `AnySearcher`."""
        return self.questions.folder

    @property
    def reads(self) -> bool:
        """Whether there is a reader, for `answer`."""
        return self._reader is not None

    def search(self, question: str, k: int) -> list[Hit]:
        """The best k passages, best first.

        Raises:
          SearchError: the question is empty.
        """
        if not question.strip():
            raise SearchError("the question is empty; expected a few words")
        report_cut(self.questions.tokens(question), self.questions.length)
        group = self.questions([question])
        collected = TextCollector([question])
        collected.add(group, self._represent(group))
        best_scores, best_rows = self._ranked(question, collected.finish(), k)
        return [
            Hit(float(score), self.passages.passage(self.passages.row(self.index.ids[row])))
            for score, row in zip(best_scores, best_rows, strict=True)
            if row != index_lib.NO_ROW
        ]

    def _ranked(
        self, question: str, asked: Representations, k: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Scores [k] and rows [k] of the index."""
        if self.fusion is None:
            scores, rows = hybrid.ask(self.index, asked, k)
            return scores[0], rows[0]
        if self._fused is None:
            places = map(self.passages.row, self.index.ids)
            texts = (self.passages.passage(place).content for place in places)
            self._fused = bm25_fusion.over(texts, self.index.ids, self.fusion)
        scores, rows = hybrid.ask(self.index, asked, self._fused.depth)
        return self._fused.add(question, scores[0], rows[0], k)

    def answer(self, question: str, k: int) -> list[Answer]:
        """The best span of each of the best k passages, the best one first.

        Raises:
          SearchError: the question is empty, or there is no reader.
        """
        if self._reader is None:
            raise SearchError(
                "nothing here reads passages: bind searcher.Searcher.reading, for a model of open "
                "question answering (docs/open_qa.md), or search without --answer"
            )
        hits = self.search(question, k)
        if not hits:
            return []
        read = self._reader.read([question] * len(hits), [hit.passage.text for hit in hits])
        relevance = np.array([hit.score for hit in hits])
        chances = np.exp(relevance - relevance.max())
        chances /= chances.sum()
        answers = [
            Answer(hit, found.span, found.score + hit.score, float(chance), found.probability)
            for hit, found, chance in zip(hits, read, chances, strict=True)
        ]
        return sorted(answers, key=lambda answer: -answer.score)


def report_cut(count: int, length: int) -> None:
    """Says on stderr what is not read of a question of `count` tokens."""
    if count > length:
        print(
            f"the question has {count} tokens, of which the model reads the first {length}: the "
            "rest does not count",
            file=sys.stderr,
        )


def find_config(run: str) -> Path:
    """The config.gin of the finished search stage below a recipe's folder.

    Stages are links to their current versions; hidden ones, which a killed process may have left,
    do not count.

    Raises:
      SearchError: there is no such folder, or no such stage, or its current version is not
        finished.
    """
    folder = links.run_here(run)
    if not folder.is_dir():
        raise SearchError(f"{run}: not found. Expected a recipe's folder, as runs/quickstart")
    stages = sorted(folder.glob(f"[!.]*/{STAGE_FILE}"))
    for manifest in (*folder.glob(STAGE_FILE), *stages):
        if json.loads(manifest.read_text(encoding="utf-8")).get("entry") == JOB:
            return remote_store.with_files(manifest).with_name("config.gin")
    finished = [manifest.parent.name for manifest in stages]
    raise SearchError(
        f"{run}: no finished search stage; finished are {finished}. Let the recipe run to its end, "
        "or name a gin file that binds search.search.searcher with --gin_file."
    )


def origin(run: str) -> str:
    """sha256 of the configuration of a run's search, which names the versions that it reads.

    Raises:
      SearchError: see `find_config`.
    """
    return hashlib.sha256(find_config(run).read_bytes()).hexdigest()


def open_searcher(flags: gin_checks.Flags) -> AnySearcher:
    """Builds the searcher that the gin files describe."""
    config = flags.read()
    name = _searcher_of(config)
    gin_checks.check_names(config, ("t5x_style.stage.run", JOB, name))
    gin_checks.check_code(config)
    gin_checks.parse(config)
    searcher: AnySearcher = gin_checks.configured(name)()
    return searcher


def _searcher_of(config: gin_reader.Config) -> str:
    """The dotted path of what the stage searches by; a `Searcher` where files bind that alone."""
    bound = config.bindings.get(("", JOB, "searcher"))
    value = None if bound is None else config.expand(bound.value, bound.where)
    return value.target if isinstance(value, gin_reader.Reference) and value.target else _BY_INDEX
