"""benchmarks.health_band: each healthy run against the others; where an unhealthy one leaves."""

from benchmarks import health_band
from t5x_style.reporting import health_reference, health_runs
from tests.kits import training_logs
from tests.kits.training_logs import changed, healthy


def read(folder, lines, seed):
    training_logs.training(folder, lines, seed=seed)
    return health_runs.read(str(folder))[0]


def test_runs_are_left_out_in_turn(tmp_path):
    runs = [read(tmp_path / str(seed), healthy(seed), seed) for seed in (1, 2, 3, 4)]
    found = dict(health_band.left_out(runs))
    assert list(found) == [str(one.folder) for one in runs]
    assert all(len(levels) == 3 for levels in found.values())
    shifted = changed(healthy(5), "train/loss", lambda step, old: old * 3 if step > 400 else old)
    worse = read(tmp_path / "worse", shifted, 5)
    reference = health_reference.make("all", [[one] for one in runs])
    first = health_band.first_outside(worse, reference)
    assert 400 < first["train/loss"] <= 460 and first["train/gradient_norm"] is None
