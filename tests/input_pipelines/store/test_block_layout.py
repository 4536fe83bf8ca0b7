"""Documents as blocks: nothing lost, nothing too long, every sentence and span where it says."""

import dataclasses
import json
import re
import sys
import types
from typing import ClassVar

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tokenizers

from input_pipelines.batches import corpus_table
from input_pipelines.sources.text_sources import Record
from input_pipelines.store import block_layout, layouts, prepare, salient_spans
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers import tokenization, word_start_marks

TEXTS = [
    (
        "Marie Curie",
        "Marie Curie was born in Warsaw on 7 November 1867. She moved to Paris in 1891. There she "
        "met Pierre Curie, who taught physics. They found polonium, named after Poland. She won "
        "the Nobel Prize twice! Her daughter won it in 1935.",
    ),
    ("Warsaw", "Warsaw is the capital of Poland. It lies on the Vistula."),
    ("", "A text without a title. It has two sentences."),
    (
        "Lists",
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen " * 3,
    ),
    ("Empty", ""),
]
RECORDS = [Record(f"d{i}", title, text, "") for i, (title, text) in enumerate(TEXTS)]
LENGTH = 24
TABLES = ("sentences", "spans", "minhash", "page")


@dataclasses.dataclass(frozen=True)
class Listed:
    def records(self, bad):
        yield from RECORDS


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("tokenizer")
    tokenization.train_tokenizer(
        str(path), Listed(), 400, 200, 1, True, True, sample=0, seed=0, max_bad_records=0
    )
    return str(path / "tokenizer")


@pytest.fixture(scope="module")
def tokenizer(folder) -> tokenization.Tokenizer:
    return tokenization.Tokenizer(folder)


def cut(tokenizer, length=LENGTH, spans=None):
    found = block_layout.Blocks(spans).rows(RECORDS, tokenizer, length, "")
    return found, found.tables


@hypothesis.settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(length=st.integers(12, 90))
def test_no_token_is_lost_and_no_block_too_long(tokenizer, length):
    found, _ = cut(tokenizer, length)
    cls, sep = tokenizer.vocabulary["cls"], tokenizer.vocabulary["sep"]
    for number, record in enumerate(RECORDS):
        own = [row for row in found.records if row.id.startswith(f"d{number}#")]
        bodies = []
        for row in own:
            tokens = row.tokens.tolist()
            assert len(tokens) <= length and tokens[0] == cls and tokens[-1] == sep
            assert tokens.count(sep) == 2 and len(row.word_starts) == len(tokens)
            bodies += tokens[tokens.index(sep) + 1 : -1]
        assert bodies == tokenizer.pieces([record.text])[0].tokens.tolist()
        assert [row.id for row in own] == [f"d{number}#{i}" for i in range(len(own))]
    assert not any(row.id.startswith("d4#") for row in found.records)  # it has no text


def test_blocks_end_where_sentences_do_and_sentences_fill_them(tokenizer):
    found, tables = cut(tokenizer, 40)
    sep = tokenizer.vocabulary["sep"]
    for number, row in enumerate(found.records):
        mine = tables["sentences"][tables["sentences"][:, 0] == number]
        assert mine[0, 1] == row.tokens.tolist().index(sep) + 1
        assert mine[-1, 2] == len(row.tokens) - 1
        assert (mine[1:, 1] == mine[:-1, 2]).all()
        if not row.id.startswith("d3"):
            assert row.text[-1] in ".!" and row.text in RECORDS[int(row.id[1])].text


def test_spans_are_tokens_of_their_sentence(tokenizer):
    finder = salient_spans.Rules(titles=False)
    found, tables = cut(tokenizer, 40, finder)
    decode = tokenizer._backend.decode
    said = []
    for sentence, start, end in tables["spans"]:
        row, first, last = tables["sentences"][sentence]
        assert first <= start < end <= last
        said.append(decode(found.records[row].tokens[start:end].tolist()))
    assert "warsaw" in said and "7 november 1867" in said and "pierre curie" in said


def test_words_that_carry_their_space_stay_with_their_sentence():
    """SentencePiece's pieces begin with the white space before them."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, "[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    text = "Hello world. Next one.  Next world."
    encoded = backend.encode(text)
    offsets = word_start_marks.without_space(text, np.array(encoded.offsets, np.int64))
    cuts = block_layout._cut_at(block_layout.split(text, "en"), offsets)
    said = [text[offsets[a, 0] : offsets[b - 1, 1]].strip() for a, b in cuts]
    assert said == ["Hello world.", "Next one.", "Next world."]
    assert cuts[0][0] == 0 and cuts[-1][1] == len(offsets)


def test_blocks_without_room_are_refused(tokenizer):
    for length in (3, 4):
        with pytest.raises(ValueError, match=f"blocks of {length} tokens: expected at least 5"):
            cut(tokenizer, length)
    assert cut(tokenizer, 5)[0].records


def test_equal_blocks_have_equal_hashes_and_near_ones_mostly():
    words = [f"word{i}" for i in range(60)]
    text = " ".join(words)
    assert block_layout.minhash(text) == block_layout.minhash(text.upper() + "!")
    rng = np.random.default_rng(0)
    same = different = 0
    for _ in range(100):
        shuffled = rng.permutation(words).tolist()
        near = [*shuffled[:-1], "other"]
        same += block_layout.minhash(" ".join(shuffled)) == block_layout.minhash(" ".join(near))
        different += block_layout.minhash(" ".join(shuffled)) == block_layout.minhash(
            " ".join(rng.permutation(words))
        )
    assert same > 90 and different < 5
    assert block_layout.minhash("") == block_layout.minhash("?!")


def prepared(path, folder, layout, workers=1, length=LENGTH, source=Listed()):
    prepare.prepare(
        str(path), source, folder, "passage", "all", "passage", length, "", 2, workers, 0, layout
    )  # fmt: skip
    return TokenStore.open(str(path / "store"))


class Stopped(Listed):
    """Stops before the last record, once the titles have been read."""

    passes: ClassVar[int] = 0

    def records(self, bad):
        Stopped.passes += 1
        yield from RECORDS[:4] if Stopped.passes == 2 else RECORDS
        if Stopped.passes == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("workers", [1, 2])
def test_blocks_that_were_stopped_go_on_where_they_were(folder, tmp_path, workers, monkeypatch):
    monkeypatch.setattr(Stopped, "passes", 0)
    layout = block_layout.Blocks(salient_spans.Rules())
    whole = prepared(tmp_path / "whole", folder, layout)
    with pytest.raises(KeyboardInterrupt):
        prepared(tmp_path / "cut", folder, layout, source=Stopped())
    assert not (tmp_path / "cut/store/manifest.json").exists()
    found = prepared(tmp_path / "cut", folder, layout, workers)
    assert json.loads((tmp_path / "cut/report.json").read_text())["shards_reused"] == 2
    assert found.fingerprint == whole.fingerprint and found.manifest == whole.manifest
    for name in TABLES:
        np.testing.assert_array_equal(found.table(name), whole.table(name), err_msg=name)


@pytest.mark.parametrize("workers", [1, 2])
def test_tables_of_shards_are_counted_on(folder, tokenizer, tmp_path, workers):
    store = prepared(tmp_path, folder, block_layout.Blocks(salient_spans.Rules()), workers)
    assert len(store.manifest["shards"]) == 3
    finder = salient_spans.Rules().fitted([r.title for r in RECORDS], str(tmp_path))
    found, tables = cut(tokenizer, LENGTH, finder)
    assert store.ids == [row.id for row in found.records]
    for name, table in tables.items():
        np.testing.assert_array_equal(store.table(name), table, err_msg=name)


def test_what_was_found_is_counted(folder, tmp_path):
    store = prepared(tmp_path, folder, block_layout.Blocks(salient_spans.Rules()))
    told = json.loads((tmp_path / "report.json").read_text())["tables"]
    assert told == {name: len(store.table(name)) for name in TABLES}
    assert told["spans"] > 0


def test_a_model_of_spacy_finds_entities_of_the_labels_inside_sentences(monkeypatch, tmp_path):
    """A fake with spaCy's interface: every capitalised word is an entity."""

    class Tagger:
        meta: ClassVar = {"version": "3.7.1"}

        def __call__(self, text):
            found = re.finditer(r"[A-Z]\w+|\d+", text)
            label = lambda m: "CARDINAL" if m[0].isdigit() else "PERSON"  # noqa: E731
            return types.SimpleNamespace(ents=[
                types.SimpleNamespace(start_char=m.start(), end_char=m.end(), label_=label(m))
                for m in found
            ])  # fmt: skip

    asked = []
    load = lambda name, disable: asked.append(name) or Tagger()  # noqa: E731
    monkeypatch.setitem(sys.modules, "spacy", types.SimpleNamespace(load=load))
    salient_spans._tagger.cache_clear()
    finder = salient_spans.Spacy("made").fitted(None, str(tmp_path))
    assert finder.version == "3.7.1" and "3.7.1" in repr(finder)
    text = "here Ada met 3 men. then Bob"
    assert finder.find("d", text, [(0, 19)]) == [(5, 8)]  # no number, none outside the sentence
    assert asked == ["made"]
    salient_spans._tagger.cache_clear()


def test_other_spans_make_another_store(folder, tmp_path):
    one = prepared(tmp_path / "1", folder, block_layout.Blocks(salient_spans.Rules(titles=False)))
    two = prepared(tmp_path / "2", folder, block_layout.Blocks(None))
    assert one.fingerprint != two.fingerprint and len(two.table("spans")) == 0
    three = prepared(tmp_path / "1", folder, block_layout.Blocks(None))  # in the folder of another
    assert three.fingerprint == two.fingerprint


def test_a_store_of_whole_texts_has_no_sentences(folder, tmp_path):
    store = prepared(tmp_path, folder, layouts.WHOLE_TEXTS)
    with pytest.raises(StoreError, match="has no table 'sentences'.*runs/stores/blocks.gin"):
        store.table("sentences")


def test_whole_passages_are_written_as_blocks_are(folder, tokenizer, tmp_path):
    store = prepared(tmp_path, folder, block_layout.TitleAndBody())
    assert store.ids == ["d0", "d1", "d2", "d3", "d4"] and store.manifest["truncated"] == 2
    assert store.manifest["layout"] == "title_and_body"
    first = store.read(np.array([1])).tokens.tolist()
    assert (
        first
        == cut(tokenizer)[0]
        .records[[r.id for r in cut(tokenizer)[0].records].index("d1#0")]
        .tokens.tolist()
    )
    assert store.text(0).text == RECORDS[0].text


def test_the_corpus_of_an_index_is_the_store(folder, tmp_path):
    store = prepared(tmp_path, folder, block_layout.Blocks(None))
    corpus = corpus_table.StoreCorpus(str(tmp_path / "store"))
    assert (corpus.rows, corpus.length) == (len(store), store.max_length)
    assert corpus.vocabulary_size == store.manifest["vocabulary_size"]
    tokens = corpus.tokens(1, 4)
    for at, row in enumerate(range(1, 4)):
        own = store.read(np.array([row])).tokens
        assert tokens[at].tolist() == own.tolist() + [0] * (corpus.length - len(own))
    pages = dict(zip(store.ids, corpus.column("page", 0, corpus.rows).tolist(), strict=True))
    of_records = {name.rpartition("#")[0]: page for name, page in pages.items()}
    assert all(of_records[name.rpartition("#")[0]] == page for name, page in pages.items())
    assert sorted(of_records.values()) == [0, 1, 2, 3]
    assert corpus.column("length", 2, 3) == store.lengths[2]
    duplicate = dict(zip(store.ids, corpus.column("duplicate", 0, corpus.rows), strict=True))
    assert duplicate["d3#0"] == duplicate["d3#1"]  # the same fourteen words again
    assert len(set(duplicate.values())) == corpus.rows - 1
    sizes = corpus_table.Sizes(10, 20, 30)
    assert corpus_table.StoreCorpus(str(tmp_path / "store"), sizes).rows == corpus.rows
    planned = corpus_table.StoreCorpus(str(tmp_path / "nowhere"), sizes)
    assert (planned.rows, planned.length, planned.vocabulary_size) == (10, 20, 30)
    with pytest.raises(StoreError, match=r"no manifest.json in .*nowhere"):
        planned.tokens(0, 1)


def test_a_page_is_what_has_one_title_or_else_the_record():
    assert block_layout.page("Warsaw", "a") == block_layout.page(" Warsaw", "b")
    assert block_layout.page("Warsaw", "a") != block_layout.page("Paris", "a")
    assert block_layout.page("", "a") == block_layout.page(" ", "a") != block_layout.page("", "b")
    assert block_layout.page("", "a") != block_layout.page("a", "")


def test_spans_that_the_user_brings(tmp_path, tokenizer):
    path = tmp_path / "spans.jsonl"
    path.write_text(json.dumps({"id": "d1", "spans": [[25, 31], [0, 50]]}) + "\n")
    found, tables = cut(tokenizer, 40, salient_spans.Given(str(path)))
    ((_, start, end),) = tables["spans"].tolist()  # the other one crosses a sentence
    (row,) = {int(tables["sentences"][s][0]) for s, _, _ in tables["spans"]}
    assert tokenizer._backend.decode(found.records[row].tokens[start:end].tolist()) == "poland"
    path.write_text(json.dumps({"id": "d1", "spans": [[25, 3100]]}) + "\n")
    salient_spans._given.cache_clear()
    with pytest.raises(
        salient_spans.SpanError, match="'d1' has 56 characters, found a span from 25"
    ):
        cut(tokenizer, 40, salient_spans.Given(str(path)))
    path.write_text("[]\n")
    salient_spans._given.cache_clear()
    with pytest.raises(salient_spans.SpanError, match=r"spans.jsonl:1: expected"):
        salient_spans.Given(str(path)).fitted(None, str(tmp_path))


def test_a_tagger_that_is_not_there_says_so(tmp_path):
    with pytest.raises(salient_spans.SpanError, match="cannot be loaded.*salient_spans.Rules"):
        salient_spans.Spacy("no_such_model").fitted(None, str(tmp_path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He met Marie Curie in Paris.", ["Marie Curie", "Paris"]),
        ("The University of Notre Dame was founded in 1842.", ["University of Notre Dame", "1842"]),
        ("Nothing is said here.", []),
        ("On July 4, 1776, it cost $3.5 million or 42%.", ["July 4, 1776", "$3.5 million", "42%"]),
        ("In the 1990s and the 19th century he slept.", ["1990s", "19th century"]),
        ("Curie's notes came from Tesla's house.", ["Tesla"]),
        ("I saw the U.S. twice, I think.", ["U.S."]),
    ],
)
def test_names_dates_and_numbers_are_found(text, expected):
    finder = salient_spans.Rules(titles=False)
    spans = finder.find("x", text, block_layout.split(text, "en"))
    assert [text[a:b] for a, b in spans] == expected


def test_titles_of_the_corpus_are_found_even_where_a_sentence_begins(tmp_path):
    titles = ["Beyoncé", "The Sun (newspaper)", "War_of_the_Worlds", "dog"]
    finder = salient_spans.Rules(names=False, dates=False, numbers=False).fitted(
        titles, str(tmp_path)
    )
    text = "Beyoncé read The Sun and War of the Worlds to a dog."
    spans = finder.find("x", text, block_layout.split(text, "en"))
    assert [text[a:b] for a, b in spans] == ["Beyoncé", "The Sun", "War of the Worlds"]
    other = dataclasses.replace(finder, gazetteer="", gazetteer_hash="").fitted(
        ["I", "He (film)", "Warsaw"], str(tmp_path)
    )
    text = 'Then I left "He was in Warsaw".'
    spans = other.find("x", text, block_layout.split(text, "en"))
    assert [text[a:b] for a, b in spans] == ["Warsaw"]
