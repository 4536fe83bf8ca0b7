"""Histories of a run, for the fake gcloud, and how each has to end."""

from dataclasses import dataclass, field

from launch.cloud.decisions import Limits
from launch.cloud.endings import Ending
from launch.cloud.gcloud import Gcloud
from launch.cloud.recovery import Recovery
from launch.cloud.remote_job import HostCommands, RemoteJob
from launch.cloud.requests import FOLDER_LABEL, RUN_LABEL, Request, folder_key
from t5x_style.accelerators import slices
from tests.launch.cloud import google
from tests.launch.cloud.google import READY, Fault, Google, Life

RUN_DIR = "gs://bucket/mine"
CAPACITY = (
    'There is no more capacity in the zone "us-west4-a"; you can try in another zone where Cloud '
    "TPU Nodes are offered"
)
QUOTA = "Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 8"
NO_ANSWER = Fault()
EXISTS = Fault("ERROR: ALREADY_EXISTS: Resource 'mine' already exists")
NO_BUCKET = Fault("ERROR: (gcloud.storage.cp) gs://bucket not found: 404.")
DENIED = Fault(
    "ERROR: (gcloud.storage.cp) [me@example.com] does not have permission to access b instance: "
    "me@example.com does not have storage.objects.create access to the Google Cloud Storage object."
)
FLAKY = Fault("ERROR: (gcloud) HttpError code=503 UNAVAILABLE: The service is unavailable")


def suspended(at):
    """Ready after 160 s, taken away `at` seconds after creation."""
    return (*READY, (at, "SUSPENDING"), (at + 60.0, "SUSPENDED"))


@dataclass(frozen=True)
class History:
    """What happens, and what has to come of it.

    Attributes:
      lives: of the resources, one after the other.
      ending: how `up` ends.
      faults: see `Google`.
      made: resources that are created in an undisturbed launcher's life.
      owner: labels of a resource that is there before; None for no such.
      options: of the fake gcloud and the request.
    """

    lives: tuple
    ending: Ending
    faults: dict = field(default_factory=dict)
    made: int = 1
    owner: dict | None = None
    options: dict = field(default_factory=dict)


_OTHER_FOLDER = {RUN_LABEL: google.NAME, FOLDER_LABEL: folder_key("gs://bucket/other")}
_EXPIRED = Life(((0.0, "WAITING_FOR_RESOURCES"), (3600.0, "FAILED")), "valid until has passed")
_TWO = {"slices": 2}

HISTORIES = {
    "waiting, then active": History((Life(),), Ending.DONE),
    "two slices": History((Life(),), Ending.DONE, options=_TWO),
    "no capacity, once": History((Life(((0.0, "FAILED"),), CAPACITY), Life()), Ending.DONE, made=2),
    "no capacity, always": History(
        (Life(((0.0, "WAITING_FOR_RESOURCES"), (50.0, "FAILED")), CAPACITY),),
        Ending.NOT_PROVIDED,
        made=5,
    ),
    "no capacity, as the answer": History(
        (Life(),),
        Ending.DONE,
        {("create", 1): Fault(f"ERROR: code=429 RESOURCE_EXHAUSTED: {CAPACITY}")},
    ),
    "quota, after waiting": History(
        (Life(((0.0, "WAITING_FOR_RESOURCES"), (50.0, "FAILED")), QUOTA),), Ending.NO_QUOTA
    ),
    "quota, as the answer": History(
        (Life(),),
        Ending.NO_QUOTA,
        {("create", n): Fault(f"ERROR: RESOURCE_EXHAUSTED: {QUOTA}") for n in range(1, 99)},
        made=0,
    ),
    "suspended while it waits": History(
        (Life(((0.0, "WAITING_FOR_RESOURCES"), (90.0, "SUSPENDED"))), Life()), Ending.DONE, made=2
    ),
    "suspended during setup": History((Life(suspended(230.0)), Life()), Ending.DONE, made=2),
    "suspended during training, three times": History(
        (Life(suspended(700.0)), Life(suspended(800.0)), Life(suspended(500.0)), Life()),
        Ending.DONE,
        made=4,
        options={"work": 2000.0},
    ),
    "node gone while the resource is active": History(
        (Life(node_gone=900.0), Life()), Ending.DONE, made=2
    ),
    "one node of two gone": History(
        (Life(node_gone=900.0), Life()), Ending.DONE, made=2, options=_TWO
    ),
    "create unanswered, but carried out": History(
        (Life(),), Ending.DONE, {("create", 1): Fault(done=True)}
    ),
    "create unanswered, carried out late": History(
        (Life(),), Ending.DONE, {("create", 1): Fault(done=True, after=200.0)}
    ),
    "create unanswered, and lost": History((Life(),), Ending.DONE, {("create", 1): NO_ANSWER}),
    "describe flaky": History(
        (Life(),), Ending.DONE, {("describe", n): FLAKY for n in (2, 3, 5, 8, 9, 10)}
    ),
    "describe unanswered": History(
        (Life(),), Ending.DONE, {("describe", n): NO_ANSWER for n in range(4, 18)}
    ),
    "delete fails once": History(
        (Life(suspended(700.0)), Life()), Ending.DONE, {("delete", 1): FLAKY}, made=2
    ),
    "delete unanswered, but carried out": History(
        (Life(suspended(700.0)), Life()), Ending.DONE, {("delete", 1): Fault(done=True)}, made=2
    ),
    "ssh refused five times": History((Life(refused=5),), Ending.DONE),
    "one worker dead before setup": History((Life(dead_worker=0.0), Life()), Ending.DONE, made=2),
    "one worker dead in training": History((Life(dead_worker=600.0), Life()), Ending.DONE, made=2),
    "a worker dead on all slices": History((Life(dead_worker=0.0),), Ending.UNREACHABLE, made=5),
    "the name exists, and is not seen": History(
        (Life(),), Ending.NAME_TAKEN, {("create", n): EXISTS for n in range(1, 99)}, made=0
    ),
    "no bucket": History(
        (Life(),), Ending.REFUSED, {("cp", n): NO_BUCKET for n in range(1, 99)}, made=0
    ),
    "a bucket that is not ours": History(
        (Life(),), Ending.REFUSED, {("cp", n): DENIED for n in range(1, 99)}, made=0
    ),
    "name taken by another tool": History((), Ending.NAME_TAKEN, owner={}, made=0),
    "name taken by another run": History((), Ending.NAME_TAKEN, owner=_OTHER_FOLDER, made=0),
    "valid until passed": History((_EXPIRED,), Ending.NOT_PROVIDED),
    "setup fails twice": History((Life(setups_fail=2),), Ending.DONE),
    "setup fails": History((Life(setups_fail=99),), Ending.NO_SETUP),
    "setup hangs": History((Life(setups_hang=99),), Ending.NO_SETUP),
    "job fails": History((Life(exit_codes=(1,)),), Ending.JOB_FAILED),
    "job killed twice": History((Life(exit_codes=(137, 134, 0)),), Ending.DONE),
    "job killed always": History((Life(exit_codes=(137,)),), Ending.KILLED, options={"work": 1e9}),
    "no permission": History(
        (Life(),),
        Ending.NO_PERMISSION,
        {("describe", n): Fault("ERROR: PERMISSION_DENIED: denied") for n in range(1, 99)},
        made=0,
    ),
    "Google does not answer": History(
        (Life(),), Ending.UNREACHABLE, {("describe", n): FLAKY for n in range(1, 9999)}, made=0
    ),
}


class NoFollower:
    """Counts how often a log was attached to."""

    def __init__(self):
        self.attached = 0

    def ensure(self):
        self.attached += 1

    def stop(self):
        pass


def google_of(history):
    """The fake gcloud at the beginning of a history."""
    found = Google(history.lives, dict(history.faults), **history.options)
    if history.owner is not None:
        found.resource = google.Resource(google.NAME, Life(), found.now, dict(history.owner))
    return found


def request_of(count):
    """What the run asks for."""
    name = f"{count}x v5e:4x4" if count > 1 else "v5e:4x4"
    return Request(
        google.NAME,
        slices.parse(name),
        zone="us-west4-a",
        project=google.PROJECT,
        provisioning="spot",
        valid_until=3600,
        run_dir=RUN_DIR,
    )


def launcher(world, runner, said=None):
    """A launcher that has just been started.

    Args:
      world: the fake gcloud, for its clock.
      runner: what runs gcloud: the fake, or something around it.
      said: lines that it prints are added here.
    """
    request = request_of(world.slices)
    commands = HostCommands(google.JOB, [("code.tar", "code.tar")], "START", "STATUS", str, "STOP")
    return Recovery(
        request=request,
        job=RemoteJob(request.place, commands),
        gcloud=Gcloud(runner, world.sleep, world.clock, "gcloud"),
        follower=NoFollower(),
        say=(lambda line: None) if said is None else said.append,
        delete_at_end=True,
        limits=Limits(),
    )
