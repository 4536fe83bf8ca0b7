"""Translations as rows of a store, apart again, and in batches of smoothed languages."""

import collections
import json
import re

import numpy as np
import pytest

from input_pipelines.batches import token_groups, translation_rows
from input_pipelines.batches.packed_text import Pipeline
from input_pipelines.batches.translation_rows import TranslationFile, Translations
from input_pipelines.pairs.translation_pairs import TranslationPairs
from input_pipelines.pairs.translation_sides import TranslationSide
from input_pipelines.store import prepare
from input_pipelines.store.token_store import Passages, StoreError, TokenStore
from input_pipelines.tokenizers import tokenization
from tests.kits.tiny_stores import write_store

SIDE = 8
COUNTS = {"en_de": 40, "en_fr": 10, "en_ja": 3}


def text(seed, language):
    rng = np.random.default_rng([seed, sum(map(ord, language))])
    return " ".join(f"{language}{word}" for word in rng.integers(0, 30, rng.integers(1, 9)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer and a store of translations; the same English is in all pairs."""
    root = tmp_path_factory.mktemp("translations")
    lines = [
        {"id": f"{pair}/t/{n}", "source": text(n, "en"), "target": text(n, pair[3:])}
        for pair, count in COUNTS.items()
        for n in range(count)
    ]
    path = root / "translations.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = TranslationFile(str(path))
    tokenization.train_tokenizer(str(root), source, 200, 100, 1, False, False, 0, 0, 0)
    tokens = str(root / "tokenizer")
    prepare.prepare(
        str(root), source, tokens, "t", "all", "text", 2 * SIDE - 1, "", 7, 1, 0, Translations(SIDE)
    )
    return root


def tokenizer(folder):
    return tokenization.Tokenizer(str(folder / "tokenizer"))


def make(folder, **changes):
    rows = token_groups.Rows(12, SIDE, 1)
    settings = {"batch": 12, "length": SIDE, "source_rows": rows, "target_rows": rows, "seed": 3}
    settings |= {"exponent": 0.3, "tokenizer": str(folder / "tokenizer")}
    return TranslationPairs(str(folder / "store"), **settings | changes)


def sentences(group):
    """example_id -> tokens of each segment."""
    found = {}
    for row, slot in zip(*np.nonzero(group["segment_valid"]), strict=True):
        inside = group["segment_ids"][row] == slot + 1
        found[int(group["example_id"][row, slot])] = group["tokens"][row][inside].tolist()
    return found


def test_rows_come_apart_into_what_each_side_is_alone(folder):
    store = TokenStore.open(str(folder / "store"))
    rows = np.array([40, 3, 52, 11])
    read = store.read(rows)
    before, behind = translation_rows.apart(read, tokenizer(folder).vocabulary["sep"])
    texts = [store.text(row) for row in rows]
    for side, names in ((before, [t.title for t in texts]), (behind, [t.text for t in texts])):
        alone = tokenizer(folder).encode_batch(names, SIDE)
        np.testing.assert_array_equal(side.tokens, np.concatenate([one.tokens for one in alone]))
        starts = np.concatenate([one.word_starts for one in alone])
        np.testing.assert_array_equal(side.word_starts, starts)
    lengths = translation_rows.side_lengths(store)
    np.testing.assert_array_equal(lengths[0][rows], before.lengths)
    np.testing.assert_array_equal(lengths[1][rows], behind.lengths)
    assert (store.lengths == 2 * SIDE - 1).any() and store.manifest["truncated"] > 0


def test_meanings_are_those_of_the_words_and_their_order():
    def meanings(*texts):
        tokens = np.concatenate([np.array(t, np.int32) for t in texts])
        lengths = np.array([len(t) for t in texts])
        return translation_rows.meanings(Passages(tokens, tokens > 0, lengths)).tolist()

    found = meanings([2, 7, 8, 3], [2, 8, 7, 3], [2, 7, 8, 3], [2, 7, 3], [2, 7, 8, 9, 3])
    assert found[0] == found[2] and len(set(found)) == 4 and min(found) >= 0
    many = np.random.default_rng(0).integers(0, 500_000, (20_000, 6))
    assert len(set(meanings(*many))) > 19_990


@pytest.mark.parametrize(
    "shape",
    [token_groups.Rows(12, SIDE, 1), token_groups.Rows(6, 32, 8)],
    ids=["a row each", "packed"],
)
def test_a_batch_holds_both_sides_of_its_pairs(folder, shape):
    pipeline = make(folder, source_rows=shape, target_rows=shape)
    store = TokenStore.open(str(folder / "store"))
    for step in (0, 7):
        batch = pipeline.batch(step)
        rows = pipeline.chosen(step)
        both = [sentences(batch[name]) for name in ("source", "target")]
        assert both[0].keys() == both[1].keys() == set(range(12))
        for place, row in enumerate(rows):
            told = store.text(int(row))
            expected = tokenizer(folder).encode_batch([told.title, told.text], SIDE)
            for side, one in zip(both, expected, strict=True):
                assert side[place] == one.tokens.tolist()
        valid = batch["target"]["segment_valid"]
        np.testing.assert_array_equal(batch["target"]["relevance"], valid)
        names = ("example_id", "document_id")
        meaning = dict(np.stack([batch["target"][name][valid] for name in names], axis=1).tolist())
        english = [store.text(int(row)).title for row in rows]
        for one in range(12):
            for other in range(12):
                same = both[0][one] == both[0][other]
                assert (meaning[one] == meaning[other]) == same
                assert same or english[one] != english[other]


def test_a_sentence_a_row_has_both_sides_of_a_pair_in_the_same_row(folder):
    shape = token_groups.Rows(12, SIDE, 1)
    batch = make(folder, source_rows=shape, target_rows=shape).batch(3)
    np.testing.assert_array_equal(batch["source"]["example_id"][:, 0], np.arange(12))
    np.testing.assert_array_equal(batch["target"]["example_id"][:, 0], np.arange(12))


def test_each_process_gets_its_rows_of_the_same_batch(folder):
    shape = token_groups.Rows(6, 32, 8)
    pipeline = make(folder, source_rows=shape, target_rows=token_groups.Rows(12, SIDE, 1))
    whole = pipeline.batch(4)
    parts = [pipeline.batch(4, np.array(rows)) for rows in ([0, 1, 2], [3, 4, 5])]
    for group, features in whole.items():
        for name, array in features.items():
            joined = np.concatenate([part[group][name] for part in parts])
            np.testing.assert_array_equal(joined, array)
            shape, dtype = pipeline.specs()[group][name]
            assert array.shape == shape and array.dtype == dtype


@pytest.mark.parametrize(("exponent", "shares"), [(1.0, [40, 10, 3]), (0.0, [18, 18, 17])])
def test_languages_have_their_shares_and_every_sentence_its_turn(folder, exponent, shares):
    pipeline = make(folder, exponent=exponent)
    assert [shown for _, _, shown in pipeline.languages] == shares
    rows = np.concatenate([pipeline.chosen(step) for step in range(53 * 5 // 12)])
    epoch = np.sort(rows[:53])
    ends = np.cumsum(list(COUNTS.values()))
    counts = collections.Counter(np.searchsorted(ends, epoch, side="right").tolist())
    assert [counts[n] for n in range(3)] == shares
    assert set(rows.tolist()) == set(range(53))
    smoothed = make(folder, exponent=0.3).languages
    assert smoothed[0][2] > smoothed[1][2] > smoothed[2][2] > 53 * 3 / 53


def test_the_same_rows_are_text_of_smoothed_languages(folder):
    settings = {"weights": None, "seed": 1, "rows": 4, "length": 32, "segments": 8, "block": 30}
    stores = [str(folder / "store")]
    even = Pipeline(stores, temperature=1e9, by_language=True, **settings)
    assert even.plan.quotas.tolist() == [18, 18, 17]
    assert even.fingerprint != Pipeline(stores, temperature=1.0, **settings).fingerprint
    store = TokenStore.open(stores[0])
    for row, tokens in sentences(even.batch(3)["text"]).items():
        assert tokens == store.read(np.array([row])).tokens.tolist()


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_side_alone_is_encoded_in_the_order_of_the_rows(folder, side):
    settings = {"segment_length": 6, "tokenizer": str(folder / "tokenizer")}
    source = TranslationSide(str(folder / "store"), side, 20, 4, 5, **settings)
    store = TokenStore.open(str(folder / "store"))
    assert source.ids == store.ids and source.layout == "text"
    found = {}
    for group in source.batches():
        found |= sentences(group)
    for row in range(len(store)):
        told = store.text(row)
        words = told.title if side == "source" else told.text
        (alone,) = tokenizer(folder).encode_batch([words], 6)
        assert found[row] == alone.tokens.tolist()
    few = TranslationSide(str(folder / "store"), side, 20, 4, 5, each=2, **settings)
    assert few.ids == [store.ids[row] for row in (0, 20, 40, 45, 50, 52)]
    long = settings | {"segment_length": 20}
    assert TranslationSide(str(folder / "store"), side, 20, 4, 5, **long).segment_length == SIDE
    other = {"source": "target", "target": "source"}[side]
    theirs = TranslationSide(str(folder / "store"), other, 20, 4, 5, **settings)
    assert theirs.fingerprint != source.fingerprint
    with pytest.raises(ValueError, match="expected one of"):
        TranslationSide(str(folder / "store"), "both", 20, 4, 5, **settings)


def test_the_order_follows_from_seed_and_step_alone(folder):
    first, again, other = make(folder), make(folder), make(folder, seed=4)
    np.testing.assert_array_equal(first.chosen(9), again.chosen(9))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert not np.array_equal(first.chosen(9), other.chosen(9))
    batches = first.batches(2)
    for step in (2, 3):
        np.testing.assert_array_equal(
            next(batches)["source"]["tokens"], first.batch(step)["source"]["tokens"]
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 54}, "expected 54 translations for a batch, found 53"),
        ({"batch": 1}, "its loss would be 0"),
        ({"length": 9}, "length: expected 2 to 8"),
        (
            {
                "length": 9,
                "source_rows": token_groups.Rows(12, 9, 1),
                "target_rows": token_groups.Rows(12, 9, 1),
            },
            "expected at most 8, at which the sides",
        ),
        ({"exponent": 1.5}, "exponent: expected 0 to 1"),
        ({"source_rows": token_groups.Rows(8, SIDE, 1)}, "multiple of the other's, found 8 and 12"),
        (
            {
                "source_rows": token_groups.Rows(2, 16, 2),
                "target_rows": token_groups.Rows(2, 16, 2),
            },
            r"source_rows: 12 sentences need up to \d rows",
        ),
    ],
)
def test_what_does_not_fit_is_refused(folder, changes, message):
    with pytest.raises(ValueError, match=message):
        make(folder, **changes)


def test_stores_of_other_rows_are_refused(folder, tmp_path):
    fingerprint = tokenizer(folder).fingerprint
    store = write_store(tmp_path / "plain", [5] * 20, fingerprint=fingerprint)
    with pytest.raises(StoreError, match="expected translations, .* found rows of layout 'text'"):
        TranslationPairs(
            str(store), batch=2, length=4, source_rows=token_groups.Rows(2, 4, 1),
            target_rows=token_groups.Rows(2, 4, 1), exponent=1.0, seed=0,
            tokenizer=str(folder / "tokenizer"),
        )  # fmt: skip
    store = write_store(tmp_path / "mixed", [5] * 4, fingerprint=fingerprint, prefix="en_de/")
    opened = TokenStore.open(str(store))
    assert translation_rows.language_runs(opened) == [("en_de", 0, 4)]
    opened.ids[1] = "en_fr/x"
    with pytest.raises(StoreError, match=re.escape("expected the rows of 'en_de' together")):
        translation_rows.language_runs(opened)
    opened.ids[1] = "no language"
    with pytest.raises(StoreError, match="found 'no language' in row 1"):
        translation_rows.language_runs(opened)


def test_sides_that_do_not_fit_a_row_are_refused(folder):
    with pytest.raises(ValueError, match="side: expected from 3 to 5"):
        Translations(6).rows([], tokenizer(folder), 10, "")
