"""Inputs on object storage: the copy is what is there, nothing more, nothing older."""

from t5x_style.storage import places, remote_inputs
from tests.kits.toys.remote_folder import another_machine, another_process, put

URL = "gs://bucket/data/corpus"


def files():
    folder = places.local(URL)
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_copy_has_nothing_that_is_not_there(bucket):
    for name in ("a", "b", "long" * 40):
        put(f"data/corpus/{name}", name.encode())
    remote_inputs.fetch(f"{URL}/b")
    remote_inputs.fetch(URL)
    assert files().keys() == {"a", "b", "long" * 40}
    (places.local(URL) / ".a.0123abcd.tmp").write_bytes(b"of a process that was killed")
    bucket.objects.delete("bucket", "data/corpus/b", {})
    put("data/corpus/a", b"A")
    another_process()
    remote_inputs.fetch(URL)
    assert files() == {"a": b"A", "long" * 40: b"long" * 40}


def test_names_that_look_alike_do_not_share_a_state(bucket):
    put("x/a%b", b"1")
    put("x/a/b", b"2")
    assert remote_inputs.fetch("gs://bucket/x/a%b").read_bytes() == b"1"
    assert remote_inputs.fetch("gs://bucket/x/a").joinpath("b").read_bytes() == b"2"
    another_process()
    assert remote_inputs.fetch("gs://bucket/x/a%b").read_bytes() == b"1"


def test_a_copy_has_the_time_of_its_object_on_every_machine(bucket):
    """Large files are identified by it."""
    put("data/corpus/a", b"1")
    first = remote_inputs.fetch(f"{URL}/a").stat().st_mtime_ns
    another_machine()
    assert remote_inputs.fetch(f"{URL}/a").stat().st_mtime_ns == first


def test_a_damaged_state_costs_downloads_only(bucket):
    put("data/corpus/a", b"1")
    remote_inputs.fetch(URL)
    (places.cache() / "inputs.json").write_text('{"gs://')
    another_process()
    assert files() == {"a": b"1"} and remote_inputs.fetch(URL) == places.local(URL)


def test_nothing_there(bucket):
    assert remote_inputs.fetch("gs://bucket/none") is None
