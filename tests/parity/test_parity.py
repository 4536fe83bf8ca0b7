"""The parity runner: golden cases pass, perturbed ones fail, strange folders are refused."""

import filecmp
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import numpy

from tests.parity import parity, parity_kit

GOLDEN = Path(__file__).parents[1] / "golden"
OURS = sorted(folder for folder in GOLDEN.glob("*/*") if folder.is_dir())
FILES = ["config.json", "batch.npz", "expected.json", "expected.npz", "weights.safetensors"]
PERTURBED = {
    "bert/seed11": "bert.BertConfig.layer_norm_eps = 1e-4",
    "retromae/seed11": "retromae.RetroMAE.decoder_weight = 1.001",
    "dupmae/seed11": "retromae.RetroMAE.bow_weight = 0.1001",
    "retromae_collator/seed11": "retromae.RetroMAE.decoder_mask_rate = 0.45",
    "simlm_finetune/seed11": "simlm_finetune.settings.contrastive_weight = 0.201",
    "simlm/seed11": "encoder/bert.BertConfig.layer_norm_eps = 1e-4",
    "simlm_collator/seed11": "simlm.SimLM.decoder_mask_rate = 0.45",
    "condenser/seed11": "condenser.Condenser.skip_from = 1",
    # In one chunk, whatever the case says: its three programs are one then, compiled once.
    "gradcache/seed11": "text_embedding.EmbeddingConfig.temperature = 0.0501; "
    "bi_encoder.BiEncoder.encode_chunks = 1",
    "realm_pretrain/seed11": "realm.REALM.marginalise = 'span'",
    "realm_reader/seed11": "span_head.SpanConfig.layer_norm_eps = 2e-3",
    "labse/seed11": "contrastive.ContrastiveConfig.margin = 0.3001",
    "realm_openqa/seed11": "span_head.SpanConfig.layer_norm_eps = 2e-3",
    "marge_attention/seed11": "marge_attention.settings.beta = 1.701",
    "m3/seed11": "text_embedding.EmbeddingConfig.temperature = 0.0201",
}
# Of these one seed is run by `make test`; the others, and that a changed number fails, by test-all.
LONG = (
    "gradcache",
    "realm_pretrain",
    "realm_reader",
    "realm_openqa",
    "retromae_collator",
    "condenser",
    "dupmae",
    "labse",
    "m3",
    "simlm",
    "simlm_collator",
)


def _marked(name: str) -> Any:
    """A system or a case of one, slow where its programs take long to compile."""
    return pytest.param(name, marks=[pytest.mark.slow] if name.split("/")[0] in LONG else [])


@pytest.mark.parametrize("folder", OURS, ids=lambda f: f"{f.parent.name}-{f.name}")
def test_golden_cases_of_this_repository_pass(folder: Path) -> None:
    failed = [quantity for quantity in parity.run(folder, []) if not quantity.passed]
    assert not failed


@pytest.mark.parametrize("system", [_marked(name) for name in parity.SYSTEMS])
def test_all_shared_cases_pass(shared: Path, system: str, capsys: pytest.CaptureFixture) -> None:
    folders = sorted((shared / "golden" / system).iterdir())
    assert folders
    copies = [f for f in folders if (GOLDEN / system / f.name).is_dir()]
    for folder in copies:  # run by the test above, if they are what this repository holds
        _, mismatch, errors = filecmp.cmpfiles(folder, GOLDEN / system / folder.name, FILES, False)
        assert not mismatch and errors in ([], ["weights.safetensors"])
    others = [str(f) for f in folders if f not in copies]
    assert parity.main(others) == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", [_marked(name) for name in PERTURBED])
def test_a_perturbed_coefficient_fails(name: str, capsys: pytest.CaptureFixture) -> None:
    bindings = [f"--gin.{binding}".replace(" ", "") for binding in PERTURBED[name].split("; ")]
    assert parity.main([str(GOLDEN / name), *bindings]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_one_wrong_weight_fails(tmp_path: Path) -> None:
    case = tmp_path / "bert" / "case"
    shutil.copytree(GOLDEN / "bert/seed11", case)
    expected = json.loads((case / "expected.json").read_text())
    expected["float64"]["mlm_loss"] *= 1 + 3e-5
    (case / "expected.json").write_text(json.dumps(expected))
    failed = [quantity.name for quantity in parity.run(case, []) if not quantity.passed]
    assert failed == ["mlm_loss"]


def test_the_architecture_decides_where_the_folder_says_nothing(tmp_path: Path) -> None:
    case = tmp_path / "elsewhere" / "case"
    shutil.copytree(GOLDEN / "bert/seed11", case)
    assert parity.system_of(parity_kit.Case.read(case)).__name__ == "tests.parity.cases.bert"


def test_strange_folders_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert parity.main([]) == 2
    assert parity.main([str(tmp_path / "nowhere")]) == 2
    assert parity.main([str(tmp_path)]) == 2
    assert "missing ['config.json'" in capsys.readouterr().out
    unknown = tmp_path / "colbert" / "case"
    shutil.copytree(GOLDEN / "bert/seed11", unknown)
    config = json.loads((unknown / "config.json").read_text()) | {"architecture": "ColBERT"}
    (unknown / "config.json").write_text(json.dumps(config))
    assert parity.main([str(unknown)]) == 2
    assert "found folder 'colbert'" in capsys.readouterr().out
    unweighted = tmp_path / "bert" / "case"
    shutil.copytree(GOLDEN / "bert/seed11", unweighted)
    (unweighted / "weights.safetensors").unlink()
    assert parity.main([str(unweighted)]) == 2
    assert "expected weights.safetensors" in capsys.readouterr().out


@pytest.mark.parametrize("absent", ["hidden_size", "decoder_mlm_probability"])
def test_a_config_without_a_field_is_refused_by_name(
    tmp_path: Path, absent: str, capsys: pytest.CaptureFixture
) -> None:
    case = tmp_path / "retromae" / "case"
    shutil.copytree(GOLDEN / "retromae/seed11", case)
    config = json.loads((case / "config.json").read_text())
    del config[absent]
    (case / "config.json").write_text(json.dumps(config))
    assert parity.main([str(case)]) == 2
    assert absent in capsys.readouterr().out


def test_a_pooler_without_next_sentence_head_is_compared(shared: Path, tmp_path: Path) -> None:
    case = tmp_path / "bert" / "case"
    case.mkdir(parents=True)
    for file in (shared / "golden/bert/seed23").iterdir():
        shutil.copyfile(file, case / file.name)  # not its mode: the originals are read-only
    weights = numpy.load_file(case / "weights.safetensors")
    kept = {name: w for name, w in weights.items() if "seq_relationship" not in name}
    numpy.save_file(kept, case / "weights.safetensors")
    with np.load(case / "expected.npz") as stored:
        arrays = {name: array for name, array in stored.items() if "nsp" not in name}
    np.savez(case / "expected.npz", **arrays)
    quantities = parity.run(case, [])
    assert all(quantity.passed for quantity in quantities)
    names = [quantity.name for quantity in quantities]
    assert "pooler_output" in names and "nsp_logits" not in names


def test_a_good_case_does_not_hide_a_bad_one(tmp_path: Path) -> None:
    assert parity.main([str(GOLDEN / "bert/seed11"), str(tmp_path)]) == 2


def test_nan_is_outside_every_tolerance() -> None:
    assert not parity_kit.Quantity("x", float("nan"), 1.0).passed


def test_the_probe_is_the_one_of_the_golden_cases() -> None:
    gradient = np.array([[1.0, 2.0], [3.0, 4.0]])
    expected = sum(g * np.cos(0.7 * i + 0.3) for i, g in enumerate([1.0, 2.0, 3.0, 4.0]))
    assert parity_kit.probe(gradient) == pytest.approx(expected)
