"""Questions with the forms of their answers, one a row: the pipeline of open question answering."""

import numpy as np

from input_pipelines.batches import packing_plan, prefetch, token_groups
from input_pipelines.batches.corpus_table import StoreCorpus
from input_pipelines.batches.epoch_plan import EpochPlan
from input_pipelines.batches.packed_text import PREFETCH, open_stores
from input_pipelines.store.answer_token_forms import Forms
from input_pipelines.store.token_store import StoreError, TokenStore


class Questions:
    """Batches of questions, without end; the batch of a step is a function of seed and step alone.

    Attributes:
      store: of questions.
      plan: which of them are in which step.
    """

    def __init__(
        self,
        store: str | TokenStore,
        answers: str,
        *,
        rows: int,
        length: int,
        forms: int,
        max_form_length: int,
        seed: int,
        only_answered: bool = True,
        corpus: StoreCorpus | None = None,
        tokenizer: str | None = None,
    ):
        """
        Args:
          store: a token store of questions.
          answers: the folder of `answer_token_forms.find_forms`.
          rows: questions of the global batch.
          length: tokens at which a question is cut, specials included.
          forms: A, of a question's answers, the most frequent ones.
          max_form_length: T, tokens of a form; that of the folder.
          seed: of the order.
          only_answered: whether questions without an answer in the corpus are left out, of which
            nothing can be learned; an evaluation shows them.
          corpus: what is searched; the answers have to be of its store.
          tokenizer: a tokenizer's folder that the store has to fit.

        Raises:
          StoreError: answers of other questions or of another corpus, forms of another length, or
            too few questions.
        """
        packing_plan.check_sizes("Questions", rows=rows, length=length - 2, forms=forms)
        (self.store,) = open_stores([store], tokenizer)
        self._answers = Forms(answers, self.store)
        if self._answers.max_length != max_form_length:
            raise StoreError(
                f"{answers}: expected forms of up to {max_form_length} tokens, found up to "
                f"{self._answers.max_length}: bind both to the same macro."
            )
        if corpus is not None and corpus.fingerprint != self._answers.corpus:
            raise StoreError(
                f"{answers} was looked for in another corpus than {corpus.store}: find the answers "
                "again."
            )
        self._rows, self._length, self._forms = rows, length, forms
        counts = self._answers.counts
        usable = np.flatnonzero(counts) if only_answered else np.arange(len(counts))
        about = [self.store.fingerprint, self._answers.fingerprint, length, forms, only_answered]
        self.plan = EpochPlan(usable, rows, seed, about, "questions with an answer in the corpus")

    @property
    def fingerprint(self) -> str:
        """Of the plan; two pipelines with the same one give the same batches."""
        return self.plan.fingerprint

    def specs(self) -> prefetch.Spec:
        """Group -> feature -> shape and dtype of the global batch."""
        shape = (self._rows, self._forms, self._answers.max_length)
        group = token_groups.group_spec(self._rows, self._length, 1)
        return {"query": {**group, "answers": (shape, np.dtype(np.int32))}}

    def batch(self, step: int, rows: np.ndarray | None = None) -> prefetch.Batch:
        """These rows of the global batch of a step."""
        numbers = self.plan.step(step)[prefetch.own_rows(rows, self._rows)]
        passages = token_groups.truncate(self.store.read(numbers), self._length)
        slots = np.arange(len(numbers))[:, None]
        group = token_groups.build_group(passages, slots, self._length, numbers[:, None])
        group["answers"] = self._answers.of(numbers, self._forms)
        return {"query": group}

    def batches(self, start_step: int, rows: np.ndarray | None = None) -> prefetch.Prefetched:
        """batch(start_step), batch(start_step + 1), ... without end, prefetched."""
        return prefetch.Prefetched(
            lambda step: self.batch(step, rows), self.specs(), start_step, None, PREFETCH
        )
