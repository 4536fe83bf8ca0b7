"""A fake of the Cloud Storage JSON API on loopback, with preconditions and injected faults.

It serves google-cloud-storage, gcsfs and TensorStore's `gcs` driver: objects (media, multipart and
resumable uploads, reads with ranges, metadata, delete, compose, rewrite, copy), listings, buckets.

    with StorageServer() as server:
        server.objects.create_bucket("bucket")
        subprocess.run(..., env=os.environ | server.environment())
"""

import contextlib
import http.server
import itertools
import json
import re
import socket
import threading
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.kits.toys.storage_faults import MESSAGES, Fault, Faults
from tests.kits.toys.stored_objects import ObjectStore, Refused, Stored


@dataclass(frozen=True)
class Request:
    """A request that was served, or refused by a fault."""

    operation: str
    bucket: str
    name: str
    query: Mapping[str, str]


class StorageServer:
    """A server in threads of this process; a context manager."""

    def __init__(self) -> None:
        self.objects, self.faults = ObjectStore(), Faults()
        self.requests: list[Request] = []
        self.closing = threading.Event()  # ends stalled connections
        self.uploads: dict[str, Upload] = {}
        self.upload_numbers = itertools.count(1)
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def environment(self) -> dict[str, str]:
        """Variables with which the clients of a process use this server."""
        return {"STORAGE_EMULATOR_HOST": self.url, "TENSORSTORE_GCS_HTTP_URL": self.url}

    def count(self, operation: str, name: str | None = None) -> int:
        """Requests so far, of an operation and of one object or all."""
        return sum(
            one.operation == operation and name in (None, one.name) for one in list(self.requests)
        )

    def reset(self) -> None:
        """Forgets everything; stalled connections are closed."""
        self.closing.set()
        self.closing = threading.Event()
        self.objects, self.faults = ObjectStore(), Faults()
        self.requests.clear()
        self.uploads.clear()

    def __enter__(self) -> "StorageServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass
class Upload:
    """A resumable upload."""

    bucket: str
    name: str
    query: Mapping[str, str]
    resource: Mapping[str, Any]
    data: bytes = b""
    finished: Stored | None = None


def resource(bucket: str, name: str, stored: Stored) -> dict[str, Any]:
    """An object as the API describes it."""
    time = stored.updated.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{stored.generation}",
        "name": name,
        "bucket": bucket,
        "generation": str(stored.generation),
        "metageneration": str(stored.metageneration),
        "contentType": stored.content_type,
        "size": str(len(stored.data)),
        "crc32c": stored.crc32c,
        "md5Hash": stored.md5,
        "etag": f"{stored.generation}/{stored.metageneration}",
        "timeCreated": time,
        "updated": time,
        "storageClass": "STANDARD",
        **({"metadata": stored.metadata} if stored.metadata else {}),
    }


def _handler(server: StorageServer) -> type["Handler"]:
    return type("BoundHandler", (Handler,), {"storage": server})


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    storage: StorageServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

    def log_message(self, format: str, *args: object) -> None:
        del format, args

    def _serve(self) -> None:
        parsed = urllib.parse.urlsplit(self.path)
        self.query = {k: v[-1] for k, v in urllib.parse.parse_qs(parsed.query, True).items()}
        self.body = self._read_body()
        operation, bucket, name = self._route([*map(urllib.parse.unquote, parsed.path.split("/"))])
        self.storage.requests.append(Request(operation, bucket, name, self.query))
        fault = self.storage.faults.take(operation, name)
        if fault and fault.kind == "stall":
            self.storage.closing.wait()
            return self._hang_up()
        try:
            if fault and fault.kind == "status":
                text = fault.message or MESSAGES.get(fault.status, "injected")
                raise Refused(fault.status, text)
            if fault and fault.kind == "vanish":
                self.storage.objects.delete(bucket, name, {})
            serve = getattr(self, f"_{operation}", None)
            if serve is None:
                raise Refused(501, f"{self.command} {self.path}: not served by the fake")
            status, headers, body = serve(bucket, name)
        except Refused as refused:
            status, headers, body = _error(refused)
        if fault and fault.kind == "lose_response":
            return self._hang_up()
        return self._answer(status, headers, body, fault)

    def _route(self, parts: list[str]) -> tuple[str, str, str]:
        """(operation, bucket, object) of a request, by its path's parts."""
        if parts[1:2] in (["upload"], ["download"], ["resumable"]):
            parts = parts[1:]
        upload = parts[0] in ("upload", "resumable")
        rest = parts[4:] if parts[1:4] == ["storage", "v1", "b"] else ["", *parts]
        bucket = rest[0] if rest else ""
        if upload:
            if self.command == "PUT" or "upload_id" in self.query:
                found = self.storage.uploads.get(self.query.get("upload_id", ""))
                return "insert", bucket, found.name if found else ""
            sent = self._metadata()
            name = self.query.get("name") or str(sent.get("name", ""))
            return (
                "start" if self.query.get("uploadType") == "resumable" else "insert",
                bucket,
                name,
            )
        if len(rest) < 2:
            return "bucket", bucket, ""
        if rest[1] != "o":
            return "unknown", bucket, ""
        if len(rest) == 2:
            return "list", bucket, ""
        name = rest[2]
        if len(rest) > 3:
            verb = {"compose": "compose", "rewriteTo": "rewrite", "copyTo": "copy"}.get(rest[3], "")
            self.target = (rest[5], rest[7]) if len(rest) > 7 else ("", "")
            return verb, bucket, name
        reading = "read" if self.query.get("alt") == "media" else "get"
        return {"GET": reading, "DELETE": "delete"}.get(self.command, "patch"), bucket, name

    # What each operation answers: (status, headers, body).

    def _bucket(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        del name
        if self.command == "POST":
            self.storage.objects.create_bucket(bucket := str(json.loads(self.body)["name"]))
        found = self.storage.objects.need_bucket(bucket)
        return _json({"kind": "storage#bucket", "metageneration": "1", "id": bucket, **found})

    def _list(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        del name
        page = self.storage.objects.list(bucket, self.query)
        page["items"] = [resource(bucket, one, stored) for one, stored in page["items"]]
        return _json({"kind": "storage#objects", **{k: v for k, v in page.items() if v}})

    def _get(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        return _json(resource(bucket, name, self.storage.objects.get(bucket, name, self.query)))

    def _read(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        stored = self.storage.objects.get(bucket, name, self.query)
        headers = {
            "Content-Type": stored.content_type,
            "ETag": f'"{stored.generation}"',
            "X-Goog-Generation": str(stored.generation),
            "X-Goog-Metageneration": str(stored.metageneration),
            "X-Goog-Hash": f"crc32c={stored.crc32c},md5={stored.md5}",
            "X-Goog-Storage-Class": "STANDARD",
        }
        asked, size = self.headers.get("Range"), len(stored.data)
        if not asked:
            return 200, headers, stored.data
        first, last = _range(asked, size)
        if first >= size:
            raise Refused(416, f"The requested range cannot be satisfied: {asked} of {size}")
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        return 206, headers, stored.data[first : last + 1]

    def _insert(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        if self.query.get("uploadType") == "resumable" or "upload_id" in self.query:
            return self._continue()
        data = self.body
        if self.query.get("uploadType") == "multipart":
            data = self._parts()[1]
        stored = self.storage.objects.put(bucket, name, data, self.query, self._metadata())
        return _json(resource(bucket, name, stored))

    def _start(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        self.storage.objects.need_bucket(bucket)
        number = str(next(self.storage.upload_numbers))
        self.storage.uploads[number] = Upload(bucket, name, self.query, self._metadata())
        where = f"{self.storage.url}/upload/storage/v1/b/{bucket}/o"
        return 200, {"Location": f"{where}?uploadType=resumable&upload_id={number}"}, b""

    def _continue(self) -> tuple[int, dict[str, str], bytes]:
        """One chunk of a resumable upload, or a question how far it is."""
        upload = self.storage.uploads.get(self.query["upload_id"])
        if upload is None or self.command == "DELETE":
            self.storage.uploads.pop(self.query["upload_id"], None)
            raise Refused(499 if upload else 404, "The upload is over.")
        span, _, total = self.headers.get("Content-Range", "bytes 0-/*")[6:].partition("/")
        if upload.finished is None:
            if span != "*":
                upload.data = upload.data[: int(span.partition("-")[0])] + self.body
            if total == "*" and self.headers.get("Content-Range") is not None:
                return self._incomplete(upload)
            if total != "*" and len(upload.data) < int(total):
                return self._incomplete(upload)
            sent = {**upload.resource, **_hashes(self.headers.get("X-Goog-Hash", ""))}
            where = (upload.bucket, upload.name)
            upload.finished = self.storage.objects.put(*where, upload.data, upload.query, sent)
        return _json(resource(upload.bucket, upload.name, upload.finished))

    def _incomplete(self, upload: Upload) -> tuple[int, dict[str, str], bytes]:
        so_far = {"Range": f"bytes=0-{len(upload.data) - 1}"} if upload.data else {}
        return 308, so_far, b""

    def _delete(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        self.storage.objects.delete(bucket, name, self.query)
        return 204, {}, b""

    def _patch(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        stored = self.storage.objects.patch(bucket, name, self.query, json.loads(self.body))
        return _json(resource(bucket, name, stored))

    def _compose(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        asked, data = json.loads(self.body), b""
        for source in asked["sourceObjects"]:
            wanted = {k: str(v) for k, v in source.get("objectPreconditions", {}).items()}
            data += self.storage.objects.get(bucket, source["name"], wanted).data
        destination = asked.get("destination") or {}
        stored = self.storage.objects.put(bucket, name, data, self.query, destination)
        return _json(resource(bucket, name, stored))

    def _copy(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        asked = self.query.get("ifSourceGenerationMatch")
        wanted = {} if asked is None else {"ifGenerationMatch": asked}
        source = self.storage.objects.get(bucket, name, wanted)
        sent = {"contentType": source.content_type, "metadata": source.metadata}
        sent |= json.loads(self.body or b"{}")
        stored = self.storage.objects.put(*self.target, source.data, self.query, sent)
        return _json(resource(*self.target, stored))

    def _rewrite(self, bucket: str, name: str) -> tuple[int, dict[str, str], bytes]:
        copied = json.loads(self._copy(bucket, name)[2])
        sizes = {"totalBytesRewritten": copied["size"], "objectSize": copied["size"]}
        return _json({"kind": "storage#rewriteResponse", "done": True, **sizes, "resource": copied})

    # HTTP.

    def _read_body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _parts(self) -> tuple[dict[str, Any], bytes]:
        """(metadata, data) of a multipart upload."""
        boundary = self.headers["Content-Type"].partition("boundary=")[2].strip("'\"").encode()
        parts = self.body.split(b"--" + boundary)[1:3]
        # Google takes lines that end in \n, too, which gcsfs writes.
        first, second = (re.split(rb"\r?\n\r?\n", part, maxsplit=1)[1] for part in parts)
        return json.loads(first), re.sub(rb"\r?\n\Z", b"", second)

    def _metadata(self) -> dict[str, Any]:
        """What an upload's request says of the object."""
        kind = self.query.get("uploadType")
        if kind == "multipart":
            return self._parts()[0] | _hashes(self.headers.get("X-Goog-Hash", ""))
        if kind == "resumable":
            return json.loads(self.body or b"{}")
        return {"contentType": self.headers.get("Content-Type")}

    def _answer(
        self, status: int, headers: Mapping[str, str], body: bytes, fault: Fault | None
    ) -> None:
        length, broken = len(body), fault is not None and fault.kind == "cut"
        if fault and fault.kind == "corrupt" and body:
            body = bytes([body[0] ^ 1]) + body[1:]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body[: length // 2] if broken else body)
        if broken:
            self._hang_up()

    def _hang_up(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)


def _json(value: Any) -> tuple[int, dict[str, str], bytes]:
    return 200, {"Content-Type": "application/json; charset=UTF-8"}, json.dumps(value).encode()


def _error(refused: Refused) -> tuple[int, dict[str, str], bytes]:
    if refused.status == 304:
        return 304, {}, b""
    about = {"message": str(refused), "domain": "global", "reason": refused.reason or "error"}
    error = {"code": refused.status, "message": str(refused), "errors": [about]}
    return refused.status, *_json({"error": error})[1:]


def _range(asked: str, size: int) -> tuple[int, int]:
    """First and last byte of `bytes=2-5`, `bytes=2-` and `bytes=-3`."""
    first, _, last = asked.removeprefix("bytes=").partition("-")
    if not first:
        return max(0, size - int(last)), size - 1
    return int(first), min(size - 1, int(last)) if last else size - 1


def _hashes(header: str) -> dict[str, str]:
    """Checksums of an X-Goog-Hash header, named as in an object's description."""
    pairs = (one.strip().partition("=")[::2] for one in header.split(",") if one)
    return {{"md5": "md5Hash"}.get(name, name): value for name, value in pairs}
