"""What a MARGE is fine-tuned on: targets and the evidence that belongs to them, by name."""

import numpy as np
import pytest

from input_pipelines.marge.chunk_layout import language_ids
from input_pipelines.marge.supervised_pairs import WrittenPairs
from input_pipelines.sources import text_sources
from input_pipelines.store import layouts, prepare
from input_pipelines.store.token_store import StoreError
from tests.kits import chunk_stores

NAMES = "abcdef"
STEPS = 8  # more than show every row
LONG = " ".join(f"wort{n}" for n in range(40))


def _documents():
    told = {}
    for name in NAMES:
        told |= {
            f"de/news/{name}": f"{name} {LONG}",
            f"en/news/{name}": f"{name} one two three",
            f"en/summaries/{name}": f"{name} short",
        }
    return told | {"fr/news/z": "un deux trois"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    tokenizer = chunk_stores.make_tokenizer(folder / "t", _documents(), ["de", "en", "fr"])
    return chunk_stores.make_store(folder / "s", _documents(), tokenizer), tokenizer


def _pairs(made, pairs, read="chunk", evidence=1, **changes):
    store, tokenizer = made
    sizes = {"rows": 2, "length": 64, "segments": 4, "chunk_length": 16, "seed": 3} | changes
    return WrittenPairs(
        store, pairs=pairs, read=read, evidence=evidence, tokenizer=tokenizer, **sizes
    )


def _together(pipeline, steps):
    """(target's id, ids of its evidence) of all sub-batches in some steps."""
    found = []
    for step in range(steps):
        batch = pipeline.batch(step)
        ids = np.array([*pipeline.store.ids, ""])
        for row in range(len(batch["target"]["sub_batch"])):
            for number in np.unique(batch["target"]["sub_batch"][row]):
                if number >= 0:
                    sides = (
                        ids[batch[side]["example_id"][row][batch[side]["sub_batch"][row] == number]]
                        for side in ("target", "evidence")
                    )
                    targets, evidence = (side.tolist() for side in sides)
                    found.append((targets, evidence))
    return found


def test_a_chunk_is_written_from_the_same_chunk_in_the_other_language(made):
    pipeline = _pairs(made, [("en", "de")])
    assert pipeline.counts == {"en -> de": len(NAMES)}  # the English ones have a chunk each
    for targets, evidence in _together(pipeline, STEPS):
        (target,), (given,) = targets, evidence
        assert target.replace("de/", "en/", 1) == given
        assert target.endswith("#0")


def test_a_summary_is_written_from_the_first_chunks_of_a_document(made):
    pipeline = _pairs(made, [("de/news", "en/summaries")], "document", 3)
    seen = _together(pipeline, STEPS)
    assert {targets[0] for targets, _ in seen} <= {f"en/summaries/{name}#0" for name in NAMES}
    for targets, evidence in seen:
        name = targets[0].rpartition("/")[2][0]
        assert evidence == [f"de/news/{name}#{n}" for n in range(3)]


def test_targets_begin_with_the_token_of_their_language(made):
    pipeline = _pairs(made, [("de", "en"), ("en", "de")])
    tokens = dict(zip("de en".split(), language_ids(made[1], ("de", "en")), strict=True))
    for step in range(STEPS):
        target = pipeline.batch(step)["target"]
        for place in np.argwhere(target["example_id"] >= 0):
            name = pipeline.store.ids[target["example_id"][tuple(place)]]
            assert target["language"][tuple(place)] == tokens[name[:2]]


def test_the_same_arguments_give_the_same_batches_and_others_another_fingerprint(made):
    one, other = (_pairs(made, [("en", "de")]) for _ in range(2))
    for side in ("target", "evidence"):
        for name, array in one.batch(5)[side].items():
            np.testing.assert_array_equal(array, other.batch(5)[side][name])
    assert one.fingerprint == other.fingerprint
    assert one.fingerprint != _pairs(made, [("de", "en")]).fingerprint
    assert one.fingerprint != _pairs(made, [("en", "de")], seed=4).fingerprint


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("en", "xx")], r"expected documents of 'xx', found those of \['de/news'"),
        ([("en", "fr")], "in 'en' and 'fr', found 12 and 1 that share none"),
        ([("en", "en")], "that are not the same"),
        ([("de/news", "en")], "two of LANGUAGE/SHARD"),
        ([], "expected one or more, found none"),
        ([("en", "de"), ("de", "en"), ("en", "de")], r"each pair once, found \[\('en', 'de'\)\]"),
    ],
)
def test_collections_that_do_not_belong_together_are_refused(made, pairs, message):
    with pytest.raises((ValueError, StoreError), match=message):
        _pairs(made, pairs)


def test_sizes_that_do_not_fit_are_refused(made):
    with pytest.raises(ValueError, match="expected read 'chunk' with evidence 1"):
        _pairs(made, [("en", "de")], "chunk", 2)
    with pytest.raises(ValueError, match="expected rows for 5 chunks of up to 16 tokens"):
        _pairs(made, [("de/news", "en/summaries")], "document", 5)
    with pytest.raises(StoreError, match="chunks of up to 12 tokens, CHUNK_LENGTH, found 16"):
        _pairs(made, [("en", "de")], chunk_length=12)
    with pytest.raises(StoreError, match="expected pairs for 20 rows"):
        _pairs(made, [("en", "de")], rows=20)


def test_a_store_of_something_else_is_refused(made, tmp_path):
    chunk_stores.write(tmp_path / "d.jsonl", _documents())
    source = text_sources.Jsonl([str(tmp_path / "d.jsonl")], ["id"], "title", "text", "", 100_000)
    prepare.prepare(
        str(tmp_path),
        source,
        made[1],
        "d",
        "train",
        "passage",
        16,
        "",
        100,
        1,
        0,
        layouts.WHOLE_TEXTS,
    )
    with pytest.raises(StoreError, match="expected chunks, prepared with"):
        _pairs((str(tmp_path / "store"), made[1]), [("en", "de")])
