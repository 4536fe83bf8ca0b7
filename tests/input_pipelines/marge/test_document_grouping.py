"""Which documents are put together, and which of them are written from which."""

import itertools

import numpy as np
import pytest

from input_pipelines.batches.token_groups import NONE
from input_pipelines.marge import document_grouping
from input_pipelines.marge.document_grouping import Links, SubBatchRules, Texts

RULES = SubBatchRules(documents=4)


def _texts(count, document=None, language=None, vectors=None):
    """Vectors are all at right angles unless they are given."""
    return Texts(
        np.arange(count) if document is None else np.asarray(document),
        np.zeros(count, int) if language is None else np.asarray(language),
        np.ones(count, bool),
        np.eye(count, dtype=np.float32) if vectors is None else vectors,
    )


def _random(seed, count=80, documents=40, languages=3, k=6):
    """Texts, many almost copies of each other, some neighbours of each, and all cosines."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, 6)).repeat(4, axis=0)[:count]
    vectors = vectors + rng.normal(size=(count, 6)) * rng.choice([0.1, 0.6], (count, 1))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    texts = Texts(
        rng.integers(0, documents, count),
        rng.integers(0, languages, count),
        rng.random(count) < 0.7,
        vectors.astype(np.float32),
    )
    cosine = vectors @ vectors.T
    allowed = texts.document[:, None] != texts.document
    order = np.argsort(-np.where(allowed, cosine, -np.inf), axis=1)[:, :k]
    return texts, order, np.take_along_axis(cosine, order, axis=1), cosine


def _sets(found):
    return [
        (targets[targets != NONE].tolist(), evidence[evidence != NONE].tolist())
        for targets, evidence in zip(found.targets, found.evidence, strict=True)
    ]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "rules",
    [
        RULES,
        SubBatchRules(documents=2, least=0.3),
        SubBatchRules(documents=6, least=0.1, near_duplicate=0.9, other_language=0.5),
    ],
)
def test_what_holds_of_every_plan(seed, rules):
    texts, neighbours, cosines, cosine = _random(seed)
    found = document_grouping.build(texts, neighbours, cosines, rules, seed=1, version=seed)
    used = []
    for targets, evidence in _sets(found):
        together = targets + evidence
        assert targets and evidence and len(together) <= rules.documents
        assert len(set(texts.document[together])) == len(together), "no document twice"
        assert texts.may_be_target[targets].all()
        for one, other in itertools.combinations(together, 2):
            same_language = texts.language[one] == texts.language[other]
            copies = rules.near_duplicate is not None and cosine[one, other] > rules.near_duplicate
            assert not (same_language and copies), "no two copies"
        for target in targets:
            best = max(cosine[target, evidence])
            assert best >= rules.least, "each target has evidence that resembles it"
        used += together
    assert len(used) == len(set(used)), "no chunk is in two sub-batches"
    counts = found.counts
    assert counts["targets"] + counts["evidence"] == len(used)
    assert counts["sub_batches"] == len(found.targets)


def test_links_have_the_thresholds_and_weigh_other_languages_more():
    texts = _texts(4, language=[0, 0, 1, 1])
    neighbours = np.array([[1, 2], [0, 3], [0, 3], [2, NONE]])
    cosines = np.array([[0.95, 0.6], [0.95, 0.2], [0.6, 0.97], [0.97, 0.0]])
    rules = SubBatchRules(least=0.3, near_duplicate=0.96, other_language=0.25)
    found = document_grouping.links(texts, neighbours, cosines, rules)
    # 1-3 is below the least, 2-3 are copies of each other.
    np.testing.assert_array_equal(found.pairs, [[0, 1], [0, 2]])
    np.testing.assert_allclose(found.weights, [0.65, 0.3 + 0.25])


def test_copies_in_two_languages_are_evidence_for_each_other():
    texts = _texts(2, language=[0, 1])
    rules = SubBatchRules(near_duplicate=0.9)
    found = document_grouping.links(texts, np.array([[1], [0]]), np.ones((2, 1)), rules)
    np.testing.assert_array_equal(found.pairs, [[0, 1]])


def test_copies_are_kept_apart_where_a_third_text_is_linked_to_both():
    near, far = np.sqrt(1 - 0.8**2), np.sqrt(1 - 0.7**2)
    vectors = np.array([[0.8, near, 0], [0.7, far, 0], [1, 0, 0]], np.float32)
    texts = _texts(3, language=[0, 0, 1], vectors=vectors)
    neighbours = np.array([[1, 2], [0, 2], [0, 1]])
    cosines = np.array([[0.99, 0.8], [0.99, 0.7], [0.8, 0.7]])
    rules = SubBatchRules(documents=4, near_duplicate=0.95)
    found = document_grouping.links(texts, neighbours, cosines, rules)
    np.testing.assert_array_equal(found.pairs, [[0, 2], [1, 2]])
    assert document_grouping.group(found, texts, rules) == [[0, 2]]
    assert document_grouping.group(found, texts, RULES) == [[0, 1, 2]]


def test_chunks_of_one_document_are_never_linked():
    texts = _texts(3, document=[0, 0, 1])
    found = document_grouping.links(
        texts, np.array([[1, 2], [0, 2], [0, 1]]), np.ones((3, 2)), RULES
    )
    np.testing.assert_array_equal(found.pairs, [[0, 2], [1, 2]])


def test_the_heaviest_are_merged_first_and_sums_count():
    # 0-1 is the heaviest. 2 has a lighter link with each of them: together heavier than 2-3.
    pairs = np.array([[0, 1], [0, 2], [1, 2], [2, 3]])
    found = Links(pairs, np.array([1.0, 0.5, 0.5, 0.9]))
    groups = document_grouping.group(found, _texts(4), SubBatchRules(documents=3))
    assert groups == [[0, 1, 2]]
    alone = Links(pairs, np.array([1.0, 0.4, 0.4, 0.9]))
    assert document_grouping.group(alone, _texts(4), SubBatchRules(documents=3)) == [[0, 1], [2, 3]]


@pytest.mark.parametrize("seed", range(3))
def test_merging_is_that_of_plain_loops(seed):
    texts, neighbours, cosines, _ = _random(seed, count=30, documents=20)
    found = document_grouping.links(texts, neighbours, cosines, RULES)
    weight = {tuple(pair): w for pair, w in zip(found.pairs.tolist(), found.weights, strict=True)}
    groups = [[n] for n in np.unique(found.pairs).tolist()]

    def between(one, other):
        return sum(weight.get((min(a, b), max(a, b)), 0.0) for a in one for b in other)

    def fits(both):
        return len(both) <= 4 and len(set(texts.document[both])) == len(both)

    while True:
        possible = [
            (between(one, other), one, other)
            for one, other in itertools.combinations(groups, 2)
            if fits(one + other)
        ]
        best = max(possible, key=lambda found: found[0], default=(0.0, [], []))
        if best[0] <= 0:
            break
        groups = [g for g in groups if g not in best[1:]] + [best[1] + best[2]]
    expected = sorted(sorted(g) for g in groups if len(g) > 1)
    assert sorted(document_grouping.group(found, texts, RULES)) == expected


def test_targets_change_with_the_version_and_nothing_else():
    texts, neighbours, cosines, _ = _random(0)
    plans = [
        document_grouping.build(texts, neighbours, cosines, RULES, seed=1, version=version)
        for version in (0, 0, 1)
    ]
    np.testing.assert_array_equal(plans[0].targets, plans[1].targets)
    np.testing.assert_array_equal(plans[0].evidence, plans[1].evidence)
    targets = [set(plan.targets[plan.targets != NONE].tolist()) for plan in plans]
    assert targets[0] != targets[2]
    found = document_grouping.links(texts, neighbours, cosines, RULES)
    groups = list(map(set, document_grouping.group(found, texts, RULES)))
    for made in plans:
        for sides in _sets(made):
            assert any(set(sides[0] + sides[1]) <= members for members in groups)


def test_what_may_not_be_a_target_is_evidence_for_what_may():
    always, neighbours, cosines, _ = _random(3)
    always = always._replace(may_be_target=np.ones(80, bool))
    texts = always._replace(may_be_target=np.random.default_rng(0).random(80) < 0.4)
    for version in range(4):
        made, of_all = (
            document_grouping.build(one, neighbours, cosines, RULES, seed=1, version=version)
            for one in (texts, always)
        )
        read = made.evidence[made.evidence != NONE]
        assert (~texts.may_be_target[read]).any()
        assert of_all.counts["without_target"] == 0
        # Few groups are lost: a side is dealt out so that one that may is the target.
        assert made.counts["sub_batches"] > 0.6 * of_all.counts["sub_batches"]
    nobody = texts._replace(may_be_target=np.zeros(80, bool))
    none = document_grouping.build(nobody, neighbours, cosines, RULES, seed=1, version=0)
    assert none.counts["targets"] == 0 < none.counts["without_target"]


def test_without_similarity_above_the_least_there_is_no_plan():
    texts = _texts(4)
    neighbours = np.array([[1], [0], [3], [2]])
    rules = SubBatchRules(least=0.9)
    found = document_grouping.build(
        texts, neighbours, np.full((4, 1), 0.5), rules, seed=0, version=0
    )
    assert found.targets.shape == (0, 3)
    assert found.counts["without_link"] == 4 and found.counts["targets"] == 0


def test_a_target_that_is_linked_to_no_evidence_is_left_out_and_counted():
    # 0 and 1 are linked, 2 to 1 alone: where 1 is a target, 2 is evidence; 0 and 2 share no link.
    found = Links(np.array([[0, 1], [1, 2]]), np.array([1.0, 1.0]))
    for version in range(8):
        targets, evidence, left_out = document_grouping.divide(
            [[0, 1, 2]], found, _texts(3), RULES, 0, version
        )
        chosen = set(targets[targets != NONE].tolist())
        assert chosen in ({1}, {0, 2}) or left_out
        for target in chosen:
            assert any({target, e} in ({0, 1}, {1, 2}) for e in evidence[evidence != NONE].tolist())


def test_an_identical_shard_is_grouped_all_the_same():
    texts = _texts(8, vectors=np.ones((8, 1), np.float32))
    neighbours = np.array([[m for m in range(8) if m != n][:4] for n in range(8)])
    found = document_grouping.build(texts, neighbours, np.ones((8, 4)), RULES, seed=0, version=0)
    assert found.counts["targets"] >= 2
    copies = SubBatchRules(near_duplicate=0.99)
    none = document_grouping.build(texts, neighbours, np.ones((8, 4)), copies, seed=0, version=0)
    assert none.counts["without_link"] == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"documents": 1}, "2 or more, a target and its evidence, found 1"),
        ({"least": 2.0}, "expected a cosine, found 2.0"),
        ({"least": 0.5, "near_duplicate": 0.5}, r"above least \(0.5\) and at most 1"),
        ({"near_duplicate": 1.5}, "at most 1"),
        ({"other_language": -0.1}, "0 or more, found -0.1"),
    ],
)
def test_rules_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SubBatchRules(**settings)
