"""A trained re-ranker that answers questions: it puts BM25's hits in order."""

import functools
from pathlib import Path

import numpy as np

from t5x_style.checkpoints.restored_model import Trained
from t5x_style.interfaces.index import NO_ROW
from t5x_style.interfaces.objective import SCORE, function_of
from t5x_style.retrieval import analysis, encoding
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.retrieval.bm25 import Bm25Search
from t5x_style.retrieval.lexical.bm25_fusion import Fusion, FusionError
from t5x_style.retrieval.lexical.bm25_reranking import Bm25Reranking
from t5x_style.serving.reranking import pair_texts
from t5x_style.serving.searcher import Answer, Hit, SearchError, report_cut
from t5x_style.serving.text_tokens import TextTokenizer


class RerankedSearcher:
    """Implements `searcher.AnySearcher`.

    Attributes:
      model: the re-ranker.
      tokenizer: folder.
      passages: that are searched.
      fusion: how the scores of both are added.
      index: None.
      reads: False.
    """

    index = None
    reads = False

    def __init__(
        self, model: Trained, tokenizer: str, passages: Passages, fusion: Fusion | None
    ) -> None:
        """Args:
        model: scores pairs.
        tokenizer: folder of the one that it was trained with.
        passages: that are searched.
        fusion: of an evaluation of the re-ranker.

        Raises:
        ContractError: model and tokenizer do not belong together.
        FunctionError: the model is no re-ranker.
        FusionError: `fusion` is missing, or is that of a model with an index.
        """
        if fusion is None or fusion.reranked is None:
            raise FusionError(
                "expected how the scores of a re-ranker count next to BM25's, found "
                f"{'nothing' if fusion is None else 'a fusion of two searches'}. Name an "
                "evaluated re-ranker of BM25's hits, alone or with BM25 (FUSION_SYSTEM)"
            )
        score = function_of(model.functions, SCORE, "a re-ranker, such as a cross-encoder")
        self._score = lambda group: score(group)[:, :, None]
        self._tokenizer = TextTokenizer(Path(tokenizer), model.contract)
        self.model, self.passages, self.tokenizer, self.fusion = model, passages, tokenizer, fusion

    @functools.cached_property
    def _reranking(self) -> Bm25Reranking:
        """Made for the first question: the words of all passages are counted."""
        words = analysis.LanguageAnalyzer(self.fusion.language)
        texts = (passage.content for passage in self.passages)
        return Bm25Reranking(self.fusion, Bm25Search.of(texts, self.passages.ids, words))

    def search(self, question: str, k: int) -> list[Hit]:
        """The best k passages, best first.

        Raises:
          SearchError: the question is empty.
        """
        if not question.strip():
            raise SearchError("the question is empty; expected a few words")
        (asked,) = self._tokenizer("query", [question])
        report_cut(len(asked.ids) + asked.cut_off, self.model.contract.query_length)
        found = self._reranking.found(question)
        head = self._reranking.head(found)
        scores, rows = self._reranking.order(found, head, self._scores(question, head), k)
        return [
            Hit(float(score), self.passages.passage(int(row)))
            for score, row in zip(scores, rows, strict=True)
            if row != NO_ROW
        ]

    def answer(self, question: str, k: int) -> list[Answer]:
        """Raises SearchError: a re-ranker reads no answers."""
        raise SearchError(
            "nothing here reads passages: a re-ranker puts them in order; search without --answer"
        )

    def _scores(self, question: str, rows: np.ndarray) -> np.ndarray:
        if not len(rows):
            return np.zeros(0, np.float32)
        pairs = pair_texts.pairs(self._tokenizer, self.passages, question, rows)
        texts = pair_texts.PairTexts(pairs, self._tokenizer.vocabulary.pad)
        where = self.model.partitioner
        found: np.ndarray = encoding.encode(self._score, texts, where, "score")[:, 0]
        return found
