"""The YAML between two lines of `---` with which a model card, README.md, begins."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_BLOCK = re.compile(r"\A\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)


class FrontMatterError(ValueError):
    """YAML that cannot be read; the message names the file."""


def read(path: Path) -> dict[str, Any]:
    """The fields of a card; empty where there is no file, or no YAML in it.

    Raises:
        FrontMatterError: it is no YAML, or no mapping of names to values.
    """
    if not path.is_file():
        return {}
    block = _BLOCK.match(path.read_text(encoding="utf-8"))
    if block is None:
        return {}
    try:
        fields = yaml.safe_load(block[1]) or {}
    except yaml.YAMLError as error:
        raise FrontMatterError(f"{path}: its first lines are no valid YAML: {error}") from error
    if not isinstance(fields, dict):
        raise FrontMatterError(
            f"{path}: expected `name: value` between the lines of ---, found {fields!r}"
        )
    return fields


def text(fields: Mapping[str, Any]) -> str:
    """The block of these fields, in their order, with both lines of ---."""
    content = yaml.safe_dump(dict(fields), sort_keys=False, allow_unicode=True, width=1000)
    return f"---\n{content}---\n"
