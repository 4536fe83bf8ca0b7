"""The other processes of a stage: one plan for all, and one end.

Everything goes through the key-value store of JAX's coordination service, which needs no equal
programs and no devices. Keys, under `kennel/`:

    plan/K      what process K is about to run
    verdict     process 0: whether the stage has to run
    end/K       process K ends alone: exit code, then why
    gone/K      process K has read that, and goes
    stop/K      process K was asked to stop a job that only process 0 runs
    over        process 0: the stage has ended, and how

A thread reads them while the main thread computes, for that one may sit in a collective operation
that never returns. A process that dies without a word is noticed by JAX's service, which then ends
all others: after the heartbeat time-out, or at once if it was process 0, which hosts the service.
"""

import atexit
import json
import os
import signal
import sys
import threading
import time
from typing import Any

import jax
from jax._src.distributed import global_state  # the key-value store has no public name

from t5x_style.distributed.launch_flags import ProcessesError

ROOT = "kennel/"
POLL_SECONDS = 0.2
TURN_MILLISECONDS = 1000  # a blocking read of this long lets Python see signals in between


_to_finish: list[threading.Thread] = []  # this process is not ended from outside before they are


def let_finish(thread: threading.Thread) -> None:
    """Another process that ends may not cut this thread short, unless it takes very long."""
    _to_finish[:] = [other for other in _to_finish if other.is_alive()] + [thread]


class Peers:
    """What this process hears of the others, and tells them."""

    def __init__(self, heartbeat_timeout: int, together: bool):
        """Args:
        heartbeat_timeout: seconds until a process without a sign of life counts as dead.
        together: the job runs on all processes; False: on process 0, and the others wait.
        """
        self.number, self.count = global_state.process_id, global_state.num_processes
        self.together = together
        self._heartbeat = heartbeat_timeout
        self._client: Any = global_state.client
        self._closed = threading.Event()
        self._alone = threading.Lock()  # one thread ends the process, once
        self._watcher = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._watcher.start()
        atexit.register(self._stop_watching)  # before JAX's own farewell closes the service

    def _stop_watching(self) -> None:
        self._closed.set()
        self._watcher.join()

    def _set(self, key: str, value: str) -> None:
        self._client.key_value_set(ROOT + key, value, allow_overwrite=True)

    def _get(self, key: str) -> str:
        """Waits until another process has set it; the watcher sees to it if that one ends."""
        while True:
            try:
                return str(self._client.blocking_key_value_get(ROOT + key, TURN_MILLISECONDS))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise

    def _all(self, folder: str) -> dict[int, str]:
        """Process -> value, of those that have set theirs."""
        found = self._client.key_value_dir_get(f"{ROOT}{folder}/")
        return {int(key.rsplit("/", 1)[1]): value for key, value in found}

    def compare(self, plan: dict[str, Any]) -> None:
        """Before anything collective: all must be about to run the same.

        Args:
          plan: what this process is about to run, as JSON: kind -> {name: hash}.

        Raises:
          ProcessesError: on every process, with what differs and where.
        """
        self._set(f"plan/{self.number}", json.dumps(plan))
        plans = [json.loads(self._get(f"plan/{number}")) for number in range(self.count)]
        lines = []
        for number, other in enumerate(plans):
            differing = [
                f"{kind} {name}"
                for kind in plans[0]
                for name in sorted(plans[0][kind].keys() | other[kind].keys())
                if plans[0][kind].get(name) != other[kind].get(name)
            ]
            if differing:
                lines.append(f"  process {number}: {', '.join(differing[:8])}")
        if lines:
            raise ProcessesError(
                "the processes of this stage do not run the same; these differ from process 0:\n"
                + "\n".join(lines)
                + "\nStart all of them with the same command, gin files, inputs and code."
            )

    def verdict(self, status: str = "") -> str:
        """Process 0 says what is to be done with the stage; the others hear it."""
        if self.number == 0:
            self._set("verdict", status)
            return status
        return self._get("verdict")

    def wait_for_the_end(self) -> str:
        """What process 0 says of the stage when it has ended. Signals are handled meanwhile."""
        return self._get("over")

    def ask_to_stop(self) -> None:
        """Has process 0 stop the job that it runs for all."""
        self._set(f"stop/{self.number}", "")

    def close(self, outcome: str = "") -> None:
        """The good end: process 0 has written everything; now all may go, in any order.

        Args:
          outcome: from process 0, for the others.
        """
        if self.number == 0:
            self._set("over", outcome)
        else:
            self.wait_for_the_end()
        self._stop_watching()
        jax.distributed.shutdown()

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
                ended, stops = self._all("end"), self._all("stop")
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
                if len(self._all("gone")) == self.count:
                    break
            except jax.errors.JaxRuntimeError:
                break
            time.sleep(POLL_SECONDS)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _tell(self, key: str, value: str) -> None:
        try:
            self._set(key, value)
        except jax.errors.JaxRuntimeError as error:
            print(f"the other processes could not be told: {error}", file=sys.stderr)


def agree_on_steps() -> None:
    """From now on a SIGTERM to any process lets all of them agree on a step to stop after.

    JAX's preemption service takes the signal over; `reached_preemption_sync_point` asks it.
    """
    if global_state.preemption_sync_manager is None:
        jax.config.update("jax_enable_preemption_service", True)
        global_state.initialize_preemption_sync_manager()
