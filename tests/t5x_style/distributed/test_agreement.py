"""Real processes compare what they run, and pass one all-gather, before they compute."""

import socket

import pytest

from t5x_style.distributed import agreement
from tests.kits import process_group

HERE = socket.gethostname()
COMMAND = ["tests.multi_process.agreeing"]


def run(*hosts, seconds=120):
    """Exit code and output of hosts with these variables."""
    env = {number: {"SECONDS": str(seconds)} | host for number, host in enumerate(hosts)}
    return process_group.run(COMMAND, len(hosts), env=env)


@pytest.mark.slow
def test_equal_hosts_pass():
    for code, output in run({}, {}):
        assert code == 0 and "all agree" in output, output


def test_other_hosts_are_named_with_what_differs():
    same = {"GIN_SEED": "3", "GIN_STEPS": "8", "KENNEL_CODE_HASH": "1a", "KENNEL_LOCK_HASH": "1a"}
    gin = {"GIN_SEED": "5", "GIN_STEPS": "9", "GIN_NEW": "1", "BERT": "2e3f"}
    launched = {"KENNEL_CODE_HASH": "2e3f", "KENNEL_LOCK_HASH": "2e3f"}
    for code, output in run(same, same | gin, same | launched):
        assert code == 1, output
        assert (
            f"these differ from process 0 ({HERE}):\n"
            f"  process 1 ({HERE}): gin NEW is 1, on process 0 absent; gin SEED is 5, on process 0 "
            "3; gin STEPS is 9, on process 0 8; code models.bert\n"
            f"  process 2 ({HERE}): code KENNEL_CODE_HASH; lock KENNEL_LOCK_HASH is 2e3f, on "
            "process 0 1a\n"
        ) in output


def test_the_host_that_differs_from_most_is_named_though_it_be_the_first():
    for code, output in run({"GIN_SEED": "5"}, {"GIN_SEED": "3"}, {"GIN_SEED": "3"}):
        assert code == 1, output
        assert f"these differ from process 1 ({HERE}):\n  process 0 ({HERE}): gin SEED" in output
        assert "process 2 (" not in output, output


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("absent", f"waited 3 s for process 1 ({HERE}) to say what it is about to run"),
        pytest.param(
            "idle",
            f"for all hosts to pass one all-gather: process 1 ({HERE}) did not arrive",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "hangs",
            "all hosts have entered the all-gather, and it does not end",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_host_that_does_not_come_ends_all(what, named):
    for code, output in run({}, {"WHAT": what}, seconds=3):
        assert code == 1 and named in output, output


def test_what_is_installed_is_named_by_version_and_by_the_hashes_of_a_launcher():
    plain = agreement.installation({})
    assert plain["code"] == {} and plain["lock"].keys() >= {"python", "jax", "jaxlib", "flax"}
    given = agreement.installation({"KENNEL_CODE_HASH": "a", "KENNEL_LOCK_HASH": "b"})
    assert given["code"] == {"KENNEL_CODE_HASH": "a"}
    assert given["lock"] == {"KENNEL_LOCK_HASH": "b", **plain["lock"]}
