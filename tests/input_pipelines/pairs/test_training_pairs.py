"""Batches of a mixture of pairs: what is in a step, and rows that follow from the data."""

import dataclasses
import itertools
import re

import numpy as np
import pytest
from flax import nnx

from input_pipelines.batches import token_groups
from input_pipelines.pairs import pair_mixture, pair_rows
from models.losses import contrastive
from models.objectives import bi_encoder
from t5x_style.interfaces.objective import GroupShape, check_batch
from tests.kits import tiny_models
from tests.kits.pair_mixtures import (
    PASSAGES,
    QUERIES,
    SHAPE,
    Files,
    make,
    mixture,
    texts_of,
    unpacked,
    warnings_of,
    write_files,
)
from tests.parity import parity_kit


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("pairs"))


def assert_same(a: dict, b: dict) -> None:
    assert a.keys() == b.keys()
    for group in b:
        assert a[group].keys() == b[group].keys()
        for feature in b[group]:
            np.testing.assert_array_equal(a[group][feature], b[group][feature], err_msg=feature)


def test_packed_and_unpacked_hold_the_same_texts(files: Files) -> None:
    pairs = mixture(files)
    packed, plain = make(pairs), unpacked(pairs)
    for step in (0, 7, 40):
        one, other = packed.batch(step), plain.batch(step)
        found = {g: {f: (x.shape, x.dtype) for f, x in one[g].items()} for g in one}
        assert found == packed.specs()
        for group, count in (("query", 20), ("passage", 20 + 2 * 4)):
            assert len(texts_of(one[group])) == count
            assert texts_of(one[group]) == texts_of(other[group])
        free = ~one["passage"]["segment_valid"]
        assert not one["passage"]["relevance"][free].any()
        assert (one["passage"]["document_id"][free] == token_groups.NONE).all()
        query_ids = {text[0] for text in texts_of(one["query"])}
        relevant = one["passage"]["relevance"] == 1
        assert len(query_ids) == 20 == relevant.sum()
        assert query_ids == set(one["passage"]["example_id"][relevant].tolist())


def test_a_step_follows_from_seed_and_number_alone(files: Files) -> None:
    whole = [make(mixture(files)).batch(step) for step in range(4)]
    pair_mixture._opened.cache_clear()
    again = make(mixture(files))
    assert_same(again.batch(3), whole[3])
    batches = again.batches(2)
    for step, batch in enumerate(itertools.islice(batches, 2), 2):
        assert_same(batch, whole[step])
    batches.close()
    other = make(mixture(files, seed=6))
    assert texts_of(other.batch(3)["query"]) != texts_of(whole[3]["query"])
    assert other.fingerprint != again.fingerprint


def test_processes_share_a_step(files: Files) -> None:
    pipeline = make(mixture(files))
    base = min(pipeline.query_rows.rows, pipeline.passage_rows.rows)
    parts = [pipeline.batch(3, rows) for rows in np.array_split(np.arange(base), 2)]
    joined = {
        g: {f: np.concatenate([part[g][f] for part in parts]) for f in parts[0][g]}
        for g in parts[0]
    }
    assert_same(joined, pipeline.batch(3))


def test_weights_decide_how_many_and_epochs_show_everything_once(files: Files) -> None:
    opened = mixture(files).open()
    assert opened.counts == {
        "labelled": 4, "crops": 6, "two": 2, "sentences": 4, "titles": 2, "neighbours": 2,
    }  # fmt: skip
    crops = mixture(files, weights={"crops": 1}, batch=PASSAGES // 4).open()
    steps = [crops.step(step) for step in range(4)]
    seen = np.concatenate([step.document for step in steps])
    assert sorted(seen.tolist()) == list(range(PASSAGES))
    again = [crops.step(step).document.tolist() for step in range(4, 8)]
    assert again != [step.document.tolist() for step in steps]
    # The cut of a passage is drawn again.
    assert not np.array_equal(
        np.sort(crops.step(0).queries.lengths), np.sort(crops.step(4).queries.lengths)
    )


def test_labelled_pairs_bring_their_negatives_and_scores(files: Files) -> None:
    weights = {"labelled": 1, "crops": 1}
    pairs = mixture(files, weights=weights, batch=8, teacher=True)
    batch = make(pairs).batch(2)["passage"]
    valid = batch["segment_valid"]
    owners, counts = np.unique(batch["example_id"][valid], return_counts=True)
    assert counts.tolist() == [3] * 4 + [1] * 4 and (owners[:4] < QUERIES).all()
    labelled = valid & (batch["example_id"] < QUERIES)
    scores = batch["teacher_score"]
    assert np.isfinite(scores[labelled]).all() and np.isneginf(scores[~labelled]).all()
    assert (scores[labelled & (batch["relevance"] == 1)] < 2).all()


def test_documents_that_answer_a_query_are_known(files: Files) -> None:
    """Against a slow search; a second positive, the same title, and both ends of neighbours."""
    pairs = mixture(files, batch=60, group_size=1)
    opened = pairs.open()
    corpus, parts = opened.corpus, opened._parts
    reasons = set()
    for number in range(12):
        step = opened.step(number)
        positive = step.document[step.relevant]
        chosen = {name: part.choice.choose(number)[0] for name, part in parts.items()}
        names = [name for name, picked in chosen.items() for _ in picked]
        picked = np.concatenate(list(chosen.values()))
        asked = {
            int(parts["neighbours"].examples.pairs.queries[p]): int(d)
            for n, p, d in zip(names, picked, positive, strict=True) if n == "neighbours"
        }  # fmt: skip
        for i, (name, p, d) in enumerate(zip(names, picked, positive, strict=True)):
            known: dict[int, str] = {}
            if name == "labelled":
                known |= dict.fromkeys(parts[name].examples.pairs.positives[p].tolist(), name)
            if name == "titles":
                same = corpus.title_numbers == corpus.title_numbers[d]
                known |= dict.fromkeys(np.flatnonzero(same).tolist(), name)
            if name == "neighbours":
                known[int(parts[name].examples.pairs.queries[p])] = name
            if int(d) in asked:
                known[asked[int(d)]] = "asked by a neighbour"
            known = {row: why for row, why in known.items() if row in positive and row != d}
            assert set(step.known[i].tolist()) - {-1} == known.keys()
            reasons |= set(known.values())
    assert reasons == {"labelled", "titles", "neighbours", "asked by a neighbour"}


def test_too_little_room_for_known_documents_is_refused(files: Files) -> None:
    with pytest.raises(ValueError, match=r"known_positives: up to \d other .* found 0\. Bind KNOW"):
        make(mixture(files, batch=60), known_positives=0)
    assert pair_rows.known_positives(mixture(files, weights={"crops": 1})) == 0


def test_pairs_that_do_not_fit_are_left_out_and_reported(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = warnings_of(monkeypatch)
    monkeypatch.setattr(pair_mixture, "PROBE", 1)
    pair_mixture._opened.cache_clear()
    pipeline = make(mixture(files, batch=30))
    # As if only a later step needed more rows.
    pipeline.query_rows, pipeline._base = token_groups.Rows(5, 24, 4), 1
    batch = pipeline.batch(9)
    texts = {group: texts_of(batch[group]) for group in batch}
    assert 10 < len(texts["query"]) <= 20
    assert {t[0] for t in texts["query"]} == {t[0] for t in texts["passage"]}
    assert "step 9" in said[-1] and "of 30 pairs are left out this time" in said[-1]
    pair_mixture._opened.cache_clear()
    alone = make(mixture(files, weights={"labelled": 1}, batch=5))
    alone.passage_rows = token_groups.Rows(1, 48, 1)  # a query has three passages
    with pytest.raises(ValueError, match="step 0: not one of 5 pairs fits"):
        alone.batch(0)


def test_padding_above_thirty_percent_is_a_warning_with_rows_that_do(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = mixture(files)
    said = warnings_of(monkeypatch)
    make(pairs)
    assert said == []
    wide = {
        "query_rows": token_groups.Rows(20, 24, 1),
        "passage_rows": token_groups.Rows(40, 48, 1),
    }
    make(pairs, **wide)
    assert len(said) == 1
    found = re.search(
        r"padding is \d+ % of 20 query rows and \d+ % of 40 passage rows\. Enough are (\d+) query "
        r"rows of 24 tokens and 16 segments and (\d+) passage rows of 48 tokens and 16 segments",
        said[0],
    )
    assert found is not None
    query, passage = map(int, found.groups())
    rows = {
        "query_rows": token_groups.Rows(query, 24, 16),
        "passage_rows": token_groups.Rows(passage, 48, 16),
    }
    assert make(pairs, **rows).batch(0) and len(said) == 1


@pytest.mark.parametrize("multiple", [1, 4])
def test_rows_fit_and_divide(files: Files, multiple: int) -> None:
    pairs = mixture(files, batch=50)
    query, passage = (
        pair_rows.fitting_rows(pairs, side, **SHAPE, multiple=multiple) for side in pair_rows.SIDES
    )
    assert max(query, passage) % min(query, passage) == 0
    assert query % multiple == passage % multiple == 0
    shapes = {
        "query_rows": token_groups.Rows(query, 24, 4),
        "passage_rows": token_groups.Rows(passage, 48, 6),
    }
    pipeline = make(pairs, **shapes)
    batch = pipeline.batch(0)
    assert (batch["passage"]["segment_ids"] > 0).mean() > 0.7


def test_rows_that_cannot_be_are_refused(files: Files) -> None:
    pairs = mixture(files)
    with pytest.raises(ValueError, match=r"side: expected one of .*, found 'both'"):
        pair_rows.fitting_rows(pairs, "both", **SHAPE)
    with pytest.raises(ValueError, match=r"texts of 24 tokens .*passage_length.*rows of 20"):
        pair_rows.fitting_rows(pairs, "query", **{**SHAPE, "passage_row_length": 20})
    with pytest.raises(ValueError, match=r"passage_rows: 20 pairs need up to .* Give it"):
        make(
            pairs, passage_rows=token_groups.Rows(2, 24, 1), query_rows=token_groups.Rows(20, 24, 1)
        )
    with pytest.raises(ValueError, match=r"7 rows of queries, 20 .*the next is 21\. pair_rows"):
        make(
            pairs, query_rows=token_groups.Rows(7, 24, 4), passage_rows=token_groups.Rows(20, 48, 6)
        )


def test_a_bi_encoder_learns_from_a_batch(files: Files) -> None:
    """Packed and unpacked give the same loss and gradients, which reach every parameter."""
    pairs = mixture(files, weights={"crops": 2, "labelled": 1, "neighbours": 1}, batch=12)
    found = []
    for pipeline in (make(pairs), unpacked(pairs)):
        rows = (pipeline.query_rows, pipeline.passage_rows)
        shapes = [GroupShape(*dataclasses.astuple(one)) for one in rows]
        objective = bi_encoder.BiEncoder(
            dataclasses.replace(tiny_models.CONFIG, vocab_size=300),
            dataclasses.replace(tiny_models.EMBEDDING, normalise=True, temperature=0.1),
            dataclasses.replace(tiny_models.VOCABULARY, size=300),
            *shapes,
            contrastive.ContrastiveConfig(both_directions=True),
            known_positives=pipeline.known_positives,
            rngs=nnx.Rngs(0),
        )
        batch = pipeline.batch(0)
        check_batch(objective.batch_specs()[0], batch, "the test")
        found.append(parity_kit.value_and_gradients(objective, batch))
    (value, gradients), (other, others) = found
    assert value["loss"] == pytest.approx(other["loss"], rel=1e-5) and value["loss"] > 1
    for name, gradient in gradients.items():
        np.testing.assert_allclose(others[name], gradient, atol=1e-5, rtol=1e-4, err_msg=name)
        assert abs(gradient).max() > 0 or "mlm" in name or "head" in name, name
