"""`kennel health` of a run on object storage, from a machine that has nothing of it."""

import pytest

from t5x_style import health
from t5x_style.storage import places
from t5x_style.training import metric_writer
from tests.kits import training_logs
from tests.kits.toys.remote_folder import another_machine, put
from tests.kits.toys.storage_faults import forbidden

RUN = "gs://bucket/runs/mine"


def run_here():
    return places.local(RUN)


def test_a_finished_training_is_judged_from_its_records(bucket, capsys):
    training_logs.training(run_here(), training_logs.healthy(), dropped={"empty": 50})
    another_machine()
    assert health.main([RUN]) == 0
    said = capsys.readouterr().out
    assert "finished at step 1,000" in said and "healthy: 0 wrong" in said
    assert "50 of 10,050" in said  # from the report of the stage before


def test_a_running_training_is_seen_as_it_is_now(bucket, capsys):
    lines = training_logs.healthy()
    folder = training_logs.unfinished(run_here(), lines[:10])
    log = places.remote(folder / metric_writer.JSONL).removeprefix("gs://bucket/")
    put(log, training_logs.text(lines[:10]).encode())
    another_machine()
    health.main([RUN])
    assert "step 200 of 1,000" in capsys.readouterr().out
    put(log, training_logs.text(lines[:30]).encode())
    health.main([RUN])
    assert "step 520 of 1,000" in capsys.readouterr().out
    # who takes the training over trusts what is in its folder
    assert not (folder / metric_writer.JSONL).exists()


@pytest.mark.parametrize(
    "run, message",
    {
        "gs://bucket/runs/other": "expected the folder of a run",
        "gcs://bucket/runs/mine": "Write gs://bucket/runs/mine",
    }.items(),
)
def test_no_such_run(bucket, capsys, run, message):
    assert health.main([run]) == 2
    assert message in capsys.readouterr().err


def test_a_bucket_that_may_not_be_read(bucket, capsys):
    training_logs.training(run_here(), training_logs.healthy())
    another_machine()
    bucket.faults.add(forbidden("storage.objects.get"))
    assert health.main([RUN]) == 2
    assert "storage.objects.get" in capsys.readouterr().err
