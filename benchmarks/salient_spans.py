"""How well `salient_spans.Rules` finds what a person marked: precision and recall on 60 sentences.

    python -m benchmarks.salient_spans --squad=../shared/data/squad/dev-v1.1.jsonl.gz

The sample was drawn once, before the rules were looked at on it, and marked by one person who saw
what the rules propose: names of people, places, peoples, organisations, works and events; dates;
numbers. `salient_spans.json` holds numbers of paragraphs and sentences and places of characters,
and no text.
"""

import argparse
import gzip
import json
import tempfile
from pathlib import Path

from benchmarks import code_hash
from input_pipelines.store import block_layout, salient_spans
from input_pipelines.store.salient_spans import Span

SAMPLE = Path(__file__).with_suffix(".json")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--squad", required=True, help="dev-v1.1.jsonl.gz")
    arguments = parser.parse_args()
    with gzip.open(arguments.squad, "rt", encoding="utf-8") as f:
        paragraphs = [json.loads(line) for line in f]
    marked = json.loads(SAMPLE.read_text())
    print(f"{len(marked)} sentences, {sum(len(one['spans']) for one in marked)} marked spans")
    print("| finds | spans | precision | recall | overlapping: precision | recall |")
    print("|---|---|---|---|---|---|")
    titles = sorted({paragraph["title"] for paragraph in paragraphs})
    kinds = {
        "everything": salient_spans.Rules(),
        "without titles": salient_spans.Rules(titles=False),
        "without numbers": salient_spans.Rules(numbers=False),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, finder in kinds.items():
            print(row(name, finder.fitted(titles, folder), paragraphs, marked))


def row(
    name: str,
    finder: salient_spans.Finder,
    paragraphs: list[dict[str, str]],
    marked: list[dict[str, list[Span]]],
) -> str:
    """One line of the table."""
    exact = overlapping = reached = found = wanted = 0
    for one in marked:
        text = paragraphs[one["paragraph"]]["context"]
        sentences = block_layout.split(text, "en")
        start, end = sentences[one["sentence"]]
        spans = finder.find("", text, sentences)
        mine = [(a - start, b - start) for a, b in spans if start <= a and b <= end]
        gold = [(a, b) for a, b in one["spans"]]
        found, wanted = found + len(mine), wanted + len(gold)
        exact += len(set(mine) & set(gold))
        overlapping += sum(any(touch(a, b) for b in gold) for a in mine)
        reached += sum(any(touch(a, b) for b in mine) for a in gold)
    shares = (exact / found, exact / wanted, overlapping / found, reached / wanted)
    return f"| {name} | {found} | " + " | ".join(f"{share:.2f}" for share in shares) + " |"


def touch(one: Span, other: Span) -> bool:
    """Whether two spans share a character."""
    return one[0] < other[1] and other[0] < one[1]


if __name__ == "__main__":
    code_hash.announce("salient_spans")
    main()
