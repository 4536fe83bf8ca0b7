"""Translations found by systems, language by language: metrics, groups, tables and pictures."""

import json
from typing import NamedTuple

import numpy as np
import pytest

from t5x_style import evaluate_bitext
from t5x_style.evaluation.translation_sets import TranslationSet, means
from t5x_style.evaluation.translation_systems import CharacterNgrams, Embedder, between_languages

KEYS = 12
LANGUAGES = ("de", "fr", "ja")
GROUPS = {"latin": ["de", "fr", "sv"], "none": ["sw"]}


class Side(NamedTuple):
    """What a set needs of a source."""

    ids: list
    given: list

    def texts(self):
        return self.given


class Model:
    """Vectors that are given, one for each text."""

    fingerprint = "abc"

    def __init__(self, vectors):
        self.vectors = vectors
        self.calls = 0

    def encode(self, function, source):
        self.calls += 1
        return np.stack([self.vectors[text] for text in source.texts()])


def make(name="test", pairs=(("en", "de"), ("en", "fr"), ("ja", "en"))):
    """Texts 'en3', 'de3', ...: what is said third."""
    ids = [f"{a}_{b}/t/{n}" for a, b in pairs for n in range(KEYS)]
    sides = [[f"{pair[side]}{n}" for pair in pairs for n in range(KEYS)] for side in (0, 1)]
    return TranslationSet(name, *(Side(ids, texts) for texts in sides))


def model(noise):
    """A language's vectors are those of what is said, and as much noise as given."""
    rng = np.random.default_rng(0)
    said = rng.normal(size=(KEYS, 16))
    names = ("en", *LANGUAGES)
    return Model(
        {
            f"{language}{n}": (said[n] + noise.get(language, 0) * rng.normal(size=16)).astype("f4")
            for language in names
            for n in range(KEYS)
        }
    )


def test_accuracy_is_told_for_each_language_way_and_group(tmp_path, capsys):
    systems = [Embedder("good", model({})), Embedder("noisy", model({"ja": 5.0}))]
    evaluate_bitext.evaluate_bitext([make()], systems, GROUPS, "en", str(tmp_path))
    report = json.loads((tmp_path / "metrics.json").read_text())["sets"]["test"]
    assert report["translations"] == 3 * KEYS
    good, noisy = report["systems"]["good"], report["systems"]["noisy"]
    assert all(one["accuracy"] == 1 for one in good["languages"].values())
    assert set(good["groups"]) == {"all", "latin"} and good["groups"]["latin"]["languages"] == 2
    assert noisy["languages"]["de"]["accuracy"] == 1 > noisy["languages"]["ja"]["accuracy"]
    ja = noisy["languages"]["ja"]
    assert ja["accuracy"] == pytest.approx(
        (ja["accuracy_to_pivot"] + ja["accuracy_from_pivot"]) / 2
    )
    assert noisy["groups"]["all"]["accuracy"] == pytest.approx((2 + ja["accuracy"]) / 3)
    assert noisy["groups"]["latin"]["accuracy"] == 1
    found = make().found(*systems[1].vectors(make()))
    # Of this pair the sources are Japanese: to the target is to the pivot.
    assert found["ja_en"]["to_target"].mean() == ja["accuracy_to_pivot"]
    assert means(found)["accuracy"] == pytest.approx(noisy["groups"]["all"]["accuracy"])
    assert "36 translations" in capsys.readouterr().out


def test_ngrams_find_what_shares_letters_and_nothing_else():
    said = ["Mozart 1756", "Berlin", "Einstein Relativität", "Kilometer 42", "Vulkan"]
    other = ["Mozart, 1756", "in Berlin", "relativity: Einstein", "42 kilometres", "火山"]
    ids = [f"de_en/t/{n}" for n in range(5)]
    of = TranslationSet("t", Side(ids, said), Side(ids, other))
    found = CharacterNgrams("ngrams").found(of)["de_en"]
    assert found["to_target"].tolist() == [True] * 4 + [False]
    assert found["to_source"].tolist() == [True] * 4 + [False]
    with pytest.raises(ValueError, match="1 <= shortest <= longest"):
        CharacterNgrams("ngrams", 3, 2)


def test_every_language_is_asked_for_every_other(tmp_path):
    system = Embedder("noisy", model({"fr": 5.0}))
    names, matrix = between_languages(make(), *system.vectors(make()))
    assert names == ["de", "en", "fr", "ja"]
    assert np.isnan(np.diag(matrix)).all() and matrix[0, 1] == matrix[0, 3] == matrix[3, 0] == 1
    assert matrix[2, 0] < 1 and matrix[0, 2] < 1
    evaluate_bitext.evaluate_bitext(
        [make()], [system], {}, "en", str(tmp_path), [("noisy", "test")]
    )
    assert (tmp_path / "languages_noisy_test.png").stat().st_size > 5000
    assert system._model.calls == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sets": []}, "sets: expected one or more"),
        ({"systems": [CharacterNgrams("a"), CharacterNgrams("a")]}, "systems: .* distinct"),
        ({"pivot": "fr"}, "expected pairs of languages with 'fr', found 'en_de'"),
        ({"pictured": [("a", "test")]}, r"pictured: expected models among \[\]"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, changes, message):
    settings = {"sets": [make()], "systems": [CharacterNgrams("a")], "groups": {}, "pivot": "en"}
    with pytest.raises(ValueError, match=message):
        evaluate_bitext.evaluate_bitext(**settings | changes, model_dir=str(tmp_path))


def test_sides_that_differ_and_languages_of_one_sentence_are_refused():
    ids = ["en_de/t/0", "en_de/t/1"]
    with pytest.raises(ValueError, match="expected sources and targets of the same"):
        TranslationSet("t", Side(ids, ["a", "b"]), Side(ids[::-1], ["c", "d"]))
    lone = [*ids, "en_fr/t/0"]
    with pytest.raises(ValueError, match=r"found one of \['en_fr'\]"):
        TranslationSet("t", Side(lone, ["a"] * 3), Side(lone, ["b"] * 3))
