"""Questions in one language that ask for paragraphs in another: XQuAD."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from t5x_style.interfaces.texts import Texts
from t5x_style.multilingual import margin_scoring
from t5x_style.multilingual.sentence_embedders import RowSubset, SentenceSystem


@dataclasses.dataclass(frozen=True)
class AskParagraphs:
    """Accuracy of finding a question's paragraph in a language, for all pairs of languages.

    A paragraph is as near as the nearest of its sentences.

    Attributes:
      name: in tables.
      questions: ids 'LANGUAGE/PARAGRAPH/QUESTION'.
      sentences: of the paragraphs, ids 'LANGUAGE/PARAGRAPH/SENTENCE'.
    """

    name: str
    questions: Texts
    sentences: Texts

    def __post_init__(self) -> None:
        asked, there = (_by_language(side.ids) for side in (self.questions, self.sentences))
        if set(asked) != set(there) or len(there) < 2:
            raise ValueError(
                f"{self.name}: expected questions and paragraphs of the same two languages or "
                f"more, found {sorted(asked)} and {sorted(there)}"
            )
        wanted = set(_paragraphs(self.questions, np.arange(len(self.questions.ids))))
        if len(wanted) < 2:
            raise ValueError(f"{self.name}: expected questions for two paragraphs or more")
        for language, rows in there.items():
            if missing := sorted(wanted - set(_paragraphs(self.sentences, rows))):
                raise ValueError(
                    f"{self.name}: questions ask for {len(missing)} paragraphs that {language!r} "
                    f"does not have, such as {str(missing[0])!r}; the files have to say the same"
                )

    def facts(self) -> dict[str, Any]:
        """As `Task.facts`."""
        return {"questions": len(self.questions.ids), "sentences": len(self.sentences.ids)}

    def measure(self, system: SentenceSystem) -> dict[str, dict[str, float]]:
        """As `Task.measure`, by language.

        accuracy: of its questions to paragraphs of the others and of the others' to its own, means
        over languages; accuracy_as_question and accuracy_as_paragraph, each of these;
        accuracy_within, to its own.
        """
        names, matrix = self.between(system)
        values = {}
        for at, name in enumerate(names):
            others = np.arange(len(names)) != at
            ways = float(matrix[at, others].mean()), float(matrix[others, at].mean())
            values[name] = {
                "accuracy": sum(ways) / 2,
                "accuracy_as_question": ways[0],
                "accuracy_as_paragraph": ways[1],
                "accuracy_within": float(matrix[at, at]),
            }
        return values

    def between(self, system: SentenceSystem) -> tuple[list[str], np.ndarray]:
        """As `Pictured.between`: from the questions' language to the paragraphs'."""
        asked, there = _by_language(self.questions.ids), _by_language(self.sentences.ids)
        names = sorted(there)
        matrix = np.empty((len(names), len(names)))
        for one, other in np.ndindex(*matrix.shape):
            questions, sentences = asked[names[one]], there[names[other]]
            parts = RowSubset(self.questions, questions), RowSubset(self.sentences, sentences)
            cosines, rows = margin_scoring.nearest(*system.vectors(*parts), 1)
            found = _paragraphs(self.sentences, sentences)[rows[:, 0]]
            right = _paragraphs(self.questions, questions)
            matrix[one, other] = ((found == right) & (cosines[:, 0] != 0)).mean()
        return names, matrix


def _paragraphs(side: Texts, rows: np.ndarray) -> np.ndarray:
    """Paragraph of each id: 'de/Berlin/3/56be4db0' -> 'Berlin/3'; [n] str."""
    names = (side.ids[row].partition("/")[2].rpartition("/")[0] for row in rows.tolist())
    return np.array(list(names))


def _by_language(ids: Sequence[str]) -> dict[str, np.ndarray]:
    found: dict[str, list[int]] = {}
    for row, name in enumerate(ids):
        found.setdefault(name.partition("/")[0], []).append(row)
    return {language: np.array(rows) for language, rows in found.items()}
