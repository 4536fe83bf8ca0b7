"""Fusion of two systems: scores, weights, and where weights come from."""

import json
from pathlib import Path

import numpy as np
import pytest

from t5x_style.evaluation import evaluation_suite, fusion, pseudo_queries, retrieval_systems
from t5x_style.retrieval import exact_index
from tests.kits import retrieval_helpers as helpers


def test_reciprocal_ranks_by_hand():
    one = {"q": [("x", 9.0), ("y", 1.0)]}
    other = {"q": [("y", 5.0), ("z", 4.0)], "r": [("x", 1.0)]}
    fused = fusion.reciprocal_rank([one, other], depth=2)
    assert fused["q"] == [("y", 1 / 62 + 1 / 61), ("x", 1 / 61)]
    assert fused["r"] == [("x", 1 / 61)]


def test_linear_fusion_by_hand():
    one = {"q": [("x", 9.0), ("y", 5.0), ("z", 1.0)]}
    other = {"q": [("z", 0.3)]}
    assert fusion.linear(one, other, 0.75, 10)["q"] == [("x", 0.75), ("y", 0.375), ("z", 0.25)]
    with pytest.raises(ValueError, match="weight: expected"):
        fusion.linear(one, other, 1.5, 10)


def test_the_weight_that_is_best_on_development_queries():
    qrels = {f"q{i}": {"good": 1} for i in range(4)}
    right = {q: [("good", 2.0), ("bad", 1.0)] for q in qrels}
    wrong = {q: [("bad", 2.0), ("good", 1.0)] for q in qrels}
    assert fusion.choose_weight(right, wrong, qrels, "MRR@10", 10) > 0.5
    assert fusion.choose_weight(wrong, right, qrels, "MRR@10", 10) < 0.5
    assert fusion.choose_weight(right, right, qrels, "MRR@10", 10) == fusion.PRIOR
    assert fusion.choose_weight(right, right, qrels, "MRR@10", 10, prior=0.6) == 0.6
    with pytest.raises(ValueError, match="MAP@5"):
        fusion.choose_weight(right, wrong, qrels, "MAP@5", 10)


def test_linear_fusion_equals_its_definition():
    """Every passage by name, sorted in full; with ties, which names break."""
    generator = np.random.default_rng(0)
    names = [f"p{i}" for i in range(30)]

    def run():
        chosen = generator.permutation(names)[:20].tolist()
        scores = sorted(generator.integers(0, 8, 20).tolist(), reverse=True)
        return list(zip(chosen, map(float, scores), strict=True))

    one, other = {"q": run()}, {"q": run()}
    for weight in (0.0, 0.35, 1.0):
        total = dict.fromkeys(names, 0.0)
        for hits, share in ((one["q"], weight), (other["q"], 1 - weight)):
            low, high = hits[-1][1], hits[0][1]
            for name, score in hits:
                total[name] += share * (score - low) / (high - low)
        listed = {name for name, _ in one["q"] + other["q"]}
        order = sorted(listed, key=lambda name: (-round(total[name], 12), name))
        found = fusion.linear(one, other, weight, 9)["q"]
        assert [name for name, _ in found] == order[:9]
        assert [score for _, score in found] == pytest.approx([total[n] for n in order[:9]])


def test_hits_of_another_run_follow_once_each():
    ordered = {"q": [("y", 0.9), ("x", 0.2)], "none": []}
    every = {"q": [("x", 9.0), ("y", 8.0), ("z", 7.0), ("v", 6.0)], "none": [("x", 3.0)]}
    assert fusion.with_rest(ordered, every, 3) == {
        "q": [("y", 0.9), ("x", 0.2), ("z", -0.8)],
        "none": [("x", -1.0)],
    }
    assert fusion.head(every, 2) == {"q": [("x", 9.0), ("y", 8.0)], "none": [("x", 3.0)]}


class Listed:
    """A system whose hits are given, by query."""

    def __init__(self, name, hits):
        self.name, self.hits = name, hits

    def run(self, suite, split):
        return {query: self.hits.get(query, []) for query in suite.texts(split)}

    def facts(self):
        return {}


SEARCH = {
    # Of development queries the re-ranker is right, on the two hits that it puts in order; what it
    # says of the others would speak against it.
    "q2": [("p0", 9.0), ("p4", 8.9), ("p1", 8.8), ("p3", 1.0)],
    "q3": [("p0", 9.0), ("p2", 8.9), ("p1", 8.8), ("p3", 1.0)],
    "q0": [("p1", 9.0), ("p0", 8.9), ("p2", 8.8), ("p3", 1.0)],
}
SCORED = {
    "q2": [("p4", 7.0), ("p0", -7.0), ("p1", -1e4), ("p3", -2e4)],
    "q3": [("p2", 7.0), ("p0", -7.0), ("p1", -1e4), ("p3", -2e4)],
    "q0": [("p0", 7.0), ("p1", -7.0), ("p2", -8.0), ("p3", -9.0)],
}


def reranked(corpus, method="linear", scored=SCORED, **more):
    both = retrieval_systems.Fusion(
        "both", "reranker", "search", method, "dev", "nDCG@10", prior=0.5, list_depth=2,
        **{"reranked": 2, **more},
    )  # fmt: skip
    systems = [Listed("search", SEARCH), Listed("reranker", scored), both]
    return both, evaluation_suite.EvaluationSuite(corpus, systems, 4)


def test_a_reranker_is_weighed_on_the_hits_that_it_puts_in_order(tmp_path):
    corpus = helpers.write_corpus(tmp_path / "corpus")
    both, suite = reranked(corpus)
    run = suite.run("both", "test")
    assert [name for name, _ in run["q0"]] == ["p0", "p1", "p2", "p3"]
    assert run["q1"] == []  # nothing was found
    facts = both.facts()
    assert (facts["reranked"], facts["queries"], facts["tuned_on"]) == (2, 2, "dev")
    assert facts["best_there"] == 0.55  # of those above one half, the nearest to it
    agreeing = {query: list(zip([n for n, _ in hits], (9, 8, 7, 6), strict=True))
                for query, hits in SEARCH.items()}  # fmt: skip
    both, suite = reranked(corpus, scored=agreeing)
    assert [name for name, _ in suite.run("both", "test")["q0"]] == ["p1", "p0", "p2", "p3"]
    assert both.facts()["best_there"] == 0.5  # no share is better than another


def test_ranks_of_a_reranker_are_fused_on_the_hits_that_it_puts_in_order(tmp_path):
    _, suite = reranked(helpers.write_corpus(tmp_path / "corpus"), "reciprocal_rank")
    assert [name for name, _ in suite.run("both", "test")["q0"]][2:] == ["p2", "p3"]


@pytest.mark.parametrize("count", [0, 3])
def test_hits_that_no_list_has_are_not_put_in_order(tmp_path, count):
    with pytest.raises(ValueError, match=f"reranked: expected .*, found {count}"):
        reranked(helpers.write_corpus(tmp_path / "corpus"), reranked=count)


def test_few_queries_move_a_weight_little():
    assert fusion.shrink(1.0, 0, 0.2) == 0.2
    assert fusion.shrink(1.0, 25, 0.2) == pytest.approx(0.6)
    assert fusion.shrink(1.0, 100_000, 0.2) == pytest.approx(1.0, abs=1e-3)


# --- weights of a collection without development queries ------------------------------------------

TOPICS = 60


def write_corpus(folder, titles=True, sentences=True):
    """Passages of words that no other passage has, but for some that all have."""
    rows = []
    for i in range(TOPICS):
        text = f"shared words begin it{i} here. " + " ".join(f"w{i}x{j}" for j in range(12)) + "."
        text = text if sentences else f"w{i}"
        rows.append(
            {"_id": f"p{i}", "title": f"w{i}x0 w{i}x1 title{i}" if titles else "", "text": text}
        )
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "w3x4 w3x5"}\n')
    (folder / "qrels/test.tsv").write_text("q\tp3\t1\n")
    return str(folder)


class Texts:
    """A source of texts in memory."""

    def __init__(self, ids, texts, length, prefix):
        self.ids, self.texts, self.length, self.prefix = list(ids), texts, length, prefix


class WordVectors(helpers.EncodesOneKind):
    """Texts as sums of random vectors of their words; or as noise."""

    contract, fingerprint = helpers.CONTRACT, "checkpoint"

    def __init__(self, noise=False):
        self.noise, self.seen = noise, []

    def encode(self, side, source, kind="dense"):
        self.seen.append((side, list(source.ids), list(source.texts)))
        rows = []
        for text in source.texts:
            words = [text, side] if self.noise else text.lower().replace(".", " ").split()
            seeds = [int.from_bytes(word.encode()[-7:], "big") for word in words]
            total = sum(np.random.default_rng(seed).normal(size=16) for seed in seeds)
            rows.append(total / np.linalg.norm(total))
        return np.array(rows, np.float32)


def fused(corpus, model=None, texts=Texts, min_count=20, **more):
    model = model or WordVectors()
    lines = Path(corpus, "corpus.jsonl").read_text().splitlines()
    passages = [json.loads(line) for line in lines]
    ids = [row["_id"] for row in passages]
    source = Texts(ids, [f"{row['title']} {row['text']}" for row in passages], 8, "")
    index = exact_index.ExactIndex(model.encode("passage", source), ids, helpers.CONTRACT)
    dense = retrieval_systems.IndexSearch("dense", model, index, [], texts=texts)
    pseudo = pseudo_queries.PseudoQueries(count=40, min_count=min_count)
    system = retrieval_systems.Fusion(
        "fusion", "dense", "bm25", "linear", "dev", "MRR@10", **{"pseudo": pseudo} | more
    )
    made = evaluation_suite.EvaluationSuite(
        corpus, [retrieval_systems.Bm25("bm25"), dense, system], 10
    )
    return made, system


def test_pseudo_queries_are_cut_out_of_their_passages(tmp_path):
    made, _ = fused(write_corpus(tmp_path))
    found = pseudo_queries.PseudoQueries(count=40).make(made)
    assert len(found.texts) == len(found.changed) == 40
    kinds = {"title": 0, "sentence": 0}
    for query, text in found.texts.items():
        ((name, grade),) = found.qrels[query].items()
        whole = made.passages.passage(made.passages.row(name))
        assert grade == 1 and text in whole.content and text not in found.changed[name].content
        kinds["title" if text == whole.title else "sentence"] += 1
    assert kinds == {"title": 20, "sentence": 20}
    assert found == pseudo_queries.PseudoQueries(count=40).make(made)
    assert found.texts != pseudo_queries.PseudoQueries(count=40, seed=1).make(made).texts


def test_titles_that_several_passages_have_are_no_queries(tmp_path):
    corpus = write_corpus(tmp_path)
    path = tmp_path / "corpus.jsonl"
    rows = [json.loads(line) | {"title": "the same title"} for line in path.open()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made, _ = fused(corpus)
    texts = pseudo_queries.PseudoQueries(count=40).make(made).texts.values()
    assert len(texts) == 40 and "the same title" not in texts


def test_without_development_queries_the_weight_is_chosen_on_pseudo_queries(tmp_path):
    made, system = fused(write_corpus(tmp_path))
    run = made.run("fusion", "test")
    facts = system.facts()
    assert run["q"][0][0] == "p3" and facts["list_depth"] == 1000
    assert facts["tuned_on"] == "pseudo-queries" and facts["queries"] == 40
    assert facts["weight_of_first"] == min(facts["best_there"], fusion.PRIOR)
    # A test query was never asked for the weight, and changed passages were embedded again.
    asked = [ids for side, ids, _ in made.systems["dense"]._model.seen if side == "query"]
    assert asked[0] == ["q"] and all(name.startswith("pseudo:") for name in asked[1])
    assert len(made.made()["test"]) == 3 and set(made.made()) == {"test"}


def test_a_system_that_is_noise_has_hardly_any_weight(tmp_path):
    made, system = fused(write_corpus(tmp_path), WordVectors(noise=True))
    made.run("fusion", "test")
    assert system.facts()["weight_of_first"] <= 0.05


def test_hits_of_changed_passages_are_those_of_their_new_texts(tmp_path):
    """As an index of the changed passages would find them."""
    made, _ = fused(write_corpus(tmp_path))
    found = pseudo_queries.PseudoQueries(count=40).make(made)
    asked = pseudo_queries.PseudoBench(made, found)
    run = asked.run("dense", pseudo_queries.SPLIT)
    model = WordVectors()
    ids = list(made.passages.ids)
    passages = [found.changed.get(one.id, one) for one in made.passages]
    texts = [f"{one.title} {one.text}".strip() for one in passages]
    vectors = model.encode("passage", Texts(ids, texts, 8, ""))
    queries = model.encode("query", Texts(found.texts, list(found.texts.values()), 8, ""))
    for query, scores in zip(found.texts, queries @ vectors.T, strict=True):
        best = np.argsort(-scores, kind="stable")[:5]
        assert [name for name, _ in run[query][:5]] == [ids[row] for row in best]


def test_development_queries_come_first(tmp_path):
    corpus = write_corpus(tmp_path)
    (tmp_path / "queries.jsonl").write_text(
        "".join(f'{{"_id": "q{i}", "text": "w{i}x4 w{i}x5"}}\n' for i in range(9))
        + '{"_id": "q", "text": "w3x4 w3x5"}\n'
    )
    (tmp_path / "qrels/dev.tsv").write_text("".join(f"q{i}\tp{i}\t1\n" for i in range(9)))
    made, system = fused(corpus)
    made.run("fusion", "test")
    facts = system.facts()
    assert (facts["tuned_on"], facts["queries"]) == ("dev", 9)
    assert facts["weight_of_first"] == fusion.shrink(facts["best_there"], 9)
    assert set(made.made()) == {"test", "dev"}


@pytest.mark.parametrize("texts", [{"titles": False, "sentences": False}])
def test_passages_too_short_for_pseudo_queries_leave_the_prior(tmp_path, capsys, texts):
    made, system = fused(write_corpus(tmp_path, **texts), prior=0.2)
    made.run("fusion", "test")
    assert system.facts()["weight_of_first"] == 0.2
    assert system.facts()["tuned_on"] == "nothing"
    assert "0 pseudo-queries, fewer than 20: the weight of dense is" in capsys.readouterr().err


def test_what_cannot_be_asked_is_said(tmp_path):
    corpus = write_corpus(tmp_path)
    made, _ = fused(corpus, pseudo=None)
    with pytest.raises(FileNotFoundError, match="dev.tsv"):
        made.run("fusion", "test")
    made, _ = fused(corpus, texts=None)
    with pytest.raises(ValueError, match="dense: 1 queries.*bind the parameter texts"):
        made.run("fusion", "test")
    with pytest.raises(ValueError, match="prior in .0, 1. and a list_depth of at least 1"):
        fused(corpus, list_depth=0)
    with pytest.raises(ValueError, match="1 <= min_count <= count"):
        pseudo_queries.PseudoQueries(count=3, min_count=4)


def test_lists_are_long_enough_for_a_fusion(tmp_path):
    made, _ = fused(write_corpus(tmp_path))
    assert made.depth == 1000 and len(made.run("dense", "test")["q"]) == TOPICS
