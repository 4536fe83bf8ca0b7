"""Body First Selection and Wiki Link Prediction, against a slow reading of the same articles."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipelines.pairs import article_pairs, pair_mixture
from input_pipelines.pairs.article_pairs import ArticleExamples, BodyFirst, WikiLinks
from input_pipelines.pairs.pair_articles import articles_of
from input_pipelines.pairs.pair_kinds import PairKind
from input_pipelines.sources.text_sources import SourceError
from input_pipelines.store import layouts
from input_pipelines.store.token_store import StoreError
from tests.input_pipelines.pairs.test_pair_kinds import LAYOUTS, cut, place_of, split
from tests.kits.pair_mixtures import Files, mixture, write_files
from tests.kits.pair_stores import Text, corpus_of, write_texts

SENTENCES = st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=5), max_size=3)
# Articles of passages; a passage has sentences, a section and links to articles by their place.
PASSAGES = st.tuples(SENTENCES, st.integers(0, 1), st.lists(st.integers(0, 5), max_size=3))
ARTICLES = st.lists(st.lists(PASSAGES, min_size=1, max_size=4), min_size=1, max_size=5)


def written(path: Path, articles: list) -> tuple[list[Text], dict[str, dict]]:
    """Texts of these articles, and the lines of the file, which are written, by id."""
    texts, lines = [], {}
    for place, passages in enumerate(articles):
        for number, (sentences, section, links) in enumerate(passages):
            name = f"a{place}#{number}"
            texts.append(Text(name, sentences, [1]))
            found = [f"a{target}" for target in links]
            lines[name] = {"_id": name, "article": f"a{place}", "section": section, "links": found}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))
    return texts, lines


@settings(max_examples=40, deadline=None)
@given(
    articles=ARTICLES, layout=LAYOUTS, seed=st.integers(0, 99), query_length=st.integers(5, 20),
    links=st.booleans(),
)  # fmt: skip
def test_a_query_is_of_the_first_section_and_a_passage_of_another_place(
    tmp_path_factory: pytest.TempPathFactory, articles: list, layout: str, seed: int,
    query_length: int, links: bool,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("links") / "links.jsonl"
    texts, lines = written(path, articles)
    corpus = corpus_of(texts, layout, query_length)
    kind: PairKind = (WikiLinks if links else BodyFirst)(2, str(path))
    found, made, rows = cut(kind, corpus, seed)
    line = [lines[text.name] for text in texts]
    sentences = [
        (row, start, end) for row, start, end in corpus.sentences().tolist() if end - start >= 2
    ]
    expected: dict[str, set[int]] = {}
    for row, here in enumerate(line):
        for name in set(here["links"]) - {here["article"]} if links else {here["article"]}:
            asked = [
                at for at, _, _ in sentences
                if line[at]["article"] == name and line[at]["section"] == 0 and at != row
            ]  # fmt: skip
            if asked and texts[row].sentences and sum(map(sum, texts[row].sentences)):
                expected.setdefault(name, set()).add(row)
    assert len(found) == len(expected)
    for query, passage, source, row, shown in zip(
        split(made.queries), split(made.passages), made.source, rows, found.pairs.positives,
        strict=True,
    ):  # fmt: skip
        whole = corpus.texts.take(np.array([source]))
        place = place_of(query, whole.tokens.tolist(), whole.word_starts, query_length - 2)
        assert source != row and line[source]["section"] == 0
        assert any(at == source and start == place.start for at, start, _ in sentences)
        name = line[source]["article"]
        assert expected[name] == set(shown.tolist()) - {-1}
        assert (line[row]["article"] != name and name in line[row]["links"]) == links
        assert passage == corpus.texts.take(np.array([row])).tokens.tolist()
    if len(found) and found.answered is not None:
        places, rows = found.answered(np.arange(len(found)), np.arange(len(texts)))
        answers = set(zip(places.tolist(), rows.tolist(), strict=True))
        for i, source in enumerate(made.source):
            name = line[source]["article"]
            for row, here in enumerate(line):
                linking = name in here["links"] and here["article"] != name
                assert ((i, row) in answers) == (linking or here["article"] == name)


def test_all_sentences_of_other_passages_are_asked_equally_often() -> None:
    texts = [Text("a#0", [[2], [2], [2]]), Text("a#1", [[2]]), Text("b#0", [[2]])]
    corpus = corpus_of(texts)
    articles = articles_of(corpus, None)
    articles.in_first[1] = True
    sentences = article_pairs.FirstSentences(corpus, articles, 2)
    uniform = np.arange(12) / 12
    for row, expected in ((0, [3] * 12), (1, np.repeat([0, 1, 2], 4)), (2, np.repeat(range(4), 3))):
        rows = np.full(12, row)
        picked = sentences.pick(np.zeros(12, np.int64), rows, uniform)
        assert picked.tolist() == list(expected)
        assert sentences.others(np.zeros(12, np.int64), rows).tolist() == [len({*expected})] * 12


def test_without_a_file_the_first_passage_is_the_first_section() -> None:
    """Ids say which passages are of one article; titles do where ids have no number."""
    texts = [
        Text("a#0", [[2, 1]], [1], titled="same"), Text("a#1", [[3]]), Text("a#2", [[3]]),
        Text("b#0", [[2, 2]], [1], titled="same"), Text("x", [[2, 1]], [1], titled="t"),
        Text("y", [[2]], [1], titled="t"), Text("z", [[2]]),
    ]  # fmt: skip
    corpus = corpus_of(texts)
    assert articles_of(corpus, None).number.tolist() == [0, 0, 0, 1, 2, 2, 3]
    found, made, rows = cut(BodyFirst(2), corpus)
    assert found.pairs.positives.tolist() == [[1, 2], [5, -1]]
    assert made.source.tolist() == [0, 4] and rows.tolist() == [1, 5] and found.shared
    assert "2 of 4 articles with a sentence of 2 tokens or more" in found.found


def test_an_article_of_many_passages_shows_sixteen_of_them() -> None:
    texts = [Text(f"a#{i}", [[2, 2]], [1]) for i in range(100)]
    (shown,) = BodyFirst(2).examples(corpus_of(texts), 1, False).pairs.positives.tolist()
    assert len(set(shown)) == 16 and 0 not in shown and max(shown) > 90


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("pairs"))


def linked_files(root: Path, count: int = 12) -> tuple[str, dict[str, PairKind]]:
    """A store of articles of three passages, the last of which links to two others."""
    articles = [
        [
            ([[2, 1], [3]], 0, []),
            ([[1, 2], [2, 2]], 1, []),
            ([[3, 3]], 1, [(i + 1) % count, (i + 2) % count]),
        ]
        for i in range(count)
    ]
    texts, _ = written(root / "links.jsonl", articles)
    store = write_texts(root / "articles", texts)
    links = str(root / "links.jsonl")
    return store, {"body_first": BodyFirst(2, links), "wiki_links": WikiLinks(2, links)}


def test_a_step_follows_from_seed_and_number_alone(tmp_path: Path, files: Files) -> None:
    store, kinds = linked_files(tmp_path)
    weights = {"body_first": 1, "wiki_links": 1}
    pairs = mixture(files, passages=store, kinds=kinds, weights=weights, batch=8)
    steps = [pairs.open().step(number) for number in range(6)]
    pair_mixture._opened.cache_clear()
    again = pairs.open()
    for number in (5, 2):
        one, other = again.step(number), steps[number]
        for a, b in zip(one[2:], other[2:], strict=True):
            np.testing.assert_array_equal(a, b)
        for a, b in zip((*one.queries, *one.passages), (*other[0], *other[1]), strict=True):
            np.testing.assert_array_equal(a, b)
    assert len({step.queries.tokens.tobytes() for step in steps}) == 6
    other = mixture(files, passages=store, kinds=kinds, weights=weights, batch=8, seed=6).open()
    assert other.fingerprint != again.fingerprint


@pytest.mark.parametrize("weights", [{"wiki_links": 1}, {"wiki_links": 1, "body_first": 1}])
def test_what_else_answers_is_known(
    weights: dict[str, float], tmp_path: Path, files: Files
) -> None:
    store, kinds = linked_files(tmp_path)
    batch = 12 * len(weights)
    pairs = mixture(files, passages=store, kinds=kinds, weights=weights, batch=batch).open()
    step = pairs.step(0)
    positive = step.document[step.relevant]
    parts = pairs._parts.values()
    assert all(isinstance(part.examples, ArticleExamples) for part in parts)
    asked = np.concatenate([part.examples.article[part.choice.choose(0)[0]] for part in parts])
    assert len(asked) == batch
    for article, row, known in zip(asked, positive, step.known, strict=True):
        linking = {3 * ((article - back) % 12) + 2 for back in (1, 2)}
        answers = linking | {3 * article + place for place in range(3)}
        assert row in answers
        assert set(known.tolist()) - {-1} == (answers & set(positive.tolist())) - {row}
    assert (step.known != -1).any()


def test_a_file_that_changes_makes_other_pairs(tmp_path: Path, files: Files) -> None:
    store, kinds = linked_files(tmp_path)
    pairs = mixture(files, passages=store, kinds=kinds, weights={"wiki_links": 1}, batch=12)
    before = pairs.open().fingerprint
    path = tmp_path / "links.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["links"] = line["links"][:1]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert pairs.open().fingerprint != before


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (WikiLinks(2), r"wiki_links: 0 articles .* by 0 links in LINKS \(None; .*article_passages"),
        (BodyFirst(2), "body_first: 0 of 4 articles .* and another passage"),
    ],
)
def test_no_links_and_articles_of_one_passage_say_what_was_found(
    tmp_path: Path, files: Files, kind: PairKind, message: str
) -> None:
    name = "wiki_links" if isinstance(kind, WikiLinks) else "body_first"
    store = write_texts(tmp_path / "s", [Text(f"p{i}#0", [[2, 2], [2]]) for i in range(4)])
    pairs = mixture(files, passages=store, kinds={name: kind}, weights={name: 1})
    with pytest.raises(ValueError, match=f"expected examples of one kind at least.*{message}"):
        pairs.open()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"_id": "other"}, StoreError, "a line for each passage of memory, found none for 1 of 2"),
        ({"section": -1}, SourceError, "links.jsonl:2: field 'section': expected 0 or more"),
        ({"section": True}, SourceError, "field 'section': expected 0 or more, found True"),
        ({"links": "a"}, SourceError, "field 'links': expected a list of ids of articles"),
        ({"links": [3]}, SourceError, "field 'links': expected a list of ids of articles"),
        ({"article": None}, SourceError, "field 'article': expected a string"),
    ],
)
def test_a_malformed_file_is_refused(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = tmp_path / "links.jsonl"
    texts, lines = written(path, [[([[2]], 0, []), ([[2]], 1, [])]])
    lines["a0#1"] |= change
    path.write_text("".join(json.dumps(line) + "\n" for line in lines.values()))
    with pytest.raises(error, match=message):
        BodyFirst(2, str(path)).examples(corpus_of(texts), 1, False)


def test_sentences_of_no_token_are_refused() -> None:
    with pytest.raises(ValueError, match="WikiLinks.min_tokens: expected 1 or more, found 0"):
        WikiLinks(0)


def test_a_store_without_sentences_says_how_to_get_them() -> None:
    corpus = corpus_of([Text("a#0", [[1, 1]]), Text("a#1", [[1]])], layouts.TEXT, tables=False)
    with pytest.raises(StoreError, match="does not say where sentences are"):
        BodyFirst(2).examples(corpus, 1, False)
