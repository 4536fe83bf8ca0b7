"""A fake gcloud: Google's side of queued resources over virtual time.

It follows a script. Each resource that is created lives through the next `Life` of the script (the
last one again and again); a fault replaces the answer to the n-th call of a verb. All calls are
recorded, and what must never happen is checked at each.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from launch.cloud.gcloud import Completed

START = 1_800_000_000.0  # virtual seconds since 1970
SETUP_SECONDS = 100.0
CALL_SECONDS = 2.0
LIVE = ("CREATING", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE", "SUSPENDING")
READY = ((0.0, "WAITING_FOR_RESOURCES"), (100.0, "PROVISIONING"), (160.0, "ACTIVE"))
FOREVER = float("inf")
MOST_CALLS = 3000


@dataclass(frozen=True)
class Life:
    """What happens to one resource; times in seconds after its creation.

    Attributes:
      states: (time, state).
      failure: message of FAILED.
      node_gone: when its first node disappears.
      dead_worker: when its last host stops answering.
      refused: how many calls of ssh are refused.
      setups_fail: how many set-ups fail on healthy hosts.
      setups_hang: how many set-ups do not end.
      exit_codes: of the job, one for each start; the last one again and again. None runs on.
    """

    states: tuple = READY
    failure: str = ""
    node_gone: float = FOREVER
    dead_worker: float = FOREVER
    refused: int = 0
    setups_fail: int = 0
    setups_hang: int = 0
    exit_codes: tuple = (0,)


@dataclass(frozen=True)
class Fault:
    """Another answer to a call.

    Attributes:
      error: on standard error, with exit code 1; "" is no answer at all.
      done: whether the call does its work all the same.
      after: seconds until the work is visible.
    """

    error: str = ""
    done: bool = False
    after: float = 0.0


@dataclass
class Resource:
    """One that exists."""

    name: str
    life: Life
    created: float
    labels: dict
    deleted: float = FOREVER
    started: float | None = None  # the job, since when
    base: float = 0.0  # seconds of work saved before it
    starts: int = 0
    setups: int = 0
    refused: int = 0
    ended: bool = False
    stopped: bool = False


@dataclass
class Google:
    """Google's side; an instance is what `Gcloud` calls to run a command line.

    Attributes:
      lives: of the resources, one after the other.
      faults: (verb, number of the call from 1) -> Fault.
      hosts: of each slice.
      slices: number of nodes.
      work: seconds that the job needs; kept across resources up to the last save.
    """

    lives: tuple
    faults: dict = field(default_factory=dict)
    hosts: int = 4
    slices: int = 1
    work: float = 1000.0
    save_every: float = 100.0
    now: float = START
    saved: float = 0.0
    resource: Resource | None = None
    calls: Counter = field(default_factory=Counter)
    commands: list = field(default_factory=list)
    made: int = 0
    deleted: list = field(default_factory=list)
    late: list = field(default_factory=list)
    bucket: dict = field(default_factory=dict)
    timeout: float = 0.0  # of the call that runs

    def sleep(self, seconds):
        self.now += seconds

    def clock(self):
        return self.now

    def __call__(self, argv, timeout):
        """Runs a command line as `gcloud.Runner` does."""
        self.now += CALL_SECONDS
        self._settle()
        assert argv[0] == "gcloud" and (argv[1] == "storage" or f"--project={PROJECT}" in argv)
        verb = verb_of(argv)
        self.calls[verb] += 1
        self.commands.append(argv)
        assert len(self.commands) < MOST_CALLS, "the launcher never ends"
        fault = self.faults.get((verb, self.calls[verb]))
        if fault is None:
            self.timeout = timeout
            return getattr(self, f"_{verb}")(argv)
        if fault.done:
            work = getattr(self, f"_{verb}")
            if fault.after:
                self.late.append((self.now + fault.after, work, argv))
            else:
                work(argv)
        if not fault.error:
            self.now += timeout
            raise TimeoutError(f"gcloud did not answer within {timeout:g} s")
        return Completed(1, "", fault.error)

    def _settle(self):
        """Lets time pass: what arrives late, what is deleted, what the job has saved."""
        for entry in [one for one in self.late if one[0] <= self.now]:
            self.late.remove(entry)
            entry[1](entry[2])
        found = self.resource
        if found is None:
            return
        self._train(found)
        if found.deleted <= self.now:
            self.resource = None

    def _train(self, found):
        """Saves what the job has done until the slices went."""
        if found.started is None or found.ended:
            return
        life = found.life
        end = min(self.now, found.created + min(self._lost(life), life.dead_worker))
        code = life.exit_codes[min(found.starts, len(life.exit_codes)) - 1]
        worked = max(0.0, end - found.started)
        if code:  # dies half way between two saves
            worked = min(worked, self.save_every * 1.5)
        self.saved = max(self.saved, (found.base + worked) // self.save_every * self.save_every)
        if not code and found.base + worked >= self.work:
            self.saved, found.ended = self.work, True

    @staticmethod
    def _lost(life):
        """When its slices go."""
        times = [time for time, state in life.states if state in ("SUSPENDING", "SUSPENDED")]
        return min([*times, life.node_gone])

    def state(self):
        """The state that `describe` reports now."""
        if self.resource.deleted < FOREVER:
            return "DELETING"
        age = self.now - self.resource.created
        return [state for time, state in self.resource.life.states if time <= age][-1]

    def live(self):
        """Whether something is there that costs money, or will."""
        return self.resource is not None and self.state() in LIVE

    def _create(self, argv):
        assert argv[argv.index("create") + 1] == NAME, "one name: at most one live resource"
        if self.resource is not None:
            return Completed(1, "", "ERROR: ALREADY_EXISTS: Resource already exists")
        life = self.lives[min(self.made, len(self.lives) - 1)]
        self.made += 1
        self.resource = Resource(argv[argv.index("create") + 1], life, self.now, labels(argv))
        return Completed(0, "", "Create request issued")

    def _describe(self, argv):
        if self.resource is None:
            return Completed(1, "", "ERROR: NOT_FOUND: Resource 'x' was not found")
        state = {"state": self.state()}
        if state["state"] == "FAILED":
            state["failedData"] = {"error": {"code": 8, "message": self.resource.life.failure}}
        spec = {"node": {"acceleratorType": "v5litepod-16", "labels": self.resource.labels}}
        answer = {
            "name": self.resource.name,
            "state": state,
            "createTime": iso(self.resource.created),
            "tpu": {"nodeSpec": [spec] * self.slices},
        }
        return Completed(0, json.dumps(answer), "")

    def _list(self, argv):
        other = {"name": "projects/p/locations/z/queuedResources/others", "state": {}}
        found = [json.loads(self._describe(argv).out)] if self.resource else []
        return Completed(0, json.dumps([other, *found]), "")

    def _nodes(self, argv):
        return Completed(0, json.dumps(self._node_list()), "")

    def _node_list(self):
        if self.resource is None or self.state() != "ACTIVE":
            return []
        gone = self.now - self.resource.created >= self.resource.life.node_gone
        names = [f"projects/p/locations/z/nodes/{self.resource.name}-{n}"
                 for n in range(self.slices)][gone:]  # fmt: skip
        other = {"name": "projects/p/locations/z/nodes/of-somebody", "state": "READY"}
        return [other, *({"name": name, "state": "READY", "labels": self.resource.labels}
                         for name in names)]  # fmt: skip

    def _delete(self, argv):
        if self.resource is None:
            return Completed(1, "", "ERROR: NOT_FOUND: Resource 'x' was not found")
        assert self.resource.labels.get("kennel-run") == NAME, "deletes what is not the run's"
        self.deleted.append(self.state())
        self.resource.deleted = min(self.resource.deleted, self.now + 40.0)
        return Completed(0, "", "Delete request issued")

    def _cp(self, argv):
        self.bucket[argv[4]] = Path(argv[3]).read_text()
        return Completed(0, "", "")

    def _cat(self, argv):
        if argv[3] not in self.bucket:
            error = "ERROR: (gcloud.storage.cat) The following URLs matched no objects or files"
            return Completed(1, "", error)
        return Completed(0, self.bucket[argv[3]], "")

    def _answering(self):
        """Names of the hosts that ssh reaches."""
        found = self.resource
        count = self.hosts * (len(self._node_list()) - 1) if found and self._node_list() else 0
        if count and self.now - found.created >= found.life.dead_worker:
            count -= 1
        return [f"host-{n}" for n in range(count)]

    def _ssh(self, argv):
        found = self.resource
        if found is not None and self._answering() and found.refused < found.life.refused:
            found.refused += 1
            return Completed(255, "", "ssh: connect to host 10.0.0.2 port 22: Connection refused")
        names = self._answering()
        all_of_them = len(names) == self.hosts * self.slices
        command = argv[-1].removeprefix("--command=")
        if command == "STOP":
            found.stopped = True
        if command in ("STATUS", "STOP"):
            lines = [json.dumps({"host": name, **self._job()}) for name in names]
            if all_of_them:
                return Completed(0, "\n".join(lines), "")
            return Completed(255, "\n".join(lines), "Using ssh batch size of 64.\nssh: no route")
        assert command == "START"
        if not all_of_them:
            return Completed(255, "", "ssh: connect: No route to host")
        self.now += SETUP_SECONDS
        self._settle()
        if len(self._answering()) < len(names):  # taken away meanwhile
            return Completed(255, "", "client_loop: send disconnect: Broken pipe")
        if found.setups < found.life.setups_hang:
            found.setups += 1
            self.now += self.timeout
            raise TimeoutError("gcloud did not answer")
        if found.setups < found.life.setups_fail:
            found.setups += 1
            return Completed(1, "", "error: no route to the package index")
        if self._job()["state"] in ("absent", "failed"):
            found.started, found.base, found.starts = self.now, self.saved, found.starts + 1
        return Completed(0, "", "")

    def _scp(self, argv):
        reached = len(self._answering()) == self.hosts * self.slices
        return Completed(0 if reached else 255, "", "")

    def _job(self):
        """State of the job on a host."""
        found = self.resource
        if found.started is None:
            return {"state": "absent"}
        if found.stopped:
            return {"state": "failed", "exit_code": 143, "job": JOB}
        if found.ended:
            return {"state": "done", "exit_code": 0, "job": JOB}
        code = found.life.exit_codes[min(found.starts, len(found.life.exit_codes)) - 1]
        dead = self.now - found.created >= found.life.dead_worker
        if dead:  # the others notice the loss
            return {"state": "failed", "exit_code": 134, "job": JOB}
        if code and self.now - found.started >= self.save_every * 1.5:
            return {"state": "failed", "exit_code": code, "job": JOB}
        return {"state": "running", "job": JOB}


NAME, PROJECT, JOB = "mine", "my-project", "job-1"


def verb_of(argv):
    """'create', 'describe', 'list', 'delete', 'ssh', 'scp', 'nodes'; of a bucket 'cp', 'cat'."""
    if argv[1] == "storage":
        return argv[2]
    if "tpu-vm" in argv:
        return "nodes"
    return argv[argv.index("queued-resources") + 1]


def labels(argv):
    (text,) = [word.removeprefix("--labels=") for word in argv if word.startswith("--labels=")]
    return dict(pair.split("=", 1) for pair in text.split(","))


def iso(seconds):
    """As Google writes times, with nine digits after the second."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.123456789Z"
