"""Real processes that share a stage: one plan for all, and however one ends, all do."""

import concurrent.futures
import signal
import socket
import threading

import numpy as np
import pytest

from t5x_style.checkpoints import checkpoint_directory, checkpointing
from t5x_style.distributed import launch_flags, rendezvous
from t5x_style.distributed.launch_flags import AGAIN
from t5x_style.training import metric_writer
from tests.kits import process_group

ADDRESS = "127.0.0.1:1234"
FLAGS = [f"--coordinator_address={ADDRESS}", "--num_processes=2", "--process_id=1"]


def test_flags_win_over_variables():
    env = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"}
    assert launch_flags.read([], {}) is None
    assert launch_flags.read(["--gin_file=x"], env) == launch_flags.Processes("a:1", 4, 3)
    assert launch_flags.read([*FLAGS, "--heartbeat_timeout=7"], env) == launch_flags.Processes(
        ADDRESS, 2, 1, heartbeat_timeout=7
    )
    described = launch_flags.read(FLAGS, {"KENNEL_INITIALIZATION_TIMEOUT": "9"})
    assert described.initialization_timeout == 9
    assert launch_flags.read([], described.environment()) == described


def test_hosts_of_a_slice_need_no_address_and_may_be_asked_to_run_alone():
    auto = {"KENNEL_PROCESSES": "auto"}
    described = launch_flags.read(["--heartbeat_timeout=9"], auto)
    assert described == launch_flags.Processes(None, None, None, heartbeat_timeout=9)
    assert launch_flags.read(FLAGS, auto) == launch_flags.read(FLAGS, {})
    assert launch_flags.read(["--processes=1"], auto) is None
    assert launch_flags.alone(["--processes=1"], auto) and not launch_flags.alone([], auto)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (FLAGS[:1], r"missing: --num_processes \(or JAX_NUM_PROCESSES\), --process_id"),
        (FLAGS[1:], r"missing: --coordinator_address \(or JAX_COORDINATOR_ADDRESS\)$"),
        ([*FLAGS[:2], "--process_id=2"], "process_id .*from 0 to 1, found '2'"),
        ([*FLAGS[:2], "--process_id=-1"], "process_id .*from 0 to 1, found '-1'"),
        ([*FLAGS, "--num_processes=two"], "num_processes .*at least 1, found 'two'"),
        ([*FLAGS, "--coordinator_address=host"], "expected HOST:PORT, found 'host'"),
        ([*FLAGS, "--coordinator_address=host:99999"], "expected HOST:PORT"),
        ([*FLAGS, "--meeting_port=70000"], "meeting_port .*from 1 to 65535, found '70000'"),
        (["--processes=2"], "--processes .*expected 'auto' or '1', found '2'"),
        ([*FLAGS, "--heartbeat_timeout=0"], "heartbeat_timeout .*at least 1, found '0'"),
    ],
)
def test_wrong_descriptions(flags, message):
    with pytest.raises(launch_flags.ProcessesError, match=message):
        launch_flags.read(flags, {})


def meet(described: list[tuple[int, int]], seconds: int) -> dict[int, str]:
    """The error of each (number, count) when these come to one port; "" if all is well."""
    address = f"127.0.0.1:{process_group.free_port()}"
    told: dict[int, str] = {}

    def come(place, number, count):
        try:
            described = launch_flags.Processes(address, count, number, None, seconds)
            rendezvous.meet(described, lambda number: f"in row {number}")
            told[place] = ""
        except launch_flags.ProcessesError as error:
            told[place] = str(error)

    threads = [
        threading.Thread(target=come, args=(place, number, count))
        for place, (number, count) in enumerate(described)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_all_come():
    assert meet([(0, 3), (1, 3), (2, 3)], 60) == {0: "", 1: "", 2: ""}


def test_all_come_to_a_port_that_is_not_that_of_jax():
    with socket.create_server(("127.0.0.1", 0)) as service:  # another job's, say
        port = service.getsockname()[1]
        here = process_group.free_port()
        described = [launch_flags.Processes(f"127.0.0.1:{port}", 2, n, here, 60) for n in (0, 1)]
        with concurrent.futures.ThreadPoolExecutor() as pool:
            assert list(pool.map(rendezvous.meet, described)) == [None, None]


def test_who_does_not_come_is_named_on_all():
    told = meet([(0, 4), (2, 4)], 1)
    assert "waited 1 s for processes 1, 3 of 4" in told[0]
    assert told[0].endswith("Process 1 is in row 1. Process 3 is in row 3.")
    assert "for processes 1, 3 of 4" in told[1] or "waited 1 s for process 0" in told[1]


def test_process_0_does_not_come():
    assert "process 1 waited 1 s for process 0 at 127.0.0.1:" in meet([(1, 2)], 1)[0]


def test_one_number_twice_and_another_count():
    told = meet([(0, 3), (1, 3), (1, 3)], 60)
    here = socket.gethostname()
    assert set(told.values()) == {f"two processes have --process_id=1: on {here} and on {here}"}
    told = meet([(0, 2), (1, 3)], 60)
    wrong = f"process 1 ({here}) has --num_processes=3, process 0 ({here}) has 2"
    assert set(told.values()) == {wrong}


def test_the_command_names_who_is_missing_and_partial_flags(tmp_path):
    command = process_group.train(tmp_path / "run")
    alone = process_group.flags(process_group.free_port(), 2, 0)
    waiting = process_group.start([*command, *alone, "--initialization_timeout=1"])
    partial = process_group.start([*command, "--num_processes=2", "--process_id=0"])
    (code, output), (partial_code, partial_output) = process_group.finish([waiting, partial])
    assert code == AGAIN and "error: waited 1 s for process 1 of 2" in output
    assert partial_code == 1 and "missing: --coordinator_address" in partial_output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["a value", "a file"])
def test_another_gin_value_or_file_is_named_on_all(how, tmp_path):
    other = tmp_path / "other.gin"
    other.write_text("SEED = 5\n")
    each = {1: ["--gin.SEED=5"] if how == "a value" else [f"--gin_file={other}"]}
    command = process_group.train(tmp_path / "run")
    for code, output in process_group.run(command, each=each):
        assert code == 1, output
        assert "the processes of this stage do not run the same" in output
        here = socket.gethostname()
        assert f"these differ from process 0 ({here}):\n  process 1 ({here}): gin " in output
        assert "gin seed is 5, on process 0 3" in output, output
    assert not (tmp_path / "run").exists()


def test_an_error_in_one_ends_the_other_and_is_named_there(tmp_path):
    env = {1: {"ACCIDENT": "error", "ACCIDENT_STEP": "4"}}
    (code, output), (own_code, own) = process_group.run(
        process_group.train(tmp_path / "run"), env=env
    )
    assert own_code == 1 and "error: shard-3 cannot be read at step 4" in own, own
    assert code == 1, output
    assert "error: process 1 failed: OSError: shard-3 cannot be read at step 4" in output, output


def test_sigkill_of_one_ends_the_other_within_the_heartbeat_timeout(tmp_path):
    env = {1: {"ACCIDENT": "SIGKILL", "ACCIDENT_STEP": "4"}}
    (code, output), (killed, _) = process_group.run(process_group.train(tmp_path / "run"), env=env)
    assert killed == -signal.SIGKILL
    assert code not in (0, -signal.SIGKILL), output
    assert "process 0 lost another process; which one is known within 6 s" in output, output
    assert "The following tasks are unhealthy (stopped sending heartbeats):\n1\n" in output, output


@pytest.mark.slow
def test_sigkill_of_process_0_ends_the_other(tmp_path):
    env = {0: {"ACCIDENT": "SIGKILL", "ACCIDENT_STEP": "4"}}
    (killed, _), (code, output) = process_group.run(process_group.train(tmp_path / "run"), env=env)
    assert killed == -signal.SIGKILL
    assert code not in (0, -signal.SIGKILL), output
    assert "the leader task was preempted/died" in output, output


def losses(folder):
    lines = metric_writer.read_lines(folder / metric_writer.JSONL)
    return [(line["step"], line["train/loss"]) for line in lines if "train/loss" in line]


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_sigterm_to_one_saves_all_and_the_resumed_run_is_as_if_undisturbed(tmp_path, number):
    bindings = {"STEPS": 200, "LOG_EVERY": 20}
    env = {number: {"ACCIDENT": "SIGTERM", "ACCIDENT_STEP": "4"}}
    command = process_group.train(tmp_path / "run", **bindings)
    for code, output in process_group.run(command, env=env):
        assert code == 0 and "stopped early; the same command continues it" in output, output
    (step,) = checkpoint_directory.complete_steps(tmp_path / "run" / "checkpoints")
    assert 4 <= step < 200
    for code, output in process_group.run(command):
        assert code == 0, output
    for code, output in process_group.run(process_group.train(tmp_path / "whole", **bindings)):
        assert code == 0, output
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")
    found, expected = (checkpointing.read_parameters(tmp_path / n) for n in ("run", "whole"))
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.slow
def test_a_stage_without_devices_is_run_once_and_sigterm_to_a_waiting_process_stops_it(tmp_path):
    folder = tmp_path / "counted"
    command = process_group.count_stage(folder, tmp_path / "count.gin")
    # process 0 stops where it waits to be stopped, process 1 is sent SIGTERM by the test
    port = process_group.free_port()
    first, second = (
        process_group.start(
            [*command, *process_group.flags(port, 2, number)],
            {"WAIT_STEP": "2", "PYTHONUNBUFFERED": "1"},
        )
        for number in (0, 1)
    )
    said = next(line for line in second.stdout if "waits" in line)
    assert "process 1 waits: process 0 runs this stage" in said
    second.terminate()
    for code, output in process_group.finish([first, second]):
        assert code == 0 and "stopped early; the same command continues it" in output, output
    for code, output in process_group.run(command):
        assert code == 0, output
    lines = (folder / "steps.txt").read_text().splitlines()
    assert len(lines) == 5 and len(set(lines)) == 2  # two runs, one process each
    assert {line.split()[1] for line in lines} == {"1"}, "it would wait for the other's devices"
    assert (folder / "stage.json").exists()


@pytest.mark.slow
def test_a_training_that_does_not_fit_ends_before_its_first_step(tmp_path):
    command = process_group.train(tmp_path / "run")
    first, second = process_group.run([*command, "--gin.stage.run.store_limit=1KB"])
    assert first[0] == second[0] == 1
    assert "run does not fit into the store" in first[1], first[1]
    assert "STORE_LIMIT is 1.0 KB" in first[1] and "t5x_style.gc --store=" in first[1]
    assert "process 0 failed; its own message says why" in second[1], second[1]
    assert not (tmp_path / "run/checkpoints").exists()


@pytest.mark.slow
def test_checkpoints_move_between_one_process_and_two(tmp_path):
    """8 devices each time; an error ends each run just after a checkpoint, which stays whole."""

    def train(name, processes, until=10):
        bindings = {"DATA": 2, "FSDP": 2, "TENSOR": 2, "EVALUATE_EVERY": 3}
        command = process_group.train(tmp_path / name, **bindings)
        command.insert(2, "--gin_file=gin_configs/hardware/mesh.gin")
        last = processes - 1
        env = {last: {"ACCIDENT": "error", "ACCIDENT_STEP": str(until)}}
        for code, output in process_group.run(command, processes, env=env, devices=8 // processes):
            assert code == (until < 10), output
        return checkpointing.read_parameters(tmp_path / name)

    expected = train("whole", 1)
    train("mixed", 2, until=4)
    assert checkpoint_directory.complete_steps(tmp_path / "mixed" / "checkpoints") == [3]
    train("mixed", 1, until=7)
    assert checkpoint_directory.complete_steps(tmp_path / "mixed" / "checkpoints") == [3, 6]
    found = train("mixed", 2)
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
    for line, wanted in zip(losses(tmp_path / "mixed"), losses(tmp_path / "whole"), strict=True):
        assert line == pytest.approx(wanted, rel=1e-5)
