"""The command of preflight, in this process, on a model of a few thousand parameters."""

import contextlib
import io

import pytest

from t5x_style.preflight import command


def flags(*more, objective="mlm", **changed):
    """An objective with one layer of width 32, bfloat16."""
    files = [
        "runs/training/train",
        "models/tiny",
        f"objectives/{objective}",
        "data/pretraining/packed",
    ]
    values = {
        "STORE": "/nowhere/store",
        "TOKENIZER": "/nowhere/tokenizer",
        "ROWS": 16,
        "ROW_LENGTH": 32,
        "SEGMENTS": 2,
        "QUERY_LENGTH": 16,
        "PASSAGE_LENGTH": 32,
        "SEED": 1,
        "LEARNING_RATE": 1e-3,
        "STEPS": 10,
        "WARMUP_STEPS": 1,
        "bert.BertConfig.hidden": 32,
        "bert.BertConfig.mlp": 64,
        "bert.BertConfig.layers": 1,
        "bert.BertConfig.unroll": 1,
        "bert.BertConfig.dtype": "bfloat16",
        **changed,
    }
    return [
        *(f"--gin_file=gin_configs/{name}.gin" for name in files),
        *(f"--gin.{name}={value}" for name, value in values.items()),
        *more,
    ]


def run(*words):
    """The command in this process: (exit code, standard output, standard error)."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        command.main(list(words))
    return ended.value.code, out.getvalue(), err.getvalue()
