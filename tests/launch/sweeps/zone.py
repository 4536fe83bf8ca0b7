"""A fake gcloud with many resources, for sweeps: Google's side, called from many threads.

A resource waits for one look, and is ACTIVE then. What its host does is up to a machine, which is
made with it and gone with it. That there are never more live resources than allowed is checked at
each call.
"""

import json
import threading
from collections import Counter
from dataclasses import dataclass, field

from launch.cloud.gcloud import Completed
from tests.launch.cloud.google import labels, verb_of

GONE = Completed(1, "", "ERROR: NOT_FOUND: the resource was not found")
AWAY = Completed(1, "", "ERROR: HTTPError 503: The service is currently unavailable.")
DENIED = Completed(1, "", "ERROR: PERMISSION_DENIED: tpu.nodes.delete")
QUOTA = Completed(1, "", "ERROR: RESOURCE_EXHAUSTED: Quota limit 'TPUV5s' has been exceeded")


@dataclass
class Found:
    """A resource that exists."""

    labels: dict
    machine: object
    state: str = "WAITING_FOR_RESOURCES"


@dataclass
class Zone:
    """One zone; an instance is what `Gcloud` calls to run a command line.

    Attributes:
      new_machine: makes the host of a resource, by its name.
      most: live resources at one time.
      refused: names for which there is no quota.
      created: how often each name was.
      faults: name -> answers of its next deletions, which are not carried out.
    """

    new_machine: object
    most: int
    refused: set = field(default_factory=set)
    found: dict = field(default_factory=dict)
    created: Counter = field(default_factory=Counter)
    deleted: list = field(default_factory=list)
    faults: dict = field(default_factory=dict)
    bucket: dict = field(default_factory=dict)
    lock: object = field(default_factory=threading.RLock)

    def __call__(self, argv, timeout):
        """Runs a command line as `gcloud.Runner` does."""
        verb = verb_of(argv)
        if verb == "ssh":
            return self._ssh(argv)
        with self.lock:
            return getattr(self, f"_{verb}")(argv)

    def preempt(self, name):
        """Takes the slices of a resource away."""
        with self.lock:
            self.found[name].state = "SUSPENDED"
            machine = self.found[name].machine
        machine.cut_power()

    def live(self):
        """Names of resources that cost money, or will."""
        return [name for name, one in self.found.items() if one.state != "SUSPENDED"]

    def _create(self, argv):
        name = argv[argv.index("create") + 1]
        if name in self.refused:
            return QUOTA
        if name in self.found:
            return Completed(1, "", "ERROR: ALREADY_EXISTS: Resource already exists")
        self.created[name] += 1
        self.found[name] = Found(labels(argv), self.new_machine(name))
        assert len(self.live()) <= self.most, f"{self.live()}: more than {self.most}"
        return Completed(0, "", "")

    def _describe(self, argv):
        name = argv[argv.index("describe") + 1]
        if name not in self.found:
            return GONE
        answer = self._report(name)
        if self.found[name].state == "WAITING_FOR_RESOURCES":
            self.found[name].state = "ACTIVE"
        return Completed(0, json.dumps(answer), "")

    def _report(self, name):
        one = self.found[name]
        node = {"acceleratorType": "v5litepod-8", "labels": one.labels}
        spec = {"tpu": {"nodeSpec": [{"node": node}]}}
        return {"name": f"a/queuedResources/{name}", "state": {"state": one.state}, **spec}

    def _list(self, argv):
        return Completed(0, json.dumps([self._report(name) for name in self.found]), "")

    def _nodes(self, argv):
        found = [
            {"name": f"a/nodes/{name}", "state": "READY", "labels": one.labels}
            for name, one in self.found.items()
            if one.state == "ACTIVE"
        ]
        return Completed(0, json.dumps(found), "")

    def _delete(self, argv):
        name = argv[argv.index("delete") + 1]
        if self.faults.get(name):
            return self.faults[name].pop(0)
        if name not in self.found:
            return GONE
        self.deleted.append(name)
        self.found.pop(name).machine.cut_power()
        return Completed(0, "", "")

    def _cp(self, argv):
        with open(argv[3], encoding="utf-8") as file:
            self.bucket[argv[4]] = file.read()
        return Completed(0, "", "")

    def _cat(self, argv):
        if argv[3] not in self.bucket:
            return Completed(1, "", "ERROR: The following URLs matched no objects or files")
        return Completed(0, self.bucket[argv[3]], "")

    def _scp(self, argv):
        start = argv.index("--recurse")
        here, there = argv[start + 1 : start + 3]
        name, _, path = there.partition(":")
        if name not in self.found:
            return Completed(255, "", "ssh: no route to host")
        self.found[name].machine.copy(here, path)
        return Completed(0, "", "")

    def _ssh(self, argv):
        with self.lock:  # not while the text runs, which may take long
            one = self.found.get(argv[argv.index("ssh") + 1])
        if one is None or one.state != "ACTIVE":
            return Completed(255, "", "ssh: connect: No route to host")
        return one.machine.ssh(argv[-1].removeprefix("--command="))
