"""A preempted slice of several hosts leaves, bit for bit, what an undisturbed one leaves.

Real texts, archive, supervisors and training processes; local processes are the hosts, and a
fake server serves the bucket. The job of one host dies of SIGKILL at a step; then everything on all
hosts is killed, and their disks are lost. The undisturbed run is on a local disk.
"""

import random
import re

import pytest

from tests.launch.cloud.rehearsals.host_slice import HERE, Recipe, assert_equal

TOY = Recipe(
    (
        *(f"{HERE}/rehearsal.gin", "tests/multi_process/train.gin"),
        *("tests/multi_process/accidents.py", "tests/kits/toys/toy_objective.py"),
    )
)


def test_a_preemption_leaves_no_trace(new_slice, bucket):
    disturbed = new_slice("gs://bucket/runs/a", TOY, STEPS=12)
    disturbed.preempted_at(8, first=1)
    parameters = disturbed.finish()
    assert re.search("resumed at step [36];", disturbed.hosts[0].log())
    assert_equal(parameters, new_slice("runs/b", TOY, STEPS=12).finish())


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [2, 4])
def test_three_preemptions_at_random_steps_leave_no_trace(new_slice, hosts, bucket):
    steps, draw = 30, random.Random(hosts)
    disturbed = new_slice("gs://bucket/runs/a", TOY, hosts, STEPS=steps)
    for step in sorted(draw.sample(range(2, steps - 1), 3)):
        disturbed.preempted_at(step, first=draw.randrange(hosts))
    parameters = disturbed.finish()
    assert_equal(parameters, new_slice("runs/b", TOY, hosts, STEPS=steps).finish())
