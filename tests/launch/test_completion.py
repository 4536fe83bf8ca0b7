"""Completion: what the shells ask for, and bash itself with the script."""

import os
import shutil
import stat
import subprocess
import sys

import pytest

from launch import completion, words
from launch.commands import COMMANDS, SHELLS
from t5x_style.configuration.gin_reader import REPOSITORY


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("kennel ", list(COMMANDS)),
        ("kennel ru", ["run", "runs"]),
        ("kennel --v", ["--version"]),
        ("kennel nothing ", []),
        ("kennel run ", list(words.recipes())),
        (".venv/bin/kennel run quick", ["quickstart", "quickstart_comparison"]),
        ("kennel run --dry_run quick", ["quickstart", "quickstart_comparison"]),
        ("kennel run gin_configs/", []),
        ("kennel run --dr", ["--dry_run"]),
        ("kennel run beir --gin_f", ["--gin_file="]),
        ("kennel run beir --gin_file ", []),
        ("kennel run beir COR", ["CORPUS="]),
        ("kennel run beir CORPUS=a/b COR", []),
        ("kennel run beir STOR", ["STORE=", "STORE_LIMIT="]),
        ("kennel run beir CORPUS=a", []),
        ("kennel run unknown STE", []),
        ("kennel evaluate --gin_file=gin_configs/runs/evaluation/fusion.gin CORP", ["CORPUS="]),
        ("kennel sweep ", list(words.recipes("sweep"))),
        ("kennel sweep rates SWEEP_D", ["SWEEP_DIR="]),
        ("kennel search --an", ["--answer"]),
        ("kennel search wha", []),
        ("kennel tpu ", list(COMMANDS["tpu"].verbs)),
        ("kennel tpu u", ["up"]),
        ("kennel tpu up quick", ["quickstart", "quickstart_comparison"]),
        ("kennel tpu run beir COR", ["CORPUS="]),
        ("kennel tpu delete ", []),
        ("kennel tpu delete --na", ["--name="]),
        ("kennel gke beir COR", ["CORPUS="]),
        ("kennel gke beir --sl", ["--slice="]),
        ("kennel gke quick", ["quickstart", "quickstart_comparison"]),
        ("kennel runs ", ["list", "pin", "unpin", "verify", "adopt", "forget"]),
        ("kennel runs list ", []),
        ("kennel completion z", ["zsh"]),
    ],
)
def test_candidates(line, expected, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    assert completion.candidates(line) == expected


def test_macros_that_the_user_has_to_set_are_candidates():
    """CORPUS and RUN_DIR have no value in beir.gin; those of files that it includes count, too."""
    found = completion.candidates("kennel run beir ")
    assert {"CORPUS=", "RUN_DIR=", "STEPS=", "LEARNING_RATE=", "SEED="} <= set(found)
    assert "gin.REQUIRED=" not in found


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script_that_it_can_read(shell, capsys):
    assert completion.main([shell]) == 0
    script = capsys.readouterr().out
    assert "_complete" in script
    if program := shutil.which(shell):
        subprocess.run([program, "-n"], input=script, text=True, check=True)


def test_bash_completes(tmp_path):
    """Bash calls the function of the script for a line, as readline does at a Tab."""
    command = tmp_path / "kennel"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m launch.cli "$@"\n')
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    script = """
source <(kennel completion bash)
complete -p kennel
for line in 'kennel ru' 'kennel run quickst' 'kennel run beir COR' 'kennel run beir CORPUS=a'; do
    COMP_LINE=$line COMP_POINT=${#line} _kennel kennel
    echo "$line: ${COMPREPLY[*]}"
done
"""
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", script], env=env, capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "complete -o default -F _kennel kennel",
        "kennel ru: run runs",
        "kennel run quickst: quickstart quickstart_comparison",
        "kennel run beir COR: CORPUS=",
        "kennel run beir CORPUS=a: ",
    ]
