"""gin's own parser, whose errors name file and line, and which refuses a key said twice."""

import tokenize
from collections.abc import Iterator
from typing import Any

from gin import config_parser


class GinError(ValueError):
    """A configuration that was refused; the message names the file, the line and the remedy.

    Several problems are several arguments, and a line of the message each.
    """

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class Parser(config_parser.ConfigParser):
    """Parses gin text; of two equal keys gin itself would keep the last one and say nothing."""

    def __init__(self, text: str, delegate: config_parser.ParserDelegate):
        """Args:
        text: of a gin file, or of one value.
        delegate: makes references and macros.
        """
        self._open: list[list[Any]] = []  # keys so far, of the containers that are being read
        super().__init__(text, delegate)

    def _maybe_parse_container(self) -> Any:
        self._open.append([])
        try:
            return super()._maybe_parse_container()
        finally:
            self._open.pop()

    def _parse_dict_item(self) -> Any:
        key, value = super()._parse_dict_item()
        if key in self._open[-1]:
            self._raise_syntax_error(f"{key!r} is in this dictionary twice; keep one of them")
        self._open[-1].append(key)
        return key, value


def statements(text: str, delegate: config_parser.ParserDelegate, label: str) -> Iterator[Any]:
    """Statements that gin parses; its syntax errors become `GinError`s that name file and line."""
    try:
        yield from Parser(text, delegate)
    except (SyntaxError, tokenize.TokenError) as error:
        location = error.args[1] if len(error.args) > 1 else None
        place = 1 if isinstance(error, SyntaxError) else 0  # a TokenError holds (line, column)
        line = location[place] if location else "?"
        raise GinError(f"{label}:{line}: not gin: {error.args[0].strip()}") from error
