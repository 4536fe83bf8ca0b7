"""Codes of languages, and texts in their scripts."""

import pytest

from input_pipelines.sources import languages


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("deu", "de"),
        ("de", "de"),
        ("pt_br", "pt-BR"),
        ("cmn-hans", "zh"),
        ("kab", "kab"),
        ("cmn-Hant", "zh-Hant"),
        ("arb", "ar"),
        ("arz", "arz"),
        ("sr-Latn", "sr-Latn"),
        ("nob", "nb"),
    ],
)
def test_codes_of_one_language_are_one(code, expected):
    assert languages.canonical(code) == expected


@pytest.mark.parametrize("code", ["xx", "klingon!", "", "english text", "und", "zxx", "qqq"])
def test_codes_of_no_language_are_refused(code):
    with pytest.raises(languages.LanguageError, match="expected a code of BCP 47"):
        languages.canonical(code)


@pytest.mark.parametrize(
    ("code", "expected"),
    [("eng", "Latn"), ("srp", "Cyrl"), ("srp-Latn", "Latn"), ("jpn", "Jpan"), ("amh", "Ethi")],
)
def test_languages_are_written_in_their_likely_scripts(code, expected):
    assert languages.script(code) == expected


@pytest.mark.parametrize(
    ("text", "script", "share"),
    [
        ("Grüße, 1998!", "Latn", 1.0),
        ("Привет", "Latn", 0.0),
        ("Привет you", "Cyrl", 6 / 9),
        ("東京タワーへ", "Jpan", 5 / 6),  # the long-vowel mark is of several scripts
        ("東京", "Hans", 1.0),
        ("서울 大學", "Kore", 1.0),
        ("2 + 2 = 4", "Cyrl", 1.0),
        ("हिन्दी", "Deva", 1.0),
    ],
)
def test_letters_are_told_by_their_script(text, script, share):
    assert languages.share_in_script(text, script) == pytest.approx(share)


def test_what_nothing_is_known_of_is_not_taken_for_latin():
    assert languages.script("xal") is None and languages.canonical("xal-Cyrl") == "xal-Cyrl"
    assert languages.script("xal-Cyrl") == "Cyrl"
    assert languages.share_in_script("хальмг", None) == 1


def test_what_is_no_script_is_refused():
    with pytest.raises(languages.LanguageError, match="ISO 15924"):
        languages.share_in_script("abc", "Nope")
