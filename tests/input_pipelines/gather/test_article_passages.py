"""Articles with headings and links as passages, and pairs of them, by the shipped gin files."""

import json
from pathlib import Path
from typing import Any

import pytest

from input_pipelines.gather import article_passages
from input_pipelines.sources.text_sources import Jsonl, SourceError
from input_pipelines.sources.wiki_dump import WikiExtracted

DUMP = """<doc id="12" url="?curid=12" title="Anarchism">
Anarchism

Anarchism is a &lt;a href="political%20philosophy"&gt;political philosophy&lt;/a&gt; &amp; movement.

Section::::History.
It has <a href="History_of_ideas#Old">a history</a> and <a href="Redirect">more</a> to read there.
</doc>
<doc id="34" url="?curid=34" title="Political philosophy">
Political philosophy

It is <b>philosophy</b>.
<h2>Subjects</h2>
Among others <a href="Anarchism">anarchism</a>, <a href="Anarchism">again</a>, and much more text.
==Notes==
Short.
</doc>
<doc id="56" url="?curid=56" title="History of ideas">
History of ideas

Nothing links from here.
</doc>
"""


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def job_runs() -> dict[str, dict[str, Any]]:
    """Arguments for `tests.job_outputs`, and the file that they name in the current folder."""
    Path("dump.txt").write_text(DUMP, encoding="utf-8")
    source = WikiExtracted("dump.txt")
    return {"": {"source": source, "words": 8, "min_words": 3, "max_bad_records": 0}}


def gathered(folder: Path, text: str = DUMP, words: int = 20) -> tuple[list[dict], list[dict]]:
    path = folder / "dump.txt"
    path.write_text(text, encoding="utf-8")
    made = article_passages.gather(str(folder / "out"), WikiExtracted(str(path)), words, 3, 0)
    assert made == {"corpus": "corpus", "links": "links.jsonl", "report": "report.json"}
    return rows(folder / "out/corpus/corpus.jsonl"), rows(folder / "out/links.jsonl")


def test_sections_and_links_of_a_dump(tmp_path: Path) -> None:
    passages, links = gathered(tmp_path)
    assert [row["_id"] for row in passages] == [row["_id"] for row in links]
    assert [(row["_id"], row["article"], row["section"], row["links"]) for row in links] == [
        ("12#0", "12", 0, ["34"]), ("12#1", "12", 1, ["56"]), ("34#0", "34", 0, []),
        ("34#1", "34", 1, ["12"]), ("56#0", "56", 0, []),
    ]  # fmt: skip
    assert [row["text"] for row in passages] == [
        "Anarchism is a political philosophy & movement.",
        "It has a history and more to read there.",
        "It is philosophy.",
        "Among others anarchism, again, and much more text.",
        "Nothing links from here.",
    ]
    assert {row["title"] for row in passages[:2]} == {"Anarchism"}
    report = json.loads((tmp_path / "out/report.json").read_text())
    found = {name: report[name] for name in ("articles", "headings", "links_to_no_article")}
    assert found == {"articles": 3, "headings": 3, "links_to_no_article": 1}


def test_a_link_is_not_cut(tmp_path: Path) -> None:
    text = "One two three <a href='x'>".replace("<a href='x'>", "") + "four five six. "
    link = '<a href="Other%20one">a link of many words</a>'
    dump = (
        f'<doc id="1" title="One">\n{text * 3}{link} {text * 3}\n## Head.\nWords of it.\n</doc>\n'
    )
    dump += '<doc id="2" title="Other one">\nSome words here.\n</doc>\n'
    passages, links = gathered(tmp_path, dump, words=6)
    (place,) = [i for i, row in enumerate(links) if row["links"] == ["2"]]
    assert "a link of many words" in passages[place]["text"]
    assert not any("<" in row["text"] or "href" in row["text"] for row in passages)


@pytest.mark.parametrize(
    ("href", "found", "to_no_article"),
    [
        ("USA", [], 1),  # a redirect, of which the dump has no page
        ("United_States", ["2"], 0),
        ("united%20States#History", ["2"], 0),
        ("United_states", [], 1),
    ],
)
def test_a_link_has_to_name_the_title_of_an_article(
    tmp_path: Path, href: str, found: list[str], to_no_article: int
) -> None:
    dump = f'<doc id="1" title="Ohio">\nOf the <a href="{href}">states</a>.\n== Head ==\n</doc>\n'
    dump += '<doc id="2" title="United States">\nSome words here.\n</doc>\n'
    _, links = gathered(tmp_path, dump)
    assert links[0]["links"] == found
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report.get("links_to_no_article", 0) == to_no_article


def test_a_dump_in_json(tmp_path: Path) -> None:
    path = tmp_path / "wiki.jsonl"
    lines = [
        {"id": "1", "title": "A", "text": 'Of <a href="B">b</a>.\n## History\nOf it much more.'},
        {"id": "2", "title": "B", "text": "All of b."},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    source = Jsonl([str(path)], ["id"], "title", "text", "", 1 << 20)
    article_passages.gather(str(tmp_path / "out"), source, 20, 3, 0)
    links = rows(tmp_path / "out/links.jsonl")
    assert [(row["_id"], row["section"], row["links"]) for row in links] == [
        ("1#0", 0, ["2"]), ("1#1", 1, []), ("2#0", 0, []),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        ('<doc id="1" title="A">\nWords of a.\n</doc>\n', "none of 1 articles has a heading"),
        ('<doc id="1" title="A">\n</doc>\n', "expected articles, found none in WikiExtracted"),
    ],
)
def test_text_without_sections_is_refused(tmp_path: Path, dump: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        gathered(tmp_path, dump)


@pytest.mark.parametrize("words", [(0, 0), (5, 6), (5, -1)])
def test_words_out_of_range_are_refused(words: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected 1 or more words and min_words from 0 to words"):
        article_passages.check(*words, 0)
