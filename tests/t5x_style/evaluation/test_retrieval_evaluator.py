"""Metrics inside training, and the evaluate stage over several systems."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from input_pipelines.batches import negatives
from input_pipelines.sources import beir
from t5x_style import report as report_page
from t5x_style.evaluate import evaluate
from t5x_style.evaluation import query_embedder, query_groups, ranking, retrieval_systems
from t5x_style.evaluation.comparison import table
from t5x_style.evaluation.retrieval_evaluator import RetrievalEvaluator
from t5x_style.interfaces.contract import ContractError
from t5x_style.interfaces.index import NO_ROW
from t5x_style.interfaces.objective import ModelFunction
from t5x_style.retrieval import encoding, exact_index, max_passage, published_index
from t5x_style.retrieval.beir_collection import CollectionError
from tests.kits import retrieval_helpers as helpers
from tests.kits.toys import int8_index

PASSAGE_IDS = [row[0] for row in helpers.PASSAGES]
QUERY_IDS = list(helpers.QUERIES)
RIGHT = {"q0": "p0", "q1": "p1", "q2": "p4", "q3": "p2"}
# Passage i is the i-th unit vector; a query is the unit vector of its answer.
PASSAGE_TABLE = np.eye(5, 16, dtype=np.float32)
QUERY_TABLE = np.stack([PASSAGE_TABLE[PASSAGE_IDS.index(RIGHT[q])] for q in QUERY_IDS])


def lookup(table: np.ndarray):
    return jax.jit(lambda group: jnp.asarray(table)[jnp.maximum(group["example_id"], 0)])


FUNCTIONS = helpers.embedding_functions(query=lookup(QUERY_TABLE), passage=lookup(PASSAGE_TABLE))


@pytest.fixture
def corpus(tmp_path):
    return helpers.write_corpus(tmp_path / "corpus")


def test_a_model_that_knows_the_answers_is_perfect(corpus):
    evaluator = RetrievalEvaluator(
        "dev", helpers.Source(QUERY_IDS), helpers.Source(PASSAGE_IDS), corpus, "dev"
    )
    assert evaluator.evaluate(FUNCTIONS, 7) == dict.fromkeys(ranking.METRICS, 1.0)
    assert evaluator.score(FUNCTIONS, 7).queries == ("q2", "q3")


def test_only_queries_of_the_split_count(corpus):
    wrong = QUERY_TABLE.copy()
    wrong[3] = PASSAGE_TABLE[0] + PASSAGE_TABLE[2] / 2  # q3: the answer at rank 2
    wrong[0] = 0
    evaluator = RetrievalEvaluator(
        "dev", helpers.Source(QUERY_IDS), helpers.Source(PASSAGE_IDS), corpus, "dev", depth=100
    )
    found = evaluator.evaluate({**FUNCTIONS, **helpers.embedding_functions(query=lookup(wrong))}, 0)
    assert found["MRR@10"] == pytest.approx(0.75)


def test_a_sample_with_the_best_hits_has_the_metric_of_the_corpus(tmp_path):
    passages, queries = helpers.vectors(500), helpers.vectors(30, seed=5)
    ids, names = [f"p{n}" for n in range(500)], [f"q{n}" for n in range(30)]
    ranks = np.argsort(-queries @ passages.T, axis=1)
    answers = {name: ids[ranks[n, n % 15]] for n, name in enumerate(names)}
    (tmp_path / "qrels").mkdir()
    judged = "".join(f"{query}\t{passage}\t1\n" for query, passage in answers.items())
    (tmp_path / "qrels/dev.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    with (tmp_path / "negatives.jsonl").open("w") as f:
        for n, name in enumerate(names):
            wrong = [ids[row] for row in ranks[n, :11] if ids[row] != answers[name]][:10]
            line = {"query_id": name, "positive_ids": [answers[name]], "negative_ids": wrong}
            f.write(json.dumps(line) + "\n")

    def measured(kept: list[str]) -> float:
        table = passages[[ids.index(name) for name in kept]]
        functions = helpers.embedding_functions(query=lookup(queries), passage=lookup(table))
        sources = helpers.Source(names), helpers.Source(kept)
        evaluator = RetrievalEvaluator("dev", *sources, str(tmp_path), "dev", metrics=["nDCG@10"])
        return evaluator.evaluate(functions, 0)["nDCG@10"]

    found = negatives.hits(str(tmp_path / "negatives.jsonl"))
    sample = beir.gold_ids(str(tmp_path), "dev", found)
    assert set(answers.values()) | set(found) == set(sample) and len(sample) < 300
    assert measured(sample) == pytest.approx(measured(ids), abs=1e-9)
    assert measured(beir.gold_ids(str(tmp_path), "dev")) > measured(ids) + 0.1


def test_a_document_is_as_relevant_as_its_best_block(corpus):
    """Blocks of p0 and p2 are found first; p4, whose second block answers q2, is third."""
    names = ["p0#0", "p0#1", "p4#0", "p2#0", "p2#1", "p4#1", "p1#0", "p3#0"]
    similarity = np.array([0.9, 0.8, 0.1, 0.7, 0.6, 0.5, 0.4, 0.3], np.float32)
    table = np.zeros((len(names), 2), np.float32)
    table[:, 0] = similarity
    functions = helpers.embedding_functions(
        query=lookup(np.tile(np.array([[1.0, 0.0]], np.float32), (4, 1))), passage=lookup(table)
    )
    evaluator = RetrievalEvaluator(
        "dev", helpers.Source(QUERY_IDS), helpers.Source(names), corpus, "dev", depth=3,
        metrics=["MRR@3", "Recall@3"], of_blocks=True,
    )  # fmt: skip
    found = evaluator.score(functions, 0)
    assert found.queries == ("q2", "q3")  # answered by p4 and p2
    assert found.values["MRR@3"].tolist() == pytest.approx([1 / 3, 1 / 2])
    with pytest.raises(ValueError, match="ids of blocks, 'document#number', found 'p0'"):
        RetrievalEvaluator(
            "dev", helpers.Source(QUERY_IDS), helpers.Source(PASSAGE_IDS), corpus, "dev",
            of_blocks=True,
        )  # fmt: skip


def test_documents_of_blocks_equal_the_maximum_over_blocks():
    rng = np.random.default_rng(0)
    owner = rng.integers(0, 12, 60)
    blocks = max_passage.Documents([f"d#{n}#{i}" for i, n in enumerate(owner)])
    scores = rng.normal(size=(5, 60))
    rows = np.argsort(-scores, axis=1)
    found, which = blocks.best(np.take_along_axis(scores, rows, axis=1), rows, 15)
    for q in range(5):
        best = {f"d#{n}": scores[q][owner == n].max() for n in set(owner.tolist())}
        expected = sorted(best.items(), key=lambda item: -item[1])
        there = [blocks.ids[d] for d in which[q] if d != NO_ROW]
        assert there == [name for name, _ in expected]
        assert found[q][: len(there)].tolist() == [score for _, score in expected]
        assert np.isneginf(found[q][len(there) :]).all()


def test_a_sample_without_an_answer_is_refused(corpus):
    sample = helpers.Source(["p0", "p1", "p2"])
    with pytest.raises(CollectionError, match="no passage has the id 'p4'"):
        RetrievalEvaluator("dev", helpers.Source(QUERY_IDS), sample, corpus, "dev")
    with pytest.raises(CollectionError, match="no query has the id 'q3'"):
        queries = helpers.Source(["q2"])
        RetrievalEvaluator("dev", queries, helpers.Source(PASSAGE_IDS), corpus, "dev")


def test_a_sample_lacks_passages_that_are_judged_irrelevant(corpus):
    path = Path(corpus) / "qrels/dev.tsv"
    path.write_text(path.read_text() + "q2\tp0\t0\n")
    sample = helpers.Source([one for one in PASSAGE_IDS if one != "p0"])
    both = [
        RetrievalEvaluator("dev", helpers.Source(QUERY_IDS), source, corpus, "dev")
        for source in (sample, helpers.Source(PASSAGE_IDS))
    ]
    relevant = [
        {query: {name for name, grade in judged.items() if grade} for query, judged in one.items()}
        for one in (both[0]._qrels, both[1]._qrels)
    ]
    assert relevant[0] == relevant[1]
    assert "p0" not in both[0]._qrels["q2"] and both[1]._qrels["q2"]["p0"] == 0


def test_an_objective_that_cannot_embed_is_refused(corpus):
    evaluator = RetrievalEvaluator(
        "dev", helpers.Source(QUERY_IDS), helpers.Source(PASSAGE_IDS), corpus, "dev"
    )
    with pytest.raises(ValueError, match=r"offers \['score'\].*'query' as \['dense'\]"):
        evaluator.evaluate({"score": ModelFunction(lambda group: group, {}, "", "score")}, 0)


class Model(helpers.EncodesOneKind):
    """A trained model that knows the answers to `known` queries."""

    fingerprint = "checkpoint"

    def __init__(self, known: float = 4, contract=helpers.CONTRACT):
        self.contract, self._known = contract, known

    def encode(self, side, source, kind="dense"):
        if side == "passage":
            return PASSAGE_TABLE[[PASSAGE_IDS.index(name) for name in source.ids]]
        assert side == "query"
        vectors = QUERY_TABLE.copy()
        vectors[int(self._known) :] = PASSAGE_TABLE[3]
        return vectors[[QUERY_IDS.index(name) for name in source.ids]]


def dense(name: str, index=None, **arguments) -> retrieval_systems.IndexSearch:
    index = index or exact_index.ExactIndex(PASSAGE_TABLE, PASSAGE_IDS, helpers.CONTRACT)
    return retrieval_systems.IndexSearch(
        name, Model(**arguments), index, [helpers.Source(QUERY_IDS)]
    )


def fusion(method: str, tune_split: str = "dev") -> retrieval_systems.Fusion:
    return retrieval_systems.Fusion("fusion", "dense", "bm25", method, tune_split, "MRR@10")


def run_stage(corpus, tmp_path, *chosen, split="test", baseline="bm25", **more):
    folder = tmp_path / "evaluation"
    outputs = evaluate(corpus, split, chosen, baseline, 100, 200, 0, str(folder), **more)
    assert outputs == {"metrics": "metrics.json", "per_query": "per_query.json", "runs": "runs"}
    return json.loads((folder / "metrics.json").read_text()), folder


def test_the_stage_evaluates_an_index_of_any_type(corpus, tmp_path):
    embeddings = encoding.Embeddings(PASSAGE_TABLE, PASSAGE_IDS, helpers.CONTRACT, "checkpoint")
    published_index.publish(tmp_path / "index", embeddings, int8_index.Int8(), keep=1)
    system = dense("dense", published_index.load(tmp_path / "index"))
    report, _ = run_stage(corpus, tmp_path, retrieval_systems.Bm25("bm25"), system)
    assert report["systems"]["dense"]["MRR@10"]["value"] == 1.0
    assert "Int8Index" in json.dumps(report)


def test_queries_may_be_in_two_sources():
    """And others in none: each gets its vector."""

    def texts(ids, given, length, prefix):
        return helpers.Source(ids)

    sources = [helpers.Source(QUERY_IDS[:2]), helpers.Source(QUERY_IDS[1:3])]
    embedder = query_embedder.QueryEmbedder("dense", Model(), sources, ["dense"], texts)
    found = embedder.embed(dict.fromkeys(QUERY_IDS, ""), "test")
    np.testing.assert_array_equal(found["dense"], QUERY_TABLE[: len(QUERY_IDS)])


def test_published_figures_are_rows_of_the_table(corpus, tmp_path, capsys):
    figures = {"M3 (paper)": {"nDCG@10": 0.487}}
    report, _ = run_stage(corpus, tmp_path, retrieval_systems.Bm25("bm25"), published=figures)
    assert report["published"] == figures and set(report["systems"]) == {"bm25"}
    rows = capsys.readouterr().out.splitlines()
    at = next(number for number, line in enumerate(rows) if "M3 (paper)" in line)
    assert "0.4870" in rows[at] and "(published)" in rows[at + 1]
    page = "\n".join(report_page.tables(report))
    assert "| M3 (paper) (published) |  | 0.4870 |  |  |" in page
    unpublished, _ = run_stage(corpus, tmp_path / "other", retrieval_systems.Bm25("bm25"))
    assert "published" not in unpublished


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"M3": {"NDCG@10": 0.5}}, r"'M3': expected some of the metrics .*found 'NDCG@10'"),
        (
            {"M3": {"nDCG@10": 48.7}},
            r"expected nDCG@10 from 0 to 1 \(69.2 % is 0.692\), found 48.7",
        ),
        ({"M3": {}}, "expected figures of 'M3', found none"),
        ({"bm25": {"nDCG@10": 0.5}}, "a name that no measured system has, found 'bm25'"),
    ],
)
def test_published_figures_of_something_else_are_refused(corpus, tmp_path, figures, message):
    with pytest.raises(ValueError, match=message):
        run_stage(corpus, tmp_path, retrieval_systems.Bm25("bm25"), published=figures)
    assert not (tmp_path / "evaluation").exists()


def test_the_stage_compares_systems(corpus, tmp_path):
    chosen = [
        retrieval_systems.Bm25("bm25"),
        dense("dense"),
        dense("poor", known=0),
        fusion("linear"),
    ]
    report, folder = run_stage(corpus, tmp_path, *chosen)
    assert (report["n"], report["split"], report["passages"]) == (2, "test", 5)
    assert report["systems"]["dense"]["MRR@10"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert report["systems"]["poor"]["MRR@10"]["value"] < 0.5
    assert set(report["systems"]["bm25"]) == set(ranking.METRICS)
    assert set(report["against"]["systems"]) == {"dense", "poor", "fusion"}
    assert 0 < report["against"]["systems"]["poor"]["MRR@10"]["p"] <= 1
    assert report["facts"]["fusion"]["tuned_on"] == "dev"
    assert report["facts"]["dense"]["index_recall"] == 1.0
    runs = {path.stem: ranking.read_run(path) for path in (folder / "runs").glob("*.trec")}
    assert set(runs) == {"bm25", "dense", "poor", "fusion"}
    assert runs["dense"]["q1"][0][0] == "p1"
    per_query = json.loads((folder / "per_query.json").read_text())
    assert (per_query["queries"], per_query["groups"]) == (["q0", "q1"], None)
    console = Console(width=120, record=True)
    console.print(table(report))
    assert "test: 2 queries" in console.export_text()


def test_intervals_and_tests_are_over_groups_where_a_rule_is_given(corpus, tmp_path):
    """q2 and q3 ask for passages of different files; p3 and p0 are of one."""
    chosen = [retrieval_systems.Bm25("bm25"), dense("poor", known=0)]
    compared = [("poor", "bm25")]
    alone, _ = run_stage(corpus, tmp_path / "alone", *chosen, compared=compared)
    assert (alone["n"], alone["groups"], alone["grouped_by"]) == (2, 2, None)
    rule = query_groups.BySource()
    report, _ = run_stage(corpus, tmp_path / "by", *chosen, compared=compared, group_of=rule)
    assert (report["groups"], report["grouped_by"]) == (2, "BySource(levels=None)")
    assert report["systems"] == alone["systems"] and report["compared"] == alone["compared"]
    pair = report["compared"][0]["MRR@10"]
    assert pair["low"] <= pair["difference"] <= pair["high"] and 0 < pair["p"] <= 1
    assert report["against"]["systems"]["poor"]["MRR@10"] == pair
    with pytest.raises(ValueError, match="expected at least 2, found 1 with all 2 queries"):
        rule = query_groups.BySource(levels=1)
        run_stage(corpus, tmp_path / "one", *chosen, group_of=rule)


def test_systems_are_measured_on_development_queries_too(corpus, tmp_path, capsys):
    chosen = [
        retrieval_systems.Bm25("bm25"),
        dense("dense"),
        dense("poor", known=0),
        fusion("linear"),
    ]
    tuned, _ = run_stage(corpus, tmp_path / "tuned", *chosen)
    assert set(tuned["development"]["dev"]["systems"]) == {"bm25", "dense"}
    report, _ = run_stage(corpus, tmp_path / "all", *chosen, development="dev")
    found = report["development"]["dev"]
    assert found["n"] == 2 and set(found["systems"]) == {"bm25", "dense", "poor"}
    assert found["systems"]["dense"]["MRR@10"] == 1.0
    assert report["judged"] == {"dev": 2, "test": 2}
    (tmp_path / "corpus" / "qrels" / "dev.tsv").unlink()
    report, _ = run_stage(corpus, tmp_path / "none", *chosen[:3], development="dev")
    assert report["development"] == {}
    assert "no judgements of split 'dev'" in capsys.readouterr().err


def test_lists_are_cut_at_the_depth(corpus, tmp_path):
    chosen = [retrieval_systems.Bm25("bm25"), dense("dense"), fusion("reciprocal_rank")]
    folder = tmp_path / "evaluation"
    metrics = ["MRR@2", "Recall@2"]
    evaluate(corpus, "test", chosen, "bm25", 2, 20, 0, str(folder), metrics)
    for path in (folder / "runs").glob("*.trec"):
        assert all(len(hits) <= 2 for hits in ranking.read_run(path).values())


def test_a_small_collection_is_embedded_on_the_spot(corpus, tmp_path):
    sources = helpers.Source(PASSAGE_IDS), [helpers.Source(QUERY_IDS)]
    system = retrieval_systems.exact_search("dense", Model(), *sources)
    report, _ = run_stage(corpus, tmp_path, system, baseline="dense")
    assert report["systems"]["dense"]["MRR@10"]["value"] == 1.0


def test_the_stage_repeats_itself(corpus, tmp_path):
    first, _ = run_stage(corpus, tmp_path / "one", retrieval_systems.Bm25("bm25"), dense("dense"))
    other, _ = run_stage(corpus, tmp_path / "two", retrieval_systems.Bm25("bm25"), dense("dense"))
    assert first == other


def test_reciprocal_rank_fusion_needs_no_tuning(corpus, tmp_path):
    (tmp_path / "corpus" / "qrels" / "dev.tsv").unlink()
    chosen = [retrieval_systems.Bm25("bm25"), dense("dense"), fusion("reciprocal_rank")]
    report, _ = run_stage(corpus, tmp_path, *chosen)
    assert report["systems"]["fusion"]["MRR@10"]["value"] == 1.0


def test_a_weight_is_never_chosen_on_what_is_reported(corpus, tmp_path):
    chosen = [retrieval_systems.Bm25("bm25"), dense("dense"), fusion("linear", tune_split="test")]
    with pytest.raises(ValueError, match="'test', so its numbers there would flatter"):
        run_stage(corpus, tmp_path, *chosen)


def test_an_index_of_another_model_is_refused():
    with pytest.raises(ContractError, match="(?s)system 'dense'.*passage_length"):
        dense("dense", contract=dataclasses.replace(helpers.CONTRACT, passage_length=99))


def test_an_index_of_another_corpus_is_refused(corpus, tmp_path):
    index = exact_index.ExactIndex(PASSAGE_TABLE, ["p0", "p1", "p2", "p3", "old"], helpers.CONTRACT)
    system = retrieval_systems.IndexSearch("dense", Model(), index, [helpers.Source(QUERY_IDS)])
    with pytest.raises(ranking.RunError, match="'old' is not in the corpus"):
        run_stage(corpus, tmp_path, system, baseline="dense")


def test_queries_that_no_source_holds_are_named(corpus, tmp_path):
    index = exact_index.ExactIndex(PASSAGE_TABLE, PASSAGE_IDS, helpers.CONTRACT)
    system = retrieval_systems.IndexSearch("dense", Model(), index, [helpers.Source(["q1", "q2"])])
    with pytest.raises(ValueError, match="1 queries of split 'test'.*'q0'"):
        run_stage(corpus, tmp_path, system, baseline="dense")


@pytest.mark.parametrize(
    "names,baseline,message",
    [
        (["bm25", "bm25"], "bm25", "distinct names"),
        ([], "bm25", "at least one system"),
        (["bm25"], "dense", r"expected some of \['bm25'\], found 'dense'"),
        (["../bm25"], "../bm25", "names a file"),
    ],
)
def test_bad_lists_of_systems_are_refused(corpus, tmp_path, names, baseline, message):
    chosen = [retrieval_systems.Bm25(name) for name in names]
    with pytest.raises(ValueError, match=message):
        run_stage(corpus, tmp_path, *chosen, baseline=baseline)


def test_a_fusion_of_unknown_systems_is_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match="no system is called 'dense'"):
        run_stage(corpus, tmp_path, retrieval_systems.Bm25("bm25"), fusion("reciprocal_rank"))
