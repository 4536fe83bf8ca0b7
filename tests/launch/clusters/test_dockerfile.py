"""The Dockerfile copies what exists and what the code needs, and installs the pinned JAX."""

import re
import shlex

import pytest

from tests.launch.clusters.cluster_jobs import REPOSITORY
from tests.test_architecture import PACKAGES

TEXT = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", " ")
INSTRUCTIONS = [shlex.split(line) for line in TEXT.splitlines() if re.match(r"[A-Z]+ ", line)]
COPIED = [source for name, *words in INSTRUCTIONS if name == "COPY" for source in words[:-1]]
IGNORED = (REPOSITORY / ".dockerignore").read_text().splitlines()


def pinned(text):
    """The version of JAX that a text pins."""
    (version,) = set(re.findall(r"^\s*\"?jax(?:\[tpu\])?==([\d.]+)", text, re.MULTILINE))
    return version


@pytest.mark.parametrize("source", COPIED)
def test_what_is_copied_exists(source):
    assert (REPOSITORY / source).exists()


@pytest.mark.parametrize("source", COPIED)
def test_what_is_copied_is_in_the_context(source):
    assert IGNORED[1] == "*" and f"!{source.split('/')[0]}" in IGNORED


def test_all_packages_are_copied_and_nothing_else_is_in_the_context():
    assert set(PACKAGES) <= set(COPIED)
    allowed = {line.removeprefix("!") for line in IGNORED if line.startswith("!")}
    assert allowed == {source.split("/")[0] for source in COPIED}


def test_the_lock_pins_the_jax_of_setup():
    lock = (REPOSITORY / "launch/cloud/tpu.lock").read_text()
    assert pinned(lock) == pinned((REPOSITORY / "setup.py").read_text())


def test_packages_are_installed_from_the_lock_with_hashes():
    (run,) = (words for name, *words in INSTRUCTIONS if name == "RUN")
    commands = " ".join(run).split("&&")
    assert len(commands) == 2 and all("--require-hashes -r" in one for one in commands)
    assert [one.split()[-1] for one in commands] == [
        *("launch/cloud/uv_pin.txt", "launch/cloud/tpu.lock")
    ]


def test_the_base_is_the_python_of_setup():
    (base,) = (words[0] for name, *words in INSTRUCTIONS if name == "ARG")
    setup = (REPOSITORY / "setup.py").read_text()
    (least,) = re.findall(r'python_requires=">=([\d.]+),', setup)
    assert base == f"BASE=python:{least}-slim"


def test_modules_of_pods_are_found_from_any_folder():
    """`python -m launch.clusters.pod`, the main process, needs no working directory."""
    assert ["ENV", "PYTHONPATH=/kennel"] in [words[:2] for words in INSTRUCTIONS]
    assert ["WORKDIR", "/kennel"] in INSTRUCTIONS
