"""Mines hard negatives with each checkpoint of a training that learns from them: ANCE's inferencer.

Xiong et al. 2021, section 4 (arXiv:2007.00808). Runs in another process than the training, as
`index_builder`; what is published is the negatives, not the index that was searched.
"""

import dataclasses
import time
from collections.abc import Iterator

from t5x_style.interfaces.texts import EncodeSource
from t5x_style.mining import hard_negatives
from t5x_style.mining.candidates import IndexSearch
from t5x_style.mining.hard_negatives import MiningSettings
from t5x_style.model_dependent_data import versioned_negatives
from t5x_style.model_dependent_data.index_builder import Builder, Training, say
from t5x_style.retrieval import published_index
from t5x_style.retrieval.beir_collection import Passages, read_qrels, read_queries

_AT_ONCE = 1000  # queries that are searched for together


@dataclasses.dataclass(frozen=True, kw_only=True)
class NegativesBuilder(Builder):
    """Publishes the negatives that a checkpoint finds.

    Attributes:
      folder: where versions are published.
      source: the corpus, in the order of its store.
      index: the type that is built and searched, with its settings.
      keep: versions that stay; a training that is stopped continues with those it used.
      minimum_recall: of the exact top 10; an index below it is not searched.
      published: see `Builder`.
      corpus: a folder in BEIR's layout, whose passages `source` holds.
      split: whose queries are mined for; never one that is evaluated on.
      queries: holds every one of these queries, and may hold more.
      settings: which hits become negatives.
    """

    corpus: str
    split: str
    queries: EncodeSource
    settings: MiningSettings

    def refresh(self, training: Training, run: str, step: int) -> int:
        """Embeds passages and queries, mines and publishes; returns the version's number.

        Raises:
          CollectionError: the split judges no query, or a file is malformed.
          CandidatesError: the stores hold other passages than the corpus, or lack a query.
          MiningError: not one query has a negative.
        """
        started = time.perf_counter()
        passages, texts = Passages(self.corpus), read_queries(self.corpus)
        qrels = read_qrels(self.corpus, self.split, texts, passages)
        queries = {query: text for query, text in texts.items() if query in qrels}
        model = training.load(step)
        embeddings = self.embed(model)
        index, _ = published_index.measured(embeddings, self.index, self.minimum_recall)
        found = IndexSearch(passages, queries, model, index, embeddings, self.queries)
        embedded = time.perf_counter()
        judged, answers = hard_negatives.judged_queries(queries, qrels, passages)

        def mined() -> Iterator[hard_negatives.Mined]:
            for first in range(0, len(judged), _AT_ONCE):
                some = judged[first : first + _AT_ONCE]
                yield from hard_negatives.mine_negatives(found, some, self.settings, answers)

        number, said = versioned_negatives.write(
            self.folder, mined(), run, step, model.fingerprint,
            versioned_negatives.settings_of(self.split, self.settings), passages, queries,
            self.keep,
        )  # fmt: skip
        self.published()
        say(
            f"version {number} of step {step}: {len(passages):,} passages and {len(queries):,} "
            f"queries embedded in {embedded - started:.1f} s, mined and published in "
            f"{time.perf_counter() - embedded:.1f} s; {said}"
        )
        return number
