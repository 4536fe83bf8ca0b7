"""From texts to token ids, with the files of a bundle alone, exactly as training tokenized them."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers

from t5x_style.interfaces.contract import TITLE_AND_BODY, Contract, Vocabulary
from t5x_style.interfaces.representation import PASSAGE, QUERY
from t5x_style.serving.pair_tokens import PairTokenizer
from t5x_style.serving.service import Place, RequestError, Tokens

FOLDER = "tokenizer"


class TextTokenizer:
    """Of a bundle; may be called from any thread.

    Special tokens that a text contains, such as "[SEP]", are ordinary characters of it.

    Attributes:
      vocabulary: of the tokenizer.
      pairs: makes texts in two parts.
    """

    def __init__(self, folder: Path, contract: Contract) -> None:
        """Args:
        folder: with tokenizer.json and vocabulary.json.
        contract: of the model.

        Raises:
          ContractError: the folder has another tokenizer.
        """
        self.vocabulary = Vocabulary.load(str(folder))
        found = self.vocabulary.fingerprint
        contract.require(
            dataclasses.replace(contract, tokenizer_fingerprint=found), f"the tokenizer in {folder}"
        )
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self._lengths = {QUERY: contract.query_length, PASSAGE: contract.passage_length}
        self._prefixes = {QUERY: contract.query_prefix, PASSAGE: contract.passage_prefix}
        # One for each side: cutting is a setting of the tokenizer, and not of a call.
        self._backends = {side: _backend(text, length) for side, length in self._lengths.items()}
        self.pairs = PairTokenizer(text, self.vocabulary, contract)
        self._titles_apart = contract.passage_layout == TITLE_AND_BODY

    def __call__(self, side: str, texts: Sequence[str]) -> list[Tokens]:
        """The tokens of texts, cut at the contract's length.

        Args:
          side: 'query' or 'passage'.
          texts: without prefix; of passages without a title.

        Raises:
          RequestError: a text that is no Unicode (half of a surrogate pair).
        """
        backend, prefix = self._backends[side], self._prefixes[side]
        for number, text in enumerate(texts):
            _require_unicode(text, f"text {number}")
        if side == PASSAGE and self._titles_apart:
            return [self.pairs.titled("", text) for text in texts]
        found = backend.encode_batch([prefix + text for text in texts])
        special = backend.num_special_tokens_to_add(False)
        return [_tokens(one, len(prefix), special) for one in found]

    def passages(self, titled: Sequence[tuple[str, str]]) -> list[Tokens]:
        """The tokens of passages; places are characters of `content`.

        Args:
          titled: title and text of each.

        Raises:
          RequestError: see `__call__`.
        """
        if not self._titles_apart:
            return self(PASSAGE, [content(*one) for one in titled])
        for number, one in enumerate(titled):
            _require_unicode("".join(one), f"passage {number}")
        return [self.pairs.titled(*one) for one in titled]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """What the tokenizer calls ids."""
        backend = self._backends[QUERY]
        return [backend.id_to_token(int(one)) or f"[{int(one)}]" for one in ids]


def content(title: str, text: str) -> str:
    """What is shown of a passage, and tokenized of one in one piece: title, a space, text.

    As in training (`tokenization.join_title`), of which a bundle has no code.
    """
    return f"{title} {text}" if title and text else title or text


def _backend(text: str, length: int) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer.from_str(text)
    backend.encode_special_tokens = True
    backend.no_padding()
    backend.enable_truncation(max_length=length)
    return backend


def _tokens(encoding: tokenizers.Encoding, prefix: int, special: int) -> Tokens:
    rest = encoding.overflowing  # the rest in pieces, each with special tokens
    places: list[Place] = []
    for (start, end), is_special in zip(
        encoding.offsets, encoding.special_tokens_mask, strict=True
    ):
        inside = not is_special and start >= prefix and end > start
        places.append((start - prefix, end - prefix) if inside else None)
    return Tokens(
        np.array(encoding.ids, np.int32),
        encoding.tokens,
        places,
        sum(map(len, rest)) - len(rest) * special,
    )


def _require_unicode(text: str, where: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{where}: expected Unicode, found half of a surrogate pair at character {error.start}"
        ) from None
