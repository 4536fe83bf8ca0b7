"""The documentation corpus: extraction, summaries, near duplicates, held-out modules."""

import itertools
import json
import random
import sys

import pytest

from input_pipelines.gather import docstring_queries, docstrings, near_duplicates, python_docs
from input_pipelines.gather.docstring_queries import Query
from input_pipelines.gather.docstrings import Doc, MissingPackageError
from input_pipelines.gather.python_docs import Passage, QueryRules
from input_pipelines.sources import beir
from input_pipelines.sources.text_sources import BadRecords

RULES = QueryRules(
    dev=20, test=40, min_words=4, max_words=40, min_content=3,
    near_duplicate=0.7, largest_module=0.5,
)  # fmt: skip


def make(folder, packages=("gin", "absl")):
    python_docs.make_corpus(
        model_dir=str(folder), packages=packages, passage_words=60, max_parts=2,
        min_passage_words=12, near_duplicate=0.7, shingle_words=4, queries=RULES,
    )  # fmt: skip
    return folder / "corpus"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return make(tmp_path_factory.mktemp("docs"))


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def qrels(corpus, split):
    return beir.read_qrels(str(corpus), split, BadRecords(0))


# --- the whole corpus ---


def test_corpus_is_a_beir_folder_without_a_bad_record(corpus):
    bad = BadRecords(0)
    passages = list(beir.BeirCorpus(str(corpus), 1 << 20).records(bad))
    queries = list(beir.BeirQueries(str(corpus), docstring_queries.SPLITS, 1 << 20).records(bad))
    report = json.loads((corpus / "report.json").read_text())
    assert len(passages) == report["passages"] > 1000
    assert len(queries) == sum(report["queries"].values())
    assert report["queries"]["dev"] >= 10
    assert all(p.title and p.text and p.source for p in passages)
    assert max(len(p.text.split()) for p in passages) <= 60
    assert report["dropped"]["passage_too_short"] > 0
    assert report["versions"]["gin-config"]


def test_same_installation_same_bytes(corpus, tmp_path):
    again = make(tmp_path)
    for name in (
        "corpus.jsonl",
        "queries.jsonl",
        "qrels/train.tsv",
        "qrels/test.tsv",
        "report.json",
    ):
        assert (again / name).read_bytes() == (corpus / name).read_bytes(), name


def test_no_summary_stands_in_any_passage(corpus):
    """The obvious way: every query against every passage, word for word."""
    passages = [
        " ".join(near_duplicates.words(r["text"])) for r in read_lines(corpus / "corpus.jsonl")
    ]
    everything = "\n".join(f" {p} " for p in passages)
    for query in read_lines(corpus / "queries.jsonl"):
        assert f" {' '.join(near_duplicates.words(query['text']))} " not in everything, query


def test_no_module_is_in_two_splits(corpus):
    def modules(split):
        names = {q.query.removeprefix("q:") for q in qrels(corpus, split)}
        sources = {r["_id"]: r["source"] for r in read_lines(corpus / "corpus.jsonl")}
        return {sources[name].split(":")[0] for name in names}

    for one, other in itertools.combinations(docstring_queries.SPLITS, 2):
        assert not modules(one) & modules(other)


def test_every_part_of_a_docstring_is_relevant(corpus):
    rows = [q for split in docstring_queries.SPLITS for q in qrels(corpus, split)]
    assert all(q.passage.split("#")[0] == q.query.removeprefix("q:") for q in rows)
    assert any("#2" in q.passage for q in rows)


def test_a_missing_package_is_named(tmp_path):
    with pytest.raises(MissingPackageError, match="'no_such_package' is not installed"):
        make(tmp_path, ["no_such_package"])


# --- extraction ---


@pytest.fixture
def package(tmp_path, monkeypatch):
    root = tmp_path / "tinydocs"
    (root / "tests").mkdir(parents=True)
    (root / "__init__.py").write_text('"""Top."""\nraise RuntimeError("imported")\n')
    (root / "tests" / "x.py").write_text('"""A test."""\n')
    (root / "broken.py").write_text("def (:\n")
    (root / "a.py").write_text(
        '"""Module a."""\n'
        "class C:\n"
        '    """Class C."""\n'
        "    def m(self):\n"
        '        """Method m."""\n'
        "        def inner():\n"
        '            """Not public."""\n'
        "    def _hidden(self):\n"
        '        """Hidden."""\n'
        "if True:\n"
        "    async def f():\n"
        '        """Function f."""\n'
        'add_newdoc("tinydocs._core.multiarray", "g", ("h", "Add.\\n\\n  More."))\n'
        'add_newdoc("tinydocs", "k", "a" + name)\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return "tinydocs"


def test_docstrings_are_read_without_importing(package):
    found = list(docstrings.package_docs(package))
    assert package not in sys.modules
    assert [(d.name, d.text, d.source) for d in found] == [
        ("tinydocs", "Top.", "tinydocs/__init__.py:1"),
        ("tinydocs.a", "Module a.", "tinydocs/a.py:1"),
        ("tinydocs.a.C", "Class C.", "tinydocs/a.py:2"),
        ("tinydocs.a.C.m", "Method m.", "tinydocs/a.py:4"),
        ("tinydocs.a.f", "Function f.", "tinydocs/a.py:11"),
        ("tinydocs.g.h", "Add.\n\nMore.", "tinydocs/a.py:13"),
    ]


def test_compiled_functions_and_methods_are_there():
    found = {d.name: d for d in docstrings.compiled_docs()}
    assert "substrings" in found["builtins.str.split"].text
    assert found["math.hypot"].module == "math"


def test_sections_split_at_underlined_headings():
    text = "The Title\n*********\n\nIntro.\n\nPart\n====\n\n    x = 1\n==\n"
    assert docstrings.sections(text) == [
        ("The Title", "\nIntro.\n"),
        ("Part", "\n    x = 1\n=="),
    ]


def test_topics_carry_their_heading_and_section():
    found = [d for d in docstrings.topic_docs() if d.module == "topics.compound"]
    assert found[0].name == "Compound statements"
    assert 'Compound statements: The "while" statement' in {d.name for d in found}


# --- passages ---


# --- queries ---


@pytest.mark.parametrize(
    ("text", "summary", "rest"),
    [
        ("Add one.", "Add one.", ""),
        ("Add one.\n\nMore.", "Add one.", "More."),
        ("Add\n  one. Not two.\n\nMore.", "Add one.", "Not two.\n\nMore."),
        ("f(x, y=1)\n\nAdd one.\n\nMore.", "Add one.", "f(x, y=1)\n\nMore."),
        ("f(x) -> int\n\nAdd.", "Add.", "f(x) -> int"),
        ("e.g. this is one.", "e.g. this is one.", ""),
        ("====\nName\n====\n\nMore.", "Name", "More."),
        ("f(x)", "", "f(x)"),
    ],
)
def test_summary_and_rest(text, summary, rest):
    assert docstring_queries.summary_and_rest(text) == (summary, rest)


def test_without_markup():
    text = "See :func:`~os.walk`, ``x`` and `y`_, :ref:`the guide <guide>`."
    assert docstring_queries.without_markup(text) == "See os.walk, x and y, the guide."


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("Return self.", "summary_too_short"),
        ("Return the value of this object.", "summary_uninformative"),
        ("word " * 41, "summary_too_long"),
        ("Return the eigenvalues of a symmetric matrix.", ""),
    ],
)
def test_uninformative(query, why):
    assert docstring_queries.uninformative(query, min_words=4, max_words=40, min_content=2) == why


def test_module_group_leaves_private_parts_out():
    assert docstring_queries.module_group("jax._src.lax.linalg") == "jax.lax"
    assert docstring_queries.module_group("collections") == "collections"


def query(number, module="m", text=""):
    return Query(f"q{number}", text or f"text {number}", module, (f"p{number}",))


def test_split_by_module_keeps_modules_whole_and_large_ones_in_train():
    queries = [query(i, f"pkg.m{i % 30}") for i in range(120)]
    queries += [query(i, "pkg.large") for i in range(1000, 1020)]
    splits = docstring_queries.split_by_module(queries, {"dev": 8, "test": 16}, largest_share=0.5)
    assert (len(splits["dev"]), len(splits["test"])) == (8, 16)
    modules = {s: {q.module for q in splits[s]} for s in splits}
    assert not modules["dev"] & modules["test"]
    assert not modules["train"] & (modules["dev"] | modules["test"])
    assert "pkg.large" in modules["train"]
    assert sum(map(len, splits.values())) == 140


def test_queries_that_are_ambiguous_quoted_or_repeated_are_dropped():
    same = [query(1, text="Close the file."), query(2, text="close the  file"), query(3)]
    assert docstring_queries.drop_ambiguous(same) == ([same[2]], 2)
    quoted = [query(1, text="Open the file now."), query(2, text="Shut the file now.")]
    passages = ["see: open the (file) now, please", "shut the old file now"]
    assert docstring_queries.drop_quoted(quoted, passages) == ([quoted[1]], 1)
    splits = {
        "train": [query(1, text="compute the mean of values")],
        "dev": [query(2, text="Compute the mean of all values"), query(3, text="open a socket")],
        "test": [query(4, text="open a socket"), query(5, text="parse the header")],
    }
    kept, dropped = docstring_queries.drop_seen_in_training(splits, 0.7)
    assert {s: [q.id for q in kept[s]] for s in kept} == {
        "train": ["q1"],
        "dev": ["q3"],
        "test": ["q5"],
    }
    assert dropped == 2


def test_a_query_whose_passage_was_a_duplicate_goes_with_it():
    passages = [Passage("a", "a", "x", ""), Passage("a#2", "a", "y", "")]
    queries = [
        Query("q:a", "first thing", "m", ("a", "a#2", "a#3")),
        Query("q:b", "second thing", "m", ("b",)),
    ]
    splits, dropped = python_docs.select_queries(queries, passages, RULES)
    assert [q.positives for s in splits.values() for q in s] == [("a", "a#2")]
    assert dropped["query_passage_is_a_duplicate"] == 1


def test_a_docstring_without_a_query_keeps_its_summary():
    collector = python_docs._Collector(50, 2, 3, RULES)
    collector.add(Doc("m.f", "m", "Short. One two three four.", "s"))
    collector.add(
        Doc("m.f", "m", "Compute eigenvalues of symmetric matrices. See notes below.", "s")
    )
    assert [(p.id, p.text) for p in collector.passages] == [
        ("m.f", "Short. One two three four."),
        ("m.f~2", "See notes below."),
    ]
    assert [(q.id, q.positives) for q in collector.queries] == [("q:m.f~2", ("m.f~2",))]


# --- near duplicates ---


def test_duplicates_by_hand():
    assert near_duplicates.duplicate_of(["a b c", "A, b!", "x"], 0.5, 1) == {1: 0}
    assert near_duplicates.duplicate_of(["a b c", "a b", "x"], 0.7, 1) == {}
    with pytest.raises(ValueError, match="in \\(0, 1\\]"):
        near_duplicates.duplicate_of(["a"], 0.0, 1)


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (
            "如何在两周之内申请退还商品的货款？",
            "如何在两周之内申请退还商品的货款呢",
            "如何修改收货地址？",
        ),
        (
            "注文した商品を返品する方法を教えてください",
            "注文した商品を返品する方法を教えて下さい。",
            "送料はいくらですか",
        ),
        ("ฉันจะขอเงินคืนภายในสองสัปดาห์ได้อย่างไร", "ฉันจะขอเงินคืนภายในสองสัปดาห์ได้อย่างไรคะ", "ค่าจัดส่งเท่าไร"),
    ],
)
def test_texts_without_spaces_are_compared_by_pairs_of_characters(one, same, other):
    assert near_duplicates.duplicate_of([one, other, same], 0.75, 1) == {2: 0}
    assert near_duplicates.words("Über 2 BM25-Läufe, 한국어") == [
        "über",
        "2",
        "bm25",
        "läufe",
        "한국어",
    ]
    assert near_duplicates.words("用BM25搜索。字") == ["用", "bm25", "搜索", "字"]


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.7, 1.0])
def test_prefix_filtering_finds_what_comparing_all_pairs_finds(threshold):
    rng = random.Random(0)
    texts = [" ".join(rng.choices("abcdefgh", k=rng.randint(1, 9))) for _ in range(200)]
    sets = [near_duplicates.shingles(t, 2) for t in texts]
    expected: dict[int, int] = {}
    for i, one in enumerate(sets):
        kept = (j for j in range(i) if j not in expected)
        for j in kept:
            if len(one & sets[j]) >= threshold * len(one | sets[j]):
                expected[i] = j
                break
    assert near_duplicates.duplicate_of(texts, threshold, 2) == expected


def test_phrases():
    phrases = near_duplicates.Phrases(["one two three four", "two three five"], 2)
    assert phrases.find("Two, three five") == 1
    assert phrases.find("two three") == 0
    assert phrases.find("one three") is None
    assert phrases.find("two") is None
