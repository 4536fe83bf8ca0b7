"""A training in a bucket, as its companion on another machine reads it."""

import pytest

from t5x_style.checkpoints import checksums
from t5x_style.companions import watched_training
from t5x_style.model_dependent_data import version_log
from t5x_style.storage import errors, places
from t5x_style.workflow import remote_store
from tests.kits import store_kit
from tests.kits.toys.remote_folder import another_machine, names, put

LINK = "gs://bucket/run/train"


class Trainer:
    """The machine that trains, whose versions hold toy checkpoints."""

    def start(self, seed):
        """Begins a version, to which the link leads from now on."""
        plan = store_kit.plan(places.local(LINK), "train", seed=seed)
        self.folder = store_kit.started(plan)
        self.plan = plan
        (self.folder / "contract.json").write_text("{}")
        version_log.new_run(self.folder)
        remote_store.push(plan.store, self.folder)

    def save(self, step):
        """Writes a checkpoint, and pushes it."""
        place = self.folder / "checkpoints" / str(step)
        for name in ("parameters/x", "optimizer/y", "progress/z", "meta/metadata"):
            (place / name).parent.mkdir(parents=True)
            (place / name).write_text(f"{name} {step}")
        checksums.write(place)
        remote_store.push(self.plan.store, self.folder)

    def finish(self):
        """Ends the version, here and there."""
        store_kit.finished(self.plan, {}, {})
        put(f"{places.remote(self.folder).removeprefix('gs://bucket/')}/stage.json", b"{}")


@pytest.fixture
def trainer(bucket):
    return Trainer()


@pytest.fixture
def watched(trainer, tmp_path):
    return watched_training.of(LINK, tmp_path / "copies")


def test_a_training_that_has_not_begun_has_nothing(watched):
    assert not watched.finished()
    assert watched.run() is None and watched.newest() is None


def test_what_a_model_is_made_of_is_copied_and_no_more(trainer, watched, tmp_path):
    trainer.start(1)
    run = version_log.run_of(trainer.folder)
    another_machine()
    assert not watched.finished()
    assert watched.run() == run and watched.newest() is None
    trainer.start(1)
    for step in (3, 12):
        trainer.save(step)
    another_machine()
    assert not watched.finished() and watched.newest() == 12
    folder = watched.folder(12)
    place = folder / "checkpoints" / "12"
    assert folder.is_relative_to(tmp_path)
    assert (place / "parameters" / "x").read_text() == "parameters/x 12"
    assert (folder / "contract.json").read_text() == "{}"
    assert checksums.problems(place, ("parameters", "meta")) == []
    assert not (place / "optimizer").exists() and not (place / "progress").exists()
    watched.folder(3)
    assert not place.exists(), "one checkpoint at a time"


def test_half_a_checkpoint_does_not_count(trainer, watched):
    trainer.start(1)
    trainer.save(3)
    inside = places.remote(trainer.folder).removeprefix("gs://bucket/")
    put(f"{inside}/checkpoints/7/parameters/x", b"half")
    assert not watched.finished() and watched.newest() == 3
    with pytest.raises(errors.Missing, match="went while it was copied"):
        watched.folder(7)


def test_the_link_is_followed_in_each_look(trainer, watched):
    trainer.start(1)
    trainer.save(3)
    assert not watched.finished() and watched.newest() == 3
    trainer.start(2)
    assert watched.newest() == 3, "one look reads one version"
    assert not watched.finished() and watched.newest() is None
    trainer.finish()
    assert watched.finished()


def test_a_manifest_that_fences_does_not_end_it(trainer, watched):
    trainer.start(1)
    inside = places.remote(trainer.folder).removeprefix("gs://bucket/")
    put(f"{inside}/stage.json", b'{"fenced_by": 2}')
    assert not watched.finished()


def test_the_copies_are_no_mirror(trainer, watched, bucket):
    """Whoever trains on the same machine has its own folder, which a companion leaves alone."""
    trainer.start(1)
    trainer.save(3)
    before = names(bucket), sorted(places.cache().rglob("*"))
    assert not watched.finished() and watched.folder(3).is_dir()
    assert (names(bucket), sorted(places.cache().rglob("*"))) == before
