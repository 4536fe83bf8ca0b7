"""Translations kept or dropped by a model's scores."""

import json

import numpy as np
import pytest

from t5x_style import filter_translations
from t5x_style.filter_translations import QualityRule
from t5x_style.multilingual import margin_scoring
from t5x_style.multilingual.translation_retrieval import TranslationSet
from tests.kits.retrieval_helpers import Side

COUNT = 40
WRONG = (3, 17, 30)  # whose targets belong to others


class Model:
    """A vector for what is said, and a little for the language."""

    def __init__(self):
        rng = np.random.default_rng(0)
        self.said = rng.normal(size=(COUNT, 16)).astype(np.float32)
        self.noise = {side: rng.normal(size=(COUNT, 16)) for side in ("query", "passage")}
        self.asked = []

    def encode_parts(self, side, source, bounds):
        self.asked.append((side, bounds))
        for start, end in bounds:
            said = np.array([int(text.split()[1]) for text in source.given[start:end]])
            noise = self.noise[side][np.arange(start, end) % COUNT]
            yield (self.said[said] + 0.3 * noise).astype(np.float32)


@pytest.fixture
def corpus(tmp_path):
    """Two pairs of languages; in each some translations are of something else."""
    ids, sources, targets = [], [], []
    for pair in ("en_de", "en_fr"):
        told = np.arange(COUNT)
        told[list(WRONG)] = np.roll(told[list(WRONG)], 1)
        ids += [f"{pair}/t/{n}" for n in range(COUNT)]
        sources += [f"en {n}" for n in range(COUNT)]
        targets += [f"{pair[3:]} {n}" for n in told]
    rows = zip(ids, sources, targets, strict=True)
    lines = [json.dumps({"id": i, "source": s, "target": t}) + "\n" for i, s, t in rows]
    path = tmp_path / "given.jsonl"
    path.write_text("".join(lines))
    return str(path), TranslationSet("t", Side(ids, sources), Side(ids, targets))


def run(corpus, folder, rule, model=None):
    folder.mkdir(exist_ok=True)
    filter_translations.filter_translations(*corpus, model or Model(), rule, str(folder))
    kept = [json.loads(line) for line in (folder / "translations.jsonl").read_text().splitlines()]
    return kept, json.loads((folder / "report.json").read_text())


def test_what_is_no_translation_is_dropped_counted_and_quoted(corpus, tmp_path):
    kept, report = run(corpus, tmp_path / "out", QualityRule(min_score=1.3))
    wrong = {f"{pair}/t/{n}" for pair in ("en_de", "en_fr") for n in WRONG}
    assert {row["id"] for row in kept} == set(corpus[1].sources.ids) - wrong
    assert (report["read"], report["kept"], report["dropped"]) == (80, 74, 6)
    of = report["pairs"]["en_fr"]
    assert of["dropped"] == 3 and len(of["examples"]["worst"]) == 3
    assert any(quoted.endswith("'en 17' | 'fr 3'") for quoted in of["examples"]["worst"])
    scores = np.load(tmp_path / "out/scores.npy")
    assert scores.shape == (80,) and np.quantile(scores[40:], 0.5) == pytest.approx(
        of["scores"]["0.5"], abs=1e-4
    )


def test_a_share_of_each_pair_is_kept_at_most(corpus, tmp_path):
    kept, report = run(corpus, tmp_path / "out", QualityRule(min_score=0.0, share=0.25))
    assert [report["pairs"][pair]["kept"] for pair in ("en_de", "en_fr")] == [10, 10]
    scores = np.load(tmp_path / "out/scores.npy")[:COUNT]
    best = {corpus[1].sources.ids[row] for row in np.argsort(-scores)[:10].tolist()}
    assert {row["id"] for row in kept if row["id"].startswith("en_de")} == best


def test_a_large_pair_is_compared_in_parts(corpus, tmp_path):
    model = Model()
    run(corpus, tmp_path / "out", QualityRule(min_score=0.0, block_size=15), model)
    expected = [(0, 13), (13, 26), (26, 40), (40, 53), (53, 66), (66, 80)]
    assert model.asked == [("query", expected), ("passage", expected)]
    sides = [
        next(Model().encode_parts(side, texts, [(13, 26)]))
        for side, texts in (
            ("query", corpus[1].sources),
            ("passage", corpus[1].targets),
        )
    ]
    scores = np.load(tmp_path / "out/scores.npy")[13:26]
    np.testing.assert_allclose(scores, margin_scoring.own_scores(*sides), rtol=1e-6)


def test_what_cannot_be_filtered_is_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match="none of 80 translations scores 9.0 or more"):
        run(corpus, tmp_path / "out", QualityRule(min_score=9.0))
    other = TranslationSet("t", *(Side(side.ids[:-1], side.given[:-1]) for side in
                                  (corpus[1].sources, corpus[1].targets)))  # fmt: skip
    with pytest.raises(ValueError, match="expected the 79 translations of the token store"):
        run((corpus[0], other), tmp_path / "out", QualityRule(min_score=0.0))
    with pytest.raises(ValueError, match="at least k = 41 .* found {'en_de': 40, 'en_fr': 40}"):
        run(corpus, tmp_path / "out", QualityRule(min_score=0.0, k=41))
    for settings in ({"share": 0.0}, {"k": 0}, {"block_size": 4}):
        with pytest.raises(ValueError, match="QualityRule: expected share in"):
            QualityRule(min_score=0.0, **settings)
