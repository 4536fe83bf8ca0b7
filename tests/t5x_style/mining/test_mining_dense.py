"""Mining with a trained model: the right negatives, and refusals of what does not fit together."""

import dataclasses
import functools
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from t5x_style.build_index import build_index
from t5x_style.checkpoints.restored_model import Trained
from t5x_style.configuration import gin_checks
from t5x_style.distributed import startup
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.encode_corpus import encode_corpus
from t5x_style.interfaces.contract import ContractError
from t5x_style.mine import mine
from t5x_style.mining import candidates, hard_negatives, provenance
from t5x_style.retrieval import (
    embedding_shards,
    encoding,
    exact_index,
    published_index,
    resumable_parts,
    scann_index,
    sharded_index,
)
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.workflow import stages
from tests.kits import process_group
from tests.kits import retrieval_helpers as helpers
from tests.kits.toys import int8_index

REPOSITORY = Path(__file__).resolve().parents[3]
IDS = [row[0] for row in helpers.PASSAGES]
# Row i is passage i, column j is query j: what the model says of them.
SCORES = np.array(
    [
        [0.9, 0.1, 0.2, 0.3],
        [0.5, 0.6, 0.1, 0.4],
        [0.3, 0.2, 0.0, -0.2],
        [0.8, 0.7, 0.4, 0.5],
        [0.1, 0.3, -0.1, 0.1],
    ],
    np.float32,
)
PASSAGE_VECTORS = np.pad(SCORES, ((0, 0), (0, 12)))  # [5, 16]
QUERY_VECTORS = np.eye(4, 16, dtype=np.float32)
ALL = hard_negatives.MiningSettings(
    depth=5, negatives=5, skip_top=0, max_overlap=1.0, max_score_ratio=0.0
)
SCANN = scann_index.Scann(brute_force_below=100, leaves=0, searched_share=1.0, reorder=1)


def lookup(table, group):
    """[B, S, 16]: the row of the table that the segment's token names."""
    tokens = jnp.take_along_axis(group["tokens"], group["cls_at"], axis=1)
    return jnp.asarray(table)[tokens]


def model(fingerprint="checkpoint", contract=helpers.CONTRACT, mesh=None) -> Trained:
    functions = helpers.embedding_functions(
        query=jax.jit(functools.partial(lookup, QUERY_VECTORS)),
        passage=jax.jit(functools.partial(lookup, PASSAGE_VECTORS)),
    )
    partitioner = Partitioner(mesh or MeshShape(8, 1, 1))
    return Trained(functions, contract, partitioner, fingerprint)


@pytest.fixture
def corpus(tmp_path) -> str:
    return helpers.write_corpus(tmp_path / "corpus")


@pytest.fixture
def embeddings(tmp_path) -> encoding.Embeddings:
    helpers.write_embeddings(tmp_path / "vectors", PASSAGE_VECTORS, IDS, shard_size=2)
    return encoding.load_embeddings(tmp_path / "vectors")


def make(corpus, embeddings, queries=tuple(helpers.QUERIES), **changes) -> candidates.IndexSearch:
    index = exact_index.ExactIndex(
        embeddings.passages, embeddings.ids, embeddings.contract, embeddings.checkpoint
    )
    arguments = {
        "model": model(),
        "index": index,
        "embeddings": embeddings,
        "source": helpers.Source(list(helpers.QUERIES)),
    }
    texts = {query: helpers.QUERIES.get(query, "") for query in queries}
    return candidates.IndexSearch(Passages(corpus), texts, **arguments | changes)


def mine_one(dense, query: str, positives, **changes) -> hard_negatives.Mined:
    settings = dataclasses.replace(ALL, **changes)
    (found,) = hard_negatives.mine_negatives(dense, [(query, list(positives))], settings)
    return found


def test_negatives_are_the_models_hits_best_first(corpus, embeddings):
    dense = make(corpus, embeddings)
    assert mine_one(dense, "q0", [0]) == hard_negatives.Mined(
        "q0", ["p0"], [0.9], ["p3", "p1", "p2", "p4"], [0.8, 0.5, 0.3, 0.1], {"positive": 1}
    )
    found = mine_one(dense, "q1", [1], depth=2, negatives=1)
    assert (found.negative_ids, found.passed_over) == (["p3"], {})  # what follows is not looked at
    found = mine_one(dense, "q3", [4, 2], depth=1, negatives=1)
    assert found.negative_ids == ["p3"] and found.positive_scores == [0.1, -0.2]
    assert (dense.made_by, list(dense.ids)) == ("checkpoint", IDS)


def test_the_order_of_index_and_embeddings_does_not_matter(corpus, embeddings):
    def shuffled(order):
        return encoding.Embeddings(
            PASSAGE_VECTORS[order], [IDS[row] for row in order], helpers.CONTRACT, "checkpoint"
        )

    expected = make(corpus, embeddings)
    found = make(corpus, shuffled([3, 1, 4, 0, 2]))
    index = found._index
    mixed = make(corpus, shuffled([2, 4, 0, 1, 3]), index=index)
    for query, positives in (("q0", [0]), ("q1", [1, 4]), ("q3", [2])):
        wanted = mine_one(expected, query, positives)
        assert mine_one(found, query, positives) == mine_one(mixed, query, positives) == wanted


def test_near_duplicates_of_an_answer_are_read_and_passed_over(corpus, embeddings, monkeypatch):
    path = Path(corpus) / "corpus.jsonl"
    answer = "Read and write tabular data in CSV files."
    path.write_text(path.read_text().replace("Reading CSV rows one after the other.", answer))
    dense = make(corpus, embeddings)
    read = []
    passage = Passages.passage
    monkeypatch.setattr(
        Passages, "passage", lambda self, row: read.append(row) or passage(self, row)
    )
    found = mine_one(dense, "q0", [0], max_overlap=0.7, negatives=1)
    assert found.negative_ids == ["p1"]
    assert found.passed_over == {"near_duplicate": 1, "positive": 1}
    assert sorted(read) == [0, 1, 3]  # what is not looked at is not read
    mine_one(dense, "q0", [0], max_overlap=0.7, negatives=1)
    assert len(read) == 3  # nor what is remembered


def test_stems_are_forgotten_when_they_are_many(corpus, embeddings, monkeypatch):
    monkeypatch.setattr(candidates, "STEMMED", 2)
    dense = make(corpus, embeddings)
    expected = [dense.stems([row])[0] for row in range(5)]
    assert dense.stems([4, 0, 1, 4, 2, 3]) == [expected[row] for row in (4, 0, 1, 4, 2, 3)]
    assert dense.stems([1]) == [expected[1]] and len(dense._stemmed) == 1


def test_the_ratio_compares_with_the_best_positive(corpus, embeddings):
    dense = make(corpus, embeddings)
    found = mine_one(dense, "q1", [1, 2], max_score_ratio=0.95)  # 0.6 and 0.2: the limit is 0.57
    assert found.negative_ids == ["p4", "p0"] and found.passed_over == {"positive": 2, "score": 1}
    # the best positive scores -0.1: nothing scores less
    assert mine_one(dense, "q2", [4], max_score_ratio=0.95).negative_ids == []
    assert mine_one(dense, "q3", [2], max_score_ratio=0.95).negative_ids == []


def test_what_belongs_to_another_checkpoint_is_refused(corpus, embeddings):
    other = dataclasses.replace(embeddings, checkpoint="other")
    made_by_other = exact_index.ExactIndex(embeddings.passages, IDS, helpers.CONTRACT, "other")
    unknown = exact_index.ExactIndex(embeddings.passages, IDS, helpers.CONTRACT)
    with pytest.raises(
        candidates.CandidatesError, match="the index: expected .* checkpoint, which .* of other"
    ):
        make(corpus, embeddings, index=made_by_other)
    with pytest.raises(candidates.CandidatesError, match="the index.*that was not recorded"):
        make(corpus, embeddings, index=unknown)
    with pytest.raises(candidates.CandidatesError, match="the embeddings: .* found those of other"):
        make(corpus, other, index=make(corpus, embeddings)._index)
    contract = dataclasses.replace(helpers.CONTRACT, pooling="mean")
    with pytest.raises(ContractError, match="the index that is mined from was made under another"):
        make(corpus, embeddings, model=model(contract=contract))


def test_what_belongs_to_another_corpus_is_refused(corpus, embeddings):
    renamed = [*IDS[:4], "p9"]
    for ids, vectors, message in (
        (renamed, PASSAGE_VECTORS, r"found 5, of which that file lacks 1: \['p9'\]"),
        (IDS[:4], PASSAGE_VECTORS[:4], "expected the 5 passages of .*corpus.jsonl, found 4"),
    ):
        index = exact_index.ExactIndex(vectors, ids, helpers.CONTRACT, "checkpoint")
        with pytest.raises(candidates.CandidatesError, match=f"the index: .*{message}"):
            make(corpus, embeddings, index=index)
        other = encoding.Embeddings(vectors, ids, helpers.CONTRACT, "checkpoint")
        with pytest.raises(candidates.CandidatesError, match=f"the embeddings: .*{message}"):
            make(corpus, other, index=make(corpus, embeddings)._index)


def test_a_query_that_the_source_lacks_is_named(corpus, embeddings):
    with pytest.raises(candidates.CandidatesError, match="1 of the 2 queries .* first is 'q9'"):
        make(corpus, embeddings, queries=["q0", "q9"])
    source = helpers.Source(list(helpers.QUERIES))
    source.prefix = "query: "
    with pytest.raises(ContractError, match="query_prefix"):
        make(corpus, embeddings, source=source)


def stage_inputs(folder: Path, mesh=None, index=SCANN) -> dict:
    """Corpus, vectors and a published index in a folder, made by the stages."""
    corpus = helpers.write_corpus(folder / "corpus")
    lines = ["q0\tp0\t1\n", "q1\tp1\t1\n", "q2\tp4\t2\n", "q2\tp3\t0\n", "q3\tp2\t1\n"]
    (folder / "corpus" / "qrels" / "train.tsv").write_text("".join(lines))
    storage = embedding_shards.Storage(shard_size=2, dtype="float32")
    source = helpers.Source(IDS)
    encode_corpus(model(mesh=mesh), source, "embed_passage", storage, str(folder / "vectors"))
    build_index(str(folder / "vectors"), index, 1, 0.0, str(folder / "index"))
    return {"corpus": corpus, "folder": folder}


def run(inputs: dict, out: Path, mesh=None, settings=ALL, part_size=1) -> None:
    """The stage, as gin calls it."""
    folder = inputs["folder"]
    dense = functools.partial(
        candidates.IndexSearch,
        model=model(mesh=mesh),
        index=published_index.load(folder / "index", fall_back_to_exact=True),
        embeddings=encoding.load_embeddings(folder / "vectors"),
        source=helpers.Source(list(helpers.QUERIES)),
    )
    mine(inputs["corpus"], "train", dense, settings, part_size, str(out))


@pytest.mark.parametrize("index", [SCANN, sharded_index.Sharded(), int8_index.Int8()])
def test_from_a_checkpoint_to_negatives(tmp_path, index):
    inputs = stage_inputs(tmp_path, index=index)
    assert published_index.load(tmp_path / "index", True).checkpoint == "checkpoint"
    run(inputs, tmp_path / "out")
    path = tmp_path / "out" / "negatives.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["query_id"] for line in lines] == ["q0", "q1", "q2", "q3"]
    assert lines[0]["negative_ids"] == ["p3", "p1", "p2", "p4"]
    assert lines[1]["negative_ids"] == ["p3", "p4", "p2", "p0"]
    assert lines[2]["negative_ids"][0] == "p3"  # judged, and found not to answer
    found = provenance.read(path)
    assert found.made_by == "checkpoint" and found.settings["depth"] == 5
    with pytest.raises(hard_negatives.MiningError, match="not one of 4 queries .* max_score_ratio"):
        run(inputs, tmp_path / "none", settings=dataclasses.replace(ALL, max_score_ratio=0.01))


def test_a_run_that_is_stopped_ends_with_the_same_bytes(tmp_path, monkeypatch):
    inputs = stage_inputs(tmp_path)
    run(inputs, tmp_path / "whole")
    search = candidates.IndexSearch.search
    with monkeypatch.context() as patch:

        def fails_late(self, queries, positives, depth):
            if queries == ["q1"]:
                raise KeyboardInterrupt
            return search(self, queries, positives, depth)

        patch.setattr(candidates.IndexSearch, "search", fails_late)
        with pytest.raises(KeyboardInterrupt):
            run(inputs, tmp_path / "stopped")
    run(inputs, tmp_path / "stopped")
    assert bytes_of(tmp_path / "stopped") == bytes_of(tmp_path / "whole")


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name,index", [("dense", ["INDEX"]), ("dense_exact", [])])
def test_the_configurations_fit_the_code(tmp_path, name, index):
    inputs = ["CORPUS", "CHECKPOINT", "EMBEDDINGS", *index, "QUERY_STORE", "TOKENIZER"]
    sizes = {"QUERY_LENGTH": 8, "PASSAGE_LENGTH": 8, "QUERIES": 8, "PASSAGES": 8}
    for path in inputs:
        (tmp_path / path).mkdir()
    macros = {macro: str(tmp_path / macro) for macro in (*inputs, "MODEL_DIR")}
    macros |= sizes | {"TEMPERATURE": 1.0}
    files = (f"runs/negatives/{name}", "models/tiny", "objectives/bi_encoder")
    flags = gin_checks.parse_flags(
        [f"--gin_file={REPOSITORY}/gin_configs/{file}.gin" for file in files]
        + [f"--gin.{macro}={value!r}" for macro, value in macros.items()]
    )
    planned = stages.plan(flags, "t5x_style.mine.mine")
    assert set(planned.inputs.identities) == set(inputs)
    gin_checks.check_code(flags.read())
    gin_checks.check_job(flags.read(), "t5x_style.mine.mine")


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_shares_cover_a_part_once_and_in_order(monkeypatch, processes):
    shares = []
    monkeypatch.setattr(jax, "process_count", lambda: processes)
    for number in range(processes):
        monkeypatch.setattr(jax, "process_index", lambda number=number: number)
        shares.append(resumable_parts.share(10, 15))
    assert [item for share in shares for item in range(*share)] == [10, 11, 12, 13, 14]
    sizes = [end - start for start, end in shares]
    assert max(sizes) - min(sizes) <= 1


def test_two_processes_write_what_one_does(tmp_path):
    inputs = stage_inputs(tmp_path)
    run(inputs, tmp_path / "one", part_size=3)
    folders = [tmp_path / "two", tmp_path / "elsewhere"]  # only process 0 sees the folder
    own = {number: [str(folder)] for number, folder in enumerate(folders)}
    done = process_group.run(["tests.t5x_style.mining.test_mining_dense", str(tmp_path)], each=own)
    assert [code for code, _ in done] == [0, 0], done
    assert bytes_of(folders[0]) == bytes_of(tmp_path / "one") and not folders[1].exists()


if __name__ == "__main__":
    startup.start()
    whole = Path(sys.argv[1])
    run(
        {"corpus": str(whole / "corpus"), "folder": whole},
        Path(sys.argv[-1]),
        mesh=MeshShape(data=-1, fsdp=1, tensor=1),
        part_size=3,
    )
