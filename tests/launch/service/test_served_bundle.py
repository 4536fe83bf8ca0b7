"""The command with a bundle of a tiny model: one process, its port, newer versions, and its end."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from launch import serve
from t5x_style.configuration.gin_reader import REPOSITORY
from t5x_style.retrieval import versioned_folder
from t5x_style.retrieval.beir_collection import Passage
from t5x_style.serving import bundle_update, searcher
from t5x_style.serving.bundle_update import Changes
from tests.t5x_style.serving import bundle_kit

# Of a separate environment with clients.txt; `make test-clients` makes it.
CLIENTS_PYTHON = os.environ.get("KENNEL_CLIENTS_PYTHON", "")
CLIENTS = REPOSITORY / "tests/launch/service/real_clients.py"


class Server:
    """`python -m launch.serve` of a folder, in another process."""

    def __init__(self, folder: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "launch.serve", str(folder), "--port=0", *flags]
        self.process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready at "):
            raise AssertionError(f"{line}{self.process.communicate()[1]}")
        self.url = line.removeprefix("ready at ").partition(";")[0]
        self.said = threading.Event()  # of a new version, or of one that is not served
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if line.startswith("serve: version"):
                self.said.set()

    def ask(self, text: str) -> dict:
        reply = httpx.post(f"{self.url}/search", json={"query": text, "k": 10}, timeout=30)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return bundle_kit.publish(tmp_path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(bundle_kit.publish(tmp_path_factory.mktemp("served")))
    yield made
    assert made.end() == 0


def test_a_bundle_is_searched_and_encoded(server) -> None:
    found = server.ask(bundle_kit.QUESTION)
    assert found["mode"] == "hybrid"
    assert {hit["id"] for hit in found["hits"]} <= {one.id for one in bundle_kit.PASSAGES}
    reply = httpx.post(f"{server.url}/encode", json={"texts": ["salt", "the sea"]}, timeout=30)
    items = reply.json()["items"]
    assert [sorted(item)[:1] for item in items] == [["cut_off"], ["cut_off"]]
    assert np.linalg.norm(items[0]["dense"]) == pytest.approx(1, abs=1e-5)
    assert all(term["weight"] > 0 for term in items[0]["sparse"])
    assert len(items[1]["multi_vector"]) == items[1]["tokens"] - 1


def test_the_map_has_all_passages(server) -> None:
    found = httpx.get(f"{server.url}/map", timeout=60).json()
    assert found["ids"] == [one.id for one in bundle_kit.PASSAGES]
    assert max(map(abs, found["x"] + found["y"])) == 1
    assert [found["sources"][group] for group in found["groups"]] == [
        one.source for one in bundle_kit.PASSAGES
    ]
    assert 0 < found["explained"][1] <= found["explained"][0] < 1
    assert httpx.get(f"{server.url}/map", timeout=30).json() == found


def counted(server: Server, name: str) -> float:
    text = httpx.get(f"{server.url}/metrics", timeout=30).text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


def compiled(server: Server) -> None:
    """Waits until all programs of the version are compiled."""
    while counted(server, "kennel_programs_to_compile"):
        server.ask("salt")  # answered meanwhile


def test_metrics_count_batches_and_no_compilation_once_all_are_made(server) -> None:
    compiled(server)
    names = ("kennel_compilations_total", "kennel_batch_texts_count", "kennel_texts_total")
    before = [counted(server, name) for name in names]
    assert before[0] > 10  # of all shapes
    server.ask("salt")
    body = {"texts": [one.text for one in bundle_kit.PASSAGES] * 9}
    assert httpx.post(f"{server.url}/encode", json=body, timeout=60).status_code == 200
    compilations, batches, texts = (counted(server, name) for name in names)
    assert compilations == before[0]
    assert batches > before[1]
    assert texts - before[2] == 1 + 9 * len(bundle_kit.PASSAGES)


def test_many_threads_get_what_one_gets(server) -> None:
    texts = [f"{one.text} {n}" for n in range(20) for one in bundle_kit.PASSAGES]
    expected = [
        httpx.post(f"{server.url}/v1/embeddings", json={"input": text}, timeout=30).json()
        for text in texts[:5]
    ]
    found: dict[int, list] = {}

    def run(start: int) -> None:
        body = {"input": texts[start : start + 25]}
        reply = httpx.post(f"{server.url}/v1/embeddings", json=body, timeout=60).json()
        found[start] = [one["embedding"] for one in reply["data"]]

    threads = [threading.Thread(target=run, args=(start,)) for start in range(0, 100, 25)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    vectors = [vector for start in sorted(found) for vector in found[start]]
    assert len(vectors) == 100
    for one, other in zip(expected, vectors, strict=False):
        np.testing.assert_allclose(one["data"][0]["embedding"], other, atol=1e-5)


def test_a_newer_version_is_served_and_a_damaged_one_is_not(folder) -> None:
    server = Server(folder)
    try:
        given = Passage("n", "", "a new passage of salt", "")
        bundle_update.update(folder, Changes({"n": given}, frozenset()))
        assert server.said.wait(60)
        found = server.ask("salt")
        assert found["version"] == 2
        assert "n" in {hit["id"] for hit in found["hits"]}
        server.said.clear()
        # Damaged before it becomes the current one, so that it is never seen whole.
        shutil.copytree(folder / "versions/2", folder / "versions/3")
        (folder / "versions/3/corpus.jsonl").write_text("")
        (folder / "CURRENT").write_text("3\n")
        assert server.said.wait(60)
        assert server.lines[-1].startswith("serve: version 3 is not served: ")
        assert server.ask("salt")["version"] == 2
    finally:
        server.process.kill()
        server.process.wait()


def test_after_a_kill_amid_a_swap_the_last_complete_version_is_served(folder, tmp_path) -> None:
    server = Server(folder)
    try:
        compiled(server)
        before = counted(server, "kennel_compilations_total")
        # Another model, which is compiled before it answers: the swap takes seconds.
        other = bundle_kit.publish(tmp_path / "other", seed=1) / "versions/1"
        shutil.copytree(other, folder / "versions/2")
        facts = json.loads((other / "manifest.json").read_text()) | {"version": 2}
        versioned_folder.write_manifest(folder / "versions/2", facts, list(facts.pop("files")))
        versioned_folder.write_atomically(folder / "CURRENT", "2\n")
        while counted(server, "kennel_compilations_total") == before:
            assert server.ask("salt")["version"] == 1
    finally:
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
    assert not server.said.is_set()
    half = folder / "versions/3.tmp"  # of a writer that was killed
    half.mkdir()
    (half / "manifest.json").write_text("{}")
    again = Server(folder)
    try:
        assert again.ask("salt")["version"] == 2
    finally:
        assert again.end() == 0


def test_two_servers_on_one_port(server, folder) -> None:
    port = server.url.rpartition(":")[2]
    command = [sys.executable, "-m", "launch.serve", str(folder), f"--port={port}"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 is taken" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda version: (version / "contract.json").unlink(), "contract.json: missing"),
        (
            lambda version: (version / "card.md").write_text("x"),
            "card.md: expected",
        ),
    ],
)
def test_a_damaged_bundle_is_an_error_before_the_first_request(folder, damage, message) -> None:
    damage(folder / "versions/1")
    command = [sys.executable, "-m", "launch.serve", str(folder), "--port=0"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_that_is_neither_a_bundle_nor_a_run_is_refused(tmp_path) -> None:
    with pytest.raises(searcher.SearchError, match="no finished search stage"):
        serve.bundle(str(tmp_path))
    with pytest.raises(serve.ServeError, match="found no folder"):
        serve.bundle(str(tmp_path / "gone"))


@pytest.mark.skipif(not CLIENTS_PYTHON, reason="needs KENNEL_CLIENTS_PYTHON, with the clients")
def test_real_clients_get_the_vectors_and_the_order(server) -> None:
    done = subprocess.run(
        [CLIENTS_PYTHON, str(CLIENTS), server.url], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["clients"] == [
        *("openai", "openai, float", "langchain_openai", "cohere", "huggingface_hub"),
        *("llama_index embedding", "llama_index rerank"),
    ]


@pytest.mark.skipif(not CLIENTS_PYTHON, reason="needs KENNEL_CLIENTS_PYTHON, with the clients")
def test_all_routes_answer_as_their_openapi_document_says(server, tmp_path) -> None:
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    command = [str(Path(CLIENTS_PYTHON).with_name("schemathesis")), "run"]
    settings = [f"--checks={checks},response_schema_conformance", "--max-examples=30", "--seed=1"]
    done = subprocess.run(
        [*command, f"{server.url}/openapi.json", *settings],
        cwd=tmp_path,  # it writes a folder .schemathesis
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    routes = httpx.get(f"{server.url}/openapi.json").json()["paths"].values()
    assert f"{sum(map(len, routes))} passed" in done.stdout, done.stdout[-5000:]
