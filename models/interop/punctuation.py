"""Find a tokenizer's punctuation tokens; ColBERT keeps no vectors of them in passages."""

import string
from pathlib import Path

import tokenizers

# Before the characters of a token: WordPiece continues a word, SentencePiece and byte-level BPE
# begin one.
_MARKS = ("##", "\u2581", "\u0120")
_PUNCTUATION = frozenset(string.punctuation)


def token_ids(tokenizer: str) -> tuple[int, ...]:
    """Ids of the tokens that are nothing but ASCII punctuation, ascending.

    Khattab and Zaharia 2020, arXiv:2004.12832, section 3.2, and the official code's list of
    characters. Special tokens are none of them.

    Args:
        tokenizer: folder with tokenizer.json.

    Raises:
        FileNotFoundError: there is none.
    """
    file = Path(tokenizer) / "tokenizer.json"
    if not file.is_file():
        raise FileNotFoundError(
            f"{file}: not found. Expected the folder of a trained or imported tokenizer (stage "
            "train_tokenizer writes it)."
        )
    backend = tokenizers.Tokenizer.from_file(str(file))
    special = backend.get_added_tokens_decoder()
    return tuple(
        sorted(
            number
            for token, number in backend.get_vocab().items()
            if number not in special and _is_punctuation(token)
        )
    )


def _is_punctuation(token: str) -> bool:
    characters = token
    for mark in _MARKS:
        if token.startswith(mark):
            characters = token.removeprefix(mark)
    return characters != "" and _PUNCTUATION.issuperset(characters)
