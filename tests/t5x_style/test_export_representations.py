"""A SavedModel of an objective that offers every kind of representation."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers

from t5x_style import export
from t5x_style.checkpoints import restored_model
from t5x_style.interfaces.contract import Combination, Contract, ContractError
from t5x_style.interfaces.objective import embedding_function
from t5x_style.interfaces.representation import KINDS, SIDES
from t5x_style.serving import saved_model, saved_model_check
from t5x_style.step import jitted_functions
from tests.kits.toys import three_kinds

pytestmark = pytest.mark.slow  # TensorFlow
OUTPUTS = {
    "embedding": ("float32", [None, 16]),
    "sparse_segments": ("int32", [None, None]),
    "sparse_tokens": ("int32", [None, None]),
    "sparse_weights": ("float32", [None, None]),
    "multi_vector_segments": ("int32", [None, None]),
    "multi_vector_vectors": ("float32", [None, None, 4]),
}


@pytest.fixture(scope="module")
def model():
    return three_kinds.restored()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    saved_model.save(folder, saved_model.portable(model), "embed_query", {})
    return folder


@pytest.fixture(scope="module")
def loaded(folder):
    return saved_model.cpu_only_tensorflow().saved_model.load(str(folder))


def test_a_signature_has_an_output_for_each_array(loaded):
    assert set(loaded.signatures) == {"embed_query", "embed_passage", "serving_default"}
    for signature in loaded.signatures.values():
        specs = signature.structured_outputs
        assert {
            name: (spec.dtype.name, spec.shape.as_list()) for name, spec in specs.items()
        } == OUTPUTS


def test_outputs_are_what_direct_calls_give(loaded, model):
    tf = saved_model.cpu_only_tensorflow()
    jitted = jitted_functions.jitted_functions(model.graphdef, model.functions)
    functions = jitted_functions.bound(jitted, model.params, model.variables)
    group = three_kinds.group([[0], [1], [2]], [[2, 7, 8, 7, 3], [9], [2, 3]], 1, 3)
    tokens, mask = (group[name][:, :8] for name in ("tokens", "segment_ids"))
    cut = {name: array[:, :8] if array.shape[1] > 1 else array for name, array in group.items()}
    for side in ("query", "passage"):
        expected = embedding_function(functions, side, KINDS)(cut, kinds=KINDS)
        signature = loaded.signatures[f"embed_{side}"]
        found = signature(input_ids=tf.constant(tokens), attention_mask=tf.constant(mask))
        found = {name: array.numpy() for name, array in found.items()}
        np.testing.assert_allclose(found["embedding"], expected["dense"][:, 0], atol=1e-6)
        for kind in ("sparse", "multi_vector"):
            for name, array in expected[kind].items():
                np.testing.assert_allclose(found[f"{kind}_{name}"], array, atol=1e-6)
        kept = found["sparse_segments"] == 1
        assert found["sparse_tokens"][kept].tolist() == [7, 8, 9]


def test_every_output_is_compared_with_the_model(folder, model):
    found = saved_model_check.compare(folder, model, three_kinds.VOCABULARY)
    assert found.keys() == {"embed_query", "embed_passage"}
    assert saved_model_check.require(found, 1e-5) < 1e-5
    other = dataclasses.replace(model, params=three_kinds.restored(seed=0).params)
    other.params["project"][...] = other.params["project"][...].at[0, 0].add(0.5)
    differing = saved_model_check.compare(folder, other, three_kinds.VOCABULARY)
    with pytest.raises(
        saved_model.ExportError, match=r"embed_query: .* at row .*multi_vector_vectors"
    ):
        saved_model_check.require(differing, 1e-5)


def test_weights_of_kinds_are_in_the_contract(model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(restored_model, "restore", lambda *arguments: model)
    for name in ("tokenizer", "hybrid"):
        (tmp_path / name).mkdir()
    vocabulary = json.dumps(dataclasses.asdict(three_kinds.VOCABULARY))
    (tmp_path / "tokenizer/vocabulary.json").write_text(vocabulary)
    pieces = tokenizers.models.Unigram([("a", 0.0)], unk_id=0)
    tokenizers.Tokenizer(pieces).save(str(tmp_path / "tokenizer/tokenizer.json"))
    tokenizer = SimpleNamespace(
        folder=str(tmp_path / "tokenizer"), fingerprint=model.contract.tokenizer_fingerprint
    )

    def run(*kinds: str) -> Combination | None:
        combination = Combination(kinds, dict.fromkeys(kinds, 0.5), 10)
        dataclasses.replace(model.contract, combination=combination).save(tmp_path / "hybrid")
        made, hybrid = str(tmp_path / "made"), str(tmp_path / "hybrid")
        export.export(None, "", tokenizer, "embed_query", 1e-5, None, made, hybrid=hybrid)
        assert "no signature embed_query_text: expected a tokenizer" in capsys.readouterr().err
        (version,) = (tmp_path / "made/saved_model").iterdir()
        left_out = json.loads((version / "manifest.json").read_text())["left_out"]
        assert all("found Unigram" in left_out[f"embed_{side}_text"] for side in SIDES)
        return Contract.load(version / "assets").combination

    with pytest.raises(ContractError, match="no span"):
        run("dense", "span")
    assert not (tmp_path / "made").exists()
    assert run(*KINDS) == Combination(KINDS, dict.fromkeys(KINDS, 0.5), 10)
