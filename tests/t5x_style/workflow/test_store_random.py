"""Random histories of a store: edits, kills and two runs at once. Nothing that finished is lost."""

import contextlib
import dataclasses
import json
import os
import random
import threading
from pathlib import Path

import pytest

from t5x_style.configuration import gin_checks
from t5x_style.leases.file_leases import FileLeases
from t5x_style.storage import records
from t5x_style.workflow import files, fingerprints, stage_runner, stages
from t5x_style.workflow.store import Store
from tests.kits.stage_kit import COUNT, MAKE

HISTORIES, EVENTS = 200, 7


class Killed(BaseException):
    """The process is gone: nothing of it runs any more, and its lease is not released."""


@dataclasses.dataclass
class World:
    """What a user may change between two runs."""

    folder: Path
    chance: random.Random
    width: int = 1
    steps: int = 3
    report_every: int = 1
    source: int = 0
    code: int = 0
    local: threading.local = dataclasses.field(default_factory=threading.local)

    def edit(self) -> None:
        """Changes one thing."""
        what = self.chance.choice(["width", "steps", "report_every", "source", "code"])
        setattr(self, what, self.chance.randint(0 if what in ("source", "code") else 1, 3))
        (self.folder / "source").write_text(f"source {self.source}")

    def flags(self, run: str, name: str, strict: bool) -> gin_checks.Flags:
        """The command line of one of the two stages of a run."""
        link = self.folder / "runs" / run
        values = {"MODEL_DIR": str(link / name), "stage.run.store": str(self.folder / "store")}
        if name == "made":
            values |= {"WIDTH": str(self.width)}
        else:
            values |= {"SOURCE": str(link / "made" / "out.txt"), "STEPS": str(self.steps)}
            values |= {"gin_toys.count.report_every": str(self.report_every)}
        files_ = (str(self.folder / f"{name}.gin"),)
        return gin_checks.Flags(
            files_, tuple(values.items()), ("/",), ("tests",), strict_code=strict
        )

    def work(self, planned: stages.Plan, folder: Path) -> stages.Outputs:
        """The jobs: a line a step, from which input, with which code; may be killed between two."""
        path, name = folder / "out.txt", "text" if planned.job.name == "toy_make" else "steps"
        count = int(planned.values.semantic.get("steps", "1"))
        read = sorted(planned.values.semantic.items())
        before = path.read_text().splitlines() if path.exists() else []
        for step in range(len(before), count):
            if self.local.kill is not None:
                self.local.kill -= 1
                if self.local.kill < 0:
                    raise Killed
            with path.open("a") as file:
                file.write(json.dumps([step, read, planned.code["toy"]]) + "\n")
        return {name: "out.txt"}

    def run(self, run: str, kill: int | None = None, strict: bool = False) -> bool:
        """Runs both stages; False if it was killed."""
        self.local.kill = kill
        for name in ("made", "counted"):
            planned = stages.plan(self.flags(run, name, strict))
            decision = stages.decide(planned)
            if decision.status == "done":
                stage_runner._use(planned, decision)
                continue
            held = contextlib.ExitStack()
            lease = held.enter_context(stage_runner._lease(planned))
            try:
                stage_runner._make(gin_checks.Flags((), ()), planned, lease)
            except Killed:
                lease._released.set()  # no heartbeat any more
                state = records.read_json(self.folder / "store/leases" / f"{planned.id}.json")
                holder = state["holder"] | {"started": "gone"}
                path = self.folder / "store/leases" / f"{planned.id}.json"
                records.write_json(path, state | {"holder": holder})
                return False
            held.close()
        return True

    def run_two(self) -> None:
        """Two runs at once, which share what they have in common."""
        kills = [self.chance.choice([None, None, 0, 2]) for _ in "ab"]
        errors: list[BaseException] = []

        def one(name: str, kill: int | None) -> None:
            try:
                self.run(name, kill)
            except BaseException as error:
                errors.append(error)

        pairs = zip("ab", kills, strict=True)
        threads = [threading.Thread(target=one, args=pair) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors

    def finished(self) -> dict[str, str]:
        """Id of each finished version -> hash of its output."""
        store = Store(self.folder / "store")
        return {
            version.id: files.sha256(version.folder / "out.txt")
            for version in store.all()
            if version.manifest is not None
        }

    def outputs(self) -> list[str]:
        """What the current versions of run a hold."""
        return [
            (self.folder / "runs/a" / name / "out.txt").read_text() for name in ("made", "counted")
        ]


def world(folder: Path, chance: random.Random) -> World:
    folder.mkdir(parents=True)
    (folder / "made.gin").write_text(MAKE)
    (folder / "counted.gin").write_text(COUNT)
    made = World(folder, chance)
    (folder / "source").write_text("source 0")
    return made


def history(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """One random history and what must hold after it; counts of what happened."""
    chance = random.Random(seed)
    live = world(tmp_path / f"live{seed}", chance)
    state = {"world": live}
    monkeypatch.setattr(FileLeases, "poll", 0.002)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # no power fails here, and it is slow
    monkeypatch.setattr(fingerprints, "of_code", lambda *_: {"toy": str(state["world"].code)})
    monkeypatch.setattr(
        stage_runner,
        "_call",
        lambda flags, planned, folder, first: state["world"].work(planned, folder),
    )
    seen: dict[str, str] = {}
    counts = {"kills": 0, "both": 0, "edits": 0}
    for _ in range(chance.randint(2, EVENTS)):
        event = chance.choice(["edit", "edit", "run", "kill", "both", "strict"])
        if event == "edit":
            live.edit()
            counts["edits"] += 1
        elif event == "both":
            live.run_two()
            counts["both"] += 1
        else:
            kill = chance.randint(0, 4) if event == "kill" else None
            counts["kills"] += not live.run(chance.choice("ab"), kill, event == "strict")
        now = live.finished()
        assert seen.items() <= now.items(), f"seed {seed}: a finished version was lost or changed"
        seen = now
    assert live.run("a", strict=True)
    store = Store(live.folder / "store")
    for version in store.all():
        if version.manifest is not None:
            assert files.changed_files(version, thorough=True) == [], f"seed {seed}: {version.id}"
    scratch = world(tmp_path / f"scratch{seed}", chance)
    scratch.width, scratch.steps, scratch.code = live.width, live.steps, live.code
    state["world"] = scratch
    scratch.run("a")
    # Ids of versions are in the outputs of what reads them; a second revision has another one.
    revisions = [text.replace(".2/", "/").replace(".3/", "/") for text in live.outputs()]
    revisions = [text.replace(".4/", "/").replace(".5/", "/") for text in revisions]
    assert revisions == scratch.outputs(), f"seed {seed}"
    return counts


def test_random_histories(tmp_path, monkeypatch):
    total = {"kills": 0, "both": 0, "edits": 0}
    for seed in range(HISTORIES):
        for name, count in history(seed, tmp_path, monkeypatch).items():
            total[name] += count
    print(total)
    assert min(total.values()) >= HISTORIES // 8, total
