"""Which run a training is, and which version of an index each of its steps saw.

Of several processes the first decides and writes it down; the others read what it wrote.
"""

import json
import os
import uuid
from pathlib import Path

import jax
from jax.experimental import multihost_utils

RECORD = "index_versions.jsonl"
RUN = "retrieval_run.json"


def run_of(folder: Path) -> str | None:
    """What tells the run in a training's folder from every other; None before it has begun."""
    path = folder / RUN
    return str(json.loads(path.read_text(encoding="utf-8"))["run"]) if path.is_file() else None


def new_run(folder: Path) -> str:
    """Names a run that begins."""
    run = uuid.uuid4().hex
    _write(folder / RUN, json.dumps({"run": run}) + "\n")
    return run


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


class Record:
    """Which version each step saw: a file of a line a step, read again when a run goes on."""

    def __init__(self, path: Path):
        self._path = path
        self._versions: dict[int, int] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
            try:
                row = json.loads(line)
            except ValueError:  # the last line of a run that was killed
                break
            self._versions[int(row["step"])] = int(row["version"])
        self._rewrite()

    @staticmethod
    def _line(step: int, version: int) -> str:
        return json.dumps({"step": step, "version": version}) + "\n"

    def _rewrite(self) -> None:
        _write(self._path, "".join(self._line(*one) for one in sorted(self._versions.items())))

    def of(self, step: int) -> int | None:
        """The version that a step saw, None if it was not made yet."""
        return self._versions.get(step)

    def add(self, step: int, version: int) -> None:
        """Before the step's batch is used."""
        self._versions[step] = version
        with self._path.open("a", encoding="utf-8") as file:
            file.write(self._line(step, version))

    def replace(self, step: int, version: int) -> None:
        """A step sees another version than it did: the one it saw is gone."""
        self._versions[step] = version
        self._rewrite()


class RemoteLog:
    """A `Record` that another process keeps, in a folder that both see."""

    def __init__(self, path: Path):
        self._path = path
        self._versions: dict[int, int] = {}
        self._file, self._read = -1, 0  # inode, and bytes of it

    def of(self, step: int) -> int | None:
        """The version that a step sees, None if that has not been decided yet."""
        if step not in self._versions:
            self._catch_up()
        return self._versions.get(step)

    def forget(self) -> None:
        """What is known may have been replaced: all of it is read again."""
        self._versions, self._file = {}, -1

    def _catch_up(self) -> None:
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            if inode != self._file:  # it was replaced whole
                self._versions, self._file, self._read = {}, inode, 0
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        for line in whole.splitlines():
            row = json.loads(line)
            self._versions[int(row["step"])] = int(row["version"])


def begin(folder: Path) -> tuple[str, Record | RemoteLog]:
    """Name the run in a training's folder, or continue it: which run this is, and its record.

    All processes call it; the first decides and writes, and the others get a `RemoteLog`.

    Args:
      folder: of the training; the same for all processes.

    Raises:
      ValueError: this process does not see what the first has written.
    """
    record: Record | None = None
    if jax.process_index() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        if run_of(folder) is None:
            new_run(folder)
        record = Record(folder / RECORD)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("version log: which run this is")
    run = run_of(folder)
    if run is None:
        raise ValueError(
            f"{folder}: expected {RUN}, which process 0 has written, found none: all processes "
            "have to see one folder."
        )
    return run, record or RemoteLog(folder / RECORD)
