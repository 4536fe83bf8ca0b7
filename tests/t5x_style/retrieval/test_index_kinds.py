"""Indexes of sparse and multi-vector representations: from a model to search, mining, evaluation.

One of the types is of the tests alone (`tests.kits.toys.inverted_index`).
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from t5x_style.build_index import build_index
from t5x_style.checkpoints.restored_model import Trained
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.encode_corpus import encode_corpus
from t5x_style.evaluation import retrieval_systems
from t5x_style.evaluation.evaluation_suite import EvaluationSuite
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.contract import ContractError
from t5x_style.interfaces.representation import (
    KINDS,
    Entries,
    RepresentationError,
)
from t5x_style.mining import candidates, hard_negatives
from t5x_style.retrieval import (
    embedding_shards,
    encoding,
    exact_index,
    hybrid,
    muvera_index,
    published_index,
    seismic_index,
    versioned_folder,
)
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.serving import searcher
from tests.kits import retrieval_helpers as helpers
from tests.kits.toys import inverted_index, three_kinds
from tests.kits.toys.random_entries import entries, plain_scores

COUNT = 50
TYPES = {
    "exact sparse": exact_index.ExactSparse(),
    "exact multi-vector": exact_index.ExactMultiVector(),
    "seismic": seismic_index.Seismic(query_cut=100, reorder=COUNT),
    "muvera": muvera_index.Muvera(candidates=COUNT),
    "of the tests": inverted_index.Inverted(),
}
TEXTS = three_kinds.texts(COUNT)
STORAGE = embedding_shards.Storage(shard_size=12, dtype="float32")


@pytest.fixture(scope="module")
def model() -> Trained:
    return three_kinds.trained(Partitioner(MeshShape(8, 1, 1)))


@pytest.fixture(scope="module")
def embedded(model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("embeddings")
    source = three_kinds.Texts(TEXTS)
    encode_corpus(model, source, "embed_passage", STORAGE, str(folder), KINDS)
    return folder


@pytest.fixture(name="name", scope="module", params=TYPES)
def each_type(request):
    return request.param


@pytest.fixture(scope="module")
def folder(name, embedded, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("index")
    build_index(str(embedded), TYPES[name], 1, 0.99, str(path))
    return path


@pytest.fixture(scope="module")
def index(folder):
    return published_index.load(folder)


def test_the_stage_builds_what_is_opened_again(name, index, folder, embedded, model):
    kind = TYPES[name].kind
    assert isinstance(index, index_lib.Index)
    assert (index.kind, index.recall, index.contract) == (kind, 1.0, model.contract)
    assert (list(index.ids), index.checkpoint) == ([f"p{n}" for n in range(50)], model.fingerprint)
    manifest = json.loads((versioned_folder.current(folder) / "manifest.json").read_text())
    assert (manifest["count"], "dimension" in manifest) == (50, False)
    # Texts without any entry are no queries.
    assert manifest["recall"]["sample"] == {"sparse": 43, "multi_vector": 32}[kind]
    queries = encoding.load_embeddings(embedded, kind).passages[:20]
    built = published_index.from_embeddings(str(embedded), TYPES[name])
    for ours, theirs in zip(built.search(queries, 7), index.search(queries, 7), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_hits_are_those_of_exact_search(name, index, embedded, model):
    kind = TYPES[name].kind
    passages = encoding.load_embeddings(embedded, kind).passages
    queries = model.encode("query", three_kinds.Texts(three_kinds.texts(23)[::-1]), kind)
    scores, rows = index.search(queries, 60)
    assert scores.dtype == np.float32 and rows.dtype == np.int32
    expected = plain_scores(kind, queries, passages[:])
    expected[expected == 0] = -np.inf  # a weight of 0
    best = np.argsort(-expected, axis=1, kind="stable")
    wanted = np.take_along_axis(expected, best, axis=1)
    np.testing.assert_allclose(scores[:, :50], wanted, rtol=1e-4, atol=1e-5)
    found = np.take_along_axis(expected, np.maximum(rows[:, :50], 0), axis=1)
    hit = np.isfinite(wanted)
    assert hit.sum() > 50 and all(len({*row[row >= 0]}) == (row >= 0).sum() for row in rows)
    np.testing.assert_allclose(found[hit], wanted[hit], rtol=1e-4, atol=1e-5)
    assert (rows[:, 50:] == index_lib.NO_ROW).all() and np.isneginf(scores[:, 50:]).all()
    assert ((rows == index_lib.NO_ROW) == np.isneginf(scores)).all()
    empty = int(np.flatnonzero(np.diff(queries.offsets) == 0)[0])
    assert (rows[empty] == index_lib.NO_ROW).all()  # special tokens alone find nothing
    assert index.search(queries[:0], 3)[1].shape == (0, 3)


def test_an_index_that_forgets_is_measured(embedded, tmp_path):
    with pytest.raises(published_index.RecallError, match=r"at least 0\.99.*heaviest=1\)"):
        build_index(str(embedded), inverted_index.Inverted(1), 1, 0.99, str(tmp_path))
    made = published_index.from_embeddings(str(embedded), inverted_index.Inverted(1))
    assert 0 < made.recall < 0.9


QUESTIONS = {name: TEXTS[n] for n, name in enumerate(helpers.QUERIES)}  # q0 asks as p0 says, ...


class Questions:
    """A 'tokenizer' that knows four questions."""

    length, prefix, fingerprint = 8, "", "fingerprint"

    def tokens(self, question):
        return len(QUESTIONS[question])

    def __call__(self, questions):
        given = [QUESTIONS[question] for question in questions]
        return three_kinds.group([[n] for n in range(len(given))], given, 1, len(given))


class Sourced(three_kinds.Texts):
    """The texts of queries or passages, with their ids."""

    def __init__(self, given):
        super().__init__(list(given.values()))
        self.ids = list(given)


@pytest.fixture(scope="module")
def collection(tmp_path_factory) -> str:
    return helpers.write_corpus(tmp_path_factory.mktemp("collection") / "corpus")


@pytest.fixture(scope="module")
def small(name, model, tmp_path_factory):
    """The folders of an index over the five passages of the collection, and of what it holds."""
    root, kind = tmp_path_factory.mktemp("small"), TYPES[name].kind
    source = three_kinds.Texts(TEXTS[:5])
    encode_corpus(model, source, "embed_passage", STORAGE, str(root / "embeddings"), [kind])
    build_index(str(root / "embeddings"), TYPES[name], 1, 0.99, str(root / "index"))
    return root


def test_questions_are_asked_of_it(small, model, collection):
    index = published_index.load(small / "index")
    asked = searcher.Searcher(model, index, Questions(), Passages(collection))
    for n, question in enumerate(QUESTIONS):
        hits = asked.search(question, 5)
        if n == 1:  # special tokens alone
            assert hits == []
            continue
        query = Sourced({question: QUESTIONS[question]})
        scores, rows = index.search(model.encode("query", query, index.kind), 5)
        found = rows[0][rows[0] >= 0]
        assert [hit.passage.id for hit in hits] == [f"p{row}" for row in found]
        np.testing.assert_allclose([hit.score for hit in hits], scores[0][: len(found)], rtol=1e-5)
        assert hits


def test_questions_are_asked_of_several_kinds_at_once(model, collection, tmp_path):
    source = three_kinds.Texts(TEXTS[:5])
    encode_corpus(model, source, "embed_passage", STORAGE, str(tmp_path), KINDS)
    indexes = [exact_index.load(str(tmp_path), kind) for kind in ("dense", "sparse")]
    weights = {"dense": 0.2, "sparse": 0.3, "multi_vector": 0.5}
    several = hybrid.Combined(hybrid.load(str(tmp_path), indexes, KINDS), weights)
    asked = searcher.Searcher(model, several, Questions(), Passages(collection))
    for question, tokens in QUESTIONS.items():
        query = model.represent("query", Sourced({question: tokens}), KINDS)
        scores, rows = several.search(query, 3)
        hits = asked.search(question, 3)
        assert [hit.passage.id for hit in hits] == [f"p{row}" for row in rows[0] if row >= 0]
        np.testing.assert_allclose([hit.score for hit in hits], scores[0][: len(hits)], rtol=1e-4)
    other = dataclasses.replace(model, fingerprint="another")
    with pytest.raises(ContractError, match="embeds the queries"):
        searcher.Searcher(other, several, Questions(), Passages(collection))


def test_negatives_are_mined_from_it(name, small, model, collection):
    kind = TYPES[name].kind
    passages, held = Passages(collection), encoding.load_embeddings(small / "embeddings", kind)
    arguments = {
        "model": model,
        "index": published_index.load(small / "index"),
        "embeddings": held,
        "source": Sourced(QUESTIONS),
    }
    found = candidates.IndexSearch(passages, dict(helpers.QUERIES), **arguments)
    settings = hard_negatives.MiningSettings(
        depth=5, negatives=5, skip_top=0, max_overlap=1.0, max_score_ratio=1.0, only_answers=False
    )
    asked = model.encode("query", Sourced(QUESTIONS), kind)
    expected = plain_scores(kind, asked, held.passages[:])
    judged = [("q0", [0]), ("q1", [1]), ("q3", [4, 2])]
    for (query, rows), mined in zip(
        judged, hard_negatives.mine_negatives(found, judged, settings), strict=True
    ):
        of_query = expected[int(query[1])]
        positive = [0 if np.isneginf(of_query[row]) else of_query[row] for row in rows]
        np.testing.assert_allclose(mined.positive_scores, positive, atol=1e-4)
        best = [row for row in np.argsort(-of_query, kind="stable") if row not in rows]
        below = [row for row in best if max(positive) > of_query[row] > -np.inf]
        assert mined.negative_ids == [f"p{row}" for row in below if of_query[row] != 0]
        json.loads(mined.line(), parse_constant=pytest.fail)  # no -Infinity
    dense = encoding.Embeddings(helpers.vectors(5), held.ids, held.contract, held.checkpoint)
    with pytest.raises(candidates.CandidatesError, match=f"kind '{kind}', .* found 'dense'"):
        candidates.IndexSearch(passages, {}, **arguments | {"embeddings": dense})


def test_it_is_evaluated(name, small, model, collection):
    """Some queries are in a store, the others are made of their texts when they are asked for."""
    kind, known = TYPES[name].kind, {"q0": QUESTIONS["q0"], "q2": QUESTIONS["q2"]}

    def made(ids, texts, length, prefix):
        assert texts == [helpers.QUERIES[query] for query in ids]
        return Sourced({query: QUESTIONS[query] for query in ids})

    index = published_index.load(small / "index")
    system = retrieval_systems.IndexSearch("ours", model, index, [Sourced(known)], texts=made)
    suite = EvaluationSuite(collection, [system], 5)
    for split, judged in helpers.QRELS.items():
        run = suite.run("ours", split)
        assert set(run) == set(judged)
        for query, hits in run.items():
            asked = model.encode("query", Sourced({query: QUESTIONS[query]}), kind)
            scores, rows = index.search(asked, 5)
            found = [(f"p{row}", score) for row, score in zip(rows[0], scores[0], strict=True)]
            assert [one for one, _ in hits] == [one for one, _ in found if one != "p-1"]
    assert system.facts()["index"] == type(index).__name__
    passages, queries = three_kinds.Texts(TEXTS[:5]), [Sourced(QUESTIONS)]
    exact = retrieval_systems.exact_search("exact", model, passages, queries, kind=kind)
    both = EvaluationSuite(collection, [system, exact], 5)
    for split in helpers.QRELS:
        ours, theirs = (both.run(name, split) for name in ("ours", "exact"))
        assert {q: [p for p, _ in hits] for q, hits in ours.items()} == {
            q: [p for p, _ in hits] for q, hits in theirs.items()
        }


def test_changed_passages_are_found_as_if_they_were_in_it(name, small, model, collection):
    kind = TYPES[name].kind
    texts = {"p3": [60, 61, 9], "p0": [2, 3]}  # the second has special tokens alone

    def made(ids, _, length, prefix):
        return Sourced({one: texts[one] for one in ids})

    index = published_index.load(small / "index")
    system = retrieval_systems.IndexSearch("ours", model, index, [Sourced(QUESTIONS)], texts=made)
    changed = {one: Passages(collection).passage(int(one[1])) for one in texts}
    queries = model.encode("query", Sourced(QUESTIONS), kind)
    scores, rows = system._search_changed(queries, changed, 5)
    whole = {f"p{n}": texts.get(f"p{n}", TEXTS[n]) for n in range(5)}
    anew = model.encode("passage", Sourced(whole), kind)
    expected_scores, expected_rows = exact_index.top_k(queries, anew, 5, kind)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-5)
    np.testing.assert_array_equal(rows, expected_rows)


def test_what_does_not_fit_is_refused(name, index, embedded, model, collection, tmp_path):
    kind = TYPES[name].kind
    with pytest.raises(ContractError, match=f"of kind '{kind}', expected 'dense'"):
        index_lib.check_contract(index, model.contract, "the index")
    dense = published_index.from_embeddings(str(embedded), exact_index.Exact())
    with pytest.raises(index_lib.QueryError, match=r"of shape \[Q, 16\].*found entries of"):
        dense.search(entries(kind, 3), 1)
    encode_corpus(
        *(model, three_kinds.Texts(TEXTS), "embed_passage", STORAGE),
        *(str(tmp_path / "dense"), ["dense"]),
    )
    with pytest.raises(RepresentationError, match=rf"kinds = \['dense', '{kind}'\]"):
        build_index(str(tmp_path / "dense"), TYPES[name], 1, 0.9, str(tmp_path / "index"))
    alone = {
        key: dataclasses.replace(one, representations=("dense",))
        for key, one in model.functions.items()
    }
    alone = Trained(alone, model.contract, model.partitioner, model.fingerprint)
    small = exact_index.ExactIndex(
        *(entries(kind, 5, empty=0), [f"p{n}" for n in range(5)]),
        *(model.contract, model.fingerprint, kind),
    )
    with pytest.raises(RepresentationError, match=rf"'query' as \['{kind}'\].*as \['dense'\]"):
        searcher.Searcher(alone, small, Questions(), Passages(collection))


def test_an_exact_index_is_made_of_a_folder(embedded):
    index = exact_index.load(str(embedded), "sparse")
    assert (index.kind, len(index.ids)) == ("sparse", COUNT)


class Blind(exact_index.ExactIndex):
    """Never finds the best five."""

    def search(self, queries, k):
        scores, rows = super().search(queries, k + 5)
        return scores[:, 5:], rows[:, 5:]


def test_recall_of_long_texts_is_not_flattered():
    """Rounding is relative to the longest vector of a passage, not to all of them together."""
    random = np.random.default_rng(0)
    counts = random.integers(60, 255, 80)
    vectors = random.normal(size=(counts.sum(), 4)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    made = Entries(np.concatenate([[0], np.cumsum(counts)]), {"vectors": vectors})
    ids = [str(n) for n in range(80)]
    index = Blind(made, ids, helpers.CONTRACT, kind="multi_vector")
    recall, sample = published_index.measure_recall(index, made)
    assert 0.5 <= recall < 0.55 and sample == 32  # some are equal to rounding


class Rare(inverted_index.Inverted):
    """Does not run here."""

    def load(self, folder, record):
        raise index_lib.UnsupportedMachine("no such machine")

    def stored_passages(self, folder):
        return entries("sparse", 9)


def test_what_does_not_run_here_is_searched_exactly(tmp_path):
    passages = entries("sparse", 9)
    made = encoding.Embeddings(passages, [*"abcdefghi"], helpers.CONTRACT, kind="sparse")
    published_index.publish(tmp_path, made, Rare(), keep=1)
    with pytest.raises(index_lib.UnsupportedMachine):
        published_index.load(tmp_path)
    index = published_index.load(tmp_path, fall_back_to_exact=True)
    assert (type(index), index.kind) == (exact_index.ExactIndex, "sparse")
    expected = exact_index.top_k(passages, passages, 3, "sparse")
    np.testing.assert_array_equal(index.search(passages, 3)[1], expected[1])
