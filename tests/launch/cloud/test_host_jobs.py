"""Jobs on a host by the texts for ssh, in real shells and processes; only uv is a fake."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch.cloud import bootstrap
from launch.cloud.bootstrap import Job, JobError, log_text, start_text, stop_text
from tests.launch.cloud import local_hosts

REPOSITORY = Path(__file__).resolve().parents[3]
TELL = (
    "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]),"
    " file=open('{}', 'w'))"
)
# Says that it runs, and waits for a word: 'end', or a signal, upon which it 'saves'.
WAITS = """
import os, signal, sys
def save(*_):
    print("saved", flush=True)
    os._exit(0)
signal.signal(signal.SIGTERM, save)
print("started", os.getpid(), flush=True)
open("{0}/up", "w").close()
open("{0}/words").read()
"""
SHORT = ("-c", "print('short')")


@pytest.fixture(name="host")
def make_host(tmp_path):
    host = local_hosts.Host(tmp_path / "host", BUCKETS=str(tmp_path))
    yield host
    host.cut_power()


def job(tmp_path, command=SHORT, archive=None, source="", **environment):
    archive = archive or local_hosts.small_project(tmp_path)
    return Job("a", command, archive.hash, source or str(archive.path), environment)


@pytest.fixture(name="waiting")
def make_waiting(host, tmp_path):
    """A job that runs until it is let go."""
    for name in ("up", "words"):
        os.mkfifo(tmp_path / name)
    started = job(tmp_path, ("-c", WAITS.format(tmp_path)))
    assert host.ssh(start_text(started)).returncode == 0
    (tmp_path / "up").read_text()  # returns when it runs
    return started


def let_go(tmp_path):
    (tmp_path / "words").write_text("end")


def test_a_job_gets_its_words_its_variables_and_the_hashes(host, tmp_path):
    words = ("--gin.NAME='it\\'s $HOME %s\n日本'", "")
    target = tmp_path / "out.json"
    described = job(tmp_path, ("-c", TELL.format(target), *words), WORD="a\n'b'")
    answer = host.ssh(start_text(described))
    assert answer.returncode == 0, answer.stderr
    said = json.loads(answer.stdout)  # one line, and nothing else
    assert (said["state"], said["job"], said["run"]) == ("running", described.identity, "a")
    assert host.wait()["state"] == "done", host.log()
    arguments, variables, folder = json.loads(target.read_text())
    assert tuple(arguments) == words and variables["WORD"] == "a\n'b'"
    assert folder == str(host.home / ".kennel/code" / described.code)
    lock = hashlib.sha256((REPOSITORY / "launch/cloud/tpu.lock").read_bytes()).hexdigest()
    assert variables["KENNEL_CODE_HASH"] == described.code
    assert variables["KENNEL_LOCK_HASH"] == lock == said["lock"]


def test_a_job_outlives_ssh_and_starts_once(host, waiting, tmp_path):
    (number,) = [line for line in host.log().splitlines() if line.startswith("started")]
    leader = int((host.home / ".kennel/runs/a/pid").read_text())
    assert os.getsid(leader) == leader  # of no session of ssh
    again = host.ssh(start_text(waiting))
    assert again.returncode == 0 and json.loads(again.stdout)["attempt"] == 1
    assert host.state() == json.loads(again.stdout)
    let_go(tmp_path)
    ended = host.wait()
    assert (ended["state"], ended["exit_code"], ended["attempt"]) == ("done", 0, 1)
    assert host.log().count("started") == 1 and number in host.log()


def test_starts_at_the_same_time_start_one_job(host, tmp_path):
    text = start_text(job(tmp_path, ("-c", "import sys; print('once'); sys.exit(7)")))
    started = [host.begin(text) for _ in range(3)]
    outputs = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], outputs
    attempts = host.wait()["attempt"]
    assert host.log().count("once") == attempts <= 3  # one after another, if at all


def test_another_job_of_the_name_is_refused_while_one_runs(host, waiting, tmp_path):
    other = job(tmp_path, SHORT)
    answer = host.ssh(start_text(other))
    assert answer.returncode == 1 and answer.stdout == ""
    assert "with other settings or other code" in answer.stderr
    let_go(tmp_path)
    assert host.wait()["state"] == "done"
    assert json.loads(host.ssh(start_text(other)).stdout)["job"] == other.identity


@pytest.mark.parametrize(
    ("code", "found"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137), ("os.abort()", 134)]
)
def test_a_failed_job_says_how(host, tmp_path, code, found):
    host.ssh(start_text(job(tmp_path, ("-c", f"import os, sys; {code}"))))
    ended = host.wait()
    assert (ended["state"], ended["exit_code"]) == ("failed", found)


def test_a_stopped_job_saves_and_is_not_done(host, waiting):
    said = json.loads(host.ssh(stop_text("a")).stdout)
    assert (said["state"], said["exit_code"], said["stopped"]) == ("failed", 143, True)
    assert "saved" in host.log()
    assert json.loads(host.ssh(stop_text("a")).stdout) == said


def test_a_job_that_hangs_is_killed(host, waiting):
    said = json.loads(host.ssh(stop_text("a", kill=True)).stdout)
    assert (said["state"], said["exit_code"]) == ("failed", 137)
    assert "saved" not in host.log() and host.processes() == []


def test_a_job_does_not_outlive_its_supervisor(host, tmp_path):
    """Else a second one could be started next to it."""
    os.mkfifo(tmp_path / "alive")
    code = f"alive = open('{tmp_path}/alive', 'w'); print('up', file=alive, flush=True)"
    code = f"from t5x_style.workflow import stage_runner as s; s.die_with_parent(); {code}"
    command = ("-c", f"import signal; {code}; signal.pause()")
    host.ssh(start_text(job(tmp_path, command, PYTHONPATH=str(REPOSITORY))))
    with open(tmp_path / "alive") as alive:
        assert alive.readline() == "up\n"
        os.kill(int((host.home / ".kennel/runs/a/pid").read_text()), signal.SIGKILL)
        assert alive.read() == ""  # the other end is closed
    assert (host.wait()["state"], host.state()["exit_code"]) == ("failed", 137)


def test_a_host_that_went_down_can_start_again(host, waiting, tmp_path):
    host.cut_power()
    lost = host.state()
    assert (lost["state"], lost["exit_code"], lost["attempt"]) == ("failed", 137, 1)
    host.ssh(start_text(job(tmp_path)))
    ended = host.wait()
    assert (ended["state"], ended["attempt"]) == ("done", 2)
    assert "attempt 1 on" in host.log() and "attempt 2 on" in host.log()


def test_the_log_is_followed_to_the_end(host, waiting, tmp_path):
    follower = host.begin(log_text("a", follow=True))
    assert "attempt 1 on" in follower.stdout.readline()
    let_go(tmp_path)
    output, _ = follower.communicate(timeout=60)
    assert output.endswith("== exit code 0\n") and follower.returncode == 0


def test_a_job_that_was_never_started(host):
    assert host.state()["state"] == "absent" and not (host.home / ".kennel").exists()
    assert json.loads(host.ssh(stop_text("a")).stdout)["state"] == "absent"
    answer = host.ssh(log_text("a"))
    assert answer.returncode == 1 and "a has not been started on" in answer.stderr


@pytest.mark.parametrize(
    "mark", ["copy", *(pytest.param(one, marks=pytest.mark.slow) for one in ("venv", "sync"))]
)
def test_a_start_that_is_killed_in_the_middle_starts_over(host, tmp_path, mark):
    archive = local_hosts.small_project(tmp_path)
    started = job(tmp_path, archive=archive, source=f"gs://{archive.path.name}")
    (host.home / f"hold-{mark}").touch()
    os.mkfifo(host.home / f"held-{mark}")
    process = host.begin(start_text(started))
    (host.home / f"held-{mark}").read_bytes()  # returns when it is there
    host.cut_power()
    process.communicate()
    assert host.state()["state"] == "absent"
    (host.home / f"hold-{mark}").unlink()
    (host.home / f"held-{mark}").unlink()
    answer = host.ssh(start_text(started))
    assert answer.returncode == 0, answer.stderr
    assert (host.wait()["state"], host.state()["attempt"]) == ("done", 1)
    undisturbed = local_hosts.Host(tmp_path / "other", BUCKETS=str(tmp_path))
    undisturbed.ssh(start_text(started))
    assert undisturbed.wait()["state"] == "done"
    assert tree(host) == tree(undisturbed)


def tree(host):
    """The files that a start leaves, with their contents; but for those of the run."""
    root = host.home / ".kennel"
    files = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
    return {str(k): v.read_bytes() for k, v in files.items() if k.parts[0] != "runs"}


def test_half_an_unpacked_folder_is_replaced(host, tmp_path):
    started = job(tmp_path)
    partial = host.home / ".kennel/code" / f"{started.code}.partial"
    partial.mkdir(parents=True)
    (partial / "rest.py").write_text("of a start that was killed")
    host.ssh(start_text(started))
    assert host.wait()["state"] == "done"
    assert not partial.exists() and "rest.py" not in "".join(tree(host))


def test_an_archive_that_did_not_arrive_is_refused(host, tmp_path):
    archive = local_hosts.small_project(tmp_path)
    archive.path.write_bytes(archive.path.read_bytes()[:-50])
    answer = host.ssh(start_text(job(tmp_path, archive=archive)))
    assert answer.returncode == 1 and "expected the whole archive of the code" in answer.stderr
    answer = host.ssh(start_text(job(tmp_path, archive=archive, source="none.tar.gz")))
    assert answer.returncode == 1 and "none.tar.gz" in answer.stderr
    answer = host.ssh(start_text(job(tmp_path, archive=archive, source="gs://none/a")))
    assert answer.returncode == 1 and "403 no access" in answer.stderr
    assert "service account must be able to read the bucket" in answer.stderr
    assert host.state()["state"] == "absent"


def test_code_that_was_changed_on_a_host_is_refused(host, tmp_path):
    started = job(tmp_path)
    host.ssh(start_text(started))
    host.wait()
    folder = host.home / ".kennel/code" / started.code
    (folder / "launch/cloud/uv_pin.txt").write_text("uv==1\n")
    answer = host.ssh(start_text(started))
    assert answer.returncode == 1, answer.stdout
    assert "1 files of" in answer.stderr and "launch/cloud/uv_pin.txt. Remove" in answer.stderr
    (folder / ".kennel_manifest").write_text("")
    assert f"expected the code {started.code}" in host.ssh(start_text(started)).stderr


def test_another_jax_is_refused(host, tmp_path):
    archive = local_hosts.small_project(tmp_path, **{"tpu.lock": "jax==0.6.2 \\\n  --hash=a:b\n"})
    answer = host.ssh(start_text(job(tmp_path, archive=archive)))
    assert answer.returncode == 1
    assert "expected jax==0.6.2, found 0.10.2 in" in answer.stderr
    assert host.state()["state"] == "absent"


def test_another_jax_on_the_path_is_refused(host, tmp_path):
    """The environment is whole; what the job would import is not."""
    (tmp_path / "more/jax-0.6.2.dist-info").mkdir(parents=True)
    text = "Metadata-Version: 2.1\nName: jax\nVersion: 0.6.2\n"
    (tmp_path / "more/jax-0.6.2.dist-info/METADATA").write_text(text)
    host.env["PYTHONPATH"] = str(tmp_path / "more")  # of the login shell: dropped
    host.ssh(start_text(job(tmp_path)))
    assert host.wait()["state"] == "done"
    answer = host.ssh(start_text(job(tmp_path, PYTHONPATH=str(tmp_path / "more"))))
    assert answer.returncode == 1 and "found 0.6.2" in answer.stderr


@pytest.mark.parametrize("right", [True, False])
def test_uv_is_installed_if_its_hash_is_the_pinned_one(host, tmp_path, right):
    digest = local_hosts.fake_uv_wheel(tmp_path)
    pin = f"uv=={local_hosts.UV_VERSION} --hash=sha256:{digest if right else 'b' * 64}\n"
    archive = local_hosts.small_project(tmp_path, **{"uv_pin.txt": pin})
    local_hosts.write_program(host.programs / "uv", "#!/bin/sh\necho uv 0.1.0\n")  # another one
    host.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    (host.home / ".kennel/tools/uv-0.13.8.partial/rest").mkdir(parents=True)
    answer = host.ssh(start_text(job(tmp_path, archive=archive)))
    assert answer.returncode == int(not right), answer.stderr
    installed = host.home / ".kennel/tools/uv-0.13.8"
    assert installed.exists() is right and not (installed / "rest").exists()
    if right:
        assert host.wait()["state"] == "done"
    else:
        assert "DO NOT MATCH THE HASHES" in answer.stderr and "pip install" in answer.stderr


def test_names_are_dns_labels():
    for name in ("", "A", "a_b", "-a", "a" * 64, "a/b", "日"):
        with pytest.raises(JobError, match="expected lower-case letters"):
            Job(name, SHORT, "", "")


def test_sources_of_a_host_run_on_python_3_10():
    """The images' Python; mypy knows which names of the standard library it has."""
    files = ["launch/cloud/host.py", "launch/cloud/host_environment.py"]
    command = [sys.executable, "-m", "mypy", "--python-version", "3.10", *files]
    checked = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    for file in files:
        text = (REPOSITORY / file).read_text()
        assert "launch." not in text.replace("`launch.", "") and "t5x_style" not in text


def test_texts_are_short_enough():
    """So that a recipe's settings fit: 128 KiB is the limit."""
    assert len(bootstrap.status_text("a").encode()) < 24_000
    assert signal.SIGTERM + 128 == 143
