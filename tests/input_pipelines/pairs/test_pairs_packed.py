"""Packed pairs: the same texts as unpacked, fewer rows, the same loss."""

import dataclasses
import itertools
import json
from typing import Any

import jax
import numpy as np
import pytest
from absl import logging
from flax import nnx

from input_pipelines.batches import token_groups
from input_pipelines.pairs import pair_packing, pair_sampler
from input_pipelines.pairs.retriever_batches import PairsPipeline
from models.losses import contrastive
from models.objectives import bi_encoder
from t5x_style.interfaces.objective import GroupShape, check_batch
from tests.kits import tiny_models
from tests.kits.tiny_stores import realistic_lengths, write_store
from tests.parity import parity_kit

QUERIES, PASSAGES, BATCH, GROUP = 90, 120, 8, 3
QUERY_LENGTH, PASSAGE_LENGTH = 10, 24
PACKED = {"query_rows": token_groups.Rows(8, 16, 4), "passage_rows": token_groups.Rows(8, 72, 8)}

Stores = tuple[str, str, str]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    root = tmp_path_factory.mktemp("packed")
    rng = np.random.default_rng(3)
    queries = write_store(root / "q", rng.integers(3, 13, QUERIES).tolist(), prefix="q")
    lengths = realistic_lengths(PASSAGES, longest=30)
    passages = write_store(root / "p", lengths.tolist())
    with (root / "negatives.jsonl").open("w") as f:
        for row in range(QUERIES):
            names = [f"p{i}" for i in rng.permutation(PASSAGES)[: rng.integers(2, 7)]]
            record = {"positive_ids": names[:1], "negative_ids": names[1:]}
            f.write(json.dumps({"query_id": f"q{row}", **record}) + "\n")
    return str(queries), str(passages), str(root / "negatives.jsonl")


def make(stores: Stores, **changes: Any) -> PairsPipeline:
    """Packed unless other rows are given."""
    arguments: dict[str, Any] = {
        "batch": BATCH,
        "group_size": GROUP,
        "query_length": QUERY_LENGTH,
        "passage_length": PASSAGE_LENGTH,
        "seed": 5,
        **PACKED,
    }
    return PairsPipeline(*stores, **{**arguments, **changes})


def unpacked(stores: Stores, **changes: Any) -> PairsPipeline:
    return make(
        stores,
        query_rows=token_groups.Rows(BATCH, QUERY_LENGTH, 1),
        passage_rows=token_groups.Rows(BATCH * GROUP, PASSAGE_LENGTH, 1),
        **changes,
    )


def texts(group: dict[str, np.ndarray]) -> list[tuple]:
    """Everything that belongs to each text of a group, sorted."""
    found = []
    for row, segment in np.argwhere(group["segment_valid"]):
        inside = group["segment_ids"][row] == segment + 1
        assert group["cls_at"][row, segment] == np.flatnonzero(inside)[0]
        assert group["positions"][row, inside].tolist() == list(range(inside.sum()))
        named = [group[n][row, segment] for n in ("example_id", "relevance", "document_id")
                 if n in group]  # fmt: skip
        found.append((*map(int, named), tuple(group["tokens"][row, inside].tolist())))
    return sorted(found)


def test_packed_and_unpacked_hold_the_same_texts(stores: Stores) -> None:
    packed, plain = make(stores), unpacked(stores)
    for step in (0, 7, 30):
        one, other = packed.batch(step), plain.batch(step)
        assert {g: {f: (x.shape, x.dtype) for f, x in one[g].items()} for g in one} == (
            packed.specs()
        )
        for group, count in (("query", BATCH), ("passage", BATCH * GROUP)):
            assert len(texts(one[group])) == count
            assert texts(one[group]) == texts(other[group])
        free = ~one["passage"]["segment_valid"]
        assert free.any() and not one["passage"]["relevance"][free].any()
        assert (one["passage"]["document_id"][free] == token_groups.NONE).all()


@pytest.mark.parametrize(("batch", "seed"), [(8, 0), (13, 1), (45, 2)])
def test_an_epoch_shows_every_query_once(
    stores: Stores, batch: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_sampler, "BLOCK", 20)  # several blocks in an epoch
    rows = {
        "query_rows": token_groups.Rows(batch, 16, 4),
        "passage_rows": token_groups.Rows(3 * batch, 32, 2),
    }
    pipeline = make(stores, batch=batch, seed=seed, **rows)
    steps = pipeline.plan.steps_per_epoch
    assert steps == QUERIES // batch
    for epoch in range(2):
        seen = np.concatenate(
            [
                batch["example_id"][batch["segment_valid"]]
                for batch in (pipeline.batch(epoch * steps + i)["query"] for i in range(steps))
            ]
        )
        assert len(seen) == steps * batch == len(set(seen.tolist()))


def test_resume_and_processes_agree_and_read_only_their_rows(stores: Stores) -> None:
    whole = [make(stores).batch(step) for step in range(4)]
    for step, batch in enumerate(itertools.islice(make(stores).batches(2), 2), 2):
        assert_same(batch, whole[step])
    parts = []
    for rows in (np.arange(5), np.arange(5, 8)):
        pipeline = make(stores)
        parts.append(pipeline.batch(3, rows))
        for store, group in ((pipeline.query_store, "query"), (pipeline.passage_store, "passage")):
            assert store.records_read == parts[-1][group]["segment_valid"].sum()
    joined = {
        g: {f: np.concatenate([part[g][f] for part in parts]) for f in parts[0][g]}
        for g in parts[0]
    }
    assert_same(joined, whole[3])


def assert_same(a: dict, b: dict) -> None:
    for group in b:
        for feature in b[group]:
            np.testing.assert_array_equal(a[group][feature], b[group][feature], err_msg=feature)


def test_steps_hold_nearly_the_same_number_of_tokens(stores: Stores) -> None:
    pipeline = make(stores)
    steps = range(pipeline.plan.steps_per_epoch)
    tokens = np.array([(pipeline.batch(s)["passage"]["segment_ids"] > 0).sum() for s in steps])
    lengths = np.minimum(pipeline.passage_store.lengths, PASSAGE_LENGTH)
    of_pairs = [lengths[pipeline.plan.choose(step)[1]].sum(axis=1) for step in steps]
    by_chance = np.sqrt(BATCH) * np.concatenate(of_pairs).std()
    assert tokens.std() < by_chance / 4
    shares = pipeline.plan.padding_shares(steps)
    assert shares[1] == pytest.approx(1 - tokens.mean() / (8 * 72))


def test_too_few_rows_are_refused_with_a_number_that_works(stores: Stores) -> None:
    rows = token_groups.Rows(4, 72, 8)
    with pytest.raises(ValueError, match=r"passage_rows: 8 queries with 3 .*found 4\. Give") as e:
        make(stores, passage_rows=rows)
    enough = int(str(e.value).split("Give it ")[1].split(",")[0])
    enough += -enough % 8  # queries have 8 rows
    assert make(stores, passage_rows=dataclasses.replace(rows, rows=enough)).batch(0)


def test_a_query_that_does_not_fit_waits_and_is_reported(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_packing, "PROBE", 0)  # as if only a later step needed more rows
    said: list[str] = []
    monkeypatch.setattr(logging, "warning", lambda text, *values: said.append(text % values))
    pipeline = make(stores, passage_rows=token_groups.Rows(4, 72, 8))
    batch = pipeline.batch(0)
    queries, passages = texts(batch["query"]), texts(batch["passage"])
    assert 1 < len(queries) < BATCH and len(passages) == GROUP * len(queries)
    assert {text[0] for text in queries} == {text[0] for text in passages}
    assert f"step 0: {BATCH - len(queries)} of 8 queries do not fit" in said[-1]
    narrow = make(
        stores, query_rows=token_groups.Rows(1, 16, 1), passage_rows=token_groups.Rows(1, 24, 1)
    )
    with pytest.raises(ValueError, match="step 0: not one of the queries fits its rows"):
        narrow.batch(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"query_rows": token_groups.Rows(8, 9, 4)},
            "query_length: expected room .* at most 9, the",
        ),
        (
            {"query_rows": token_groups.Rows(12, 16, 4)},
            "12 rows of queries, 8 of passages: expected a multiple of 8, .* the next is 16",
        ),
    ],
)
def test_rows_that_cannot_be_are_refused(stores: Stores, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(stores, **change)
    with pytest.raises(ValueError, match="at least 1 row"):
        token_groups.Rows(0, 8, 1)


def test_the_fingerprint_follows_the_rows(stores: Stores) -> None:
    other = {"passage_rows": token_groups.Rows(8, 72, 7)}
    assert len({make(stores).fingerprint, make(stores, **other).fingerprint,
                unpacked(stores).fingerprint}) == 3  # fmt: skip


def objective(pipeline: PairsPipeline) -> bi_encoder.BiEncoder:
    shapes = [
        GroupShape(*dataclasses.astuple(rows))
        for rows in (pipeline.plan.query_rows, pipeline.plan.passage_rows)
    ]
    vocabulary = dataclasses.replace(tiny_models.VOCABULARY, size=300)
    config = dataclasses.replace(tiny_models.CONFIG, vocab_size=300)
    embedding = dataclasses.replace(tiny_models.EMBEDDING, normalise=True, temperature=0.1)
    plain = contrastive.ContrastiveConfig()
    module = bi_encoder.BiEncoder(config, embedding, vocabulary, *shapes, plain, rngs=nnx.Rngs(0))
    check_batch(module.batch_specs()[0], pipeline.batch(0), "the test")
    return module


@pytest.mark.slow
def test_packed_and_unpacked_give_the_same_loss_and_gradients(stores: Stores) -> None:
    plain, packed = unpacked(stores), make(stores)
    expected, gradients = parity_kit.value_and_gradients(objective(plain), plain.batch(2))
    found, others = parity_kit.value_and_gradients(objective(packed), packed.batch(2))
    assert found == pytest.approx(expected, rel=1e-5)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(others[name], gradient, atol=1e-5, rtol=1e-4, err_msg=name)


def test_rows_repeated_to_find_who_is_to_blame_are_a_batch(stores: Stores) -> None:
    pipeline = make(stores)
    batch = pipeline.batch(2, np.resize([1], 8))
    loss, _ = objective(pipeline).loss(batch, jax.random.key(0))
    assert np.isfinite(float(loss.value()))
    assert (batch["query"]["example_id"] == batch["query"]["example_id"][0]).all()
