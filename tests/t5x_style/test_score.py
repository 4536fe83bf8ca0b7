"""A re-ranker's scores: of mined files, which can be stopped, and of another system's hits."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from input_pipelines.batches import query_passage_concat, token_groups
from input_pipelines.store.token_store import TokenStore
from t5x_style import evaluate, score
from t5x_style.checkpoints import restored_model
from t5x_style.distributed import partitioning, startup
from t5x_style.evaluation import ranking, reranking, retrieval_systems
from t5x_style.interfaces.contract import Contract, ContractError
from t5x_style.interfaces.objective import ModelFunction
from t5x_style.mining import provenance
from tests.kits import process_group
from tests.kits.tiny_stores import FINGERPRINT, write_store

QUERY, PASSAGE = 8, 16
CONTRACT = Contract(
    "cls", False, "score", 1.0, 1, QUERY, PASSAGE, "", "", "text", 300, FINGERPRINT
)  # fmt: skip
ALL = partitioning.MeshShape()
LINES = {f"q{n}": ([f"p{n}"], [f"p{(n + k) % 12}" for k in (3, 1, 2)]) for n in range(7)}


@jax.jit
def told(group: Any) -> jax.Array:
    """[B, S]: the sum of a pair's tokens, its query's counting a thousandfold."""
    tokens = group["tokens"] * jnp.where(group["token_types"], 1, 1000)
    segments = jnp.arange(group["segment_valid"].shape[1]) + 1
    inside = group["segment_ids"][:, None, :] == segments[None, :, None]
    return jnp.where(inside, tokens[:, None, :], 0).sum(axis=2).astype(jnp.float32)


SCORE = ModelFunction(told, {}, "[B, S] float32", "score")


class Teacher(restored_model.Trained):
    """Fails after some batches."""

    def __init__(
        self,
        fails_after: int = 99,
        contract: Contract = CONTRACT,
        mesh: partitioning.MeshShape = ALL,
    ):
        calls = [0]

        def call(group: Any) -> Any:
            calls[0] += 1
            if calls[0] > fails_after:
                raise KeyboardInterrupt
            return told(group)

        super().__init__(
            {"score": ModelFunction(call, {}, "[B, S]", "score")},
            contract,
            partitioning.Partitioner(mesh),
            "teacher",
        )


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("score")
    queries = write_store(root / "queries", [6, 4, 8, 5, 7, 8, 3], prefix="q")
    lengths = [9, 16, 7, 14, 16, 8, 6, 16, 10, 12, 16, 5]
    return str(queries), str(write_store(root / "passages", lengths))


def texts(stores: tuple[str, str], **changes: Any) -> query_passage_concat.JointTexts:
    lengths = {"query_length": QUERY, "passage_length": PASSAGE} | changes
    return query_passage_concat.JointTexts(*stores, rows=token_groups.Rows(8, 32, 3), **lengths)


def write(path: Path, lines: dict[str, Any] = LINES) -> str:
    with path.open("w") as f:
        for name, (right, wrong) in lines.items():
            record = {"query_id": name, "positive_ids": right, "negative_ids": wrong}
            f.write(json.dumps(record) + "\n")
    return str(path)


def expected(stores: tuple[str, str], query: str, passage: str) -> float:
    asked, given = (
        store.read(np.array([store.row_of[name]])).tokens
        for store, name in zip(map(TokenStore.open, stores), (query, passage), strict=True)
    )
    return float(1000 * asked.sum() + given[1:].sum())


def run(stores: tuple[str, str], negatives: str, folder: Path, **changes: Any) -> list[Any]:
    settings = {"model": Teacher(), "texts": texts(stores), "depth": 2, "part_size": 3, **changes}
    score.score(negatives=negatives, model_dir=str(folder), **settings)
    return [json.loads(line) for line in (folder / "scored.jsonl").read_text().splitlines()]


def test_positives_and_the_best_negatives_are_scored(
    stores: tuple[str, str], tmp_path: Path
) -> None:
    records = run(stores, write(tmp_path / "n.jsonl"), tmp_path / "out")
    assert [record["query_id"] for record in records] == list(LINES)
    for record in records:
        right, wrong = LINES[record["query_id"]]
        assert (record["positive_ids"], record["negative_ids"]) == (right, wrong[:2])
        assert list(record["teacher_scores"]) == right + wrong[:2]
        for passage, value in record["teacher_scores"].items():
            assert value == expected(stores, record["query_id"], passage)


def test_a_stopped_scoring_ends_with_the_same_bytes(
    stores: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    negatives = write(tmp_path / "n.jsonl")
    run(stores, negatives, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(stores, negatives, tmp_path / "stopped", model=Teacher(fails_after=2), part_size=1)
    assert not (tmp_path / "stopped/scored.jsonl").exists()
    run(stores, negatives, tmp_path / "stopped", part_size=1)
    whole, stopped = (tmp_path / name / "scored.jsonl" for name in ("whole", "stopped"))
    assert stopped.read_bytes() == whole.read_bytes()
    assert not (tmp_path / "stopped/parts").exists()


def test_the_origin_goes_on(stores: tuple[str, str], tmp_path: Path) -> None:
    negatives = write(tmp_path / "n.jsonl")
    mined = provenance.Provenance("miner", {"depth": 9}, {"gone": "a"}, {})
    provenance.save(negatives, mined)
    run(stores, negatives, tmp_path / "out")
    found = provenance.read(tmp_path / "out/scored.jsonl")
    assert (found.made_by, found.passages) == ("miner", {"gone": "a"})
    assert found.settings == {"depth": 9, "scored_by": "teacher", "scored_depth": 2}
    provenance.path_beside(negatives).unlink()
    run(stores, negatives, tmp_path / "out")
    assert not provenance.path_beside(tmp_path / "out/scored.jsonl").exists(), "of another file"


def test_parts_of_other_texts_are_not_mixed_in(stores: tuple[str, str], tmp_path: Path) -> None:
    negatives = write(tmp_path / "n.jsonl")
    with pytest.raises(KeyboardInterrupt):
        run(stores, negatives, tmp_path / "out", model=Teacher(fails_after=2), part_size=1)
    assert list((tmp_path / "out/parts").iterdir())
    shorter = Teacher(contract=dataclasses.replace(CONTRACT, passage_length=9))
    cut = texts(stores, passage_length=9)
    records = run(stores, negatives, tmp_path / "out", model=shorter, texts=cut, part_size=1)
    assert records == run(stores, negatives, tmp_path / "new", model=shorter, texts=cut)
    assert records != run(stores, negatives, tmp_path / "long")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({}, "is empty"),
        ({"q0": ([], ["p1"])}, r":1: query 'q0' has no positive"),
        ({"q0": (["p0"], []), "q1": (["p1"], ["p1"])}, "each of 2 queries has a single passage"),
        ({"q0": (["p0"], ["p77"])}, "each of 1 queries has a single passage"),
        ({"q0": (3, [])}, r":1: expected an object with query_id"),
        ({"q0": ("p0", ["p1"])}, "expected a list of strings, found .*p0"),
        ({"q99": (["p0"], ["p1"])}, r":1: query 'q99' is not in"),
    ],
)
def test_files_that_cannot_be_scored(
    stores: tuple[str, str], tmp_path: Path, lines: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(stores, write(tmp_path / "n.jsonl", lines), tmp_path / "out")


def test_a_query_alone_with_its_positive_is_told(
    stores: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = LINES | {"q3": (["p3"], [])}
    records = run(stores, write(tmp_path / "n.jsonl", lines), tmp_path / "out")
    assert list(records[3]["teacher_scores"]) == ["p3"]
    assert "1 of 7 queries have a single passage" in capsys.readouterr().err


def test_texts_and_models_that_do_not_fit(stores: tuple[str, str], tmp_path: Path) -> None:
    negatives = write(tmp_path / "n.jsonl")
    with pytest.raises(ValueError, match="depth: expected at least 1, found 0"):
        run(stores, negatives, tmp_path / "out", depth=0)
    with pytest.raises(ContractError, match="passage_length: expected 16, found 12"):
        run(stores, negatives, tmp_path / "out", texts=texts(stores, passage_length=12))
    bi_encoder = restored_model.Trained({}, CONTRACT, partitioning.Partitioner(), "x")
    with pytest.raises(ValueError, match="expected a re-ranker, .* of kind 'score'"):
        run(stores, negatives, tmp_path / "out", model=bi_encoder)


@pytest.mark.slow
def test_two_processes_write_what_one_does(stores: tuple[str, str], tmp_path: Path) -> None:
    negatives = write(tmp_path / "n.jsonl")
    run(stores, negatives, tmp_path / "one", part_size=2)
    folders = [tmp_path / "two", tmp_path / "elsewhere"]  # only process 0 sees the folder
    own = {number: [str(folder)] for number, folder in enumerate(folders)}
    done = process_group.run(["tests.t5x_style.test_score", *stores, negatives], each=own)
    assert [code for code, _ in done] == [0, 0], done
    one, two = (tmp_path / name / "scored.jsonl" for name in ("one", "two"))
    assert two.read_bytes() == one.read_bytes() and not folders[1].exists()


# --- in evaluation --------------------------------------------------------------------------------


class Fixed:
    """Lists the passages p0, p1, ... of each query."""

    name = "fixed"

    def run(self, suite: retrieval_systems.EvaluationSuite, split: str) -> ranking.Run:
        ids = [f"p{n}" for n in range(suite.depth)]
        return {q: [(p, -float(n)) for n, p in enumerate(ids)] for q in suite.qrels(split)}

    def facts(self) -> dict[str, Any]:
        return {}


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    passages = [{"_id": f"p{n}", "title": "", "text": f"text {n}"} for n in range(12)]
    queries = [{"_id": f"q{n}", "text": f"ask {n}"} for n in range(7)]
    for name, records in (("corpus", passages), ("queries", queries)):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "qrels").mkdir()
    judged = "".join(f"q{n}\tp{n}\t1\n" for n in range(7))
    (tmp_path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return str(tmp_path)


def test_the_best_hits_are_put_in_order_and_the_others_stay_behind(
    stores: tuple[str, str], corpus: str
) -> None:
    reranker = retrieval_systems.Reranker(
        "reranker", Teacher(), texts(stores), base="fixed", reranked=5
    )
    suite = retrieval_systems.EvaluationSuite(corpus, [Fixed(), reranker], depth=8)
    for query, hits in suite.run("reranker", "test").items():
        best = sorted((f"p{n}" for n in range(5)), key=lambda p: -expected(stores, query, p))
        assert [name for name, _ in hits] == [*best, "p5", "p6", "p7"]
        scores = [value for _, value in hits]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(("reranked", "said"), [(5, False), (8, False), (9, True)])
def test_a_search_that_lists_fewer_hits_than_are_to_be_put_in_order_is_told(
    stores: tuple[str, str],
    corpus: str,
    capsys: pytest.CaptureFixture[str],
    reranked: int,
    said: bool,
) -> None:
    reranker = retrieval_systems.Reranker("it", Teacher(), texts(stores), "fixed", reranked)
    suite = retrieval_systems.EvaluationSuite(corpus, [Fixed(), reranker], depth=8)
    suite.run("it", "test")
    assert ("puts at most 8 hits of a query in order, and not 9" in capsys.readouterr().err) == said


def test_candidates_are_put_in_order_while_training(
    stores: tuple[str, str], tmp_path: Path
) -> None:
    negatives = write(tmp_path / "n.jsonl")
    evaluator = reranking.RerankingEvaluator("dev", texts(stores), negatives, depth=3)
    functions = {"score": SCORE}
    ranks = []
    for query, (right, wrong) in LINES.items():
        scores = [expected(stores, query, passage) for passage in right + wrong]
        ranks.append(sum(score >= scores[0] for score in scores))
    found = evaluator.evaluate(functions, 7)
    assert found["MRR@10"] == pytest.approx(np.mean([1 / rank for rank in ranks]))
    assert set(found) == set(evaluator.metrics) == {"MRR@10", "nDCG@10"}
    zeros = ModelFunction(lambda group: jnp.zeros(group["segment_valid"].shape), {}, "", "score")
    ties = {"score": zeros}
    assert evaluator.evaluate(ties, 7)["MRR@10"] == 0.25, "a tie counts against the positive"
    with pytest.raises(ValueError, match="dev: a re-ranker, with a function of kind 'score'"):
        evaluator.evaluate({}, 7)


def write_searched(path: Path, positive_scores: list[float]) -> list[dict[str, Any]]:
    """Lines with the search's scores: 0.7, 0.3, 0.1 of the negatives, these of the positives."""
    records = [json.loads(line) for line in Path(write(path)).read_text().splitlines()]
    for record, found in zip(records, positive_scores, strict=True):
        record |= {"positive_scores": [found], "negative_scores": [0.7, 0.3, 0.1]}
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return records


def test_a_teacher_that_is_worse_than_the_search_is_warned_of(
    stores: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    negatives = tmp_path / "n.jsonl"
    first = 0
    for query, (right, wrong) in LINES.items():
        best, *others = (expected(stores, query, passage) for passage in right + wrong[:2])
        first += best > max(others)
    assert 0 < first < 7
    for by_search, warned in ((7, True), (0, False)):
        write_searched(negatives, [0.9] * by_search + [0.5] * (7 - by_search))
        run(stores, str(negatives), tmp_path / f"out{by_search}")
        told = capsys.readouterr().err
        assert f"first for {first / 7:.1%} of 7 queries" in told
        assert f"by the search's scores for {by_search / 7:.1%}" in told
        assert ("WARNING" in told) == warned
    run(stores, write(negatives), tmp_path / "untold")  # made by hand
    assert "ranks first" not in capsys.readouterr().err


def test_the_order_of_the_search_stands_beside(stores: tuple[str, str], tmp_path: Path) -> None:
    negatives = tmp_path / "n.jsonl"
    records = write_searched(negatives, [0.5] * 6 + [0.9])

    def evaluated(records: list[dict[str, Any]]) -> dict[str, float]:
        negatives.write_text("".join(json.dumps(record) + "\n" for record in records))
        evaluator = reranking.RerankingEvaluator("dev", texts(stores), str(negatives), depth=2)
        found = evaluator.evaluate({"score": SCORE}, 7)
        assert set(found) == set(evaluator.metrics)
        return found

    found = evaluated(records)
    assert found["MRR@10_as_mined"] == pytest.approx((6 / 2 + 1) / 7)
    assert found["nDCG@10_as_mined"] == pytest.approx((6 / np.log2(3) + 1) / 7)
    records[3]["negative_ids"].pop()  # as a person may
    assert "MRR@10_as_mined" not in evaluated(records)


def test_metrics_and_differences_that_are_asked_for(
    stores: tuple[str, str], corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reranker = retrieval_systems.Reranker(
        "reranker", Teacher(), texts(stores), base="fixed", reranked=8
    )
    settings = {"baseline": "fixed", "depth": 8, "samples": 200, "seed": 0}
    both = [Fixed(), reranker]
    evaluate.evaluate(
        corpus, "test", both, model_dir=str(tmp_path / "out"), metrics=["Recall@3"],
        compared=[("reranker", "fixed")], **settings,
    )  # fmt: skip
    report = json.loads((tmp_path / "out/metrics.json").read_text())
    assert report["systems"]["fixed"]["Recall@3"]["value"] == pytest.approx(3 / 7)
    (pair,) = report["compared"]
    assert pair["Recall@3"] == report["against"]["systems"]["reranker"]["Recall@3"]
    assert "one minus other" in capsys.readouterr().out
    for metrics, message in (
        (["MRR@10"], "looks further than the lists of 8 passages"),
        (["Precision@1"], r"expected one of \['MRR', 'nDCG', 'Recall'\].* @ a number"),
        (["Recall"], "@ a number.* found 'Recall'"),
        (["nDCG(rel=2)@3"], "the first and the last perhaps with .rel=2."),
    ):
        with pytest.raises(ranking.MetricError, match=message):
            evaluate.evaluate(
                corpus, "test", both, model_dir=str(tmp_path), metrics=metrics, **settings
            )


if __name__ == "__main__":
    startup.start()
    score.score(
        Teacher(mesh=partitioning.MeshShape(data=-1, fsdp=1, tensor=1)),
        sys.argv[3],
        texts((sys.argv[1], sys.argv[2])),
        depth=2,
        part_size=2,
        model_dir=sys.argv[-1],
    )
