"""Languages by their codes, and the scripts that they are written in.

Codes are BCP 47's, or ISO 639's of three letters, by langcodes: 'deu' and 'de' are one language,
and 'pt_br' is 'pt-BR'. What a code does not say, CLDR's likely subtags do: 'sr' is Cyrillic.
"""

import functools

import langcodes
import regex

# Scripts that are several of Unicode's, by their ISO 15924 codes.
_MIXED = {
    "Hans": ("Hani",),
    "Hant": ("Hani",),
    "Jpan": ("Hani", "Hira", "Kana"),
    "Kore": ("Hang", "Hani"),
}
_LETTERS = regex.compile(r"\p{L}")


class LanguageError(ValueError):
    """A code that no language has."""


@functools.cache
def canonical(code: str) -> str:
    """The shortest code of the same language: 'deu' -> 'de', 'cmn_hans' -> 'zh', 'arb' -> 'ar'.

    Raises:
      LanguageError: there is no such language.
    """
    try:
        valid = langcodes.tag_is_valid(code)
    except ValueError:
        valid = False
    if not valid:
        raise LanguageError(
            f"language {code!r}: expected a code of BCP 47 or ISO 639, such as 'de', 'deu' or "
            "'sr-Latn'. If this is the name of a variant, say which language it is of."
        )
    found = langcodes.Language.get(langcodes.standardize_tag(code, macro=True))
    parts = {name: part for name, part in found.to_dict().items() if name != "script"}
    plain = langcodes.Language.make(**parts)
    return str(plain if plain.maximize().script == found.script else found)


@functools.cache
def script(code: str) -> str:
    """ISO 15924 code of the script that a language is written in: 'Latn'.

    Raises:
      LanguageError: there is no such language, or nothing says what it is written in.
    """
    found = langcodes.Language.get(canonical(code)).maximize().script
    if found is None:
        raise LanguageError(
            f"language {code!r}: nothing says in which script it is written; add it, as in "
            f"'{code}-Latn'"
        )
    return str(found)


@functools.cache
def _in_script(name: str) -> regex.Pattern[str]:
    classes = "".join(rf"\p{{Script={part}}}" for part in _MIXED.get(name, (name,)))
    try:
        return regex.compile(rf"[{classes}&&\p{{L}}]", regex.V1)
    except regex.error as error:
        raise LanguageError(f"script {name!r}: expected a code of ISO 15924, as 'Latn'") from error


def share_in_script(text: str, name: str) -> float:
    """Share of a text's letters that are of a script; 1 for a text without letters.

    Args:
      text: any.
      name: ISO 15924 code.
    """
    letters = len(_LETTERS.findall(text))
    return len(_in_script(name).findall(text)) / letters if letters else 1.0
