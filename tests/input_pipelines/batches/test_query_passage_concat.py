"""Queries and passages in one text: their layout, for training and for scoring."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import processors

from input_pipelines.batches import query_passage_concat, token_groups
from input_pipelines.batches.negatives import PairsError
from input_pipelines.pairs import reranker_batches
from input_pipelines.pairs.reranker_batches import JointPipeline
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers import wordpiece
from t5x_style.mining import provenance
from t5x_style.retrieval.beir_collection import Passages
from tests.kits.tiny_stores import CLS, write_store

QUERY_LENGTHS = [6, 4, 9, 5, 7, 12, 3]
PASSAGE_LENGTHS = [9, 20, 7, 14, 31, 8, 6, 25, 10, 12, 16, 5]
LINES = {f"q{n}": ([f"p{n}"], [f"p{(n + k) % 12}" for k in (1, 2, 3, 5)]) for n in range(6)}
QUERY, PASSAGE, PAIR = 8, 16, 23  # lengths


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("joint")
    queries = write_store(root / "queries", QUERY_LENGTHS, prefix="q")
    return str(queries), str(write_store(root / "passages", PASSAGE_LENGTHS))


@pytest.fixture
def negatives(tmp_path: Path) -> str:
    path = tmp_path / "negatives.jsonl"
    with path.open("w") as f:
        for name, (right, wrong) in LINES.items():
            record = {"query_id": name, "positive_ids": right, "negative_ids": wrong}
            f.write(json.dumps(record) + "\n")
    return str(path)


def make(stores: tuple[str, str], negatives: str, **changes: Any) -> JointPipeline:
    arguments = {"batch": 3, "group_size": 4, "query_length": QUERY, "passage_length": PASSAGE}
    arguments |= {"seed": 5, "pair_rows": token_groups.Rows(12, PAIR, 1), **changes}
    return JointPipeline(*stores, negatives, **arguments)


def cut(store: TokenStore, row: int, length: int) -> list[int]:
    tokens = store.read(np.array([row])).tokens.tolist()
    return tokens if len(tokens) <= length else [*tokens[: length - 1], tokens[-1]]


def texts(
    group: token_groups.Group,
) -> dict[tuple[int, int], tuple[list[int], list[int], list[int]]]:
    """(query, document) -> tokens, token types and positions of their segment."""
    found = {}
    for row, segment in zip(*np.nonzero(group["segment_valid"]), strict=True):
        inside = group["segment_ids"][row] == segment + 1
        key = (int(group["example_id"][row, segment]), int(group["document_id"][row, segment]))
        found[key] = tuple(
            group[name][row][inside].tolist() for name in ("tokens", "token_types", "positions")
        )
        assert group["tokens"][row, group["cls_at"][row, segment]] == CLS
    return found


def test_a_pair_is_the_query_then_the_passage_without_its_cls(
    stores: tuple[str, str], negatives: str
) -> None:
    pipeline = make(stores, negatives)
    batch = pipeline.batch(0)
    for feature, (shape, dtype) in pipeline.specs()["pair"].items():
        assert (batch["pair"][feature].shape, batch["pair"][feature].dtype) == (shape, dtype)
    for (query, document), (tokens, types, positions) in texts(batch["pair"]).items():
        asked = cut(pipeline.query_store, query, QUERY)
        given = cut(pipeline.passage_store, document, PASSAGE)
        assert tokens == asked + given[1:]
        assert types == [0] * len(asked) + [1] * (len(given) - 1)
        assert positions == list(range(len(tokens)))


def test_a_querys_pairs_stand_behind_one_another_its_positive_first(
    stores: tuple[str, str], negatives: str
) -> None:
    pair = make(stores, negatives).batch(1)["pair"]
    owners, documents = pair["example_id"].reshape(3, 4), pair["document_id"].reshape(3, 4)
    assert (owners == owners[:, :1]).all()
    assert (documents[:, 0] == owners[:, 0]).all()  # pN answers qN
    assert pair["relevance"].reshape(3, 4).tolist() == [[1, 0, 0, 0]] * 3


def test_packed_and_in_pieces_the_same_pairs(stores: tuple[str, str], negatives: str) -> None:
    plain = make(stores, negatives)
    packed = make(stores, negatives, pair_rows=token_groups.Rows(8, 48, 4))
    for step in range(4):
        assert texts(packed.batch(step)["pair"]) == texts(plain.batch(step)["pair"])
        whole = packed.batch(step)["pair"]
        for rows in (np.array([0, 1]), np.array([5])):
            own = packed.batch(step, rows)["pair"]
            for name, array in own.items():
                np.testing.assert_array_equal(array, whole[name][rows], err_msg=name)
    assert packed.fingerprint != plain.fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 1}, r"group_size: .* loss of one alone would be 0: expected 2 or more"),
        ({"passage_length": 17}, "query_length 8 and passage_length 17: .* 24 .* found 25"),
        (
            {"pair_rows": token_groups.Rows(11, PAIR, 1)},
            r"JointPipeline\.pair_rows: .* need up to 12 rows",
        ),
        ({"batch": 7}, "a batch of 7 queries needs as many different ones, found 6"),
        ({"query_prefix": "ask: "}, "with '' before each text .* query_prefix 'ask: '"),
        (
            {"query_length": 13, "passage_length": 8},
            "was cut at 12 tokens, .* expected query_length of 13 or more",
        ),
    ],
)
def test_sizes_that_do_not_fit(
    stores: tuple[str, str], negatives: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(stores, negatives, **changes)


@pytest.mark.parametrize(("segments", "multiple"), [(1, 1), (4, 1), (4, 4), (8, 5)])
def test_packed_rows_follow_from_the_data(
    stores: tuple[str, str], negatives: str, segments: int, multiple: int
) -> None:
    sizes = {"batch": 3, "group_size": 4, "query_length": QUERY, "passage_length": PASSAGE}
    rows = reranker_batches.fitting_rows(
        *stores, negatives, **sizes, length=2 * PAIR, segments=segments, seed=5, multiple=multiple
    )
    assert rows % multiple == 0 and (rows == 12 if segments == 1 else rows < 12)
    packed = make(stores, negatives, pair_rows=token_groups.Rows(rows, 2 * PAIR, segments))
    apart = make(stores, negatives)
    for step in range(8):
        assert texts(packed.batch(step)["pair"]) == texts(apart.batch(step)["pair"])
    with pytest.raises(ValueError, match="fitting_rows.multiple"):
        reranker_batches.fitting_rows(
            *stores, negatives, **sizes, length=PAIR, segments=1, seed=5, multiple=0
        )


@pytest.fixture
def doubling(stores: tuple[str, str], tmp_path: Path) -> str:
    """A tokenizer of these stores that joins a pair with two [SEP], as RoBERTa's does."""
    made = wordpiece.from_vocabulary(
        {token: id for id, token in enumerate([*wordpiece.BERT_SPECIALS, "a"])}, True, True
    )
    special = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]", special
    )
    made.save(str(tmp_path / "tokenizer.json"))
    names = {"fingerprint": TokenStore.open(stores[0]).tokenizer_fingerprint}
    (tmp_path / "vocabulary.json").write_text(json.dumps(names))
    return str(tmp_path)


def test_a_tokenizer_may_put_two_separators_between(
    stores: tuple[str, str], negatives: str, doubling: str
) -> None:
    """The passage's [CLS] becomes the second; rows and packing count it."""
    with pytest.raises(ValueError, match=f"at most {PAIR} together, .* 2 .SEP. between"):
        make(stores, negatives, tokenizer=doubling)
    apart = make(
        stores, negatives, pair_rows=token_groups.Rows(12, PAIR + 1, 1), tokenizer=doubling
    )
    for (query, document), (tokens, _, positions) in texts(apart.batch(0)["pair"]).items():
        asked = cut(apart.query_store, query, QUERY)
        given = cut(apart.passage_store, document, PASSAGE)
        assert tokens == [*asked, asked[-1], *given[1:]]
        assert positions == list(range(len(tokens)))
    rows = token_groups.Rows(12, PAIR + 1, 1)
    assert apart.fingerprint != make(stores, negatives, pair_rows=rows).fingerprint
    sizes = {"batch": 3, "group_size": 4, "query_length": QUERY, "passage_length": PASSAGE}
    count = reranker_batches.fitting_rows(
        *stores, negatives, **sizes, length=48, segments=4, seed=5, tokenizer=doubling
    )
    packed = make(stores, negatives, pair_rows=token_groups.Rows(count, 48, 4), tokenizer=doubling)
    for step in range(8):
        assert texts(packed.batch(step)["pair"]) == texts(apart.batch(step)["pair"])
    trained = texts(apart.batch(0)["pair"])
    query, document = next(iter(trained))
    scored = query_passage_concat.JointTexts(
        *stores,
        query_length=QUERY,
        passage_length=PASSAGE,
        rows=token_groups.Rows(2, 40, 4),
        tokenizer=doubling,
    )
    assert scored.fingerprint != scoring(stores).fingerprint
    (group,) = scored.pairs([f"q{query}"], [f"p{document}"]).batches()
    count = int((group["segment_ids"] == 1).sum())
    assert group["tokens"][0, :count].tolist() == trained[query, document][0]


def test_passages_of_another_layout_are_refused(
    stores: tuple[str, str], negatives: str, tmp_path: Path
) -> None:
    titled = write_store(tmp_path / "titled", PASSAGE_LENGTHS, layout="title_and_body")
    with pytest.raises(ValueError, match="layout 'title_and_body': expected .* layout 'text'"):
        make((stores[0], str(titled)), negatives)


def scoring(stores: tuple[str, str]) -> query_passage_concat.JointTexts:
    rows = token_groups.Rows(2, 40, 4)
    return query_passage_concat.JointTexts(
        *stores, query_length=QUERY, passage_length=PASSAGE, rows=rows
    )


def test_pairs_to_score_come_once_and_in_any_part(stores: tuple[str, str]) -> None:
    names = [(f"q{q}", f"p{p}") for q in range(7) for p in (0, 4, 7)]
    source = scoring(stores).pairs(*zip(*names, strict=True))
    assert source.ids == [f"{q} {p}" for q, p in names]
    seen = []
    for start, end in ((0, 5), (5, 21)):
        for group in source.part(start, end).batches():
            assert group["tokens"].shape == group["token_types"].shape == (2, 40)
            seen += (start + group["example_id"][group["segment_valid"]]).tolist()
    assert sorted(seen) == list(range(21))
    assert source.part(0, 5).fingerprint != source.fingerprint


def test_pairs_that_a_store_does_not_have(stores: tuple[str, str]) -> None:
    with pytest.raises(StoreError, match="1 of 2 texts that are to be scored .* is 'p99'"):
        scoring(stores).pairs(["q0", "q1"], ["p0", "p99"])


def test_the_queries_of_a_mined_file(stores: tuple[str, str], negatives: str) -> None:
    found = list(scoring(stores).mined(negatives))
    assert found == [(query, right, wrong) for query, (right, wrong) in LINES.items()]


def test_what_mining_says_of_its_texts_fits_the_stores_that_were_made_of_them(
    stores: tuple[str, str], negatives: str, tmp_path: Path
) -> None:
    """The digest of the engine's side and that of the pipeline's are one."""
    opened = [TokenStore.open(folder) for folder in stores]
    texts = [[store.text(row) for row in range(len(store))] for store in opened]
    with (tmp_path / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for text in texts[1]:
            record = {"_id": text.id, "title": text.title, "text": text.text}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    corpus = Passages(tmp_path)
    asked = {text.id: text.text for text in texts[0]}
    provenance.write(negatives, "bm25", {}, corpus, asked)
    assert list(scoring(stores).mined(negatives))
    provenance.write(negatives, "bm25", {}, corpus, asked | {"q0": "another question"})
    with pytest.raises(PairsError, match="made from other queries than .*'q0' has another text"):
        scoring(stores).mined(negatives)


@pytest.mark.parametrize("text", ["{", "[]", '{"made_by": "x", "queries": [], "passages": {}}'])
def test_an_origin_that_is_damaged(stores: tuple[str, str], negatives: str, text: str) -> None:
    Path(negatives).with_suffix(".origin.json").write_text(text)
    with pytest.raises(PairsError, match="origin.json: expected made_by, queries and passages"):
        scoring(stores).mined(negatives)
