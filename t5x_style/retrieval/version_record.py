"""Which version of an index each step of a training saw."""

import json
import os
from pathlib import Path

RECORD = "index_versions.jsonl"


class Record:
    """Which version each step saw: a file of a line a step, read again when a run goes on."""

    def __init__(self, path: Path):
        self._path = path
        self._versions: dict[int, int] = {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    row = json.loads(line)
                except ValueError:  # the last line of a run that was killed
                    break
                self._versions[int(row["step"])] = int(row["version"])
            whole = "".join(self._line(*one) for one in sorted(self._versions.items()))
            path.write_text(whole, encoding="utf-8")

    @staticmethod
    def _line(step: int, version: int) -> str:
        return json.dumps({"step": step, "version": version}) + "\n"

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
        whole = "".join(self._line(*one) for one in sorted(self._versions.items()))
        temporary = self._path.with_name(self._path.name + ".tmp")
        temporary.write_text(whole, encoding="utf-8")
        os.replace(temporary, self._path)
