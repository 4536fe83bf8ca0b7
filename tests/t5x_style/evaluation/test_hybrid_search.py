"""A hybrid as a system of an evaluation: its weights come from development queries."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from t5x_style.checkpoints.restored_model import Trained
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.encode_corpus import encode_corpus
from t5x_style.evaluation import hybrid_search, ranking
from t5x_style.evaluation.evaluation_suite import EvaluationSuite
from t5x_style.interfaces.representation import DENSE, KINDS, MULTI_VECTOR, SPARSE
from t5x_style.retrieval import embedding_shards, exact_index, hybrid
from t5x_style.retrieval.beir_collection import Passage
from tests.kits.toys import three_kinds

COUNT, DEV = 60, 40
PRIOR = {DENSE: 1.0, SPARSE: 0.3, MULTI_VECTOR: 1.0}
TEXTS = three_kinds.texts(COUNT)


@pytest.fixture(scope="module")
def model() -> Trained:
    return three_kinds.trained(Partitioner(MeshShape(8, 1, 1)))


@pytest.fixture(scope="module")
def searched(model, tmp_path_factory) -> hybrid.Hybrid:
    folder = str(tmp_path_factory.mktemp("embeddings"))
    storage = embedding_shards.Storage(shard_size=32, dtype="float32")
    encode_corpus(model, three_kinds.Texts(TEXTS), "embed_passage", storage, folder, KINDS)
    indexes = [exact_index.load(folder, kind) for kind in (DENSE, SPARSE)]
    return hybrid.load(folder, indexes, KINDS)


@pytest.fixture(scope="module")
def corpus(model, searched, tmp_path_factory) -> str:
    """Query n asks as passage n says, and what answers it is the second by the sparse score."""
    folder = tmp_path_factory.mktemp("collection")
    lines = [json.dumps({"_id": f"p{n}", "title": "", "text": f"text {n}"}) for n in range(COUNT)]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    lines = [json.dumps({"_id": f"q{n}", "text": f"question {n}"}) for n in range(COUNT)]
    (folder / "queries.jsonl").write_text("\n".join(lines))
    sparse = model.encode("query", Queries(), SPARSE)
    _, rows = searched.indexes[1].search(sparse, 2)
    (folder / "qrels").mkdir()
    for split, numbers in (("dev", range(DEV)), ("test", range(DEV, COUNT))):
        judged = [f"q{n}\tp{max(0, rows[n, 1])}\t1" for n in numbers]
        text = "\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n"
        (folder / f"qrels/{split}.tsv").write_text(text)
    return str(folder)


class Queries(three_kinds.Texts):
    """Query n has the tokens of passage n."""

    def __init__(self) -> None:
        super().__init__(TEXTS)
        self.ids = [f"q{n}" for n in range(COUNT)]


def system(model, searched, **settings) -> hybrid_search.HybridSearch:
    settings = {"method": "weighted", "prior": PRIOR, **settings}
    return hybrid_search.HybridSearch("hybrid", model, searched, [Queries()], **settings)


def test_weights_are_the_best_ones_of_development_queries(model, searched, corpus):
    made = system(model, searched)
    suite = EvaluationSuite(corpus, [made], 10)
    run = suite.run("hybrid", "test")
    facts = made.facts()
    assert facts["queries"] == DEV and facts["tuned_on"] == "dev"
    best = facts["best_there"]
    assert best[SPARSE] > max(best[DENSE], best[MULTI_VECTOR])  # what answers is sparse

    def value(weights, split: str) -> float:
        fixed = EvaluationSuite(corpus, [system(model, searched, weights=weights)], 10)
        scored = ranking.score_run(fixed.run("hybrid", split), fixed.qrels(split), ["nDCG@10"])
        return scored.means()["nDCG@10"]

    others = [value(one, "dev") for one in hybrid.grid(KINDS, 5)]
    assert value(best, "dev") >= max(others) - 1e-9 > min(others)
    # of 40 queries: moved towards the prior, and used unchanged
    assert sum(facts["weights"].values()) == pytest.approx(1, abs=1e-3)
    prior = PRIOR[SPARSE] / sum(PRIOR.values())
    assert min(best[SPARSE], prior) < facts["weights"][SPARSE] < max(best[SPARSE], prior)
    fixed = EvaluationSuite(corpus, [system(model, searched, weights=facts["weights"])], 10)
    assert fixed.run("hybrid", "test") == run


def test_a_part_is_a_hybrid_of_its_kinds_over_the_same_candidates(model, searched, corpus):
    """With weights of its own, and without scoring the candidates again."""
    prior = {DENSE: 1.0, SPARSE: 0.3}
    part = hybrid_search.HybridPart("part", "hybrid", "weighted", prior)
    whole = system(model, searched)
    suite = EvaluationSuite(corpus, [part, whole], 10)
    run, made = suite.run("part", "test"), dict(whole._candidates[suite])
    alone = EvaluationSuite(corpus, [system(model, searched, prior=prior)], 10)
    assert alone.run("hybrid", "test") == run
    facts = alone.systems["hybrid"].facts()
    assert part.facts() == {"part_of": "hybrid", **facts}
    suite.run("hybrid", "test")
    later = whole._candidates[suite]
    assert made.keys() == later.keys() == {"dev", "test"}
    assert all(made[split] is later[split] for split in made)


def test_a_part_needs_a_hybrid(model, searched, corpus):
    part = hybrid_search.HybridPart("part", "other", "weighted", {DENSE: 1.0}, {DENSE: 1.0})
    with pytest.raises(ValueError, match="part: expected .*'hybrid', .*'hybrid'.*, found 'other'"):
        EvaluationSuite(corpus, [part, system(model, searched)], 10).run("part", "test")


def test_a_part_needs_the_kinds_of_its_hybrid(model, searched, corpus):
    part = hybrid_search.HybridPart("part", "hybrid", "weighted", PRIOR, PRIOR)
    whole = system(model, searched, prior={DENSE: 1.0})
    with pytest.raises(hybrid.HybridError, match=MULTI_VECTOR):
        EvaluationSuite(corpus, [part, whole], 10).run("part", "test")


def test_kinds_that_are_not_searched_are_left_out_of_the_prior(model, searched):
    passages = {kind: searched.passages[kind] for kind in (DENSE, SPARSE)}
    two = dataclasses.replace(searched, passages=passages)
    assert system(model, two).facts()["kinds"] == [DENSE, SPARSE]
    with pytest.raises(hybrid.HybridError, match="one of them above it"):
        system(model, two, prior={MULTI_VECTOR: 1.0})
    with pytest.raises(hybrid.HybridError, match=r"part: .*KIND_WEIGHTS.*PARTS_OF_ALL=\{\}"):
        hybrid_search.HybridPart(
            "part", "hybrid", "weighted", {MULTI_VECTOR: 1.0}, kinds=[DENSE, SPARSE]
        )
    with pytest.raises(hybrid.HybridError, match="among them .*'sparse'.* SEARCHED_KINDS"):
        hybrid.searched_kinds([DENSE, MULTI_VECTOR], [DENSE, SPARSE])


def test_reciprocal_ranks_need_no_development_queries(model, searched, corpus, tmp_path):
    alone = tmp_path / "alone"
    (alone / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        (alone / name).write_text((Path(corpus) / name).read_text())
    suite = EvaluationSuite(str(alone), [system(model, searched, method="reciprocal_rank")], 10)
    run = suite.run("hybrid", "test")
    assert len(run) == COUNT - DEV and all(len(hits) == 10 for hits in run.values())
    assert "weights" not in suite.systems["hybrid"].facts()
    weighted = EvaluationSuite(str(alone), [system(model, searched)], 10)
    with pytest.raises(ValueError, match="chosen on split 'dev'.*reciprocal_rank"):
        weighted.run("hybrid", "test")


@pytest.mark.parametrize("method", ["weighted", "reciprocal_rank"])
def test_changed_passages_are_searched_by_their_present_text(
    model, searched, corpus, method, tmp_path
):
    """As pseudo-queries ask for it: the same as a hybrid over the collection with these texts."""
    changed = {"p3": 7, "p50": 3}  # passage -> the one whose text it has now

    def numbered(ids, texts, length, prefix) -> three_kinds.Texts:
        source = three_kinds.Texts([TEXTS[int(text.split()[-1])] for text in texts])
        source.ids = list(ids)
        return source

    texts = [TEXTS[changed.get(f"p{n}", n)] for n in range(COUNT)]
    storage = embedding_shards.Storage(shard_size=32, dtype="float32")
    folder = str(tmp_path / "again")
    encode_corpus(model, three_kinds.Texts(texts), "embed_passage", storage, folder, KINDS)
    indexes = [exact_index.load(folder, kind) for kind in (DENSE, SPARSE)]
    again = hybrid.load(folder, indexes, KINDS)
    given = {"method": method, "weights": PRIOR if method == "weighted" else None}
    expected = EvaluationSuite(corpus, [system(model, again, **given)], 10).run("hybrid", "test")
    suite = EvaluationSuite(corpus, [system(model, searched, texts=numbered, **given)], 10)
    assert suite.run("hybrid", "test") != expected
    suite = EvaluationSuite(corpus, [system(model, searched, texts=numbered, **given)], 10)
    suite.changed = {name: Passage(name, "", f"text {n}", "") for name, n in changed.items()}
    found = suite.run("hybrid", "test")
    for query, hits in expected.items():
        assert [one for one, _ in found[query]] == [one for one, _ in hits]
        assert [s for _, s in found[query]] == pytest.approx([s for _, s in hits], abs=1e-6)


def test_weights_are_not_chosen_on_what_is_evaluated(model, searched, corpus):
    suite = EvaluationSuite(corpus, [system(model, searched)], 10)
    with pytest.raises(ValueError, match="another than the one that is evaluated, 'dev'"):
        suite.run("hybrid", "dev")


def test_settings_that_do_not_fit_are_refused(model, searched):
    with pytest.raises(ValueError, match="method: expected"):
        system(model, searched, method="sum")
    with pytest.raises(ranking.MetricError, match="nDCG"):
        system(model, searched, metric="nDCG")
    with pytest.raises(hybrid.HybridError, match="thick"):
        system(model, searched, prior={"thick": 1.0})


def test_queries_that_no_source_holds_are_named(model, searched, corpus):
    class Few(Queries):
        def __init__(self) -> None:
            three_kinds.Texts.__init__(self, TEXTS[:50])
            self.ids = [f"q{n}" for n in range(50)]

    made = hybrid_search.HybridSearch(
        "hybrid", model, searched, [Few()], method="reciprocal_rank", prior=PRIOR
    )
    with pytest.raises(ValueError, match="10 queries of split 'test'.*'q50'"):
        EvaluationSuite(corpus, [made], 10).run("hybrid", "test")


def test_lists_are_in_order(model, searched, corpus):
    suite = EvaluationSuite(corpus, [system(model, searched, weights=PRIOR)], 10)
    for hits in suite.run("hybrid", "test").values():
        assert (np.diff([score for _, score in hits]) <= 0).all()
