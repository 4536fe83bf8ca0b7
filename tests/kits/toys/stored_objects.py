"""Objects of a fake Cloud Storage: generations, preconditions, listings; no HTTP."""

import base64
import datetime
import hashlib
import itertools
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

FIRST_GENERATION = 1_700_000_000_000_001


class Refused(Exception):
    """A request that is answered with an HTTP error.

    Attributes:
      status: HTTP status.
      reason: short name as Google writes it.
    """

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason


@dataclass
class Stored:
    """One object."""

    data: bytes
    generation: int
    updated: datetime.datetime
    content_type: str = "application/octet-stream"
    metadata: dict[str, str] = field(default_factory=dict)
    metageneration: int = 1

    @property
    def crc32c(self) -> str:
        """Checksum as the API writes it: base64 of four bytes, big-endian."""
        return base64.b64encode(google_crc32c.Checksum(self.data).digest()).decode()

    @property
    def md5(self) -> str:
        return base64.b64encode(hashlib.md5(self.data).digest()).decode()


class ObjectStore:
    """Buckets in memory, for any number of threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.buckets: dict[str, dict[str, Any]] = {}
        self._objects: dict[tuple[str, str], Stored] = {}
        self._generations = itertools.count(FIRST_GENERATION)

    def create_bucket(self, name: str, location: str = "US-CENTRAL1", kind: str = "region") -> None:
        """Adds an empty bucket.

        Args:
          name: of the bucket.
          location: as the API writes it: US-CENTRAL1, US, NAM4.
          kind: region, multi-region or dual-region.
        """
        self.buckets[name] = {"name": name, "location": location, "locationType": kind}

    def names(self, bucket: str) -> list[str]:
        """Names of all objects of a bucket, sorted."""
        with self.lock:
            return sorted(name for owner, name in self._objects if owner == bucket)

    def find(self, bucket: str, name: str) -> Stored | None:
        """The object, or None."""
        return self._objects.get((bucket, name))

    def get(self, bucket: str, name: str, query: Mapping[str, str]) -> Stored:
        """The object that a request names, if its preconditions hold."""
        self.need_bucket(bucket)
        found = self.find(bucket, name)
        wanted = query.get("generation")
        if found is None or (wanted is not None and int(wanted) != found.generation):
            raise Refused(404, f"No such object: {bucket}/{name}", "notFound")
        check(found, query, reading=True)
        return found

    def put(
        self,
        bucket: str,
        name: str,
        data: bytes,
        query: Mapping[str, str],
        resource: Mapping[str, Any],
    ) -> Stored:
        """Writes a new generation, if the preconditions hold and the checksums agree."""
        with self.lock:
            self.need_bucket(bucket)
            check(self.find(bucket, name), query)
            new = Stored(
                data,
                next(self._generations),
                datetime.datetime.now(datetime.UTC),
                resource.get("contentType") or "application/octet-stream",
                dict(resource.get("metadata") or {}),
            )
            for sent, right in (("crc32c", new.crc32c), ("md5Hash", new.md5)):
                if resource.get(sent) not in (None, right):
                    raise Refused(400, f"Provided {sent} does not match: {right}", "invalid")
            self._objects[bucket, name] = new
            return new

    def delete(self, bucket: str, name: str, query: Mapping[str, str]) -> None:
        """Deletes the object, if the preconditions hold."""
        with self.lock:
            self.get(bucket, name, {key: query[key] for key in ("generation",) if key in query})
            check(self.find(bucket, name), query)
            del self._objects[bucket, name]

    def patch(
        self, bucket: str, name: str, query: Mapping[str, str], change: Mapping[str, Any]
    ) -> Stored:
        """Changes metadata; the generation stays."""
        with self.lock:
            found = self.get(bucket, name, {})
            check(found, query)
            found.metadata |= change.get("metadata") or {}
            found.metageneration += 1
            return found

    def list(self, bucket: str, query: Mapping[str, str]) -> dict[str, Any]:
        """One page: `items` as (name, object), `prefixes`, `nextPageToken` if there are more."""
        with self.lock:
            self.need_bucket(bucket)
            entries = list(_entries(self.names(bucket), query))
            start = query.get("pageToken", "")
            rest = [entry for entry in entries if entry[0] > start]
            size = int(query.get("maxResults") or 1000)
            page: dict[str, Any] = {
                "items": [(n, self._objects[bucket, n]) for n, folder in rest[:size] if not folder],
                "prefixes": [name for name, folder in rest[:size] if folder],
            }
            if len(rest) > size:
                page["nextPageToken"] = rest[size - 1][0]
            return page

    def need_bucket(self, bucket: str) -> dict[str, Any]:
        """The bucket's description."""
        if bucket not in self.buckets:
            raise Refused(404, "The specified bucket does not exist.", "notFound")
        return self.buckets[bucket]


def _entries(names: Iterable[str], query: Mapping[str, str]) -> Iterable[tuple[str, bool]]:
    """(name, whether it is a folder) of what a listing shows, sorted, each once."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    first, last = query.get("startOffset", ""), query.get("endOffset", "")
    seen = set()
    for name in names:
        if not name.startswith(prefix) or name < first or (last and name >= last):
            continue
        head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
        if not found:
            yield name, False
        elif (folder := prefix + head + delimiter) not in seen:
            seen.add(folder)
            yield folder, True


def check(found: Stored | None, query: Mapping[str, str], reading: bool = False) -> None:
    """Raises Refused where a precondition of a request does not hold."""
    generation = found.generation if found else 0
    wanted, unwanted = query.get("ifGenerationMatch"), query.get("ifGenerationNotMatch")
    if wanted is not None and int(wanted) != generation:
        raise Refused(412, "At least one of the pre-conditions you specified did not hold.")
    if unwanted is not None and int(unwanted) == generation:
        raise Refused(304 if reading else 412, "The generation is the one you named.")
    metageneration = query.get("ifMetagenerationMatch")
    if metageneration is not None and (
        found is None or int(metageneration) != found.metageneration
    ):
        raise Refused(412, "At least one of the pre-conditions you specified did not hold.")
