"""WikiExtractor's text form: articles whole, titles once, malformed lines reported."""

import gzip

import pytest

from input_pipelines.sources.text_sources import BadRecords, SourceError, files_of
from input_pipelines.sources.wiki_dump import WikiExtracted

FIRST = """<doc id="12" url="https://x/wiki?curid=12" title="Tom &amp; Jerry: &quot;Cat&quot;">
Tom & Jerry: "Cat"

A cat and a mouse.

They run. 3 > 2.
</doc>

<doc id="25" url="https://x/wiki?curid=25" title="Autism">
It is no repetition of the title.
</doc>
"""
SECOND = '<doc id="39" url="" title="Albedo">\nAlbedo\n\n</doc>\n'


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "AB").mkdir()
    (tmp_path / "AA").mkdir()
    (tmp_path / "AB/wiki_00.gz").write_bytes(gzip.compress(SECOND.encode()))
    (tmp_path / "AA/wiki_00").write_text(FIRST)
    return tmp_path


def test_every_article_with_its_title_once(folder):
    found = list(WikiExtracted(str(folder)).records(BadRecords(0)))
    assert [(r.id, r.title) for r in found] == [
        ("12", 'Tom & Jerry: "Cat"'),
        ("25", "Autism"),
        ("39", "Albedo"),
    ]
    assert found[0].text == "A cat and a mouse.\n\nThey run. 3 > 2."
    assert found[1].text == "It is no repetition of the title." and found[2].text == ""
    assert found[1].source.endswith("AA/wiki_00:9")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('<doc id="1" title="a">\ntext\n', "wiki_01:1: .*expected </doc>"),
        (
            '<doc id="1" title="a">\n<doc id="2" title="b">\n</doc>\n',
            "wiki_01:1: .*expected </doc>",
        ),
        ("</doc>\n", "</doc> without"),
        ("stray text\n", "expected <doc ...> before any text"),
        ('<doc id="" title="a">\n</doc>\n', "an id and a title"),
        ('<doc id="25" title="a">\n</doc>\n', "'25' was already given in .*AA/wiki_00:9"),
    ],
)
def test_what_is_malformed_is_told(folder, text, message):
    (folder / "AA/wiki_01").write_text(text)
    source = WikiExtracted(str(folder))
    with pytest.raises(SourceError, match=message):
        list(source.records(BadRecords(0)))
    assert len(list(source.records(BadRecords(5)))) >= 3


def test_files_of_a_folder_are_read_in_the_order_of_their_names(folder):
    names = [path.removeprefix(str(folder)) for path in files_of(str(folder))]
    assert names == ["/AA/wiki_00", "/AB/wiki_00.gz"]
    assert files_of(names[0]) == [names[0]]  # a file, whether it is there or not
    empty = folder / "none"
    empty.mkdir()
    with pytest.raises(SourceError, match="holds no files"):
        files_of(str(empty))
