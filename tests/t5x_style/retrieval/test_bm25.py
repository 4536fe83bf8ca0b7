"""BM25: scores against the formula, ties, queries without words, words of several kinds."""

import math
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from t5x_style.interfaces import index as index_lib
from t5x_style.retrieval import analysis, bm25
from t5x_style.retrieval.beir_collection import Passages
from tests.kits import published_folders
from tests.kits import retrieval_helpers as helpers

TEXTS = ["Read a CSV file", "Writing CSV files, reading CSV files", "the sockets", ""]


@pytest.fixture
def index():
    return bm25.Bm25Index(TEXTS, list("abcd"))


def reference(query: list[str], document: list[str], documents: list[list[str]]) -> float:
    """Lucene's BM25 as in Kamphuis et al. 2020, table 1."""
    mean = sum(map(len, documents)) / len(documents)
    total = 0.0
    for word in query:
        holding = sum(word in d for d in documents)
        idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
        tf = document.count(word)
        total += idf * tf / (tf + 0.9 * (1 - 0.4 + 0.4 * len(document) / mean))
    return total


def test_scores_are_those_of_the_formula(index):
    documents = bm25.stem(TEXTS)
    query = bm25.stem(["reads csv"])[0]
    assert query == ["read", "csv"] and documents[1] == [
        "write",
        "csv",
        "file",
        "read",
        "csv",
        "file",
    ]
    expected = [reference(query, document, documents) for document in documents]
    np.testing.assert_allclose(index.score("reads csv"), expected, atol=1e-6)
    scores, rows = index.search(["reads csv"], 3)
    order = np.argsort(expected)[::-1][:2]
    np.testing.assert_array_equal(rows[0], [*order, index_lib.NO_ROW])
    np.testing.assert_allclose(scores[0, :2], np.array(expected)[order], atol=1e-6)


@pytest.mark.parametrize("query", ["", "the", "zebra", "?!"])
def test_a_query_without_known_words_finds_nothing(index, query):
    scores, rows = index.search([query], 2)
    assert (rows == index_lib.NO_ROW).all() and np.isneginf(scores).all()


def test_ties_are_broken_by_row_also_at_the_cut():
    index = bm25.Bm25Index(["same words"] * 6 + ["other"], [f"p{i}" for i in range(7)])
    np.testing.assert_array_equal(index.search(["words"], 4)[1], [[0, 1, 2, 3]])


def test_titles_count(tmp_path):
    passages = Passages(helpers.write_corpus(tmp_path / "corpus"))
    index = bm25.build(passages)
    assert index.ids[index.search(["heapq"], 1)[1][0, 0]] == "p4"


def test_bad_input_is_refused(index):
    with pytest.raises(index_lib.QueryError, match="list of queries"):
        index.search("csv", 1)
    with pytest.raises(index_lib.QueryError, match="k of at least 1"):
        index.search(["csv"], 0)
    with pytest.raises(ValueError, match="expected 1 texts, found 2"):
        bm25.Bm25Index(["a b c", "d"], ["x"])
    with pytest.raises(ValueError, match="found none"):
        bm25.Bm25Index(["", "the"], ["x", "y"])
    assert index.search([], 3)[1].shape == (0, 3)


def test_words_are_those_of_a_language():
    assert analysis.LanguageAnalyzer("en")(["The reading of the books"]) == [["read", "book"]]
    assert analysis.LanguageAnalyzer("en")(["The reading"]) == bm25.stem(["The reading"])
    german = analysis.LanguageAnalyzer("de")
    assert german(["Die Häuser und das Haus"]) == [["haus", "haus"]]
    assert german.facts == {"stemmer": "german"}
    assert analysis.LanguageAnalyzer("sw")(["Watu wengi"]) == [["watu", "wengi"]]  # no stemmer


def test_vowel_signs_belong_to_words():
    assert analysis.LanguageAnalyzer("bn")(["বাংলা ভাষা"]) == [["বাংলা", "ভাষা"]]
    hindi = analysis.LanguageAnalyzer("hi")(["हिन्दी भाषा किताब"])
    assert hindi == [["हिन्द", "भाष", "किताब"]]  # stems, of whole words


@pytest.mark.parametrize("code", ["german", "DE", "zh-cn"])
def test_an_unknown_language_is_refused(code):
    with pytest.raises(ValueError, match=f"expected one of .*'sw'.*found '{code}'"):
        analysis.LanguageAnalyzer(code)


def test_languages_without_spaces_have_pairs_of_characters():
    chinese = analysis.LanguageAnalyzer("zh")
    assert chinese(["搜索引擎 BM25，字", ""]) == [["搜索", "索引", "引擎", "bm25", "字"], []]
    index = bm25.Bm25Index(["搜索引擎很快", "今天天气很好"], ["a", "b"], chinese)
    assert index.search(["引擎"], 1)[1].tolist() == [[0]]
    assert analysis.LanguageAnalyzer("th")(["ภาษา"]) == [["ภา", "าษ", "ษา"]]


def test_words_may_be_the_tokens_of_a_model(tmp_path):
    folder = published_folders.encoder(tmp_path / "encoder")
    by_tokens = analysis.TokenAnalyzer(str(folder))
    tokenizer = tokenizers.Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    text = published_folders.TEXTS[1]
    assert by_tokens([text]) == [tokenizer.encode(text, add_special_tokens=False).tokens]
    index = bm25.Bm25Index(published_folders.TEXTS[1:4], ["a", "b", "c"], by_tokens)
    assert index.search(published_folders.TEXTS[2:3], 1)[1].tolist() == [[1]]
    with pytest.raises(FileNotFoundError, match=r"tokenizer\.json: not found"):
        analysis.TokenAnalyzer(str(tmp_path))
