"""Sentences of many languages compared by systems: metrics, groups, tables and pictures."""

import json
from typing import NamedTuple

import numpy as np
import pytest

from t5x_style import evaluate_bitext
from t5x_style.multilingual.bitext_mining import MineTranslations
from t5x_style.multilingual.cross_lingual_qa import AskParagraphs
from t5x_style.multilingual.sentence_embedders import CharacterNgrams, Embedder
from t5x_style.multilingual.similarity_correlation import SentenceSimilarity
from t5x_style.multilingual.translation_retrieval import FindTranslations, TranslationSet
from tests.kits.retrieval_helpers import Side

KEYS = 12
LANGUAGES = ("de", "fr", "ja")
GROUPS = {"latin": ["de", "fr", "sv"], "none": ["sw"]}


class Model:
    """Vectors that are given, one for each text."""

    fingerprint = "abc"

    def __init__(self, vectors):
        self.vectors = vectors
        self.calls = 0

    def encode(self, side, source, kind="dense"):
        self.calls += 1
        return np.stack([self.vectors[text] for text in source.texts()])


def make(name="test", pairs=(("en", "de"), ("en", "fr"), ("ja", "en"))):
    """Texts 'en3', 'de3', ...: what is said third; four to a document."""
    ids = [f"{a}_{b}/t/{n // 4}/{n}" for a, b in pairs for n in range(KEYS)]
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
    task = FindTranslations(make(), "en")
    known = ("de", "fr")
    evaluate_bitext.evaluate_bitext([task], systems, GROUPS, str(tmp_path), known.__contains__)
    report = json.loads((tmp_path / "metrics.json").read_text())["sets"]["test"]
    assert report["facts"] == {"translations": 3 * KEYS}
    good, noisy = report["systems"]["good"], report["systems"]["noisy"]
    assert all(one["accuracy"] == 1 for one in good["languages"].values())
    assert set(good["groups"]) == {"all", "latin", "trained", "zero_shot"}
    assert good["groups"]["latin"]["languages"] == 2
    assert good["groups"]["zero_shot"]["languages"] == 1
    assert noisy["languages"]["de"]["accuracy"] == 1 > noisy["languages"]["ja"]["accuracy"]
    ja = noisy["languages"]["ja"]
    assert ja["accuracy"] == pytest.approx(
        (ja["accuracy_to_pivot"] + ja["accuracy_from_pivot"]) / 2
    )
    assert noisy["groups"]["all"]["accuracy"] == pytest.approx((2 + ja["accuracy"]) / 3)
    assert noisy["groups"]["latin"]["accuracy"] == noisy["groups"]["trained"]["accuracy"] == 1
    assert noisy["groups"]["zero_shot"]["accuracy"] == ja["accuracy"]
    # Of this pair the sources are Japanese: to the target is to the pivot.
    sides = {pair: sides for pair, *sides in make().vectors(systems[1])}["ja_en"]
    one, other = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    own = (one @ other.T).argmax(axis=1) == np.arange(KEYS)
    assert ja["accuracy_to_pivot"] == own.mean()
    assert "translations 36" in capsys.readouterr().out
    page = (tmp_path / "languages.md").read_text()
    assert "| de | 1.000 | 1.000 |" in page and "| ja\\* | 1.000 |" in page


def test_documents_are_found_by_the_means_of_their_sentences():
    task = FindTranslations(make(), "en", documents=True)
    noisy = Embedder("noisy", model({"fr": 1.5}))
    found = task.measure(noisy)["fr"]
    vectors = {pair: sides for pair, *sides in make().vectors(noisy)}["en_fr"]
    means = [
        (side / np.linalg.norm(side, axis=1, keepdims=True)).reshape(3, 4, 16).mean(axis=1)
        for side in vectors
    ]
    one, other = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in means)
    both = [(one @ other.T).argmax(axis=axis) == np.arange(3) for axis in (0, 1)]
    assert found["document_accuracy"] == pytest.approx(np.mean(both))
    ngrams = task.measure(CharacterNgrams("ngrams"))["fr"]
    assert 0 <= ngrams["document_accuracy"] <= 1


def test_sentences_of_one_document_are_no_documents():
    of = TranslationSet("t", *(Side(["en_de/t/0", "en_de/t/1"], ["a", "b"]) for _ in range(2)))
    with pytest.raises(ValueError, match="two documents or more, found one"):
        FindTranslations(of, "en", documents=True).measure(CharacterNgrams("n"))


def test_ngrams_find_what_shares_letters_and_nothing_else():
    said = ["Mozart 1756", "Berlin", "Einstein Relativität", "Kilometer 42", "Vulkan"]
    other = ["Mozart, 1756", "in Berlin", "relativity: Einstein", "42 kilometres", "火山"]
    ids = [f"de_en/t/{n}" for n in range(5)]
    task = FindTranslations(TranslationSet("t", Side(ids, said), Side(ids, other)), "en")
    found = task.measure(CharacterNgrams("ngrams"))["de"]
    assert found["accuracy_to_pivot"] == found["accuracy_from_pivot"] == 0.8
    with pytest.raises(ValueError, match="1 <= min_length <= max_length"):
        CharacterNgrams("ngrams", 3, 2)


def test_every_language_is_asked_for_every_other(tmp_path):
    system = Embedder("noisy", model({"fr": 5.0}))
    task = FindTranslations(make(), "en")
    names, matrix = task.between(system)
    assert names == ["de", "en", "fr", "ja"]
    assert np.isnan(np.diag(matrix)).all() and matrix[0, 1] == matrix[0, 3] == matrix[3, 0] == 1
    assert matrix[2, 0] < 1 and matrix[0, 2] < 1
    evaluate_bitext.evaluate_bitext(
        [task], [system], {}, str(tmp_path), pictured=[("noisy", "test")]
    )
    assert (tmp_path / "languages_noisy_test.png").stat().st_size > 5000
    assert system._model.calls == 2


def asked(languages=("de", "en", "fr")):
    """Each of three paragraphs has four sentences, of which a question says the second."""
    sentences = [
        (f"{code}/p/{n // 4}/{n % 4}", f"{code}{n}") for code in languages for n in range(KEYS)
    ]
    questions = [(f"{code}/p/{n}/q", f"{code}{4 * n + 1}") for code in languages for n in range(3)]
    return (Side(*map(list, zip(*side, strict=True))) for side in (questions, sentences))


def test_questions_ask_for_paragraphs_of_every_language():
    task = AskParagraphs("xquad", *asked())
    names, matrix = task.between(Embedder("good", model({})))
    assert names == ["de", "en", "fr"] and (matrix == 1).all()
    # Questions are found in French where all French is noise only by chance, and within it.
    values = task.measure(Embedder("noisy", model({"fr": 50.0})))
    assert values["fr"]["accuracy_within"] == 1 > values["fr"]["accuracy"]
    assert values["de"]["accuracy_as_question"] == pytest.approx(
        (1 + values_of(task, "noisy", {"fr": 50.0})[0, 2]) / 2
    )


def values_of(task, name, noise):
    return task.between(Embedder(name, model(noise)))[1]


def test_a_paragraph_that_a_language_lacks_is_named():
    questions, sentences = asked()
    kept = [n for n, name in enumerate(sentences.ids) if not name.startswith("fr/p/1/")]
    fewer = Side([sentences.ids[n] for n in kept], [sentences.given[n] for n in kept])
    with pytest.raises(ValueError, match="1 paragraphs that 'fr' does not have, such as 'p/1'"):
        AskParagraphs("xquad", questions, fewer)
    with pytest.raises(ValueError, match="of the same two languages or more"):
        AskParagraphs("xquad", questions, [*asked(("de", "en"))][1])


class Gold(NamedTuple):
    given: dict

    def translations(self, pair, split):
        return self.given[pair, split]


def mined(gold):
    """Sentences 0 to 7 in German, 4 to 11 in English: 4 to 7 are translations."""
    splits = ("training", "test")
    sources = [(f"de-en/{split}/d{n}", f"de{n}") for split in splits for n in range(8)]
    targets = [(f"de-en/{split}/e{n}", f"en{n}") for split in splits for n in range(4, KEYS)]
    sides = (Side(*map(list, zip(*side, strict=True))) for side in (sources, targets))
    return MineTranslations("bucc", *sides, Gold(gold), "en", "training", "test", margin="distance")


def gold_of(numbers):
    return {
        ("de-en", split): [(f"de-en/{split}/d{n}", f"de-en/{split}/e{n}") for n in numbers]
        for split in ("training", "test")
    }


def test_translations_are_mined_at_the_threshold_of_another_split():
    found = mined(gold_of(range(4, 8))).measure(Embedder("good", model({"de": 0.3})))
    assert set(found) == {"de"}
    assert found["de"]["f1"] == found["de"]["precision"] == found["de"]["recall"] == 1
    half = mined(gold_of(range(4, 8)) | {("de-en", "test"): [("de-en/test/d4", "de-en/test/e4")]})
    assert half.measure(Embedder("good", model({"de": 0.3})))["de"]["precision"] == 0.25
    assert 0 < mined(gold_of(range(4, 8))).measure(CharacterNgrams("n"))["de"]["f1"] <= 1
    none = mined(
        gold_of([4]) | {("de-en", "training"): [("de-en/training/d0", "de-en/training/e9")]}
    )
    assert none.measure(Embedder("good", model({})))["de"]["f1"] == 0
    with pytest.raises(ValueError, match="1 of 1 translations of de-en/training"):
        mined({("de-en", "training"): [("de-en/training/d9", "de-en/training/e9")]}).measure(
            Embedder("good", model({}))
        )


def test_similarity_is_the_correlation_with_judgements():
    ids = [f"en/{n}" for n in range(KEYS)] + [f"fr/{n}" for n in range(KEYS)]
    first = Side(ids, [f"en{n}" for n in range(KEYS)] * 2)
    second = Side(ids, ["en0"] * 2 * KEYS)
    system = Embedder("good", model({}))
    vectors = np.stack([system._model.vectors[f"en{n}"] for n in range(KEYS)])
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = unit @ unit[0]
    scores = {f"en/{n}": 5 * c**3 for n, c in enumerate(cosines.tolist())}
    scores |= {f"fr/{n}": -2 * c for n, c in enumerate(cosines.tolist())}
    found = SentenceSimilarity("sts", first, second, scores).measure(system)
    assert found["en"]["spearman"] == pytest.approx(1) and found["en"]["pearson"] < 1
    assert found["fr"]["spearman"] == pytest.approx(-1) == found["fr"]["pearson"]
    ngrams = SentenceSimilarity("sts", first, second, scores).measure(CharacterNgrams("n"))
    assert -1 <= ngrams["en"]["spearman"] <= 1
    with pytest.raises(ValueError, match="23 pairs have no judgement, such as 'en/1'"):
        SentenceSimilarity("sts", first, second, {"en/0": 1.0})
    with pytest.raises(ValueError, match="two sentences of each pair"):
        SentenceSimilarity("sts", first, Side(ids[::-1], second.given), scores)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": []}, "tasks: expected one or more"),
        ({"systems": [CharacterNgrams("a"), CharacterNgrams("a")]}, "systems: .* distinct"),
        ({"pictured": [("a", "test")]}, r"pictured: expected models among \[\]"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, changes, message):
    settings = {
        "tasks": [FindTranslations(make(), "en")],
        "systems": [CharacterNgrams("a")],
        "groups": {},
    }
    with pytest.raises(ValueError, match=message):
        evaluate_bitext.evaluate_bitext(**settings | changes, model_dir=str(tmp_path))


def test_sides_that_differ_and_languages_of_one_sentence_are_refused():
    ids = ["en_de/t/0", "en_de/t/1"]
    with pytest.raises(ValueError, match="expected sources and targets of the same"):
        TranslationSet("t", Side(ids, ["a", "b"]), Side(ids[::-1], ["c", "d"]))
    lone = [*ids, "en_fr/t/0"]
    with pytest.raises(ValueError, match=r"found one of \['en_fr'\]"):
        TranslationSet("t", Side(lone, ["a"] * 3), Side(lone, ["b"] * 3))
    with pytest.raises(ValueError, match="expected pairs of languages with 'fr', found 'en_de'"):
        FindTranslations(make(), "fr")
