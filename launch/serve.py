"""Serves a bundle, or a finished run, on HTTP: search, representations, a page at `/`.

    python -m launch.serve runs/quickstart [--port=8000] [--api_key_file=FILE]

PATH is the folder of a bundle, or of a finished run, of which a bundle is made first, as
`kennel export --bundle=PATH` does, unless it has one. One whose passages were changed since
(`--changes`) is served as it is, with a warning where the run searches with something else. A newer
version of the bundle is opened when it appears, and later requests use it; a request that began
with the old one ends with it.

The routes are listed at `/docs`: Kennel's (`/search`, `/compare`, `/evidence`, `/encode`), and
those of OpenAI (`/v1/embeddings`), Text Embeddings Inference (`/embed`, `/rerank`) and
Cohere (`/v2/rerank`), for their clients.

It listens on this machine only, unless `--host` names another address; give it a key then. SIGTERM
and Ctrl-C stop it when the requests in progress are answered, or their time is up; a second one
ends it at once.

Exit code: 0 stopped by a signal; 1 an error, such as a port that is taken; 2 wrong flags.
"""

import argparse
import contextlib
import dataclasses
import errno
import importlib.util
import ipaddress
import math
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from t5x_style.configuration import command_flags
from t5x_style.workflow import stage_runner

if TYPE_CHECKING:  # imports FastAPI, which is an extra
    from launch.service.server_metrics import Metrics
    from launch.service.settings import Current, Settings

BUNDLE = "bundle"  # in the folder of a run
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CURRENT = "CURRENT"  # in that of a bundle, see `t5x_style.retrieval.versioned_folder`
_KEEP_ALIVE = 75  # seconds of an idle connection, more than clients and proxies keep one
_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # that stop the server
_BACKLOG = 2048  # connections that wait to be accepted, as uvicorn has it


class ServeError(ValueError):
    """A server that cannot start; the message says what to change."""


def main(argv: Sequence[str]) -> int:
    """Returns the exit code; 1 with a message where something is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command_flags.add_serve(parser)
    options = parser.parse_args(argv)
    return stage_runner.guarded(lambda _: serve(options), ["--traceback"] * options.traceback)


def serve(options: argparse.Namespace) -> int:
    """Opens the bundle and answers requests until a signal; returns the exit code.

    Raises:
      ServeError: a library, the port or the key is missing.
    """
    settings = settings_of(options)
    with contextlib.closing(listen(options.host, options.port)) as listener:
        known = hosts(options.host, _address(listener).is_loopback, options.allow_host)
        settings = dataclasses.replace(settings, hosts=known)
        keep_compiled()
        folder = bundle(options.path)
        from launch.service.server_metrics import Metrics
        from t5x_style.serving.opened.current import open_current  # imports JAX

        metrics = Metrics()
        print(f"opening {folder}", file=sys.stderr, flush=True)
        with contextlib.closing(open_current(folder, metrics)) as current:
            current.watch()
            run(current, settings, listener, metrics)
    return 0


def bundle(path: str) -> Path:
    """The folder of a bundle: the path itself, or that in a run's folder.

    It is made where it is missing, and made again where the run searches with something else now:
    unless its passages were changed since, which only their owner may discard.

    Raises:
      ServeError: there is no such folder, or no bundle could be made of it.
      SearchError: it is no bundle, and no run whose search is finished.
      IndexDamaged: the run has a bundle, of which nobody knows whether it was changed.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ServeError(f"{path}: expected the folder of a bundle or of a run, found no folder")
    if (folder / _CURRENT).is_file():
        return folder
    from t5x_style.serving import bundle as bundles  # these two import JAX
    from t5x_style.serving import searcher

    inner = folder / BUNDLE
    if bundles.origin(inner) == searcher.origin(path):
        return inner
    if bundles.changes(inner):
        print(
            f"warning: {inner} is served, though {path} searches with something else now. "
            f"{bundles.describe_changes(inner)}. Make one in another folder (kennel export "
            f"--bundle={path} --to=FOLDER), or give up the changes (kennel export --bundle={path} "
            "--discard_changes)",
            file=sys.stderr,
            flush=True,
        )
    else:
        print(f"{path}: making a bundle of its search, {inner}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "t5x_style.export", f"--bundle={path}"]
        if code := subprocess.run(command, check=False).returncode:
            raise ServeError(f"{path}: no bundle could be made of it (exit code {code}); see above")
    return inner


def keep_compiled() -> None:
    """Lets JAX keep compiled programs, so that a server starts in seconds the next time."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kennel/jax"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def settings_of(options: argparse.Namespace) -> "Settings":
    """Limits of the command line.

    Raises:
      ServeError: a library is not installed, or the file of the key is empty.
      ValueError: see `Settings`.
    """
    for library in ("fastapi", "orjson", "prometheus_client", "uvicorn"):
        if importlib.util.find_spec(library) is None:
            raise ServeError(
                f"{library} is not installed: pip install -e '.[serve]' in Kennel's folder"
            )
    from launch.service.settings import Settings

    return Settings(
        name=options.name,
        max_body=options.max_body,
        max_bodies=options.max_bodies,
        max_texts=options.max_texts,
        max_characters=options.max_characters,
        max_k=options.max_k,
        max_read=options.max_read,
        max_requests=options.max_requests,
        timeout=options.timeout,
        api_key=read_key(options.api_key_file),
    )


def hosts(given: str, loopback: bool, allowed: Sequence[str]) -> tuple[str, ...]:
    """Names by which clients may call the server; () where any name will do.

    Args:
      given: the address to listen on, as --host says.
      loopback: whether this machine alone can reach it. Others may call a server by any name.
      allowed: further names.

    Raises:
      ServeError: an allowed name has a port or a path.
    """
    for name in allowed:
        if not re.fullmatch(r"[\w.-]+|\[?[0-9a-fA-F:.]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*\]?", name):
            raise ServeError(
                f"--allow_host: expected a name without a port, such as search.example, found "
                f"{name!r}"
            )
    if not loopback and not allowed:
        return ()
    names = (*_LOOPBACK, given, *allowed)
    return tuple(dict.fromkeys(one.lower().strip("[]") for one in names))


def read_key(path: str | None) -> str | None:
    """The key in a file; None without a file.

    Raises:
      ServeError: the file is empty.
    """
    if path is None:
        return None
    key = Path(path).read_text(encoding="utf-8").strip()
    if not key:
        raise ServeError(f"--api_key_file: expected a key in {path}, found an empty file")
    return key


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound and listens, before the model is opened, which takes long.

    Raises:
      ServeError: the port is taken, needs other rights, or the address is none of this machine.
    """
    if not 0 <= port < 1 << 16:
        raise ServeError(f"--port: expected 0 to {(1 << 16) - 1}, found {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ServeError(f"--host={host} --port={port}: no such address ({error})") from error
    listener = socket.socket(family, kind, protocol)
    try:
        # A server that just ended leaves connections that would keep the port for a minute.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)  # two sockets may be bound to a port, and one may listen
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ServeError(
                f"port {port} of {host} is taken, perhaps by another server of yours; choose "
                "another one with --port, or any that is free with --port=0"
            ) from error
        raise ServeError(f"cannot listen on port {port} of {host}: {error.strerror}") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where clients on this machine find the server."""
    host, port = listener.getsockname()[:2]
    address = _address(listener)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://[{host}]:{port}" if address.version == 6 else f"http://{host}:{port}"


def _address(listener: socket.socket) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])


def run(
    current: "Current",
    settings: "Settings",
    listener: socket.socket,
    metrics: "Metrics | None" = None,
) -> None:
    """Answers requests until SIGTERM or Ctrl-C, and those in progress to their end.

    Args:
      current: the bundle.
      settings: limits.
      listener: of `listen`.
      metrics: in which the bundle counts its batches, if it does.
    """
    import uvicorn

    from launch.service.app import create_app

    url = url_of(listener)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            print(f"ready at {url}; its routes are at {url}/docs", flush=True)

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            super().handle_exit(sig, frame)
            _let_the_next_signal_kill()

    if settings.api_key is None and not _address(listener).is_loopback:
        print(
            "warning: other machines can reach this server, and it asks for no key; give it one "
            "with --api_key_file",
            file=sys.stderr,
            flush=True,
        )
    config = uvicorn.Config(
        create_app(current, settings, metrics),
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=math.ceil(settings.timeout),
        ws="none",
    )
    server = Server(config)
    # uvicorn raises a signal again when it has stopped; this command then ends normally, and the
    # bundle is closed.
    for number in _SIGNALS:
        signal.signal(number, server.handle_exit)
    try:
        server.run(sockets=[listener])
    finally:
        _let_the_next_signal_kill()


def _let_the_next_signal_kill() -> None:
    """Lets another signal end this process, which may take long to end its requests, or to close.

    By the system, not by an exception: threads that search would be awaited.
    """
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
