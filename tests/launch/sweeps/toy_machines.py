"""Hosts that need no process, for `Zone`: what a job does there is a list of exit codes."""

import json
import threading

from launch.cloud import recipe_job
from launch.cloud.gcloud import Completed
from launch.cloud.remote_job import HostCommands

RUNS_ON = None  # in place of an exit code


class ToyMachines:
    """All hosts of a zone.

    Attributes:
      ends: trial -> exit codes of its starts, the last one again and again; without any: 0.
      polls: how often a job is seen running before it ends.
      hangs: whether jobs do not end when they are asked to.
      broken: whether hosts cannot be set up.
      starts: (host, trial) for each start of a job.
      stops: (host, trial) for each that was asked to end.
    """

    def __init__(self, polls=2, **ends):
        self.ends, self.polls, self.hangs, self.broken = ends, polls, False, False
        self.starts, self.stops, self.copied = [], [], []
        self.lock = threading.Lock()

    def __call__(self, name):
        return ToyMachine(self, name)

    def started(self, trial):
        """How often a trial was."""
        return sum(one == trial for _, one in self.starts)


class ToyMachine:
    """One host; its job is called HOST:TRIAL, as its identity."""

    def __init__(self, all_, name):
        self.all, self.name = all_, name
        self.job, self.left, self.code, self.log = "", 0, 0, ""

    def copy(self, here, there):
        self.all.copied.append((here, there))

    def cut_power(self):
        pass

    def ssh(self, text):
        with self.all.lock:
            return self._run(*text.split())

    def _run(self, verb, job=""):
        if verb == "LOG":
            return Completed(0, self.log, "")
        if verb == "START" and self.all.broken:
            return Completed(1, "", "no space left on device")
        if verb == "START":
            self._start(job)
            return Completed(0, "", "")
        if verb in ("STOP", "KILL") and self._state()["state"] == "running":
            self.all.stops.append((self.name, self.job.partition(":")[2]))
            if verb == "KILL" or not self.all.hangs:
                self.left, self.code = 0, 143
        answer = self._state()
        self.left -= verb == "STATUS" and self.left > 0 and self.code is not RUNS_ON
        return Completed(0, json.dumps({"host": self.name, **answer}), "")

    def _start(self, job):
        trial = job.partition(":")[2]
        codes = self.all.ends.get(trial, (0,))
        self.code = codes[min(self.all.started(trial), len(codes) - 1)]
        self.all.starts.append((self.name, trial))
        self.job, self.left = job, self.all.polls
        attempt = len(self.all.starts)
        self.log += f"== {self.name}, attempt {attempt} on host\n"
        self.log += f"error: {trial} ended with {self.code}\n== exit code {self.code}\n"

    def _state(self):
        if not self.job:
            return {"state": "absent"}
        if self.left or self.code is RUNS_ON:
            return {"state": "running", "job": self.job}
        state = "failed" if self.code else "done"
        return {"state": state, "exit_code": self.code, "job": self.job}


def understand(monkeypatch):
    """Recipes whose only argument is the trial's name, as these hosts understand them."""

    def host_commands(name, job, hosts):
        identity = f"{name}:{job[0]}"
        log = {True: "LOG", False: "LOG"}.get
        return HostCommands(
            identity, [("code", "code")], f"START {identity}", "STATUS", log, "STOP", "KILL"
        )

    monkeypatch.setattr(recipe_job, "read", list)
    monkeypatch.setattr(recipe_job, "host_commands", host_commands)
