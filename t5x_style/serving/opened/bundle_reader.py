"""The reader of a bundle: the program that reads questions with passages."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from t5x_style.interfaces.objective import ANSWER, FILL
from t5x_style.serving.programs import Programs
from t5x_style.serving.saved_model import READING
from t5x_style.serving.service import Place, Span, Tokens
from t5x_style.serving.text_tokens import TextTokenizer
from t5x_style.serving.token_batches import TokenBatches


class BundleReader:
    """Implements `service.Reader`.

    Attributes:
      reads: see `service.Reader`.
    """

    def __init__(
        self, reads: str, tokenizer: TextTokenizer, batches: TokenBatches, most_masks: int
    ) -> None:
        """Args:
        reads: name of the program.
        tokenizer: of the bundle.
        batches: that compute the program.
        most_masks: that it fills in.
        """
        self.reads = reads
        self._tokenizer, self._batches, self._most_masks = tokenizer, batches, most_masks

    def masked(self, sentence: str) -> Tokens:
        """See `Reader`."""
        return self._tokenizer.pairs.masked(sentence, self._most_masks)

    def masks(self, tokens: Tokens) -> list[Place]:
        """See `Reader`."""
        return self._tokenizer.pairs.masks(tokens)

    def joint(self, question: Tokens, text: str) -> Tokens:
        """See `Reader`."""
        return self._tokenizer.pairs.joint(question, text)

    def nothing(self) -> Tokens:
        """See `Reader`."""
        return self._tokenizer.pairs.nothing()

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """See `Reader`."""
        return self._tokenizer.pieces(ids)

    def span(self, joint: Tokens) -> "Future[Span]":
        """See `Reader`."""

        def take(found: Mapping[str, np.ndarray], row: int) -> Span:
            first, last, score, chance = (
                found[name][row].item() for name in ("start", "end", "score", "log_probability")
            )
            if not np.isfinite(score):
                return Span(None, score, 0.0)
            begin, end = joint.places[first], joint.places[last]
            place = None if begin is None or end is None else (begin[0], end[1])
            return Span(place, score, float(np.exp(chance)))

        return self._batches.submit(ANSWER, joint, take)

    def words(self, joint: Tokens) -> "Future[np.ndarray]":
        """See `Reader`."""
        count = len(self.masks(joint))
        return self._batches.submit(
            FILL, joint, lambda found, row: found["log_probability"][row, :count].copy()
        )


def reads(programs: Programs) -> str | None:
    """What the reader of a model does, see `Reader.reads`; None where it has none."""
    return next((name for name in READING if name in programs.names), None)


def of(programs: Programs, tokenizer: TextTokenizer, batches: TokenBatches) -> BundleReader | None:
    """The reader of a model; None where it reads no passages."""
    name = reads(programs)
    if name is None:
        return None
    most = int(programs.output_shape(FILL, "log_probability")[1]) if name == FILL else 0
    return BundleReader(name, tokenizer, batches, most)
