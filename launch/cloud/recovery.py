"""`kennel tpu up`: asks for slices, starts the job, and recovers from preemption until it is done.

A loop: look, decide (`decisions`), act. Everything that it needs to continue is at Google (the
resource, its labels) and on the hosts (the job's state, its exit code), so that it can be killed
anywhere and started again. The job does not depend on it.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from launch.cloud import decisions, queued_resources, remote_job, reports
from launch.cloud.decisions import Create, Delete, End, Job, Limits, Past, Seen, Start, Stop, Wait
from launch.cloud.endings import FINAL, Ending
from launch.cloud.gcloud import Gcloud, GcloudError
from launch.cloud.remote_job import RemoteJob
from launch.cloud.reports import Resource
from launch.cloud.requests import Place, Request


class Follower(Protocol):
    """Shows the job's log while it runs."""

    def ensure(self) -> None:
        """Attaches to the log, again where the stream has stopped."""
        ...

    def stop(self) -> None:
        """Detaches; the job does not notice."""
        ...


@dataclass
class Recovery:
    """One launcher of one run.

    Attributes:
      request: the slices.
      job: what runs on their hosts.
      gcloud: the command, and the time.
      follower: of the job's log.
      say: prints a line.
      delete_at_end: whether the user asked to delete the slices when the job has ended.
      replaces: whether another job on the hosts is stopped; see `decisions.Job`.
      guard: entered around each call that creates or deletes slices; what it raises ends `up`.
      limits: see `decisions.Limits`.
    """

    request: Request
    job: RemoteJob
    gcloud: Gcloud
    follower: Follower
    say: Callable[[str], None]
    delete_at_end: bool = False
    replaces: bool = False
    guard: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    limits: Limits = field(default_factory=Limits)
    past: Past = field(default_factory=Past)
    _said: str = ""
    _failing: float | None = None  # since when Google has not answered

    def up(self) -> End:
        """Runs until the job is done or nothing more can be done; returns how it ended."""
        try:
            while True:
                try:
                    action = self._next()
                    self._failing = None
                except GcloudError as error:
                    action = self._unanswered(error)
                if isinstance(action, End):
                    return action
        finally:
            self.follower.stop()

    def _next(self) -> decisions.Action:
        """Looks, decides and acts; returns what it decided."""
        seen = self._look()
        job = Job(self.job.identity, self.replaces)
        action = decisions.decide(
            self.request, job, seen, self.past, self.gcloud.clock(), self.limits
        )
        if isinstance(action, End):
            return self._end(seen, action)
        if isinstance(action, Create):
            return self._create_unless_done()
        if isinstance(action, Delete):
            self._delete(action)
        elif isinstance(action, Start):
            self._start(action)
        elif isinstance(action, Stop):
            self._tell(action.why)
            self.job.stop(self.gcloud)
            self.gcloud.sleep(self.limits.poll)
        else:
            self._wait(action)
        return action

    def _look(self) -> Seen:
        place = self.request.place
        found = find(self.gcloud, place)
        if found is None or found.state != "ACTIVE" or decisions.foreign(self.request, found):
            return Seen(found)
        nodes = reports.nodes(self.gcloud.read(queued_resources.nodes(place)), place.name)
        ready = len(nodes) == self.request.slices.count
        ready = ready and all(one.state == "READY" for one in nodes)
        hosts, said = self.job.hosts(self.gcloud) if ready else ((), "")
        return Seen(found, nodes, hosts, said)

    def _create_unless_done(self) -> decisions.Action:
        """Writes to RUN_DIR before: slices would cost money, and hosts could save nothing."""
        run_dir = self.request.run_dir
        try:
            if remote_job.is_noted_done(self.gcloud, run_dir, self.job.identity):
                return End(Ending.DONE, f"the job is done, as {run_dir} says")
            remote_job.note(self.gcloud, run_dir, self.job.identity, "asked")
        except GcloudError as error:
            if error.kind not in ("permission", "not_found"):
                raise
            return End(
                Ending.REFUSED,
                f"RUN_DIR {run_dir} has no bucket, or one that you may not read and write. "
                f"Create it, or have somebody grant you roles/storage.objectUser: {error}",
            )
        return self._create()

    def _create(self) -> decisions.Action:
        """Asks once. Whatever the answer, what Google has decides what comes next."""
        self._tell(f"asks for {self.request.slices} as {self.request.place}")
        try:
            with self.guard():
                self.gcloud.once(queued_resources.create(self.request))
        except GcloudError as error:
            return self._refused(error)
        self.gcloud.sleep(self.limits.poll)
        return Create()

    def _refused(self, error: GcloudError) -> decisions.Action:
        endings = {
            "quota": Ending.NO_QUOTA,
            "permission": Ending.NO_PERMISSION,
            "usage": Ending.REFUSED,
            "program": Ending.REFUSED,
        }
        if ending := endings.get(error.kind):
            return End(ending, str(error))
        if error.kind == "exists":
            return self._exists_unseen(error)
        self.past.refusals += 1
        if error.kind == "capacity":
            if self.past.refusals >= self.limits.refusals:
                return End(Ending.NOT_PROVIDED, str(error))
        else:
            self.past.looks = self.limits.looks  # it may have been carried out
            if self.past.refusals >= self.limits.refusals:
                return End(Ending.UNREACHABLE, str(error))
        self._tell(error.short)
        self.gcloud.sleep(self.limits.poll * 2**self.past.refusals)
        return Create()

    def _exists_unseen(self, error: GcloudError) -> decisions.Action:
        """The name exists, and a moment before nothing was there: it comes, goes, or is hidden."""
        self.past.names += 1
        if self.past.names >= self.limits.names:
            why = f"Google says that the name exists, and shows nothing of it: {error}"
            return End(Ending.NAME_TAKEN, why)
        self._tell(error.short)
        self.gcloud.sleep(self.limits.poll * 2**self.past.names)
        return Create()

    def _delete(self, action: Delete) -> None:
        """Deletes this run's resource; `decide` has just seen its labels."""
        self._tell(action.why)
        self.follower.stop()
        try:
            with self.guard():
                self.gcloud.once(queued_resources.delete(self.request.place))
        except GcloudError as error:
            if error.kind != "not_found":
                raise
        self.past.deleting = self.gcloud.clock()
        self.past.replaced(action.lost)
        if action.ending is not None:
            self.past.ending = (action.ending, action.why)
        self.gcloud.sleep(self.limits.poll * 2**self.past.refusals)

    def _start(self, action: Start) -> None:
        self._tell(action.why)
        done = self.job.start(self.gcloud)
        if done.code:
            lost = done.code == 255  # of ssh itself: a host is away, or the slices are
            self.past.setups += not lost
            self._tell(f"the hosts are not set up (exit code {done.code}): {done.err.strip()}")
        else:
            self.past.setups = 0
            self.past.known = False
        self.gcloud.sleep(self.limits.poll)

    def _wait(self, action: Wait) -> None:
        self._tell(action.why)
        if action.running:
            self.follower.ensure()
        self.gcloud.sleep(self.limits.poll)

    def _end(self, seen: Seen, action: End) -> decisions.Action:
        """Ends; deletes before where the user asked for it and the run needs no slices."""
        if seen.resource is None or action.ending not in FINAL:
            return action
        if action.ending == Ending.DONE:
            self._note_done()
        if not self.delete_at_end:
            return self._advised(action)
        deletion = Delete(action.why, action.ending)
        self._delete(deletion)
        return deletion

    def _note_done(self) -> None:
        run_dir = self.request.run_dir
        try:
            remote_job.note(self.gcloud, run_dir, self.job.identity, "done")
        except GcloudError as error:  # the job is done all the same, and its slices cost money
            self._tell(
                f"the job is done, but {run_dir} could not take a note of it, so that the same "
                f"command would ask for slices again: {error.short}"
            )

    def _advised(self, action: End) -> End:
        """With what to do about a job that failed on slices that are kept."""
        if action.ending != Ending.JOB_FAILED:
            return action
        flags = self.request.place.flags
        return End(
            action.ending,
            f"{action.why}. Its log: kennel tpu logs {flags}. To try again on the same slices: "
            f"kennel tpu run RECIPE [NAME=VALUE ...] {flags}",
        )

    def _unanswered(self, error: GcloudError) -> decisions.Action:
        """A call failed, each time that it was tried: gives up only after long."""
        if error.kind == "permission":
            return End(Ending.NO_PERMISSION, str(error))
        if error.kind == "program":
            return End(Ending.REFUSED, str(error))
        self._failing = self.gcloud.clock() if self._failing is None else self._failing
        if self.gcloud.clock() - self._failing >= self.limits.unreachable:
            return End(Ending.UNREACHABLE, str(error))
        self._tell(error.short)
        self.gcloud.sleep(self.limits.poll)
        return Wait(error.short)

    def _tell(self, line: str) -> None:
        """Prints what has changed."""
        if line != self._said:
            self.say(line)
        self._said = line


def find(gcloud: Gcloud, place: Place) -> Resource | None:
    """The resource at a place, or None.

    Raises:
      GcloudError: Google did not say.
    """
    try:
        return reports.resource(gcloud.read(queued_resources.describe(place)))
    except GcloudError as error:
        if error.kind == "not_found":
            return None
        raise


def commands(request: Request, job: RemoteJob) -> dict[str, list[list[str]]]:
    """What is done -> the argument lists of gcloud for it, in the order of an undisturbed run."""
    place = request.place
    return {
        "ask for the slices": [queued_resources.create(request)],
        "until it is ACTIVE": [queued_resources.describe(place)],
        "the nodes that are there": [queued_resources.nodes(place)],
        "set up the hosts and start the job": job.starting(),
        "the job's state, and its log": [job.asking(), job.log(follow=True)],
        "after a preemption, before the first again": [queued_resources.delete(place)],
    }


def costs(gcloud: Gcloud, place: Place) -> str:
    """One line on what is left at a place, and whether it costs money."""
    try:
        return cost_of(find(gcloud, place), place)
    except GcloudError as error:
        return (
            f"NOT KNOWN whether {place} costs money ({error.short}). To delete it: "
            f"kennel tpu delete {place.flags}"
        )


def cost_of(found: Resource | None, place: Place) -> str:
    """The same of a resource that was just found, or not."""
    delete = f"kennel tpu delete {place.flags}"
    if found is None:
        return f"nothing is left of {place}; it costs nothing"
    if found.state == "ACTIVE" or found.state == "PROVISIONING":
        what = f"{found.count}x {found.accelerator}" if found.count > 1 else found.accelerator
        return f"{place} is {found.state} and COSTS MONEY ({what}) until: {delete}"
    if found.state in reports.WAITING:
        return f"{place} waits; it costs money as soon as it is ACTIVE. To withdraw it: {delete}"
    return f"{place} is {found.state}; it costs nothing, but keeps its name: {delete}"
