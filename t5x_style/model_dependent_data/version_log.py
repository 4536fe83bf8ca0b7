"""Log of the version of an index, or of negatives, that each step of a run saw.

Of several processes the first decides and writes it down; the others hear of it in
`distributed.shared_values`.
"""

import json
import os
import uuid
from pathlib import Path
from typing import Literal

import jax

from t5x_style.distributed import shared_values

RECORD = "index_versions.jsonl"
RUN = "retrieval_run.json"
_REMEMBERED = 1000  # steps whose versions other processes can still ask for

Readiness = Literal["waits", "ready", "gone"]


def run_of(folder: Path) -> str | None:
    """The identifier of the run in a training's folder; None before it has begun."""
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
    """Version that each step saw: a file with a line a step, read again when a run resumes."""

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


class Leader(Record):
    """A `Record` of process 0 of several, which the others follow.

    A newer version is used once all of them have read it, so that no step waits for that.
    """

    def __init__(self, path: Path, others: int):
        """Args:
        path: of the file.
        others: how many follow.
        """
        super().__init__(path)
        self._others, self._asked = others, 0

    def publish(self, step: int, version: int) -> None:
        """Lets the others know which version a step sees."""
        shared_values.put(f"index/step/{step}", f"{version} {self._asked}")
        if step >= _REMEMBERED:
            shared_values.forget(f"index/step/{step - _REMEMBERED}")

    def ask(self, version: int) -> Readiness:
        """Has the others read a version, from their next step on; what they have said so far."""
        self._asked = version
        said = shared_values.below(f"index/ready/{version}").values()
        if "gone" in said:
            return "gone"
        return "ready" if len(said) == self._others else "waits"


class Follower:
    """Reads the decisions of the first process, on any other process."""

    def __init__(self, number: int):
        """Args:
        number: of this process.
        """
        self._number = number
        self._said: tuple[int, str] | None = None

    def decision(self, step: int) -> tuple[int, int] | None:
        """The version that a step sees, and the one to read ahead (0: none); None: not decided."""
        text = shared_values.find(f"index/step/{step}")
        if text is None:
            return None
        version, asked = map(int, text.split())
        return version, asked

    def answer(self, version: int, readiness: Readiness) -> None:
        """Says whether a version that was asked for has been read."""
        if readiness != "waits" and self._said != (version, readiness):
            shared_values.put(f"index/ready/{version}/{self._number}", readiness)
            self._said = (version, readiness)


def begin(folder: Path) -> tuple[str, Record | Follower]:
    """Name the run in a training's folder, or continue it: which run this is, and its record.

    All processes call it; the first decides and writes, and the others get a `Follower`. They need
    not see its folder.

    Args:
      folder: of the training.
    """
    if jax.process_index() != 0:
        return shared_values.wait("index/run"), Follower(jax.process_index())
    folder.mkdir(parents=True, exist_ok=True)
    run = run_of(folder) or new_run(folder)
    if jax.process_count() == 1:
        return run, Record(folder / RECORD)
    shared_values.put("index/run", run)
    return run, Leader(folder / RECORD, jax.process_count() - 1)
