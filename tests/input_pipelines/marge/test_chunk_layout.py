"""Documents cut into chunks: nothing is lost, words stay whole, and whose they are is known."""

import json

import numpy as np
import pytest

from input_pipelines.marge import chunk_layout
from input_pipelines.marge.chunk_layout import ChunkTable
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers import tokenization
from tests.kits import chunk_stores

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho"
DOCUMENTS = {
    "de/news/a": " ".join([WORDS] * 3),
    "de/news/b": "alpha beta",
    "en/news/a": " ".join([WORDS] * 2),
    "en/tales/a": "rho pi",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return chunk_stores.make_tokenizer(
        tmp_path_factory.mktemp("t"), DOCUMENTS, ["de", "en"], size=150
    )


@pytest.fixture(scope="module")
def store(tokenizer, tmp_path_factory):
    return chunk_stores.make_store(tmp_path_factory.mktemp("s"), DOCUMENTS, tokenizer, length=12)


def _tokens(store, row):
    return store.read(np.array([row])).tokens.tolist()


def test_chunks_hold_all_tokens_in_order_and_no_word_is_cut(store, tokenizer):
    opened = TokenStore.open(store)
    whole = tokenization.Tokenizer(tokenizer)
    cls, sep = (int(whole.vocabulary[role]) for role in ("cls", "sep"))
    for name, text in DOCUMENTS.items():
        rows = [n for n, one in enumerate(opened.ids) if one.rpartition("#")[0] == name]
        parts = [_tokens(opened, row) for row in rows]
        assert all(part[0] == cls and part[-1] == sep and len(part) <= 12 for part in parts)
        (expected,) = whole.pieces([text])
        assert [t for part in parts for t in part[1:-1]] == expected.tokens.tolist()
        starts = [bool(opened.read(np.array([row])).word_starts[1]) for row in rows]
        assert all(starts), "each begins with a word"
        assert " ".join(opened.text(row).text for row in rows) == text


def test_what_is_known_of_each_chunk(store):
    table = ChunkTable.of(TokenStore.open(store))
    ids = TokenStore.open(store).ids
    assert table.languages == ("de", "en")
    for row, name in enumerate(ids):
        document, _, number = name.rpartition("#")
        assert ids[table.document[row]] == f"{document}#0"
        assert table.number[row] == int(number)
        assert table.languages[table.language[row]] == document[:2]
    of = {name: table.name[row] for row, name in enumerate(ids)}
    assert of["de/news/a#0"] == of["en/news/a#0"] != of["de/news/b#0"]
    assert of["en/tales/a#0"] != of["en/news/a#0"], "names are of a shard"


def test_chunks_behind_the_most_are_left_out_and_counted(tokenizer, tmp_path):
    made = chunk_stores.make_store(tmp_path, DOCUMENTS, tokenizer, length=12, max_chunks=2)
    table = ChunkTable.of(TokenStore.open(made))
    assert np.bincount(table.document).max() == 2
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["truncated"] == 2


def test_a_word_that_is_longer_than_a_chunk_is_cut(tokenizer, tmp_path):
    told = {"de/news/a": "alpha" * 12}
    made = TokenStore.open(chunk_stores.make_store(tmp_path, told, tokenizer, length=8))
    assert len(made) > 1
    (expected,) = tokenization.Tokenizer(tokenizer).pieces(list(told.values()))
    parts = [t for row in range(len(made)) for t in _tokens(made, row)[1:-1]]
    assert parts == expected.tokens.tolist()


def test_a_language_without_a_token_is_refused_by_name(tokenizer):
    ids = chunk_layout.language_ids(tokenizer, ("de", "en"))
    assert len(set(ids)) == 2
    with pytest.raises(tokenization.TokenizerError, match=r"no token for 1 of 2 languages, .*fr"):
        chunk_layout.language_ids(tokenizer, ("de", "fr"))


def test_ids_that_say_no_language_are_refused(tokenizer, tmp_path):
    made = chunk_stores.make_store(tmp_path, {"a": WORDS, "b": WORDS + " x"}, tokenizer)
    with pytest.raises(ValueError, match="expected an id as"):
        ChunkTable.of(TokenStore.open(made))


def test_a_store_of_whole_texts_is_refused(tokenizer, tmp_path):
    from input_pipelines.sources import text_sources
    from input_pipelines.store import layouts, prepare

    chunk_stores.write(tmp_path / "d.jsonl", DOCUMENTS)
    source = text_sources.Jsonl([str(tmp_path / "d.jsonl")], ["id"], "title", "text", "", 100_000)
    sizes = ("d", "train", "passage", 12, "", 100, 1, 0)
    prepare.prepare(str(tmp_path), source, tokenizer, *sizes, layouts.WHOLE_TEXTS)
    with pytest.raises(StoreError, match=r"expected chunks, .* found no table 'first_chunk'"):
        chunk_layout.table_of(str(tmp_path / "store"))
