"""JSON records, and links, that are complete or absent: here, and in the original of a copy."""

import json
import os
import threading
from pathlib import Path
from typing import Any

from t5x_style.storage import objects, places


def write_json(path: Path, value: Any) -> None:
    """Writes so that a reader, or a crash, sees the old file or the new one, never a part.

    Where the path is the copy of one on object storage, the object is written first.
    """
    text = json.dumps(value, indent=1)
    if url := places.remote(path):
        objects.default().write(url, text.encode())
    write_here(path, text)


def write_here(path: Path, text: str) -> None:
    """Writes a text whole; on this machine alone."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when the file is absent or was cut short."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def point(link: Path, target: str) -> None:
    """Makes a link lead to a path, at once; on this machine alone.

    Args:
      link: where nothing is, or a link, or an empty folder.
      target: absolute, or relative to the link's folder.
    """
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and os.readlink(link) == target:
        return
    temporary = link.with_name(f".{link.name}.{os.getpid()}.link")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    if link.is_dir() and not link.is_symlink():
        link.rmdir()
    os.replace(temporary, link)
