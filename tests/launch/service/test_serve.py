"""The command: flags, the port, the key, and a process that a signal stops."""

import argparse
import dataclasses
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import uvicorn

from launch import cli, serve
from launch.service.settings import Settings
from t5x_style.configuration import command_flags
from t5x_style.configuration.gin_reader import REPOSITORY
from t5x_style.serving import bundle, searcher
from tests.launch.service.fake_service import FakeCurrent, FakeService
from tests.t5x_style.serving import bundle_kit

SERVER = """
import signal, sys, time
from launch import serve
from launch.service.settings import Settings
from tests.launch.service.fake_service import FakeCurrent, FakeService

class Slow(FakeService):
    def search(self, *arguments):
        print("searching", flush=True)
        time.sleep(float(sys.argv[1]))
        return super().search(*arguments)

with serve.listen("127.0.0.1", 0) as listener:
    serve.run(FakeCurrent(Slow()), Settings(threads=2), listener)
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL  # another one ends it at once
print("closed", flush=True)
"""


def options_of(*argv):
    parser = argparse.ArgumentParser()
    command_flags.add_serve(parser)
    return parser.parse_args(argv)


def test_the_flags_have_the_defaults_of_the_settings():
    found = serve.settings_of(options_of("runs/a"))
    assert dataclasses.asdict(found) == dataclasses.asdict(Settings())
    options = options_of("runs/a", "--max_k=3", "--timeout=2.5", "--name=mine")
    found = serve.settings_of(options)
    assert (found.max_k, found.timeout, found.name) == (3, 2.5, "mine")


def test_a_body_that_all_bodies_have_no_room_for_is_refused():
    with pytest.raises(ValueError, match="max_body: expected at most max_bodies, 100 bytes"):
        serve.settings_of(options_of("runs/a", "--max_bodies=100", "--max_body=101"))


def test_the_command_line_has_the_command():
    words = "serve runs/a --port 9000 --api_key_file=key".split()
    assert cli.python_arguments(words) == ["-m", "launch.serve", *words[1:]]


def test_a_run_is_served_by_a_bundle_of_its_present_search(tmp_path, monkeypatch, capsys):
    made = bundle_kit.publish(tmp_path)  # of nothing that is known
    assert serve.bundle(str(made)) == made
    monkeypatch.setattr(searcher, "origin", lambda run: "now")
    monkeypatch.setattr(bundle, "origin", lambda folder: "now")
    assert serve.bundle(str(tmp_path)) == made
    done = []

    def run(command, **_):
        done.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(serve.subprocess, "run", run)
    monkeypatch.setattr(bundle, "origin", lambda folder: "before")
    monkeypatch.setattr(bundle, "changes", lambda folder: 2)
    assert serve.bundle(str(tmp_path)) == made
    said = capsys.readouterr().err
    assert done == [] and f"kennel export --bundle={tmp_path} --discard_changes" in said
    monkeypatch.setattr(bundle, "changes", lambda folder: 0)
    assert serve.bundle(str(tmp_path)) == made
    assert [command[-1] for command in done] == [f"--bundle={tmp_path}"]


def test_the_key_is_read_from_a_file(tmp_path):
    file = tmp_path / "key"
    file.write_text("secret\n")
    assert serve.read_key(str(file)) == "secret" and serve.read_key(None) is None
    file.write_text("\n")
    with pytest.raises(serve.ServeError, match="expected a key in .*, found an empty file"):
        serve.read_key(str(file))


def test_a_library_that_is_missing(monkeypatch):
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(serve.ServeError, match="fastapi is not installed: pip install"):
        serve.settings_of(options_of("runs/a"))


def test_a_port_that_is_taken(capsys):
    with serve.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert serve.url_of(listener) == f"http://127.0.0.1:{port}"
        assert serve.main(["runs/a", f"--port={port}"]) == 1
    message = capsys.readouterr().err
    assert f"port {port} of 127.0.0.1 is taken" in message and "--port=0" in message


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("no.such.host.invalid", 0, "no such address"),
        ("127.0.0.1", 70_000, "--port: expected 0 to 65535, found 70000"),
        ("192.0.2.1", 0, "cannot listen on port 0 of 192.0.2.1"),
    ],
)
def test_an_address_that_cannot_be_used(host, port, message):
    with pytest.raises(serve.ServeError, match=message):
        serve.listen(host, port)


def test_the_url_of_all_addresses_is_one_that_opens():
    with serve.listen("0.0.0.0", 0) as listener:
        assert serve.url_of(listener).startswith("http://127.0.0.1:")
    if socket.has_ipv6:
        with serve.listen("::1", 0) as listener:
            assert serve.url_of(listener).startswith("http://[::1]:")


def started(seconds: float) -> subprocess.Popen[str]:
    """A server whose searches take so long."""
    return subprocess.Popen(
        [sys.executable, "-c", SERVER, str(seconds)], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
    )  # fmt: skip


def test_a_signal_stops_it_after_the_request_in_progress():
    process = started(1)
    try:
        url = process.stdout.readline().split()[2].rstrip(";")
        assert httpx.get(f"{url}/health").json()["status"] == "ok"
        replies = []
        asking = threading.Thread(
            target=lambda: replies.append(httpx.get(f"{url}/search?q=cat", timeout=20))
        )
        asking.start()
        assert process.stdout.readline() == "searching\n"
        process.send_signal(signal.SIGTERM)
        asking.join()
        assert replies[0].status_code == 200
        output, errors = process.communicate(timeout=20)
        assert (process.returncode, output, errors) == (0, "closed\n", "")
    finally:
        process.kill()


def test_a_second_signal_ends_it_at_once():
    process = started(60)
    try:
        url = process.stdout.readline().split()[2].rstrip(";")
        with socket.create_connection(url.removeprefix("http://").split(":")) as client:
            client.sendall(b"GET /search?q=cat HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert process.stdout.readline() == "searching\n"
            for number in (signal.SIGTERM, signal.SIGINT):
                process.send_signal(number)
                while process.poll() is None and is_handled(process.pid, number):
                    pass  # until the first was seen: two at a time are handled in any order
            output, errors = process.communicate(timeout=20)
        assert (process.returncode, output, errors) == (-signal.SIGINT, "", "")
    finally:
        process.kill()


def is_handled(process: int, number: int) -> bool:
    """Whether a process handles a signal itself."""
    (line,) = re.findall(r"SigCgt:\s*(\w+)", Path(f"/proc/{process}/status").read_text())
    return bool(int(line, 16) >> (number - 1) & 1)


def test_idle_connections_are_kept_longer_than_clients_keep_them(monkeypatch):
    configs = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: configs.append(self.config))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with serve.listen("127.0.0.1", 0) as listener:
        serve.run(FakeCurrent(FakeService()), Settings(), listener)
    assert configs[0].timeout_keep_alive == 75


@pytest.mark.parametrize(
    ("given", "loopback", "allowed", "more"),
    [
        ("127.0.0.1", True, [], ()),
        ("127.1", True, [], ("127.1",)),
        ("localhost", True, ["Search.Example"], ("search.example",)),
        ("0.0.0.0", False, ["a.example", "[fe80::1]"], ("0.0.0.0", "a.example", "fe80::1")),
    ],
)
def test_names_of_the_server(given, loopback, allowed, more) -> None:
    assert serve.hosts(given, loopback, allowed) == ("localhost", "127.0.0.1", "::1", *more)


def test_a_server_that_others_can_reach_has_any_name() -> None:
    assert serve.hosts("search.example", False, []) == ()


@pytest.mark.parametrize("name", ["search.example:443", "http://search.example", "", "a b"])
def test_an_allowed_name_with_more_than_a_name_is_refused(name) -> None:
    with pytest.raises(serve.ServeError, match="a name without a port"):
        serve.hosts("127.0.0.1", True, [name])
