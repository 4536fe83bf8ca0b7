"""Durations as people write them: `6h`, `90m`, `1d12h`."""

import re

SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
DAY = SECONDS["d"]
_PARTS = re.compile(r"(?:\d+[dhms])+")


class DurationError(ValueError):
    """No duration, or one of another length than a request may have."""


def seconds(text: str) -> int:
    """Reads a duration.

    >>> seconds("1d12h")
    129600

    Raises:
      DurationError: no number with a unit, or zero.
    """
    word = text.strip().lower()
    if word.isdecimal():
        raise DurationError(f"{text!r} has no unit: write {word}h, {word}m or {word}s")
    if not _PARTS.fullmatch(word):
        raise DurationError(f"{text!r} is no duration: write one as 6h, 90m or 1d12h")
    total = sum(int(n) * SECONDS[unit] for n, unit in re.findall(r"(\d+)([dhms])", word))
    if not total:
        raise DurationError(f"{text!r} is no time at all: expected at least 1s")
    return total


def text(duration: int) -> str:
    """Writes seconds as gcloud reads them.

    >>> text(129600)
    '1d12h'
    """
    found, rest = "", duration
    for unit, length in SECONDS.items():
        count, rest = divmod(rest, length)
        found += f"{count}{unit}" if count else ""
    return found
