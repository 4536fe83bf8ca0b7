"""As much of a Kubernetes API server, on loopback, as kubectl needs to send a JobSet."""

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

GROUP, VERSION = "jobset.x-k8s.io", "v1alpha2"
ROOT = f"/apis/{GROUP}/{VERSION}"
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
RESOURCE = {"name": "jobsets", "singularName": "jobset", "namespaced": True, "kind": "JobSet"}
LISTS = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/api/v1": {
        "kind": "APIResourceList",
        "groupVersion": "v1",
        "resources": [{"name": "pods", "namespaced": True, "kind": "Pod", "verbs": VERBS}],
    },
    "/apis": {
        "kind": "APIGroupList",
        "groups": [
            {
                "name": GROUP,
                "versions": [{"groupVersion": f"{GROUP}/{VERSION}", "version": VERSION}],
            }
        ],
    },
    ROOT: {
        "kind": "APIResourceList",
        "groupVersion": f"{GROUP}/{VERSION}",
        "resources": [RESOURCE | {"verbs": VERBS}],
    },
}

NOTHING = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404}


@dataclass(frozen=True)
class Asked:
    """One request about objects of a namespace."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: bytes


@dataclass
class Server:
    """What was asked, and the objects there are: path -> object."""

    address: str
    asked: list[Asked] = field(default_factory=list)
    objects: dict[str, Any] = field(default_factory=dict)

    def answer(self, asked: Asked) -> tuple[int, Any]:
        if asked.path in LISTS:
            return 200, LISTS[asked.path]
        if "/namespaces/" not in asked.path:  # its version and its own definitions
            return 404, NOTHING
        self.asked.append(asked)
        if asked.method == "PATCH":
            self.objects[asked.path] = json.loads(asked.body)
        if asked.path in self.objects:
            return 200, self.objects[asked.path]
        if asked.path.endswith("/pods"):
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}
        if asked.path.endswith("/jobsets"):
            found = {"apiVersion": f"{GROUP}/{VERSION}", "items": list(self.objects.values())}
            return 200, {"kind": "JobSetList", "metadata": {}, **found}
        return 404, NOTHING


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """A server on a free port of loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def _any(self) -> None:
            parts = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = Asked(self.command, parts.path, parse_qs(parts.query), body)
            code, answer = server.answer(asked)
            text = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = do_DELETE = do_POST = _any

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server = Server(f"http://127.0.0.1:{listening.server_address[1]}")
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
