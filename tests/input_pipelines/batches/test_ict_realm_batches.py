"""Sentences as queries: every one once an epoch, spans in place, any step on its own."""

import numpy as np
import pytest

from input_pipelines.batches import corpus_table, ict_realm_batches
from input_pipelines.sources.text_sources import Record
from input_pipelines.store import block_layout, prepare, salient_spans
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers import tokenization

LENGTH = 14
WORDS = "river bridge winter copper engine garden school market forest valley".split()


class Listed:
    """Thirty documents of four sentences; every other sentence names a year."""

    def records(self, bad):
        for number in range(30):
            said = [
                " ".join([WORDS[(number + i + k) % 10] for k in range(3 + i)]).capitalize()
                + (f" of {1900 + number}." if i % 2 else ".")
                for i in range(4)
            ]
            yield Record(f"d{number}", f"Topic {number}", " ".join(said), "")


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> TokenStore:
    path = tmp_path_factory.mktemp("blocks")
    tokenization.train_tokenizer(
        str(path), Listed(), 300, 200, 1, True, True, sample=0, seed=0, max_bad_records=0
    )
    prepare.prepare(
        str(path), Listed(), str(path / "tokenizer"), "passage", "all", "passage", 32, "", 8, 1, 0,
        block_layout.Blocks(salient_spans.Rules(titles=False)),
    )  # fmt: skip
    return TokenStore.open(str(path / "store"))


def salient(store, **changes):
    settings = {"rows": 8, "length": LENGTH, "spans": 2, "max_span_tokens": 6, "seed": 3}
    settings["corpus"] = corpus_table.StoreCorpus(store.folder)
    return ict_realm_batches.SalientSentences(store, **settings | changes)


def in_blocks(store, **changes):
    settings = {"rows": 8, "length": LENGTH, "block_length": 32, "seed": 3}
    return ict_realm_batches.SentencesInBlocks(store, **settings | changes)


def own_tokens(store, row, start, end):
    return store.read(np.array([row])).tokens[start:end].tolist()


def test_each_sentence_with_a_span_is_shown_once_an_epoch(store):
    pipeline = salient(store)
    table = store.table("spans")
    every = set(np.unique(table[:, 0]).tolist())
    assert len(every) == 60 and pipeline.plan.steps == 7
    for epoch in range(2):
        steps = range(epoch * 7, (epoch + 1) * 7)
        seen = np.concatenate([pipeline.batch(s)["query"]["example_id"][:, 0] for s in steps])
        assert len(set(seen.tolist())) == 56 and set(seen.tolist()) <= every
    first = pipeline.batch(0)["query"]["example_id"]
    assert (first != pipeline.batch(7)["query"]["example_id"]).any()


def test_a_row_is_its_sentence_and_its_spans_are_where_they_were(store):
    group = salient(store).batch(2)["query"]
    for row in range(8):
        number = int(group["example_id"][row, 0])
        block, start, end = store.table("sentences")[number].tolist()
        assert group["source_row"][row, 0] == block
        body = own_tokens(store, block, start, end)[: LENGTH - 2]
        real = group["segment_ids"][row] == 1
        assert group["tokens"][row][real].tolist() == [2, *body, 3]
        assert group["positions"][row][real].tolist() == list(range(len(body) + 2))
        spans = store.table("spans")[store.table("spans")[:, 0] == number]
        listed = list(zip(group["span_start"][row], group["span_end"][row], strict=True))
        for (a, b), (_, c, d) in zip(listed, spans.tolist(), strict=False):
            assert (a, b) == (c - start + 1, d - start + 1)
            assert group["tokens"][row, a:b].tolist() == own_tokens(store, block, c, d)
        assert listed[len(spans) :] == [(0, 0)] * (2 - len(spans))


def test_any_rows_of_any_step_are_those_of_the_whole_batch(store):
    for pipeline in (salient(store), in_blocks(store)):
        whole, part = pipeline.batch(5), pipeline.batch(5, np.array([6, 1]))
        for group, features in whole.items():
            for name, array in features.items():
                np.testing.assert_array_equal(part[group][name], array[[6, 1]], err_msg=name)
                shape, dtype = pipeline.specs()[group][name]
                assert (array.shape, array.dtype) == (shape, dtype), name
        ahead = pipeline.batches(4)
        next(ahead)
        np.testing.assert_array_equal(next(ahead)["query"]["tokens"], whole["query"]["tokens"])


def test_blocks_stand_beside_their_sentences(store):
    batch = in_blocks(store).batch(1)
    query, passage = batch["query"], batch["passage"]
    np.testing.assert_array_equal(query["example_id"], passage["example_id"])
    for row in range(8):
        start, end = passage["sentence_start"][row, 0], passage["sentence_end"][row, 0]
        inside = passage["tokens"][row, start:end].tolist()
        real = query["segment_ids"][row] == 1
        assert query["tokens"][row][real].tolist() == [2, *inside[: LENGTH - 2], 3]
        block = passage["document_id"][row, 0]
        own = own_tokens(store, block, 0, None)
        assert passage["tokens"][row, : len(own)].tolist() == own


def test_the_fingerprint_tells_what_decides_a_batch(store):
    kinds = [
        salient(store), salient(store, seed=4), salient(store, rows=4), salient(store, length=12),
        salient(store, spans=1), salient(store, require_spans=False), in_blocks(store),
        in_blocks(store, min_tokens=6),
    ]  # fmt: skip
    assert len({one.fingerprint for one in kinds}) == len(kinds)
    assert salient(store).fingerprint == kinds[0].fingerprint


def test_sentences_without_a_span_are_shown_where_none_is_needed(store):
    pipeline = salient(store, spans=0, require_spans=False)
    assert "span_start" not in pipeline.batch(0)["query"]
    assert pipeline.plan.steps == 15


def test_another_corpus_has_none_of_the_sentences(store, tmp_path):
    assert (salient(store, corpus=None).batch(0)["query"]["source_row"] == -1).all()
    prepare.prepare(
        str(tmp_path), Listed(), f"{store.folder}/../tokenizer", "passage", "all", "passage", 24,
        "", 8, 1, 0, block_layout.Blocks(None),
    )  # fmt: skip
    other = str(tmp_path / "store")
    with pytest.raises(StoreError, match="expected one store.*would be retrieved"):
        salient(store, corpus=corpus_table.StoreCorpus(other))
    without = ict_realm_batches.SalientSentences(
        other, rows=8, length=LENGTH, spans=2, max_span_tokens=6, seed=3, require_spans=False
    )
    assert not without.batch(0)["query"]["span_end"].any()


def test_too_few_sentences_say_how_many_have_no_span(store):
    with pytest.raises(StoreError, match="expected 61 sentences.*found 60.* 60 of 120 sentences"):
        salient(store, rows=61)
    with pytest.raises(StoreError, match="found 0 that can be used.* 120 of 120 sentences"):
        salient(store, max_span_tokens=1, length=4)
    with pytest.raises(StoreError, match="at most 20 tokens, found one of"):
        in_blocks(store, block_length=20)
    with pytest.raises(ValueError, match="expected spans of 0 or more"):
        salient(store, spans=0)
