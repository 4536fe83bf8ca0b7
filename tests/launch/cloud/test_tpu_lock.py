"""The lock of a host's packages agrees with setup.py, and the pin of uv with the Makefile."""

import ast
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from launch.cloud import host_environment

REPOSITORY = Path(__file__).resolve().parents[3]
LOCK = host_environment.LOCK.read_text()


def setup_values():
    """The constants of setup.py."""
    body = ast.parse((REPOSITORY / "setup.py").read_text()).body
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    return {node.targets[0].id: ast.literal_eval(node.value) for node in assigned}


def how_to_make():
    """The command in the lock's second line."""
    return f"make the lock again:\n{LOCK.splitlines()[1].lstrip('# ')}"


@pytest.mark.parametrize("text", setup_values()["CORE"] + setup_values()["EXTRAS"]["tpu"])
def test_what_setup_asks_for_is_locked(text):
    wanted = Requirement(text)
    locked = host_environment.pinned(host_environment.LOCK).get(wanted.name.lower())
    assert locked and wanted.specifier.contains(locked), f"{text}, not {locked}; {how_to_make()}"


def test_the_lock_is_for_tpus_and_holds_nothing_that_setup_does_not_lead_to():
    locked = host_environment.pinned(host_environment.LOCK)
    assert set(host_environment.CHECKED) <= locked.keys()
    assert not [name for name in locked if name.startswith(("nvidia-", "jax-cuda"))]
    direct = set(re.findall(r"^([a-z0-9-]+)==(?:.*\n)(?: .*\n)*?    # +via kennel", LOCK, re.M))
    direct |= set(re.findall(r"^([a-z0-9-]+)==(?:.*\n)(?: .*\n)*?    #   kennel", LOCK, re.M))
    asked = setup_values()["CORE"] + setup_values()["EXTRAS"]["tpu"]
    names = {Requirement(text).name.lower() for text in asked}
    assert direct == names, how_to_make()


@pytest.mark.parametrize("path", [host_environment.LOCK, host_environment.PIN])
def test_every_package_has_hashes(path):
    entries = re.split(r"^(?=[a-z])", path.read_text(), flags=re.M)[1:]
    assert entries
    assert [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry] == []


def test_pythons_and_uvs():
    makefile = (REPOSITORY / "Makefile").read_text()
    assert f"uv=={host_environment.pinned(host_environment.PIN)['uv']}\n" in makefile
    allowed = re.search(r'python_requires="(.*?)"', (REPOSITORY / "setup.py").read_text())[1]
    assert SpecifierSet(allowed).contains(host_environment.PYTHON)
