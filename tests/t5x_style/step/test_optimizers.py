"""The learning rate that an encoder is fine-tuned with, where none is given."""

import pytest

from models.networks import bert
from t5x_style.step import optimizers


@pytest.mark.parametrize(("width", "rate"), [(384, 3e-5), (768, 2e-5), (1024, 1e-5)])
def test_the_rate_falls_with_the_width_and_a_given_one_is_kept(width: int, rate: float) -> None:
    config = bert.BertConfig(vocab_size=8, hidden=width, layers=1, heads=1, mlp=8, max_positions=8)
    assert optimizers.fine_tuning_rate(config) == rate
    assert optimizers.fine_tuning_rate(config, factor=3.0) == pytest.approx(3 * rate)
    assert optimizers.fine_tuning_rate(config, rate=5e-4, factor=3.0) == 5e-4
