"""The project's code as one archive whose name is the hash of its files.

The archive holds what git tracks, and new files that git does not ignore, without tests, docs,
benchmarks, hidden files, and what lies at the top and is no code: who edits a note meanwhile has
the same code. Where git does not list the project's files (an installed package), it holds the
files of the project's packages. Gin files of the recipe and other small files of the user are
added.

    <hash>.tar.gz
      .kennel_manifest        a line per file: SHA-256, x (executable) or -, path
      launch/recipe.py ...

<hash> is the SHA-256 of the manifest. It depends on names, contents and executable bits only: the
same files give the same bytes on every machine with the same zlib, and the same hash everywhere.
"""

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from t5x_style.configuration.python_sources import OURS, REPOSITORY

MANIFEST = ".kennel_manifest"
EXCLUDED = ("tests", "docs", "benchmarks")
MAX_BYTES = 64 << 20  # of all files together, before compression
SHOWN = 5  # of the largest files, in an error
_SELF = "launch/cloud/code_archive.py"


class CodeError(ValueError):
    """Code that cannot be archived; the message names the files."""


@dataclass(frozen=True)
class CodeArchive:
    """An archive on this machine.

    Attributes:
      hash: SHA-256 of its manifest; equal exactly for equal files.
      path: `<hash>.tar.gz`.
      files: how many it holds.
      bytes: of these files before compression.
    """

    hash: str
    path: Path
    files: int
    bytes: int


def build(
    folder: Path, more: Iterable[Path] = (), root: Path = REPOSITORY, limit: int = MAX_BYTES
) -> CodeArchive:
    """Writes the archive of the project's code into a folder, unless it is there already.

    Args:
      folder: where to write `<hash>.tar.gz`.
      more: files to add, such as the gin files of a recipe. Those that are not in the project have
        the place in the archive that they have in the current folder: the job runs in its root.
      root: the project.
      limit: bytes of all files together.

    Raises:
      CodeError: too large; a name that no archive should hold; a file of `more` outside of the
        current folder, or in the place of another file of the project.
    """
    contents = _read(root, _sources(root))
    for place, path in _places(more, root):
        entry = _entry(path)
        if contents.setdefault(place, entry) != entry:
            raise CodeError(
                f"{path} has the place of another file, {root / place}, in the archive of the "
                "code: rename it, or run the command in the project's folder"
            )
    _check_size(contents, limit)
    manifest = _manifest(contents)
    name = hashlib.sha256(manifest).hexdigest()
    path = folder / f"{name}.tar.gz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{name}.{os.getpid()}.tmp"
        temporary.write_bytes(_pack(manifest, contents))
        os.replace(temporary, path)
    return CodeArchive(name, path, len(contents), sum(len(data) for _, data in contents.values()))


def _sources(root: Path) -> list[str]:
    """Paths of the project's files, relative to its root."""
    listing = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        found = subprocess.run(listing, capture_output=True, check=False)
        names = {os.fsdecode(name) for name in found.stdout.split(b"\0") if name}
    except FileNotFoundError:  # git itself
        names = set()
    if _SELF not in names:
        names = {
            str(path.relative_to(root))
            for package in OURS
            for path in (root / package).rglob("*")
            if "__pycache__" not in path.parts
        }
    return sorted(filter(_is_code, names))


def _is_code(name: str) -> bool:
    top, _, below = name.partition("/")
    if not below:
        return top.endswith((".py", ".gin", ".toml"))
    return top not in EXCLUDED and not top.startswith(".")


def _read(root: Path, names: Iterable[str]) -> dict[str, tuple[bool, bytes]]:
    """Path -> executable, content; what is not a file (deleted, a folder) is left out."""
    paths = {name: root / name for name in names}
    return {name: _entry(path) for name, path in paths.items() if path.is_file()}


def _entry(path: Path) -> tuple[bool, bytes]:
    return bool(path.stat().st_mode & 0o100), path.read_bytes()


def _places(more: Iterable[Path], root: Path) -> Iterable[tuple[str, Path]]:
    """Path in the archive and here, of the user's files."""
    for path in more:
        absolute = Path(os.path.abspath(path))
        here = root if absolute.is_relative_to(root) else Path.cwd()
        if not absolute.is_file():
            raise CodeError(f"{path}: expected a file to copy to the hosts, found none")
        if not absolute.is_relative_to(here):
            raise CodeError(
                f"{path} is outside of the current folder, {here}: the job runs in a copy of that "
                "folder, so put the file there"
            )
        yield absolute.relative_to(here).as_posix(), absolute


def _check_size(contents: dict[str, tuple[bool, bytes]], limit: int) -> None:
    sizes = {name: len(data) for name, (_, data) in contents.items()}
    if (total := sum(sizes.values())) <= limit:
        return
    largest = sorted(sizes, key=lambda name: -sizes[name])[:SHOWN]
    lines = "".join(f"\n  {sizes[name] / 1e6:.1f} MB  {name}" for name in largest)
    raise CodeError(
        f"the code's archive would hold {total / 1e6:.1f} MB, and at most {limit / 1e6:.1f} MB are "
        "shipped to the hosts. Put data into the bucket, and files that the job does not read into "
        f".gitignore. The largest files:{lines}"
    )


def _manifest(contents: dict[str, tuple[bool, bytes]]) -> bytes:
    for name in contents:
        if not name.isprintable():
            raise CodeError(f"{name!r}: a file of the code has a name that is not printable text")
    lines = (
        f"{hashlib.sha256(data).hexdigest()} {'x' if executable else '-'} {name}\n"
        for name, (executable, data) in sorted(contents.items())
    )
    return "".join(lines).encode()


def _pack(manifest: bytes, contents: dict[str, tuple[bool, bytes]]) -> bytes:
    out = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, (executable, data) in [(MANIFEST, (False, manifest)), *sorted(contents.items())]:
            item = tarfile.TarInfo(name)  # of nobody, in 1970
            item.size, item.mode = len(data), 0o755 if executable else 0o644
            archive.addfile(item, io.BytesIO(data))
    return out.getvalue()
