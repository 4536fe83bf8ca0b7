"""Numbers and tokens that are always the same for the same text."""

import hashlib
import re


def noise(*parts):
    """A number from 0 to 1 that is always the same for the same parts."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") / 2**32


def pieces_of(text):
    """[(piece, place)]: words, of which long ones are two pieces."""
    found = []
    for match in re.finditer(r"\w+|[^\w\s]", text):
        start, end = match.span()
        cut = start + 6 if end - start > 8 else end
        found.append((text[start:cut].lower(), [start, cut]))
        if cut < end:
            found.append(("##" + text[cut:end].lower(), [cut, end]))
    return found
