"""Each process supplies the rows of its devices, wherever these are in the mesh."""

import pytest

from tests.kits import process_group


@pytest.mark.slow
def test_processes_need_not_follow_each_other_in_the_mesh():
    address = f"127.0.0.1:{process_group.free_port()}"
    processes = [
        process_group.start(
            ["tests.multi_process.rows_of_slices"],
            {
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": str(number),
            },
            devices=4,
        )
        for number in range(2)
    ]
    for process in processes:
        output, _ = process.communicate()
        assert process.returncode == 0, output[-3000:]
