"""Accuracy of nearest-neighbour translation retrieval.

Texts are chunks of documents; those of equal names belong together. A chunk is compared with those
of all other documents, as a pre-training that looks for evidence compares them.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import scipy.sparse

from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.objective import ModelFunction, embedder
from t5x_style.interfaces.representation import PASSAGE
from t5x_style.interfaces.texts import Texts
from t5x_style.multilingual import margin_scoring
from t5x_style.multilingual.margin_scoring import Vectors
from t5x_style.multilingual.sentence_embedders import RowSubset, SentenceSystem
from t5x_style.retrieval import encoding

BLOCK = 1024  # texts whose similarities with all others exist at a time
METRICS = ("accuracy_other_language", "accuracy")


class Table(Protocol):
    """Metadata of N chunks.

    Attributes:
      document: int [N].
      number: int [N], of a chunk in its document.
      name: int [N], equal of documents that belong together.
      languages: codes.
      language: int [N], number of a chunk's among them.
    """

    document: np.ndarray
    number: np.ndarray
    name: np.ndarray
    languages: tuple[str, ...]
    language: np.ndarray


@dataclasses.dataclass(frozen=True)
class Found:
    """Chunks with a translation, and those whose nearest neighbour is right: bool [N] each.

    Attributes:
      asked: the chunk's name exists in another language.
      anywhere: the nearest chunk of all other documents has the name.
      elsewhere: the nearest of those in other languages has it.
    """

    asked: np.ndarray
    anywhere: np.ndarray
    elsewhere: np.ndarray

    def means(self, chosen: np.ndarray) -> dict[str, float]:
        """METRICS, over those that were asked and are `chosen`, bool [N]."""
        these = self.asked & chosen
        return {
            "accuracy_other_language": float(self.elsewhere[these].mean()),
            "accuracy": float(self.anywhere[these].mean()),
        }


def find(vectors: Vectors, table: Table) -> Found:
    """See the module's docstring.

    Args:
      vectors: [N, D], arrays or sparse rows.
      table: of the chunks.

    Raises:
      ValueError: no name exists in two languages, so that nothing can be measured.
    """
    unit = margin_scoring.unit(vectors)
    pairs = np.unique(np.stack([table.name, table.language], axis=1), axis=0)
    languages_of = np.bincount(pairs[:, 0], minlength=int(table.name.max()) + 1)
    asked = languages_of[table.name] > 1
    if not asked.any():
        raise ValueError(
            f"find: expected names that exist in two languages, found none among {len(asked)} "
            "chunks: nothing can be asked of them"
        )
    right = np.zeros((2, len(asked)), bool)
    for start in range(0, len(asked), BLOCK):
        here = slice(start, min(start + BLOCK, len(asked)))
        similarity = unit[here] @ unit.T
        if scipy.sparse.issparse(similarity):
            similarity = similarity.toarray()
        possible = table.document[here][:, None] != table.document
        abroad = table.language[here][:, None] != table.language
        for n, allowed in enumerate((possible, possible & abroad)):
            best = np.where(allowed, similarity, -np.inf).argmax(1)
            right[n, here] = table.name[best] == table.name[here]
    return Found(asked, right[0], right[1])


def by_chance(table: Table) -> float:
    """`accuracy_other_language` of a guess, over all chunks that are asked."""
    of_name = np.bincount(table.name)[table.name]
    _, group, counts = np.unique(
        np.stack([table.name, table.language], axis=1),
        axis=0,
        return_inverse=True,
        return_counts=True,
    )
    right = of_name - counts[group.ravel()]
    abroad = len(table.language) - np.bincount(table.language)[table.language]
    asked = right > 0
    return float((right[asked] / abroad[asked]).mean())


@dataclasses.dataclass(frozen=True)
class FindEvidence:
    """A task of `evaluate_bitext`.

    Attributes:
      name: in tables.
      texts: the chunks.
      table: what is known of them.
    """

    name: str
    texts: Texts
    table: Table

    def facts(self) -> dict[str, Any]:
        """As `Task.facts`."""
        return {
            "chunks": len(self.texts.ids),
            "documents": len(np.unique(self.table.document)),
            "names": len(np.unique(self.table.name)),
            "by chance": round(by_chance(self.table), 4),
        }

    def measure(self, system: SentenceSystem) -> dict[str, dict[str, float]]:
        """As `Task.measure`, by the language of the chunks that are compared."""
        found = find(self._vectors(system), self.table)
        values = {}
        for number, code in enumerate(self.table.languages):
            chosen = self.table.language == number
            if (found.asked & chosen).any():
                values[code] = found.means(chosen)
        return values

    def between(self, system: SentenceSystem) -> tuple[list[str], np.ndarray]:
        """As `Pictured.between`, of first chunks among those of documents in both languages."""
        vectors = self._vectors(system)
        first = self.table.number == 0
        languages = list(self.table.languages)
        rows = [np.flatnonzero(first & (self.table.language == n)) for n in range(len(languages))]
        matrix = np.full((len(languages), len(languages)), np.nan)
        for one in range(len(languages)):
            for other in range(one):
                names = (self.table.name[rows[one]], self.table.name[rows[other]])
                shared, left, right = np.intersect1d(*names, return_indices=True)
                if len(shared) > 1:
                    to, back = margin_scoring.find_each_other(
                        vectors[rows[one][left]], vectors[rows[other][right]]
                    )
                    matrix[one, other], matrix[other, one] = to.mean(), back.mean()
        return languages, matrix

    def _vectors(self, system: SentenceSystem) -> Vectors:
        """Vectors of all chunks, in the form that is compared."""
        whole = RowSubset.whole(self.texts)
        return system.vectors(whole, whole)[1]


class EvidenceEvaluator:
    """METRICS during training, with the current parameters."""

    metrics = METRICS

    def __init__(self, name: str, texts: Texts, table: Table, partitioner: Partitioner):
        """Args:
        name: prefix of the metrics' names.
        texts, table: as of `FindEvidence`, of development.
        partitioner: of the training, to spread batches over its mesh.
        """
        self.name = name
        self._texts, self._table, self._partitioner = texts, table, partitioner

    @staticmethod
    def measures(name: str) -> tuple[str, Sequence[str]]:
        """See `hooks.Evaluator`."""
        return name, METRICS

    def evaluate(self, functions: Mapping[str, ModelFunction], step: int) -> dict[str, float]:
        """Means over all chunks that are asked.

        Args:
          functions: one that embeds passages, jitted, with parameters.
          step: shown next to the progress bar.
        """
        embed = embedder(functions, PASSAGE)
        vectors = encoding.encode(embed, self._texts, self._partitioner, f"step {step}: evidence")
        found = find(vectors, self._table)
        return found.means(np.ones_like(found.asked))
