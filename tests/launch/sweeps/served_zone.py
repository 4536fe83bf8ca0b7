"""A `Zone` for another process: a test serves it, and a driver of a sweep asks it."""

import contextlib
import shutil
import threading
from multiprocessing.connection import Client, Listener

from launch.cloud.gcloud import Completed
from tests.launch.cloud.local_hosts import Host

ADDRESS = "TEST_ZONE"  # variable: path of the socket


class LocalMachine:
    """The host of a resource: processes of this machine."""

    def __init__(self, folder):
        self.host = Host(folder)

    def copy(self, here, there):
        shutil.copyfile(here, self.host.home / there)

    def ssh(self, text):
        done = self.host.ssh(text)
        return Completed(done.returncode, done.stdout, done.stderr)

    def cut_power(self):
        self.host.cut_power()


def serve(zone, path):
    """Answers calls of gcloud in threads, for as long as this process lives."""
    listener = Listener(str(path))

    def answer(connection):
        with connection, contextlib.suppress(BrokenPipeError):  # who asked was killed
            done = zone(*connection.recv())
            connection.send((done.code, done.out, done.err))

    def accept():
        while True:
            threading.Thread(target=answer, args=(listener.accept(),), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def ask(path, argv, timeout):
    """Runs a command line there; see `gcloud.Runner`."""
    with Client(path) as connection:
        connection.send((list(argv), timeout))
        return Completed(*connection.recv())
