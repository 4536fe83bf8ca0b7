"""The other processes of a stage: one plan for all, and one end.

Everything goes through the key-value store of JAX's coordination service, which needs no equal
programs and no devices. Keys, under `kennel/`:

    host/K      the name of the host of process K
    digest/K, identity/K, gather/K   see `agreement`
    verdict     process 0: whether the stage has to run
    end/K       process K ends alone: exit code, then why
    gone/K      process K has read that, and goes
    stop/K      process K was asked to stop a job that only process 0 runs
    ran/K       process K has run the job
    over        process 0: the stage has ended, and how

A thread reads them while the main thread computes, for that one may sit in a collective operation
that never returns. A process that dies without a word is noticed by JAX's service, which then ends
all others: after the heartbeat time-out, or at once if it was process 0, which hosts the service.
"""

import atexit
import math
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

import jax
from jax._src.distributed import State, global_state  # the key-value store has no public name

from t5x_style.distributed.launch_flags import Processes, ProcessesError

ROOT = "kennel/"
POLL_SECONDS = 0.2
TURN_MILLISECONDS = 1000  # a blocking read of this long lets Python see signals in between


_to_finish: list[threading.Thread] = []  # this process is not ended from outside before they are


def let_finish(thread: threading.Thread) -> None:
    """Another process that ends may not cut this thread short, unless it takes very long."""
    _to_finish[:] = [other for other in _to_finish if other.is_alive()] + [thread]


class Peers:
    """Messages between this process and the others.

    Attributes:
      number, count: of this process, and of all.
      together: the job runs on all processes; False: on process 0, and the others wait. JAX then
        knows nothing of them.
      patience: seconds that each waits for the others to start.
    """

    def __init__(self, described: Processes, together: bool, state: State):
        """Args:
        described: how long to wait; the state knows the rest.
        together: see the class.
        state: of the coordination service that this process has joined.
        """
        self.number, self.count = state.process_id, state.num_processes
        self.together = together
        self.patience = described.initialization_timeout
        self._heartbeat = described.heartbeat_timeout
        self._state = state
        self._client: Any = state.client
        self._closed = threading.Event()
        self._alone = threading.Lock()  # one thread ends the process, once
        self._watcher = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._watcher.start()
        atexit.register(state.shutdown)
        atexit.register(self._stop_watching)  # before that farewell closes the service
        self.put(f"host/{self.number}", socket.gethostname())

    def _stop_watching(self) -> None:
        self._closed.set()
        self._watcher.join()

    def put(self, key: str, value: str) -> None:
        """Sets a key that the others read."""
        self._client.key_value_set(ROOT + key, value, allow_overwrite=True)

    def get(self, key: str, deadline: float = math.inf) -> str | None:
        """Waits until a process has set the key; the watcher sees to it if that one ends.

        Args:
          key: below `kennel/`.
          deadline: of `time.monotonic`.

        Returns:
          its value; None if it was not set in time.
        """
        while True:
            try:
                return str(self._client.blocking_key_value_get(ROOT + key, TURN_MILLISECONDS))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
                if time.monotonic() > deadline:
                    return None

    def everyone(self, folder: str, what: str) -> list[str]:
        """Waits until every process has set its key, FOLDER/K.

        Args:
          folder: of the keys.
          what: it is that a process does then, for the error.

        Returns:
          the values, by number of the process.

        Raises:
          ProcessesError: some did not within `patience` seconds; names them.
        """
        deadline = time.monotonic() + self.patience
        values = []
        for number in range(self.count):
            value = self.get(f"{folder}/{number}", deadline)
            if value is None:
                absent = set(range(self.count)) - self.set_by(folder).keys()
                raise ProcessesError(
                    f"waited {self.patience} s for {self.named(*(absent or {number}))} to {what}. "
                    "See what those hosts do, or give them longer: "
                    "--initialization_timeout=SECONDS."
                )
            values.append(value)
        return values

    def set_by(self, folder: str) -> dict[int, str]:
        """Process -> value of its key FOLDER/K, of those that have set theirs."""
        found = self._client.key_value_dir_get(f"{ROOT}{folder}/")
        return {int(key.rsplit("/", 1)[1]): value for key, value in found}

    def forget(self, folder: str) -> None:
        """Deletes the keys of a folder that all have read."""
        self._client.key_value_delete(f"{ROOT}{folder}/")

    def named(self, *numbers: int) -> str:
        """Processes with the names of their hosts: 'process 1 (host-b), process 2 (host-c)'."""
        hosts = self.set_by("host")
        return ", ".join(f"process {n} ({hosts.get(n, 'host unknown')})" for n in sorted(numbers))

    def wait_until_all_ran(self) -> None:
        """Returns once the job has ended on all processes, however long it takes."""
        for number in range(self.count):
            self.get(f"ran/{number}")

    def verdict(self, status: str = "") -> str:
        """Process 0 says what is to be done with the stage; the others hear it."""
        if self.number == 0:
            self.put("verdict", status)
            return status
        return str(self.get("verdict"))

    def wait_for_the_end(self) -> str:
        """Wait for process 0's message at the end of the stage. Signals are handled meanwhile."""
        return str(self.get("over"))

    def ask_to_stop(self) -> None:
        """Has process 0 stop the job that it runs for all."""
        self.put(f"stop/{self.number}", "")

    def close(self, outcome: str = "") -> None:
        """Shut down normally: process 0 has written everything; all may exit, in any order.

        Args:
          outcome: from process 0, for the others.
        """
        if self.number == 0:
            self.put("over", outcome)
        else:
            self.wait_for_the_end()
        self._stop_watching()
        self._state.shutdown()

    def end(self, code: int, why: str) -> None:
        """Ends this process and thereby the others; does not return.

        Leaves without JAX's farewell, which would wait for processes that sit in a collective.
        """
        with self._alone:
            self._tell(f"end/{self.number}", f"{code} {why}")
            self._leave(code)

    def is_loss(self, error: BaseException) -> bool:
        """Whether the error is how a collective fails when another process is gone."""
        return isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)

    def wait_for_the_cause(self) -> None:
        """After `is_loss`: the watcher, or JAX's service, ends this process and says why."""
        print(
            f"process {self.number} lost another process; which one is known within "
            f"{self._heartbeat} s, the heartbeat time-out",
            file=sys.stderr,
            flush=True,
        )
        threading.Event().wait(self._heartbeat + 10)

    def _watch(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            try:
                ended, stops = self.set_by("end"), self.set_by("stop")
            except jax.errors.JaxRuntimeError:
                continue  # the service is gone: JAX ends this process, with a message
            if self.number in ended:
                return
            if ended:
                self._follow(*min(ended.items()))
            if stops and self.number == 0 and not self.together:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def _follow(self, number: int, message: str) -> None:
        """Another process has ended: so does this one."""
        code, _, why = message.partition(" ")
        with self._alone:
            print(
                f"{'error: ' if int(code) else ''}process {number} {why}\n"
                f"process {self.number} ends with it",
                file=sys.stderr,
                flush=True,
            )
            self._leave(int(code))

    def _leave(self, code: int) -> None:
        """Process 0 goes last: JAX aborts the others, in the middle of a message, when it does."""
        deadline = time.monotonic() + self._heartbeat
        for thread in _to_finish:
            thread.join(max(deadline - time.monotonic(), 0.0))
        self._tell(f"gone/{self.number}", "")
        while self.number == 0 and time.monotonic() < deadline:
            try:
                if len(self.set_by("gone")) == self.count:
                    break
            except jax.errors.JaxRuntimeError:
                break
            time.sleep(POLL_SECONDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _tell(self, key: str, value: str) -> None:
        try:
            self.put(key, value)
        except jax.errors.JaxRuntimeError as error:
            print(f"the other processes could not be notified: {error}", file=sys.stderr)


def agree_on_steps() -> None:
    """From now on a SIGTERM to any process lets all of them agree on a step to stop after.

    JAX's preemption service takes the signal over; `reached_preemption_sync_point` asks it.
    """
    if global_state.preemption_sync_manager is None:
        jax.config.update("jax_enable_preemption_service", True)
        global_state.initialize_preemption_sync_manager()
