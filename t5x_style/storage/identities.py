"""What a remote input is: its generations and checksums, without a byte of it being read."""

import hashlib
import os

from t5x_style.storage import errors, objects, paths
from t5x_style.storage.objects import PathLike, Stat


def of(path: PathLike, client: objects.Objects | None = None) -> str:
    """Identity of an object or of all objects below a folder; it changes when any is written.

    A generation is never used twice: the same identity means the same bytes. The reverse does not
    hold: the same bytes written again are another generation.

    Args:
      path: gs://BUCKET/NAME of an object or a folder.
      client: for the requests; the program's unless given.

    Returns:
      `NAME generation N crc32c C` of an object, with the last part of its name;
      `folder of N objects sha256 HASH` of a folder, with a hash of such lines.

    Raises:
      errors.Missing: there is neither.
      errors.NoPermission, errors.Unreachable.
    """
    client = client or objects.default()
    found = client.find(path) if paths.split(path)[1] else None
    if found is not None:
        return _line(found, os.path.basename(found.path))
    prefix = paths.join(*paths.prefix(path))
    lines = [_line(stat, stat.path.removeprefix(prefix)) for stat in client.below(path)]
    if not lines:
        raise errors.Missing(f"{os.fspath(path)}: no object has this name, or a name below it.")
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return f"folder of {len(lines)} objects sha256 {digest}"


def _line(stat: Stat, name: str) -> str:
    return f"{name} generation {stat.generation} crc32c {stat.crc32c}"
