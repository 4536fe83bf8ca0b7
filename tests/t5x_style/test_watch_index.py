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
    refresher = Refresher(str(folder), None, None, ())
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
    with pytest.raises(RefreshError, match=r"Refresher.folder: .* inside the stage folder"):
        watch(training, training.link / inside, monkeypatch)
