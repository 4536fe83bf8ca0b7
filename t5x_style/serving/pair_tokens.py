"""Texts in two parts, "[CLS] first [SEP] second [SEP]", from the files of a bundle alone.

Passages of layout 'title_and_body' are such, what a reader reads: a question with a passage's
body, and what a re-ranker scores: a question with a whole passage. Cut as in training: a title at a
quarter of the passage's length, a body where its text ends.
"""

import dataclasses

import numpy as np
import tokenizers

from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.serving.service import Place, RequestError, Tokens

MASK = "[MASK]"  # in a sentence, of a token that is to be filled in


@dataclasses.dataclass(frozen=True)
class _Part:
    """Some tokens: their ids, what the tokenizer calls them, and their places."""

    ids: list[int]
    pieces: list[str]
    places: list[Place]

    def __add__(self, other: "_Part") -> "_Part":
        return _Part(self.ids + other.ids, self.pieces + other.pieces, self.places + other.places)

    def first(self, count: int) -> "_Part":
        return _Part(self.ids[:count], self.pieces[:count], self.places[:count])

    def after(self, count: int) -> "_Part":
        return _Part(self.ids[count:], self.pieces[count:], self.places[count:])

    def tokens(self, whole: int) -> Tokens:
        """As a text of which `whole` tokens were there before it was cut."""
        ids = np.array(self.ids, np.int32)
        return Tokens(ids, self.pieces, self.places, whole - len(self.ids))


_NOTHING = _Part([], [], [])


class PairTokenizer:
    """May be called from any thread."""

    def __init__(self, tokenizer_json: str, vocabulary: Vocabulary, contract: Contract) -> None:
        """Args:
        tokenizer_json: content of tokenizer.json.
        vocabulary: of it.
        contract: lengths and prefixes.
        """
        self._backend = tokenizers.Tokenizer.from_str(tokenizer_json)
        self._backend.encode_special_tokens = True  # "[SEP]" in a text is ordinary characters
        self._backend.no_padding()
        self._backend.no_truncation()
        self._cls, self._sep = (self._special(one) for one in (vocabulary.cls, vocabulary.sep))
        self._mask = vocabulary.mask
        # [CLS], [SEP] and [SEP], and of some tokenizers, RoBERTa's among them, one [SEP] more
        self._separators = self._backend.num_special_tokens_to_add(True) - 2
        self._contract = contract

    def titled(self, title: str, text: str) -> Tokens:
        """A passage of layout 'title_and_body'; places are characters of `text_tokens.content`."""
        length, prefix = self._contract.passage_length, self._contract.passage_prefix
        head = self._part(prefix + title, -len(prefix))
        body = self._part(text, len(title) + 1 if title and text else 0)
        kept = self._cls + head.first(length // 4) + self._sep
        kept += body.first(length - len(kept.ids) - 1) + self._sep
        return kept.tokens(len(head.ids) + len(body.ids) + 3)

    def masked(self, sentence: str, most: int) -> Tokens:
        """A query in which each MASK is to be filled in.

        Args:
          sentence: with MASKs.
          most: of them.

        Raises:
          RequestError: the model would read none, or there are more.
        """
        if (count := sentence.count(MASK)) > most:
            raise RequestError(
                f"text: expected at most {most} {MASK}, as many as the model was trained with, "
                f"found {count}"
            )
        room, prefix = self._contract.query_length - 2, self._contract.query_prefix
        found, at = self._part(prefix, -len(prefix)), 0
        parts = sentence.split(MASK)
        for number, part in enumerate(parts):
            # As in training, where the token that is hidden has the space before the word.
            last = number == len(parts) - 1
            found += self._part(part if last else part.rstrip(), at)
            at += len(part)
            if not last:
                found += _Part([self._mask], [MASK], [(at, at + len(MASK))])
                at += len(MASK)
        kept = self._cls + found.first(room) + self._sep
        if self._mask not in kept.ids:
            raise RequestError(
                f"text: expected {MASK} for what is to be filled in, among the first {room} tokens "
                "of a sentence, found none; a word of two tokens needs two of them"
            )
        return kept.tokens(len(found.ids) + 2)

    def nothing(self) -> Tokens:
        """The passage of no text, also where passages have a prefix: training has it so."""
        return (self._cls + self._sep + self._sep).tokens(3)

    def joint(self, question: Tokens, text: str) -> Tokens:
        """A question with a passage's body; places are characters of the body.

        Args:
          question: "[CLS] ... [SEP]".
          text: of the passage, without its title.
        """
        asked = _Part(question.ids.tolist(), list(question.pieces), [None] * len(question.ids))
        body = self._part(text, 0)
        kept = asked + body.first(self._contract.passage_length - 3) + self._sep
        return kept.tokens(len(asked.ids) + len(body.ids) + 1)

    def scored(self, question: Tokens, passage: Tokens) -> Tokens:
        """A question with a passage, as a re-ranker reads them; places are of the passage.

        Args:
          question, passage: "[CLS] ... [SEP]"; see `query_passage_concat.join` of training.
        """
        asked, found = (
            _Part(one.ids.tolist(), list(one.pieces), list(one.places))
            for one in (question, passage)
        )
        asked = dataclasses.replace(asked, places=[None] * len(asked.ids))
        both = asked + (self._sep if self._separators == 2 else _NOTHING) + found.after(1)
        return both.tokens(len(both.ids) + question.cut_off + passage.cut_off)

    def masks(self, tokens: Tokens) -> list[Place]:
        """The places of what is to be filled in."""
        return [tokens.places[at] for at in np.flatnonzero(tokens.ids == self._mask).tolist()]

    def _special(self, token: int) -> _Part:
        return _Part([token], [self._backend.id_to_token(token) or ""], [None])

    def _part(self, text: str, at: int) -> _Part:
        """The tokens of a text whose first character is character `at`; none before 0 has one.

        Places begin after white space, which some tokenizers count to the token that follows.
        """
        found = self._backend.encode(text, add_special_tokens=False)
        places: list[Place] = []
        for start, end in found.offsets:
            start += len(text[start:end]) - len(text[start:end].lstrip())
            places.append((start + at, end + at) if end > start and start + at >= 0 else None)
        return _Part(found.ids, found.tokens, places)
