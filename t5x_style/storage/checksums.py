"""crc32c of local data, as Cloud Storage writes it."""

import base64
from typing import BinaryIO

CHUNK = 1 << 20


def of_file(file: BinaryIO) -> str:
    """Of the rest of an open file: base64 of the four bytes, big-endian."""
    import google_crc32c

    checksum = google_crc32c.Checksum()
    for _ in checksum.consume(file, CHUNK):
        pass
    return base64.b64encode(checksum.digest()).decode()
