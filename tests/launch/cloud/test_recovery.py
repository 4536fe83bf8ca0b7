"""`kennel tpu up` against a fake gcloud: histories, and the launcher killed in each."""

import contextlib

import pytest

from launch.cloud import recovery
from launch.cloud.endings import FINAL, Ending
from launch.cloud.gcloud import Gcloud
from tests.launch.cloud import google
from tests.launch.cloud.google import Life
from tests.launch.cloud.histories import FLAKY, HISTORIES, google_of, launcher, request_of

ALLOWED_TO_DELETE = {"SUSPENDED", "FAILED", "ACTIVE", "DELETING"}


class KilledError(BaseException):
    """The launcher is gone: nothing of it runs any more."""


class Killing:
    """Runs gcloud, and kills the launcher at one call, before or after the call's work."""

    def __init__(self, world, at, after):
        self.world, self.left, self.after = world, at, after

    def __call__(self, argv, timeout):
        self.left -= 1
        if self.left:
            return self.world(argv, timeout)
        if self.after:
            with contextlib.suppress(TimeoutError):
                self.world(argv, timeout)
        raise KilledError


def played(name, runner=None):
    """(the fake gcloud, how the launcher ended, what it said) of an undisturbed history."""
    world, said = google_of(HISTORIES[name]), []
    return world, launcher(world, runner or world, said).up(), said


def settle(world):
    """Lets a deletion that was asked for be done."""
    world.sleep(60.0)
    world._settle()


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_ends_as_documented(name):
    history = HISTORIES[name]
    world, end, said = played(name)
    assert end.ending == history.ending, said
    assert world.made == history.made, said
    assert set(world.deleted) <= ALLOWED_TO_DELETE
    settle(world)
    if history.owner is not None:
        assert world.resource is not None and not world.deleted
    else:
        assert not world.live(), "slices are left over"
    if end.ending == Ending.DONE:
        assert world.saved == world.work


def test_only_one_create_after_an_unanswered_one_that_was_carried_out():
    for name in ("create unanswered, but carried out", "create unanswered, carried out late"):
        world, _, said = played(name)
        assert world.calls["create"] == 1, said


def test_the_launcher_continues_with_a_resource_that_waits_after_a_kill():
    world = google_of(HISTORIES["waiting, then active"])
    with pytest.raises(KilledError):
        launcher(world, Killing(world, 4, after=True)).up()
    assert world.state() == "WAITING_FOR_RESOURCES"
    assert launcher(world, world).up().ending == Ending.DONE
    assert world.calls["create"] == 1 == world.made


CHANGING = {"create", "delete", "scp", "cp"}  # calls that change something


def kills_at_changes(name):
    """(number of the call, whether after its work) at which the launcher is killed.

    Calls that change something, and the first three.
    """
    verbs = [google.verb_of(one) for one in played(name)[0].commands]
    for at, verb in enumerate(verbs, 1):
        if at <= 3 or verb in CHANGING:
            yield from ((at, False), (at, True))


def kills(name):
    """All calls but those in the middle of long waits: of these, every 11th."""
    verbs = [google.verb_of(one) for one in played(name)[0].commands]
    for at in range(1, len(verbs) + 1):
        around = CHANGING.intersection(verbs[max(0, at - 4) : at + 3])
        if at < 12 or around or at % 11 == 0:
            yield from ((at, False), (at, True))


@pytest.mark.parametrize(
    "kills", [kills_at_changes, pytest.param(kills, marks=pytest.mark.slow, id="kills_anywhere")]
)
@pytest.mark.parametrize("name", HISTORIES)
def test_a_launcher_that_is_killed_and_started_again_ends_the_same(name, kills):
    history = HISTORIES[name]
    points = list(kills(name))
    assert points
    for at, after in points:
        world, said = google_of(history), []
        with pytest.raises(KilledError):
            launcher(world, Killing(world, at, after)).up()
        end = launcher(world, world, said).up()
        assert end.ending == history.ending, (at, after, said)
        settle(world)
        assert history.owner is not None or not world.live(), (at, after, said)
        assert end.ending != Ending.DONE or world.saved == world.work


def test_a_launcher_that_is_killed_again_and_again_gets_there():
    name = "suspended during training, three times"
    world, rounds = google_of(HISTORIES[name]), 0
    while True:
        rounds += 1
        try:
            end = launcher(world, Killing(world, 9, after=rounds % 2 == 0)).up()
            break
        except KilledError:
            world.sleep(20.0)
    assert rounds > 10 and end.ending == Ending.DONE and world.made == 4


def test_a_job_that_is_done_is_not_paid_for_again():
    world = google_of(HISTORIES["waiting, then active"])
    launcher(world, world).up()
    settle(world)
    end = launcher(world, world).up()
    assert end.ending == Ending.DONE and world.made == 1 and "gs://bucket/mine says" in end.why


def test_a_deletion_that_always_fails_is_given_up_after_an_hour():
    """Looks that are answered in between do not make the launcher restart its count."""
    world = google_of(HISTORIES["waiting, then active"])
    world.faults = {("delete", n): FLAKY for n in range(1, 9999)}
    end = launcher(world, world).up()
    assert end.ending == Ending.UNREACHABLE and "UNAVAILABLE" in end.why
    assert 3600.0 <= world.now - google.START < 3600.0 + 2500.0


def test_a_note_is_tried_again_while_the_bucket_does_not_answer():
    world = google_of(HISTORIES["waiting, then active"])
    world.faults = {("cp", n): FLAKY for n in (1, 2, 4)}
    assert launcher(world, world).up().ending == Ending.DONE
    assert set(world.bucket) == {
        "gs://bucket/mine/kennel-tpu/job-1.json",
        "gs://bucket/mine/kennel-tpu/job-1-asked.json",
    }


def test_slices_that_ran_the_job_do_not_count_as_lost_without_progress():
    """Eight lost hosts, of which each had trained: the run continues."""
    world = google_of(HISTORIES["waiting, then active"])
    world.lives = (*[Life(dead_worker=1200.0)] * 8, Life())
    world.work = 8000.0
    assert launcher(world, world).up().ending == Ending.DONE and world.made >= 8


def test_without_the_wish_nothing_is_deleted_at_the_end():
    for name in ("waiting, then active", "job fails", "setup fails", "job killed always"):
        world = google_of(HISTORIES[name])
        up = launcher(world, world)
        up.delete_at_end = False
        assert up.up().ending in FINAL
        assert world.deleted == [] and world.state() == "ACTIVE"


def test_the_log_is_attached_to_while_the_job_runs():
    world = google_of(HISTORIES["waiting, then active"])
    up = launcher(world, world)
    up.up()
    assert up.follower.attached > 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("waiting, then active", "is ACTIVE and COSTS MONEY (v5litepod-16) until: kennel tpu"),
        ("two slices", "is ACTIVE and COSTS MONEY (2x v5litepod-16) until: kennel tpu"),
        ("valid until passed", "nothing is left of mine"),
        ("no permission", "NOT KNOWN whether mine in us-west4-a of my-project costs money"),
    ],
)
def test_the_end_says_what_costs_money(name, expected):
    world = google_of(HISTORIES[name])
    up = launcher(world, world)
    up.delete_at_end = False
    up.up()
    settle(world)
    line = recovery.costs(
        Gcloud(world, world.sleep, world.clock, "gcloud"), request_of(world.slices).place
    )
    assert expected in line
    flags = "--name=mine --zone=us-west4-a --project=my-project"
    assert ("nothing is left" in line) != (f"kennel tpu delete {flags}" in line)
