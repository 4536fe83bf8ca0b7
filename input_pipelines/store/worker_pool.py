"""Worker processes for texts: spawned, one core each, ended with their parent process."""

import concurrent.futures
import multiprocessing.connection
import multiprocessing.context
import os
import sys
import threading
import types
from typing import Any


def executor(workers: int) -> concurrent.futures.Executor:
    """Executor with this many worker processes; with one, the work is done here, at once."""
    if workers == 1:
        return _Here()
    return concurrent.futures.ProcessPoolExecutor(
        workers, _WorkerContext(), initializer=_start_worker
    )


class _Here(concurrent.futures.Executor):
    """Runs a task at once, in this process."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_result(fn(*args, **kwargs))
        return future


class _WorkerProcess(multiprocessing.context.SpawnProcess):
    """A process that does not import the main module of the program that starts it.

    That module may import JAX, which a worker does not need and must not touch.
    """

    def start(self) -> None:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


class _WorkerContext(multiprocessing.context.SpawnContext):
    """Spawned, not forked: a fork of a process that runs threads can hang."""

    Process = _WorkerProcess


def _start_worker() -> None:
    """One core a worker (the tokenizer's own threads would only contend), and no orphans."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process when the one that started it is gone.

    A worker whose parent was killed would wait for work forever, or keep writing a shard that a
    new run is writing too.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None  # this runs in a worker only
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)
