"""Commands of pages: those in code blocks, and the reason of each that no test runs."""

import re
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"(<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```\w*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_COMMAND = re.compile(r"(kennel|make|python|\.venv/bin)\b")


def text_of(name: str) -> str:
    """A page by its path from the repository."""
    return (REPOSITORY / name).read_text(encoding="utf-8")


def blocks(name: str) -> Iterator[tuple[str | None, list[str]]]:
    """(reason not to run it or None, its lines without comments) of each block with a command."""
    for block in _BLOCK.finditer(text_of(name)):
        text = block["text"].replace("\\\n", " ")
        lines = [line.partition("#")[0].strip() for line in text.splitlines()]
        if any(_COMMAND.match(line) for line in lines):
            yield block["reason"], lines


def commands(name: str) -> list[str]:
    """Each command that is not marked, without `.venv/bin/`."""
    unmarked = [line for reason, lines in blocks(name) if reason is None for line in lines]
    return [line.removeprefix(".venv/bin/") for line in unmarked if line]


def reasons(name: str) -> list[str]:
    """Why the other blocks are not run."""
    return [reason for reason, _ in blocks(name) if reason is not None]
