"""Two processes give M3's loss and gradients of one: all kinds, gathered and in a ring."""

import json

import pytest

from tests.kits import process_group


def run(path, processes):
    address = f"127.0.0.1:{process_group.free_port()}"
    started = []
    for number in range(processes):
        group = {
            "JAX_COORDINATOR_ADDRESS": address,
            "JAX_NUM_PROCESSES": str(processes),
            "JAX_PROCESS_ID": str(number),
        }
        command = ["tests.multi_process.kinds_of_m3", str(path)]
        started.append(
            process_group.start(command, group if processes > 1 else {}, devices=8 // processes)
        )
    for process in started:
        output, _ = process.communicate()
        assert process.returncode == 0, output[-3000:]
    return json.loads(path.read_text())


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    one, two = (run(tmp_path / f"{number}.json", number) for number in (1, 2))
    assert len(one) == 2 and min(map(len, one)) > 10 and one[0][0] > 0.5
    for found, expected in zip(two, one, strict=True):
        assert found == pytest.approx(expected, rel=2e-5, abs=1e-6)
    assert one[0] == pytest.approx(one[1], rel=2e-4, abs=1e-5)  # a ring, and gathered
