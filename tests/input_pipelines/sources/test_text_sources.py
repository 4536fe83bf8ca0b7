"""Reading of text files: every kind of bad input, mixtures, BEIR folders."""

import gzip
import json
import os

import numpy as np
import pytest

from input_pipelines.sources import beir, mixtures, text_sources
from input_pipelines.sources.mixtures import Mixture
from input_pipelines.sources.text_sources import (
    BadRecords,
    Jsonl,
    Lines,
    Record,
    SourceError,
)

LIMIT = 1 << 20


def jsonl(*paths, ids=("id",), title="title", text="text", source=""):
    return Jsonl([str(p) for p in paths], ids, title, text, source, LIMIT)


def write(path, *rows):
    """Rows as given bytes, or as JSON."""
    encoded = [r if isinstance(r, bytes) else json.dumps(r).encode() for r in rows]
    path.write_bytes(b"".join(r + b"\n" for r in encoded))
    return path


GOOD = {"id": "a", "title": "A", "text": "alpha"}
LAST = {"id": "z", "title": "Z", "text": "omega"}


def read(source, limit=0):
    bad = BadRecords(limit)
    return list(source.records(bad)), bad


def test_reads_fields_numbers_as_ids_and_file_and_line_as_source(tmp_path):
    path = write(tmp_path / "c.jsonl", GOOD, {**LAST, "id": 7}, b"")
    records, bad = read(jsonl(path))
    assert records == [
        Record("a", "A", "alpha", "c.jsonl:1"),
        Record("7", "Z", "omega", "c.jsonl:2"),
    ]
    assert not bad.counts


@pytest.mark.parametrize(
    ("line", "reason", "message"),
    [
        (b'{"id": "b", "title"', "not_json", "not JSON"),
        (b'["b", "B", "beta"]', "not_an_object", "expected a JSON object, found list"),
        ({"id": "b", "title": "B"}, "missing_field", "no field 'text'"),
        (
            {"id": "b", "title": "B", "text": 3},
            "wrong_type",
            "field 'text': expected a string, found int",
        ),
        (
            {"id": True, "title": "B", "text": "beta"},
            "wrong_type",
            "expected a string or a whole number, found bool",
        ),
        ({"id": "b b", "title": "B", "text": "beta"}, "bad_id", "no white space"),
        (b'{"id": "b", "title": "B", "text": "\xff"}', "not_utf8", "not UTF-8 (byte 0xff"),
        (b'{"id": "b", "title": "B", "text": "\\ud800"}', "not_utf8", "surrogate"),
        ({"id": "a", "title": "B", "text": "beta"}, "duplicate_id", "c.jsonl:1"),
        (b"[" * 200_000, "not_json", "not JSON"),
    ],
)
def test_a_bad_line_is_counted_quoted_and_skipped_up_to_the_limit(tmp_path, line, reason, message):
    path = write(tmp_path / "c.jsonl", GOOD, line, LAST)
    records, bad = read(jsonl(path), limit=1)
    assert [r.id for r in records] == ["a", "z"]
    assert bad.counts == {reason: 1}
    assert message in bad.examples[0]
    assert f"{path}:2" in bad.examples[0]
    with pytest.raises(SourceError, match=r"max_bad_records=0.*c\.jsonl:2.*raise max_bad_records"):
        read(jsonl(path), limit=0)


def test_a_line_of_ten_megabytes_is_skipped_without_being_parsed(tmp_path, monkeypatch):
    line = json.dumps({"id": "b", "title": "B", "text": "x" * 10_000_000}).encode()
    path = write(tmp_path / "c.jsonl", GOOD, line, LAST)
    seen = []
    loads = json.loads
    monkeypatch.setattr(
        text_sources.json, "loads", lambda text: (seen.append(len(text)), loads(text))[1]
    )
    records, bad = read(jsonl(path), limit=1)
    assert [r.id for r in records] == ["a", "z"]
    assert records[1].source == "c.jsonl:3"
    assert bad.counts == {"line_too_long": 1}
    assert f"line of {len(line) + 1} bytes" in bad.examples[0]
    assert max(seen) < 1000
    assert len(bad.examples[0]) < 500


def test_a_long_last_line_without_an_end_is_skipped_too(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_bytes(b"x" * (LIMIT + 5))
    _, bad = read(jsonl(path), limit=1)
    assert bad.counts == {"line_too_long": 1}


def test_duplicate_ids_across_files_name_both_places(tmp_path):
    first = write(tmp_path / "1.jsonl", LAST, GOOD)
    second = write(tmp_path / "2.jsonl", GOOD)
    with pytest.raises(SourceError, match=r"2\.jsonl:1: id 'a' was already given in .*1\.jsonl:2"):
        read(jsonl(first, second))


def test_missing_file_folder_and_damaged_gzip_are_named(tmp_path):
    with pytest.raises(SourceError, match=r"no\.jsonl does not exist"):
        read(jsonl(tmp_path / "no.jsonl"))
    with pytest.raises(SourceError, match="is a folder"):
        read(jsonl(tmp_path))
    whole = gzip.compress(
        b"".join(json.dumps({**GOOD, "id": i}).encode() + b"\n" for i in range(99))
    )
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match="cut short after line"):
        read(jsonl(path))


def test_gzip_reads_as_plain(tmp_path):
    plain = write(tmp_path / "c.jsonl", GOOD, LAST)
    packed = tmp_path / "d.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert [r.text for r in read(jsonl(packed))[0]] == ["alpha", "omega"]


def test_squad_paragraphs_are_read_by_field_names_alone(shared):
    path = shared / "data" / "squad" / "dev-v1.1.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    records, _ = read(jsonl(path, ids=("title", "para"), text="context"))
    assert len(records) == 2067
    assert records[0].id.endswith("/0")
    assert records[0].text


def test_lines_number_their_passages_and_pass_over_blank_ones(tmp_path):
    path = tmp_path / "my text.txt"
    path.write_text("one\n\n  two \n", encoding="utf-8")
    records, _ = read(Lines([str(path)], LIMIT))
    assert [(r.id, r.text) for r in records] == [("my_text.txt:1", "one"), ("my_text.txt:3", "two")]


def test_lines_of_files_with_one_name_have_different_ids(tmp_path):
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.txt").write_text("x\n")
    records, _ = read(Lines([str(tmp_path / f / "t.txt") for f in "ab"], LIMIT))
    assert [r.id for r in records] == ["0/t.txt:1", "1/t.txt:1"]


# --- mixtures ---


def test_mixture_probabilities_by_hand():
    # sqrt(100) = 10, sqrt(400) = 20, with weights 1 and 2: 10 : 40
    np.testing.assert_allclose(
        mixtures.mixture_probabilities([100, 400], [1.0, 2.0], 0.5), [0.2, 0.8]
    )
    np.testing.assert_allclose(
        mixtures.mixture_probabilities([100, 300], [1, 1], 1.0), [0.25, 0.75]
    )
    np.testing.assert_allclose(mixtures.mixture_probabilities([1, 9999], [1, 3], 0.0), [0.25, 0.75])
    np.testing.assert_allclose(mixtures.mixture_probabilities([0, 5], [1, 1], 0.0), [0.0, 1.0])


@pytest.mark.parametrize(
    ("counts", "weights", "alpha", "message"),
    [
        ([1], [1.0, 1.0], 1.0, "1 counts and 2 weights"),
        ([], [], 1.0, "0 counts"),
        ([1], [-1.0], 1.0, "none < 0"),
        ([0, 3], [1.0, 0.0], 1.0, "nothing to sample from"),
    ],
)
def test_mixture_probabilities_refuse(counts, weights, alpha, message):
    with pytest.raises(ValueError, match=message):
        mixtures.mixture_probabilities(counts, weights, alpha)


def two_files(tmp_path, sizes):
    members = []
    for name, n in zip("ab", sizes, strict=True):
        path = tmp_path / f"{name}.txt"
        path.write_text("".join(f"{name}{i}\n" for i in range(n)))
        members.append((name, Lines([str(path)], LIMIT), 1.0))
    return members


def test_mixture_samples_each_member_by_its_share(tmp_path):
    mixture = Mixture(two_files(tmp_path, [4, 64]), alpha=1 / 3)  # 4^(1/3) : 64^(1/3) = 0.28 : 0.72
    drawn = [r.text for r in mixture.sample(100, seed=0, bad=BadRecords(0))]
    a = [t for t in drawn if t[0] == "a"]
    assert len(a) == round(100 * 4 ** (1 / 3) / (4 ** (1 / 3) + 4))
    assert {a.count(f"a{i}") for i in range(4)} <= {len(a) // 4, len(a) // 4 + 1}
    assert drawn == [r.text for r in mixture.sample(100, seed=0, bad=BadRecords(0))]
    assert drawn != [r.text for r in mixture.sample(100, seed=1, bad=BadRecords(0))]


def test_mixture_reads_every_record_once_under_its_members_name(tmp_path):
    members = two_files(tmp_path, [2, 1])
    records, _ = read(Mixture(members, alpha=1.0))
    assert [r.id for r in records] == ["a/a.txt:1", "a/a.txt:2", "b/b.txt:1"]
    with pytest.raises(SourceError, match="expected different names"):
        read(Mixture([members[0], members[0]], alpha=1.0))


# --- BEIR ---


@pytest.fixture
def folder(tmp_path):
    write(
        tmp_path / "corpus.jsonl",
        {"_id": "p1", "title": "T", "text": "x"},
        {"_id": "p2", "text": "y", "source": "s"},
    )
    write(tmp_path / "queries.jsonl", {"_id": "q1", "text": "?"}, {"_id": "q2", "text": "??"})
    os.makedirs(tmp_path / "qrels")
    header = "query-id\tcorpus-id\tscore\n"
    (tmp_path / "qrels" / "test.tsv").write_text(header + "q2\tp1\t1\n")
    (tmp_path / "qrels" / "train.tsv").write_text(header + "q1\tp2\t1\nq1\tp1\t0\n")
    return tmp_path


def test_beir_corpus_and_queries_of_some_splits(folder):
    corpus, _ = read(beir.BeirCorpus(str(folder), LIMIT))
    assert corpus == [Record("p1", "T", "x", ""), Record("p2", "", "y", "s")]
    test, _ = read(beir.BeirQueries(str(folder), ("test",), LIMIT))
    assert [r.id for r in test] == ["q2"]
    both, _ = read(beir.BeirQueries(str(folder), ("train", "test"), LIMIT))
    assert [r.id for r in both] == ["q1", "q2"]


@pytest.mark.parametrize(
    ("row", "reason", "message"),
    [
        ("q1\tp9\t1", "qrel_names_no_passage", "names passage 'p9', which is not in corpus.jsonl"),
        ("q9\tp1\t1", "qrel_names_no_query", "names query 'q9', which is not in queries.jsonl"),
        ("q1 p1 1", "bad_qrel", "separated by tabs"),
        ("q1\tp1\tyes", "bad_qrel", "a whole score"),
    ],
)
def test_a_qrel_that_names_nothing_or_is_no_qrel(folder, row, reason, message):
    with open(folder / "qrels" / "test.tsv", "a") as f:
        f.write(row + "\n")
    source = beir.BeirQueries(str(folder), ("test",), LIMIT)
    _, bad = read(source, limit=1)
    assert bad.counts == {reason: 1}
    assert message in bad.examples[0]
    assert "test.tsv:3" in bad.examples[0]
    with pytest.raises(SourceError, match=r"test\.tsv:3"):
        read(source)


def test_beir_folder_without_its_files_lists_what_is_there(folder):
    with pytest.raises(SourceError, match=r"qrels/dev\.tsv.*found .*corpus\.jsonl"):
        read(beir.BeirQueries(str(folder), ("dev",), LIMIT))
    with pytest.raises(SourceError, match="no such folder"):
        read(beir.BeirCorpus(str(folder / "absent"), LIMIT))


def test_duplicate_passage_and_wrong_type_in_a_beir_folder(folder):
    with open(folder / "corpus.jsonl", "a") as f:
        f.write('{"_id": "p1", "text": "again"}\n{"_id": "p3", "text": null}\n')
    _, bad = read(beir.BeirCorpus(str(folder), LIMIT), limit=2)
    assert bad.counts == {"duplicate_id": 1, "wrong_type": 1}
    assert "corpus.jsonl:1" in bad.examples[0]


def test_a_real_beir_folder(shared):
    folder = shared / "data" / "ir_scifact"
    if not folder.exists():
        pytest.skip(f"{folder} is not there")
    queries, _ = read(beir.BeirQueries(str(folder), ("test",), LIMIT))
    assert len(queries) == 300
