"""Objects: compare-and-swap on generations, and the result of each failure."""

import io

import pytest

from t5x_style.storage import errors, locations, paths
from t5x_style.storage.objects import Objects
from tests.kits.toys.storage_faults import Fault, forbidden
from tests.kits.toys.storage_fixtures import BUCKET, HASTY

PATH = f"{BUCKET}/folder/name with spaces, é and #?%"
PASSING = [
    Fault("status", 429, times=2),
    Fault("status", 503, times=2),
    Fault("stall"),
    Fault("lose_response"),
    Fault("corrupt"),
    Fault("cut"),
]


def name_of(path):
    return paths.split(path)[1]


def test_a_write_replaces_the_generation_that_it_names(client):
    first = client.write_if(PATH, b"one", 0, {"kennel-token": "3"})
    assert client.read(PATH) == (b"one", first)
    second = client.write_if(PATH, b"two", first)
    assert second > first and client.read(PATH) == (b"two", second)
    for generation in (0, first):
        with pytest.raises(errors.Conflict, match=f"found {second}"):
            client.write_if(PATH, b"three", generation)
    with pytest.raises(errors.Conflict, match="found no object"):
        client.write_if(f"{PATH} 2", b"three", second)
    assert client.read(PATH) == (b"two", second)


def test_what_is_known_of_an_object(client):
    generation = client.write_if(PATH, b"123456789", 0, {"kennel-token": "3"})
    found = client.stat(PATH)
    # E3069283, the check value of CRC-32C, in base64
    assert (found.size, found.generation, found.crc32c) == (9, generation, "4waSgw==")
    assert found.path == PATH and found.metadata["kennel-token"] == "3"
    assert client.find(f"{PATH} 2") is None
    assert client.read_range(PATH, generation, 2, 5) == b"345"
    assert client.read_range(PATH, generation, 2, 2) == b""


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: f"{fault.kind}{fault.status or ''}")
def test_what_passes_is_repeated(server, client, fault):
    client.write(f"{BUCKET}/read", b"content")
    for operation, act in (
        ("read", lambda: client.read(f"{BUCKET}/read")[0]),
        ("insert", lambda: client.read_range(PATH, client.write_if(PATH, b"content", 0), 0, 7)),
    ):
        server.requests.clear()
        server.faults.add(Fault(fault.kind, fault.status, "*", (operation,), fault.times))
        assert act() == b"content"
        assert server.count(operation) > fault.times


def test_a_write_whose_answer_is_lost_happens_once(server, client):
    server.faults.add(Fault("lose_response", operations=("insert",)))
    generation = client.write_if(PATH, b"mine", 0)
    assert server.objects.find("bucket", name_of(PATH)).generation == generation
    assert server.count("insert") == 2


def test_a_lost_answer_does_not_make_another_write_ours(server, client):
    """The first request arrived, and another process has replaced what it wrote."""
    server.faults.add(Fault("lose_response", operations=("insert",)))
    meanwhile = server.faults.take

    def take(operation, name):
        if operation == "insert" and server.objects.find("bucket", name):
            server.objects.put("bucket", name, b"other", {}, {})
        return meanwhile(operation, name)

    server.faults.take = take
    with pytest.raises(errors.Conflict, match="Another process wrote it"):
        client.write_if(PATH, b"mine", 0)
    assert client.read(PATH)[0] == b"other"


@pytest.mark.parametrize(
    ("permission", "act"),
    [
        ("storage.objects.get", lambda c: c.read(PATH)),
        ("storage.objects.get", lambda c: c.stat(PATH)),
        ("storage.objects.create", lambda c: c.write_if(PATH, b"", 0)),
        ("storage.objects.delete", lambda c: c.delete(PATH)),
        ("storage.objects.list", lambda c: c.below(f"{BUCKET}/folder")),
    ],
)
def test_a_missing_permission_is_named(server, client, permission, act):
    server.faults.add(forbidden(permission))
    with pytest.raises(errors.NoPermission) as caught:
        act(client)
    text = str(caught.value)
    assert (
        text.startswith(f"{BUCKET}/folder") and f"permission {permission} on bucket bucket" in text
    )
    assert "robot@project.iam.gserviceaccount.com lacks" in text and "--member=" in text
    assert len(server.requests) == 1
    assert not isinstance(caught.value, OSError)


def test_credentials_that_google_does_not_accept(server, client):
    server.faults.add(Fault("status", 401, times=None))
    with pytest.raises(errors.NoPermission, match="gcloud auth application-default login"):
        client.read(PATH)


@pytest.mark.parametrize("fault", [Fault("status", 503), Fault("status", 429), Fault("stall")])
def test_an_outage_ends_in_an_error_that_says_how_long(server, fault):
    hasty = Objects(HASTY)
    server.faults.add(Fault(fault.kind, fault.status, times=None))
    for act in (hasty.read, hasty.stat, hasty.below, lambda path: hasty.write_if(path, b"", 0)):
        with pytest.raises(errors.Unreachable, match=r"within 0.2 s .* last one failed with"):
            act(PATH)


def test_what_is_missing_is_named(server, client):
    with pytest.raises(errors.Missing, match=r"^gs://bucket/none: No such object: bucket/none$"):
        client.read(f"{BUCKET}/none")
    with pytest.raises(FileNotFoundError, match="specified bucket does not exist"):
        client.write_if("gs://elsewhere/name", b"", 0)
    assert not client.is_folder("gs://elsewhere/name")


def test_an_object_that_vanishes_after_the_listing_is_named(server, client):
    for name in "ab":
        client.write(f"{BUCKET}/folder/{name}", b"x")
    listed = client.below(f"{BUCKET}/folder")
    server.faults.add(Fault("vanish", objects="folder/b", operations=("read",)))
    assert client.read(listed[0].path)[0] == b"x"
    with pytest.raises(errors.Missing, match="gs://bucket/folder/b"):
        client.download(listed[1], io.BytesIO())


def test_listings_are_whole_and_end_at_the_folder(server, client):
    for number in range(2100):
        server.objects.put("bucket", f"f/{number:04}", b"", {}, {})
    for name in ("f2/x", "f/deep/y", "f/marked/", "f"):
        server.objects.put("bucket", name, b"", {}, {})
    found = [stat.path for stat in client.below(f"{BUCKET}/f")]
    assert len(found) == 2101 and f"{BUCKET}/f/deep/y" in found and server.count("list") == 3
    files, folders = client.children(f"{BUCKET}/f")
    assert len(files) == 2100 and folders == [f"{BUCKET}/f/deep", f"{BUCKET}/f/marked"]
    assert client.children(BUCKET)[1] == [f"{BUCKET}/f", f"{BUCKET}/f2"]


def test_a_delete_whose_answer_is_lost_has_happened(server, client):
    client.write(PATH, b"x")
    server.faults.add(Fault("lose_response", operations=("delete",)))
    client.delete(PATH)
    with pytest.raises(errors.Missing):
        client.delete(PATH)
    generation = client.write(PATH, b"x")
    with pytest.raises(errors.Conflict):
        client.delete(PATH, generation - 1)


@pytest.mark.parametrize("kind", [("status", 503), ("stall", 0), ("lose_response", 0)])
def test_a_large_upload_survives_faults_in_its_parts(server, client, kind):
    data = bytes(range(256)) * (9 << 12)  # 9 MiB: resumable
    server.faults.add(Fault(*kind, operations=("start",)))
    server.faults.add(Fault(*kind, operations=("insert",)))
    generation = client.upload(PATH, io.BytesIO(data), len(data))
    assert client.read(PATH) == (data, generation)


def test_a_copy_is_made_without_a_download(server, client):
    client.write(PATH, b"content")
    client.copy(PATH, f"{BUCKET}/copy")
    assert server.count("read") == 0 and client.read(f"{BUCKET}/copy")[0] == b"content"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("gcs://bucket/name", "Write gs://bucket/name"),
        ("s3://bucket/name", "found s3://"),
        ("gs:/bucket/name", r"pathlib\.Path drops"),
        ("gs:///name", "no bucket"),
        ("local/name", "found a local path"),
    ],
)
def test_paths_that_are_not_on_cloud_storage(path, message):
    with pytest.raises(paths.PathError, match=message):
        paths.split(path)


def test_local_paths():
    assert not any(map(paths.is_remote, ["a/b", "/a", "C://x y"[:2], "a:b"]))
    assert paths.prefix("gs://bucket/a//") == ("bucket", "a/")
    assert paths.prefix("gs://bucket/") == ("bucket", "")


@pytest.mark.parametrize(
    ("location", "kind", "zone", "far"),
    [
        ("US-CENTRAL1", "region", "us-central1-a", False),
        ("US-CENTRAL1", "region", "us-central2-b", True),
        ("EUROPE-WEST4", "region", "us-central1-a", True),
        ("US", "multi-region", "us-east5-a", False),
        ("EU", "multi-region", "us-east5-a", True),
        ("NAM4", "dual-region", "us-east1-d", True),
    ],
)
def test_a_bucket_in_another_region_is_warned_of(server, client, location, kind, zone, far):
    server.objects.create_bucket("bucket", location, kind)
    text = locations.warning(f"{BUCKET}/run", zone, client)
    assert bool(text) == far
    if far:
        assert location.lower() in text and f"--location={zone[:-2]}" in text


def test_a_dual_region_is_near_to_both(server, client):
    server.objects.create_bucket("bucket", "US", "dual-region")
    places = {"dataLocations": ["US-EAST1", "EUROPE-WEST4"]}
    server.objects.buckets["bucket"] |= {"location": "X", "customPlacementConfig": places}
    assert locations.warning(BUCKET, "europe-west4-a", client) == ""
    assert "is in x" in locations.warning(BUCKET, "us-central1-a", client)
