"""Words that BM25 counts: stems of a language, pairs of characters, or the tokens of a model.

Published tables compare models with two BM25s, which differ much (M3, arXiv:2402.03216, table 1):
one whose words are the model's tokens, one with an analyzer of the language.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import regex

from t5x_style.distributed import startup

# Language code -> (name of its Snowball stemmer, name of bm25s's list of stop words), '' for none
_LANGUAGES = {
    "ar": ("arabic", ""),
    "ca": ("catalan", ""),
    "cs": ("czech", ""),
    "da": ("danish", "danish"),
    "de": ("german", "german"),
    "el": ("greek", ""),
    "en": ("english", "english"),
    "es": ("spanish", "spanish"),
    "et": ("estonian", ""),
    "fa": ("persian", ""),
    "fi": ("finnish", ""),
    "fr": ("french", "french"),
    "hi": ("hindi", ""),
    "hu": ("hungarian", ""),
    "id": ("indonesian", ""),
    "it": ("italian", "italian"),
    "nl": ("dutch", "dutch"),
    "no": ("norwegian", "norwegian"),
    "pl": ("polish", ""),
    "pt": ("portuguese", "portuguese"),
    "ro": ("romanian", ""),
    "ru": ("russian", "russian"),
    "sr": ("serbian", ""),
    "sv": ("swedish", "swedish"),
    "ta": ("tamil", ""),
    "tr": ("turkish", "turkish"),
}
_WITHOUT_STEMMER = ("bg", "bn", "he", "hr", "ms", "sk", "sl", "sw", "te", "uk", "ur", "vi", "yo")
_BY_PAIRS = ("ja", "ko", "th", "zh")  # no spaces between words, or endings joined to them
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}_]{2,}")  # with the vowel signs of Indian scripts
# Hiragana to unified ideographs, Hangul, Thai; or a word
_PAIRED = re.compile(
    r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+)|([^\W\u3040-\ud7af\u0e00-\u0e7f]+)"
)


def require_known(language: str) -> None:
    """Raises ValueError unless `LanguageAnalyzer` has words of this language, given by its code."""
    known = sorted([*_LANGUAGES, *_WITHOUT_STEMMER, *_BY_PAIRS])
    if language not in known:
        raise ValueError(
            f"language: expected one of {known}, found {language!r}: it says what BM25's words are"
        )


class Analyzer(Protocol):
    """Turns texts into words."""

    @property
    def facts(self) -> Mapping[str, str]:
        """Description of words, for the record of an evaluation."""
        ...

    def __call__(self, texts: Iterable[str]) -> list[list[str]]:
        """The words of each text."""
        ...


class LanguageAnalyzer:
    """Words of two characters or more, as stems and without stop words where the language has a
    stemmer and a list; of Chinese, Japanese, Korean and Thai, pairs of neighbouring characters.
    """

    def __init__(self, language: str = "en"):
        """Args:
        language: code, such as 'en'.

        Raises:
          ValueError: a code that is not known here.
        """
        require_known(language)
        self._language = language
        self._stemmer, self._stop_words = _LANGUAGES.get(language, ("", ""))

    @property
    def facts(self) -> Mapping[str, str]:
        """As `Analyzer.facts`."""
        if self._language in _BY_PAIRS:
            return {"words": "pairs of characters"}
        return {"stemmer": self._stemmer or "none"}

    def __call__(self, texts: Iterable[str]) -> list[list[str]]:
        """As `Analyzer.__call__`."""
        if self._language in _BY_PAIRS:
            return [[*_pairs(text.lower())] for text in texts]
        if self._language == "en":
            return _english(texts)
        words = [_WORD.findall(text.lower()) for text in texts]
        if self._stop_words:
            startup.tolerate_absent_tpu()
            from bm25s import stopwords

            stops = {*getattr(stopwords, f"STOPWORDS_{self._stop_words.upper()}")}
            words = [[word for word in one if word not in stops] for one in words]
        if self._stemmer:
            import Stemmer

            stemmer = Stemmer.Stemmer(self._stemmer)
            words = [stemmer.stemWords(one) for one in words]
        return [[word for word in one if word] for one in words]


def _english(texts: Iterable[str]) -> list[list[str]]:
    """As bm25s has it, whose figures tables hold."""
    startup.tolerate_absent_tpu()
    import bm25s
    import Stemmer

    tokens = bm25s.tokenize(
        list(texts),
        stopwords="english",
        stemmer=Stemmer.Stemmer("english"),
        return_ids=False,
        show_progress=False,
    )
    return [[token for token in words if token] for words in tokens]


def _pairs(text: str) -> Iterator[str]:
    for characters, word in _PAIRED.findall(text):
        if word:
            yield word
        elif len(characters) == 1:
            yield characters
        else:
            yield from map("".join, itertools.pairwise(characters))


class TokenAnalyzer:
    """The tokens of a model's tokenizer, without special ones."""

    def __init__(self, tokenizer: str):
        """Args:
        tokenizer: its folder, with tokenizer.json.
        """
        import tokenizers

        path = Path(tokenizer) / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: not found. Expected the folder of a stage that trains or imports a "
                "tokenizer"
            )
        self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    @property
    def facts(self) -> Mapping[str, str]:
        """As `Analyzer.facts`."""
        return {"words": "tokens of the model"}

    def __call__(self, texts: Iterable[str]) -> list[list[str]]:
        """As `Analyzer.__call__`."""
        given: Sequence[str] = list(texts)
        found = self._tokenizer.encode_batch(given, add_special_tokens=False)
        return [one.tokens for one in found]
