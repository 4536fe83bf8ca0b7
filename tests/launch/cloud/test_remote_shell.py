"""Words arrive byte for byte, as gcloud, ssh and a remote shell pass them on."""

import json
import os
import shutil
import string
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.cloud import remote_shell
from launch.cloud.remote_shell import RemoteShellError, command_text

# Prints its environment and its arguments, each followed by NUL.
PRINT = ("sh", "-c", 'env -0; printf "%s\\0" -- "$@"', "print")
NASTY = "'\"$%\\\n\r\t `!#*?~;&|<>(){}[]=日本語ß\u200b😀" + string.ascii_letters
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")  # no half of a pair
WORDS = st.text(st.sampled_from(NASTY) | CHARACTERS, max_size=30)
NAMES = st.from_regex(r"KENNEL_[A-Z0-9_]{1,9}", fullmatch=True)

# What `gcloud compute tpus tpu-vm ssh` does with texts: its own classes call the `ssh` of a folder.
GCLOUD = """
import json, sys
from googlecloudsdk.command_lib.util.ssh import ssh
programs = ssh.Environment(ssh.Suite.OPENSSH, sys.argv[1])
for text in json.load(sys.stdin):
    ssh.SSHCommand(ssh.Remote("host", "user"), remote_command=text.split(" ")).Run(programs)
"""


def arrives(shell, text, env=None):
    """Environment and arguments of the program that a text runs."""
    passed = " ".join(text.split(" "))  # as gcloud and ssh do
    ran = subprocess.run([*shell.split(), passed], capture_output=True, check=True, env=env)
    return parsed(ran.stdout)


def parsed(output):
    variables, _, words = output.partition(b"--\0")
    pairs = (item.split(b"=", 1) for item in variables.split(b"\0") if b"=" in item)
    found = {name.decode(): value.decode() for name, value in pairs}
    return found, [word.decode() for word in words.split(b"\0")[:-1]]


@settings(max_examples=25, deadline=None)
@given(st.lists(WORDS, min_size=20, max_size=30), st.dictionaries(NAMES, WORDS, max_size=3))
def test_any_words_and_variables_arrive(words, variables):
    """At least 500 words."""
    text = command_text([*PRINT, *words], variables)
    for shell in ("sh -c", "bash -c"):
        environment, arguments = arrives(shell, text)
        assert arguments == words
        assert variables.items() <= environment.items()


def test_a_login_shell_passes_them_on_too(tmp_path):
    words = ["--gin.NAME='a \"b\" $HOME %s \\n\n日本'", ""]
    env = {"HOME": str(tmp_path), "PATH": os.defpath}
    assert arrives("bash -lc", command_text([*PRINT, *words]), env)[1] == words


def test_gclouds_own_code_passes_them_on(tmp_path):
    gcloud = shutil.which("gcloud")
    library = Path(gcloud or "").resolve().parent.parent / "lib"
    if not (library / "googlecloudsdk").is_dir():
        pytest.skip("gcloud is not installed, or not as a Python library")
    (tmp_path / "ssh").write_text('#!/bin/bash\nwhile [ "$1" != -- ]; do shift; done; shift\n'
                                  'exec bash -c "$*"\n')  # fmt: skip
    (tmp_path / "ssh").chmod(0o755)
    cases = [[NASTY, "", "  a  "], [NASTY[::-1]], [*NASTY]]
    ran = subprocess.run(
        [sys.executable, "-c", GCLOUD, str(tmp_path)],
        input=json.dumps([command_text([*PRINT, *words]) for words in cases]).encode(),
        env=os.environ | {"PYTHONPATH": f"{library}{os.pathsep}{library / 'third_party'}"},
        capture_output=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    outputs = ran.stdout.split(b"--\0")[1:]
    assert len(outputs) == len(cases)
    for words, output in zip(cases, outputs, strict=True):
        assert [word.decode() for word in output.split(b"\0")[: len(words)]] == words


def test_the_longest_text_arrives_and_a_longer_one_is_refused():
    room = remote_shell.MAX_BYTES - len(command_text([*PRINT, ""])) + len("''")
    (word,) = arrives("bash -c", command_text([*PRINT, "x" * room]))[1]
    assert len(word) == room
    message = r"at most 131061 bytes pass through ssh\. Put long settings into a gin file"
    with pytest.raises(RemoteShellError, match=message):
        command_text([*PRINT, "x" * (room + 1)])


def test_the_limit_is_that_of_the_kernel():
    def run(size):
        return subprocess.run(["true", "--command=" + "x" * size], check=True)

    run(remote_shell.MAX_BYTES)
    with pytest.raises(OSError, match="Argument list too long"):
        run(remote_shell.MAX_BYTES + 1)


@pytest.mark.parametrize(
    ("argv", "variables", "message"),
    [
        ([], {}, "expected a program"),
        ([""], {}, "expected a program"),
        (["a", "b\0c"], {}, r"contains NUL \(at character 1\)"),
        (["a"], {"B": "\0"}, r"contains NUL \(at character 2\)"),
        (["a"], {"B C": "d"}, "name of an environment variable .*'B C'"),
        (["a"], {"": "d"}, "name of an environment variable"),
        (["a", "\udc80"], {}, r"is not Unicode \(at character 0\)"),
    ],
)
def test_what_cannot_arrive_is_refused(argv, variables, message):
    with pytest.raises(RemoteShellError, match=message):
        command_text(argv, variables)
