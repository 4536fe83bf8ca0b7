"""Parse sizes as people write them: 200GB, 1.5 TiB."""

import re

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse(text: str) -> int | None:
    """Bytes; None where it is no size.

    >>> parse("1.5 GB"), parse("2000"), parse("many")
    (1500000000, 2000, None)
    """
    found = re.fullmatch(r"\s*([0-9_.]+)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in UNITS:
        return None
    try:
        return int(float(found[1]) * UNITS[found[2].upper()])
    except ValueError:  # 1.2.3
        return None
