"""Languages by their codes, and the scripts that they are written in.

Codes are BCP 47's, or ISO 639's of three letters, by langcodes: 'deu' and 'de' are one language,
and 'pt_br' is 'pt-BR'. What a code does not say, CLDR's likely subtags do: 'sr' is Cyrillic.
"""

import functools
from collections.abc import Iterable, Sequence

import langcodes
import regex
from langcodes import data_dicts

# Scripts that are several of Unicode's, by their ISO 15924 codes.
_MIXED = {
    "Hans": ("Hani",),
    "Hant": ("Hani",),
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
}
_LETTERS = regex.compile(r"\p{L}")


class LanguageError(ValueError):
    """A code that no language has, or a language given twice."""


@functools.cache
def canonical(code: str) -> str:
    """The shortest code of the same language: 'deu' -> 'de', 'cmn_hans' -> 'zh', 'arb' -> 'ar'.

    Raises:
      LanguageError: there is no such language.
    """
    try:
        found = langcodes.Language.get(langcodes.standardize_tag(code, macro=True))
        valid = langcodes.tag_is_valid(code) and _is_language(found.language)
    except ValueError:
        valid = False
    if not valid:
        raise LanguageError(
            f"language {code!r}: expected a code of BCP 47 or ISO 639, such as 'de', 'deu' or "
            "'sr-Latn'. If this is the name of a variant, say which language it is of."
        )
    parts = {name: part for name, part in found.to_dict().items() if name != "script"}
    plain = langcodes.Language.make(**parts)
    return str(plain if _likely_script(plain) == found.script else found)


def require_once(codes: Sequence[str], where: str) -> None:
    """Refuses a language that is given twice, perhaps by two codes.

    Args:
      where: named in the error.

    Raises:
      LanguageError: one is, or a code that no language has.
    """
    known: dict[str, str] = {}
    for code in codes:
        language = canonical(code)
        if language in known:
            raise LanguageError(
                f"{where}: expected each language once, found {known[language]!r} and {code!r}"
            )
        known[language] = code


@functools.cache
def without_variant(code: str) -> str:
    """The language alone: 'sr-Latn' -> 'sr', 'pt-BR' -> 'pt'; errors as `canonical`."""
    return str(langcodes.Language.get(canonical(code)).language)


class Among:
    """Membership of a language in a list, in any script or country."""

    def __init__(self, codes: Iterable[str]):
        self._known = {without_variant(code) for code in codes}

    def __call__(self, language: str) -> bool:
        """Of a code; of several with '_' between them, whether all are."""
        return all(without_variant(code) in self._known for code in language.split("_"))


def _is_language(code: str | None) -> bool:
    """Not undetermined, several, none, or a code for private use."""
    if code in (None, "und", "mis", "mul", "zxx"):
        return False
    return not (len(code) == 3 and "qaa" <= code <= "qtz")


def _likely_script(language: langcodes.Language) -> str | None:
    """Script of this language in CLDR; langcodes would take Latin for one it does not know."""
    known = language.language in data_dicts.LIKELY_SUBTAGS
    return str(language.maximize().script) if known else None


@functools.cache
def script(code: str) -> str | None:
    """ISO 15924 code of the script that a language is written in: 'Latn'.

    None where neither the code nor CLDR says it; 'max-Latn' does.

    Raises:
      LanguageError: there is no such language.
    """
    found = langcodes.Language.get(canonical(code))
    return found.script or _likely_script(found)


@functools.cache
def _in_script(name: str) -> regex.Pattern[str]:
    classes = "".join(rf"\p{{Script={part}}}" for part in _MIXED.get(name, (name,)))
    try:
        return regex.compile(rf"[{classes}&&\p{{L}}]", regex.V1)
    except regex.error as error:
        raise LanguageError(f"script {name!r}: expected a code of ISO 15924, as 'Latn'") from error


def share_in_script(text: str, name: str | None) -> float:
    """Share of a text's letters that are of a script; 1 for a text without letters.

    Args:
      text: any.
      name: ISO 15924 code; None, where that is not known, gives 1.
    """
    letters = len(_LETTERS.findall(text))
    if name is None or not letters:
        return 1.0
    return len(_in_script(name).findall(text)) / letters
