"""A training of 0 steps: what it starts from, as a model that can be used."""

import jax
import numpy as np
import pytest

from t5x_style import train
from t5x_style.checkpoints import checkpoint_directory, checkpointing
from t5x_style.distributed import partitioning
from t5x_style.interfaces.contract import ContractError
from t5x_style.step import optimizers
from t5x_style.training import trainer
from tests.kits.toys.toy_objective import ToyPipeline
from tests.t5x_style.training.test_longer_training import TEXT, TOY, Measured, arrays


def no_steps(folder, evaluator, **settings):
    """A training of the toy objective that ends before its first step."""
    return train.train(
        model_dir=str(folder),
        objective=TOY,
        pipeline=ToyPipeline(TEXT, 32),
        optimizer=optimizers.AdamW(0.05, 0, 0, no_decay=("scale",)),
        partitioner=partitioning.Partitioner(devices=jax.devices()[:1]),
        checkpointing=checkpointing.Checkpointing(keep=2),
        cadence=trainer.Cadence(0),
        seed=3,
        evaluators=[evaluator],
        **settings,
    )


def test_it_leaves_a_checkpoint_of_step_0(tmp_path, capsys):
    def run():
        return no_steps(tmp_path, Measured({}), development_metric="toy/quality")

    outputs = run()
    assert all((tmp_path / path).exists() for path in outputs.values())
    assert checkpoint_directory.complete_steps(tmp_path / "checkpoints") == [0]
    assert "0% of" in capsys.readouterr().out.splitlines()[-1]  # the account's line
    first = arrays(tmp_path, 0)
    assert first and (tmp_path / "contract.json").exists() and (tmp_path / "summary.md").exists()
    assert run() == outputs
    page = (tmp_path / "summary.md").read_text()
    assert "| **sum** |" in page and "1 restart: " in page
    again = arrays(tmp_path, 0)
    assert first.keys() == again.keys()
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_evaluators_see_the_contract_before_a_step(tmp_path):
    class Other(Measured):
        def check_contract(self, contract):
            raise ContractError(f"texts for {contract.pooling}")

    with pytest.raises(ContractError, match="texts for mean"):
        no_steps(tmp_path, Other({}))
    assert not (tmp_path / "contract.json").exists()
