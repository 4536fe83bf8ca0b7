"""MS MARCO's triples as negatives and as a collection; the sources of stores by gin."""

import gzip
import json
from pathlib import Path

import pytest

from input_pipelines.batches import negatives
from input_pipelines.sources import triples
from input_pipelines.sources.text_sources import BadRecords, SourceError
from input_pipelines.store import token_store
from t5x_style.configuration import gin_checks
from t5x_style.workflow import stages
from tests.kits import tiny_stores

REPOSITORY = Path(__file__).resolve().parents[3]

LINES = ["q1\tp3\tp1", "q2\tp0\tp4", "q1\tp3\tp2", "q1\tp1\tp5", "q1\tp3\tp2", "q1\tp3\tp0"]

TEXTS = [
    "what is a heap\ta heap is a tree\tbread is baked",
    "what is a heap\ta heap is a tree\ta tree grows",
    "how is bread made\tbread is baked\ta tree grows",
    "who grows\ta tree grows\ta heap is a tree",
]


def make(tmp_path, lines, kept=2, bad=0, texts=False):
    path = tmp_path / "qidpidtriples.tsv.gz"
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    triples.negatives_from_triples(str(path), texts, kept, bad, str(tmp_path))
    return [json.loads(line) for line in (tmp_path / "negatives.jsonl").read_text().splitlines()]


def test_one_line_a_query_with_its_first_negatives_that_are_not_positives(tmp_path):
    assert make(tmp_path, LINES) == [
        {"query_id": "q1", "positive_ids": ["p3", "p1"], "negative_ids": ["p2"]},
        {"query_id": "q2", "positive_ids": ["p0"], "negative_ids": ["p4"]},
    ]
    assert make(tmp_path, LINES, kept=9)[0]["negative_ids"] == ["p2", "p5", "p0"]


def test_fine_tuning_reads_the_file(tmp_path):
    make(tmp_path, LINES, kept=9)
    queries = tiny_stores.write_store(tmp_path / "q", [5, 5, 5], prefix="q")
    passages = tiny_stores.write_store(tmp_path / "p", [9] * 6)
    stores = [token_store.TokenStore.open(str(folder)) for folder in (queries, passages)]
    pairs = negatives.read_pairs(str(tmp_path / "negatives.jsonl"), *stores)
    assert pairs.queries.tolist() == [1, 2]
    assert pairs.positives.tolist() == [[3, 1], [0, -1]]
    assert pairs.negatives.tolist() == [[2, 5, 0], [4, -1, -1]]


@pytest.mark.parametrize("line", ["q1\tp1", "what is it\tp1\tp2", "q1\t\tp2", "q1 p1 p2"])
def test_lines_that_are_no_triples_are_counted(tmp_path, line):
    with pytest.raises(SourceError, match=r"triples\.tsv\.gz:7: expected the ids"):
        make(tmp_path, [*LINES, line])
    assert len(make(tmp_path, [*LINES, line], bad=1)) == 2


def test_nothing_and_no_negatives_are_refused(tmp_path):
    with pytest.raises(SourceError, match="holds no triples"):
        make(tmp_path, [])
    with pytest.raises(ValueError, match="at least 1, found 0"):
        make(tmp_path, LINES, kept=0)


def collection(path):
    """Ids and texts of passages and queries, and the judgements, of triples of texts."""
    bad = BadRecords(0)
    texts, asked = (
        {r.id: r.text for r in triples.Texts(path, queries).records(bad)}
        for queries in (False, True)
    )
    return texts, asked, [row[:3] for row in triples.Positives(path).judgements(bad)]


def test_triples_of_texts_are_a_collection_and_its_negatives(tmp_path):
    lines = make(tmp_path, TEXTS, kept=9, texts=True)
    texts, asked, judged = collection(str(tmp_path / "qidpidtriples.tsv.gz"))
    assert list(texts.values()) == ["a heap is a tree", "bread is baked", "a tree grows"]
    assert list(asked.values()) == ["what is a heap", "how is bread made", "who grows"]
    said = [(asked[query], texts[passage], relevance) for query, passage, relevance in judged]
    assert said == [
        ("what is a heap", "a heap is a tree", 1),
        ("how is bread made", "bread is baked", 1),
        ("who grows", "a tree grows", 1),
    ]
    first = lines[0]
    assert asked[first["query_id"]] == "what is a heap"
    assert [texts[name] for name in first["negative_ids"]] == ["bread is baked", "a tree grows"]


def test_a_line_of_texts_that_lacks_one_is_counted(tmp_path):
    with pytest.raises(SourceError, match=r"tsv\.gz:4: expected the texts of a query"):
        make(tmp_path, [*TEXTS[:3], "who grows\ta tree grows\t "], texts=True)


def test_triples_of_texts_as_published(shared):
    texts, asked, judged = collection(str(shared / "data/msmarco_toy/triples.tsv.gz"))
    assert all(texts.values()) and all(asked.values())
    assert 0 < len(asked) <= 100 and 100 < len(texts) <= 200 and len(judged) >= len(asked)
    assert {query for query, _, _ in judged} == asked.keys()


@pytest.mark.parametrize(
    ("files", "macros"),
    [
        (["runs/negatives/triples"], {"TRIPLES": "triples.tsv"}),
        (["runs/collections/triples"], {"TRIPLES": "triples.tsv"}),
        (["runs/stores/texts", "sources/msmarco"], {"CORPUS": "collection.tsv"}),
        (["runs/stores/texts", "sources/msmarco"], {"CORPUS": "queries.tsv", "KIND": "'query'"}),
        (["runs/stores/texts", "sources/ir_datasets"], {"DATASET": "msmarco-passage"}),
    ],
)
def test_shipped_configurations_are_whole(tmp_path, files, macros):
    if files[0] == "runs/stores/texts":
        macros |= {"TOKENIZER": str(tmp_path), "LENGTH": "16"}
    for name in ("CORPUS", "TRIPLES"):
        if name in macros:
            macros[name] = str(tmp_path / macros[name])
            Path(macros[name]).touch()
    argv = [f"--gin_file={REPOSITORY}/gin_configs/{name}.gin" for name in files]
    argv += [f"--gin.{name}={value}" for name, value in macros.items()]
    planned = stages.plan(gin_checks.parse_flags([*argv, f"--gin.MODEL_DIR={tmp_path}/out"]), "")
    assert planned.inputs.identities.keys() <= {"CORPUS", "TOKENIZER", "TRIPLES"}
