"""A fine-tuned encoder that became worse has no SavedModel, unless that is asked for."""

from pathlib import Path
from typing import Any

import pytest

from t5x_style import export
from t5x_style.interfaces.verdict_record import NOTICE
from tests.kits.toys import verdicts


def run(folder: Path, verdict: str, **changes: Any) -> dict[str, str]:
    """The job on a checkpoint that is not there: whoever opens it fails."""
    folder.mkdir()
    given = {
        "objective": None,
        "checkpoint": str(folder.parent / "no_checkpoint"),
        "tokenizer": None,
        "serving_default": "embed_query",
        "tolerance": 1e-5,
        "publish_to": str(folder.parent / "served"),
        "model_dir": str(folder),
        "verdict": verdict,
    }
    return export.export(**{**given, **changes})


def test_worse_leaves_a_page(tmp_path):
    worse = verdicts.write(tmp_path / "verdict.json", **verdicts.WORSE)
    assert run(tmp_path / "out", worse) == {"notice": NOTICE}
    assert [path.name for path in (tmp_path / "out").iterdir()] == [NOTICE]
    assert not (tmp_path / "served").exists()
    assert "There is no SavedModel here" in (tmp_path / "out" / NOTICE).read_text()


@pytest.mark.parametrize(("fields", "force"), [(verdicts.WORSE, True), ({}, False)])
def test_otherwise_the_checkpoint_is_opened(fields, force, tmp_path):
    path = verdicts.write(tmp_path / "verdict.json", **fields)
    with pytest.raises(FileNotFoundError, match="no_checkpoint: not found"):
        run(tmp_path / "out", path, force=force)
    assert not (tmp_path / "out" / NOTICE).exists()
