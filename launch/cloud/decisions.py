"""What to do next about a run, from what Google and the hosts report: a pure function.

`decide` is called again and again with fresh reports. All that matters is in them, so that a
launcher that was killed continues with the next call. `Past` holds only what makes this launcher
patient: how often something failed in a row, and since when a host has been silent.

A resource is deleted here when it is SUSPENDED or FAILED, or when it is ACTIVE and cannot run a job
any more: a node is gone, or a host has been silent for long and the job runs on no other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from launch.cloud import gcloud, reports
from launch.cloud.endings import Ending
from launch.cloud.reports import Host, Node, Resource
from launch.cloud.requests import FOLDER_LABEL, Request

RETRIED = (134, 137, 143)  # exit codes of a job that was aborted or killed


@dataclass(frozen=True)
class Limits:
    """How patient the launcher is; times in seconds."""

    poll: float = 30.0
    looks: int = 5  # at Google after an unanswered create, before the next one
    deletion: float = 180.0  # until a deletion that was accepted is asked for again
    refusals: int = 5  # FAILED resources in a row, or failed calls
    setups: int = 3  # failed set-ups in a row
    stops: int = 3  # times that another job is asked to end, before the slices are given up
    kills: int = 10  # restarts of the job on the same slices
    losses: int = 5  # slices in a row that lost a silent host, with no progress on any
    names: int = 5  # answers that the name exists, while nothing of it is seen
    silence: float = 600.0  # until a silent host counts as lost
    unreachable: float = 3600.0  # until all hosts, or Google, are given up


@dataclass
class Past:
    """What this launcher has seen before; nothing that a restarted one could not do without."""

    looks: int = 0
    deleting: float | None = None
    refusals: int = 0
    setups: int = 0
    stops: int = 0
    kills: int = 0
    gone: int = 0
    losses: int = 0
    names: int = 0
    silent: float | None = None
    running: float | None = None  # since when all hosts answer and the job runs
    ending: tuple[Ending, str] | None = None
    known: bool = False  # until a start: the job's failure on these hosts is an old one

    def replaced(self, lost: bool) -> None:
        """Forgets what concerned slices that are deleted.

        Args:
          lost: whether a silent host was the reason.
        """
        self.losses += lost
        self.setups = self.stops = self.kills = self.gone = 0
        self.silent = self.running = None


@dataclass(frozen=True)
class Seen:
    """What is reported now; nodes and hosts of an ACTIVE resource only."""

    resource: Resource | None
    nodes: Sequence[Node] = ()
    hosts: Sequence[Host] = ()
    said: str = ""  # by gcloud, about hosts that do not answer


@dataclass(frozen=True)
class Create:
    """Ask for the slices."""


@dataclass(frozen=True)
class Start:
    """Set up the hosts and start the job where it does not run."""

    why: str


@dataclass(frozen=True)
class Stop:
    """Have another job on the hosts save and end."""

    why: str


@dataclass(frozen=True)
class Wait:
    """Look again later; `running` says whether there is a log to follow."""

    why: str
    running: bool = False


@dataclass(frozen=True)
class Delete:
    """Delete the resource; then end, or ask for a new one. `lost`: a host has been silent."""

    why: str
    ending: Ending | None = None
    lost: bool = False


@dataclass(frozen=True)
class End:
    """Stop; the resource stays unchanged."""

    ending: Ending
    why: str


Action = Create | Start | Stop | Wait | Delete | End


@dataclass(frozen=True)
class Job:
    """What is to run on the hosts.

    Attributes:
      identity: as hosts report it.
      replaces: another job that runs there is stopped; without it, that one stays.
    """

    identity: str
    replaces: bool = False


def decide(
    request: Request, job: Job, seen: Seen, past: Past, now: float, limits: Limits
) -> Action:
    """The next action.

    Args:
      request: what the run asked for.
      job: what is to run on the hosts.
      seen: what is reported now.
      past: of this launcher; updated.
      now: seconds since 1970.
      limits: see `Limits`.
    """
    found = seen.resource
    if found is None:
        past.deleting = None
        if past.ending is not None:
            return End(*past.ending)
        if past.looks:
            past.looks -= 1
            return Wait("the request got no answer; looks whether it arrived")
        return Create()
    past.looks = past.names = 0
    if why := foreign(request, found):
        return End(Ending.NAME_TAKEN, why)
    if past.deleting is not None and now - past.deleting < limits.deletion:
        return Wait(f"is being deleted ({found.state})")
    if found.state == "FAILED":
        return _failed(request, found, past, now, limits)
    if found.state == "SUSPENDED":
        return Delete("was suspended: Google took the slices back")
    if found.state != "ACTIVE":
        return Wait(found.state)
    past.refusals = 0
    return _active(request, job, seen, past, now, limits)


def foreign(request: Request, found: Resource) -> str:
    """Why a resource is not this run's; "" where it is."""
    if found.run != request.name:
        whose = f"the run {found.run!r}" if found.run else "something other than kennel"
        return f"{request.place} was made by {whose}: choose another --name"
    folder = found.labels.get(FOLDER_LABEL)
    if not folder and request.needs_folder:
        return (
            f"{request.place} was asked for without SWEEP_DIR, as by kennel tpu create: delete it, "
            "or choose another --name"
        )
    if folder and request.run_dir and folder != request.all_labels[FOLDER_LABEL]:
        return f"{request.place} belongs to a run with another RUN_DIR: choose another --name"
    return ""


def _failed(request: Request, found: Resource, past: Past, now: float, limits: Limits) -> Delete:
    why = f"Google could not fill the request: {found.failure or 'no reason is given'}"
    until = request.valid_until
    if until is not None and found.created is not None and now >= found.created + until:
        return Delete(f"--valid_until has passed; {why}", Ending.NOT_PROVIDED)
    endings = {"quota": Ending.NO_QUOTA, "permission": Ending.NO_PERMISSION}
    if ending := endings.get(gcloud.classify(found.failure)):
        return Delete(why, ending)
    past.refusals += 1
    return Delete(why, Ending.NOT_PROVIDED if past.refusals >= limits.refusals else None)


def _active(
    request: Request, job: Job, seen: Seen, past: Past, now: float, limits: Limits
) -> Action:
    """Of a resource that has, or had, its nodes."""
    gone = [one.name for one in seen.nodes if one.state in reports.GONE]
    missing = request.slices.count - len(seen.nodes)
    if gone or missing > 0:
        past.gone += 1
        names = ", ".join(gone) or f"{missing} of {request.slices.count} nodes"
        if past.gone < 2:  # a list may lag
            return Wait(f"ACTIVE, but {names} cannot be seen")
        return Delete(f"was preempted: {names} gone while the resource is ACTIVE")
    past.gone = 0
    if busy := [f"{one.name} {one.state}" for one in seen.nodes if one.state != "READY"]:
        return Wait(f"ACTIVE; {', '.join(busy)}")
    silent = request.hosts - len(seen.hosts)
    if silent <= 0:
        past.silent = None
        action = _answered(job, seen.hosts, past, limits)
        _note_progress(action, past, now, limits)
        return action
    past.silent = now if past.silent is None else past.silent
    return _silent(job.identity, silent, seen, now - past.silent, past, limits)


def _note_progress(action: Action, past: Past, now: float, limits: Limits) -> None:
    """Resets the count of lost slices once the job ran longer than the wait for a silent host."""
    if not (isinstance(action, Wait) and action.running):
        past.running = None
        return
    past.running = now if past.running is None else past.running
    if now - past.running >= limits.silence:
        past.losses = 0


def _silent(job: str, count: int, seen: Seen, seconds: float, past: Past, limits: Limits) -> Action:
    """Some hosts do not answer."""
    hosts = seen.hosts
    why = f"{count} of {count + len(hosts)} hosts do not answer"
    lasting = f"{why} for {seconds / 60:.0f} minutes"
    said = f". gcloud says:\n{seen.said}" if seen.said else ""
    if not hosts:
        if seconds >= limits.unreachable:
            return End(Ending.UNREACHABLE, f"{lasting}{said}")
        return Wait(f"{why}{said}")
    running = any(one.state == "running" for one in hosts)
    if seconds < limits.silence or running:
        return Wait(f"{why}{said}", running)
    if all(one.state == "done" and one.job in ("", job) for one in hosts):
        return End(Ending.DONE, f"the job is done; {why}")
    lost = f"lost a host: {lasting}, and the job runs on no other"
    if past.losses + 1 >= limits.losses:
        again = f"{lost}; so did the {past.losses} slices before, with no progress{said}"
        return Delete(again, Ending.UNREACHABLE, lost=True)
    return Delete(f"{lost}{said}", lost=True)


def _answered(job: Job, hosts: Sequence[Host], past: Past, limits: Limits) -> Action:
    """All hosts answer. What an earlier job of this name has left there does not count."""
    ours = ("", job.identity)
    if others := [one for one in hosts if one.job not in ours and one.state == "running"]:
        return _occupied(job, others[0], past, limits)
    past.stops = 0
    states = {"absent" if one.job not in ours else one.state for one in hosts}
    if states == {"done"}:
        return End(Ending.DONE, "the job is done")
    if "absent" in states and "failed" not in states:
        return _start("starts the job", past, limits)
    if "running" in states:
        return Wait("the job runs", running=True)
    return _ended(hosts, past, limits)


def _start(why: str, past: Past, limits: Limits) -> Start | End:
    if past.setups >= limits.setups:
        return End(Ending.NO_SETUP, f"the hosts could not be set up {past.setups} times")
    return Start(why)


def _occupied(job: Job, other: Host, past: Past, limits: Limits) -> Action:
    """Another job runs on a host."""
    what = f"{other.name} runs a job with other settings or other code"
    if not job.replaces:
        advice = "wait for its end, delete the slices, or choose another --name"
        return End(Ending.NAME_TAKEN, f"{what}: {advice}")
    if past.stops >= limits.stops:
        return End(Ending.NAME_TAKEN, f"{what}, which did not end when asked {past.stops} times")
    past.stops += 1
    return Stop(f"{what}: has it save and end")


def _ended(hosts: Sequence[Host], past: Past, limits: Limits) -> Action:
    """The job has ended with an error on some hosts, and runs on none."""
    failed = [one for one in hosts if one.state == "failed"]
    named = ", ".join(f"{one.name} with exit code {one.exit_code}" for one in failed)
    if any(one.exit_code not in RETRIED for one in failed) and past.known:
        return _start(f"the job failed before ({named}); starts it again", past, limits)
    if any(one.exit_code not in RETRIED for one in failed):
        return End(Ending.JOB_FAILED, f"the job failed: {named}")
    if past.kills >= limits.kills:
        return End(Ending.KILLED, f"the job was killed {past.kills + 1} times: {named}")
    past.kills += 1
    return Start(f"the job was killed ({named}); starts it again")
