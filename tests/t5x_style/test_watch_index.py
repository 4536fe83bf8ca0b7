"""Which version of a training is watched, while its link changes."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from t5x_style import watch_index
from t5x_style.companions import watched_training
from t5x_style.model_dependent_data import index_builder as refresher_lib
from t5x_style.model_dependent_data import version_log
from t5x_style.model_dependent_data.index_builder import RefreshError
from t5x_style.storage import errors
from t5x_style.workflow import links
from t5x_style.workflow.store import STAGE_FILE
from tests.kits import store_kit


@dataclasses.dataclass(frozen=True)
class Refresher(refresher_lib.Refresher):
    """Notes of which folder's checkpoint it would make an index, and makes none."""

    built_of: list[tuple[str, str, int]] = dataclasses.field(default_factory=list)

    def built(self, run):
        return next((step for _, other, step in reversed(self.built_of) if other == run), None)

    def refresh(self, training, run, step):
        self.built_of.append((training.parameters(step), run, step))
        return len(self.built_of)


class Training:
    """A training's versions, whose checkpoints are a file that holds the newest's step."""

    def __init__(self, link: Path):
        self.link = link

    def start(self, seed: int) -> Path:
        """Begins a version, to which the link points from now on."""
        folder = store_kit.started(store_kit.plan(self.link, "train", seed=seed))
        version_log.new_run(folder)
        return folder

    def save(self, step: int) -> None:
        """Saves a checkpoint of the current version."""
        (self.link / "newest").write_text(str(step))

    def finish(self, seed: int) -> None:
        """Ends the version."""
        store_kit.finished(store_kit.plan(self.link, "train", seed=seed), {}, {})


@pytest.fixture
def training(tmp_path, monkeypatch):
    """A training without a version, with the parts of `checkpointing` that watching reads."""

    def newest(folder):
        path = Path(folder) / "newest"
        return int(path.read_text()) if path.is_file() else None

    monkeypatch.setattr(watch_index.checkpointing, "newest", newest)
    monkeypatch.setattr(watch_index.checkpointing, "read_parameters", lambda folder, _: folder)
    return Training(tmp_path / "run" / "train")


def watch(training, folder, monkeypatch, *happens):
    """Watches; before each look after the first one more thing happens. What was built."""
    events = iter(happens)
    monkeypatch.setattr(refresher_lib.time, "sleep", lambda _: next(events)())
    refresher = Refresher(str(folder), None, None, parameters=())
    watch_index.watch(refresher, None, str(training.link), None, 0.0)
    assert next(events, None) is None, "the training was watched to its end"
    return [(Path(where).name, step) for where, _, step in refresher.built_of]


def test_a_link_is_followed_to_the_version_that_it_points_to_then(training, tmp_path, monkeypatch):
    versions = {seed: store_kit.plan(training.link, "train", seed=seed).id for seed in (1, 2)}
    built = watch(
        *(training, tmp_path / "indexes", monkeypatch),
        lambda: training.start(1),
        lambda: training.save(0),
        lambda: training.start(2),
        lambda: training.save(0),
        lambda: training.save(4),
        lambda: training.finish(2),
    )
    assert built == [(versions[1], 0), (versions[2], 0), (versions[2], 4)]


def test_a_link_that_points_nowhere_is_waited_for(training, tmp_path, monkeypatch):
    shutil.rmtree(training.start(1))
    assert training.link.is_symlink() and not training.link.exists()
    built = watch(
        *(training, tmp_path / "indexes", monkeypatch),
        lambda: None,
        lambda: training.start(1),
        lambda: training.save(3),
        lambda: training.finish(1),
    )
    assert [step for _, step in built] == [3]


def test_one_look_reads_one_version(training, tmp_path):
    """The link may change between two readings of a look."""
    first = training.start(1)
    training.save(7)
    current = watched_training.Local(training.link)
    assert not current.finished() and current.folder(7) == first.resolve()
    second = training.start(2)
    assert current.folder(7) == first.resolve()
    assert not current.finished() and current.folder(7) == second.resolve()
    training.finish(2)
    assert current.finished()
    links.point(store_kit.plan(training.link, "train").store, training.link, first)
    assert current.folder(7) == second.resolve()
    assert not current.finished() and not (first / STAGE_FILE).exists()


def test_a_training_that_has_ended_is_refused(training, tmp_path, monkeypatch):
    training.start(1)
    training.finish(1)
    with pytest.raises(RefreshError, match="the training has ended: start one"):
        watch(training, tmp_path / "indexes", monkeypatch)


@pytest.mark.parametrize("inside", ["", "indexes"])
def test_no_index_is_written_into_the_folder_of_a_stage(training, tmp_path, monkeypatch, inside):
    training.start(1)
    with pytest.raises(RefreshError, match=r"\w+\.folder: .* inside the stage folder"):
        watch(training, training.link / inside, monkeypatch)


class Outages:
    """Storage that does not answer some calls, and what it did."""

    def __init__(self):
        self.failures, self.done = [], []

    def call(self, name, answer=None):
        """Fails where that is the next failure."""
        if self.failures[:1] == [name]:
            del self.failures[0]
            raise errors.Unreachable("away")
        self.done.append(name)
        return answer


@dataclasses.dataclass(frozen=True)
class Publishing(Refresher):
    """Publishes what it notes, as the real one does: after it is here."""

    def refresh(self, training, run, step):
        number = super().refresh(training, run, step)
        self.published()
        return number


@pytest.mark.parametrize("away", ["finished", "run", "newest", "parameters", "publish"])
def test_an_outage_is_survived_and_said_once(tmp_path, monkeypatch, capsys, away):
    """What was built before it is published after it, though it is not built again."""
    storage = Outages()
    monkeypatch.setattr(refresher_lib.time, "sleep", lambda _: None)
    refresher = Publishing(
        str(tmp_path / "indexes"),
        None,
        None,
        parameters=(),
        published=lambda: storage.call("publish"),
    )
    training = refresher_lib.Training(
        run=lambda: storage.call("run", "a"),
        newest=lambda: storage.call("newest", 3),
        load=lambda step: None,
        parameters=lambda step: storage.call("parameters", "here"),
        finished=lambda: storage.call("finished", len(refresher.built_of) > 0),
    )
    failing = iter([False, True])  # a training that cannot be asked at the start is said at once
    real = training.finished

    def finished():
        if next(failing, False):
            storage.failures = [away, "publish"] if away == "publish" else [away]
        return real()

    refresher.watch(dataclasses.replace(training, finished=finished), 0.0, (OSError,))
    assert not storage.failures, "it failed as often as it should"
    assert [step for _, _, step in refresher.built_of] == [3]
    assert storage.done.count("publish") == (1 if away == "publish" else 2)
    assert capsys.readouterr().err.count("away; looking again") == 1


def test_a_missing_permission_ends_the_builder(tmp_path):
    def forbidden():
        raise errors.NoPermission("not yours")

    training = refresher_lib.Training(
        run=forbidden, newest=lambda: 1, load=None, parameters=None, finished=lambda: False
    )
    with pytest.raises(errors.NoPermission):
        Refresher(str(tmp_path / "indexes"), None, None, parameters=()).watch(
            training, 0.0, (OSError,)
        )
