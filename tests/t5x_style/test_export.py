"""The SavedModel: the model's vectors in TensorFlow without JAX, and an error for bad requests."""

import dataclasses
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from input_pipelines.tokenizers import question_tokens, tokenization, wordpiece
from models.networks import attention, text_embedding
from models.objectives.retromae import RetroMAE
from t5x_style import export
from t5x_style.checkpoints import checkpointing, restored_model
from t5x_style.interfaces.contract import Contract, ContractError, Vocabulary
from t5x_style.interfaces.objective import GroupShape, ModelFunction, embedder
from t5x_style.retrieval import versioned_folder
from t5x_style.serving import saved_model, saved_model_check
from t5x_style.serving.saved_model import ExportError
from t5x_style.step import jitted_functions, train_state
from tests.kits import retrieval_helpers as helpers
from tests.kits import tiny_models

REPOSITORY = Path(__file__).resolve().parents[2]
QUERY, PASSAGE = 6, 9
TEXTS = ["sort a list", "a list of words that is much longer than a query may be", "numbers"]
WORDS = "sort a list of numbers words file read how to the in is python".split()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    names = [*wordpiece.BERT_SPECIALS, *WORDS, *(f"extra{i}" for i in range(50))][:50]
    made = wordpiece.from_vocabulary({name: i for i, name in enumerate(names)}, True, True)
    specials = dict(zip(tokenization.ROLES, wordpiece.BERT_SPECIALS, strict=True))
    tokenization.write_folder(str(folder), made, specials, {})
    return tokenization.Tokenizer(str(folder))


def make_objective(tokenizer, **changes):
    vocabulary = Vocabulary.load(tokenizer.folder)
    config = dataclasses.replace(tiny_models.CONFIG, **changes)
    contract = text_embedding.EmbeddingConfig("cls", True, "cosine", 0.05, QUERY, PASSAGE, "", "")

    def objective(*, rngs: nnx.Rngs) -> RetroMAE:
        shape = GroupShape(rows=4, length=PASSAGE, segments=1)
        return RetroMAE(config, contract, vocabulary, shape, 0.3, 0.5, 16, rngs=rngs)

    return objective


def restored(objective) -> restored_model.Restored:
    """As `restored_model.restore` gives it, with fresh parameters."""
    module = objective(rngs=nnx.Rngs(7))
    graphdef, params, variables = nnx.split(module, nnx.Param, ...)
    offers = module.functions(), module.contract()
    return restored_model.Restored(graphdef, params, variables, *offers)


@pytest.fixture(scope="module")
def model(tokenizer):
    return restored(make_objective(tokenizer))


@pytest.fixture(scope="module")
def training(tokenizer, model, tmp_path_factory):
    """What a training stage leaves."""
    folder = tmp_path_factory.mktemp("training")
    state = train_state.TrainState(
        step=jnp.zeros((), jnp.int32),
        params=model.params,
        opt_state={},
        variables=model.variables,
        key=jax.random.key(0),
        healthy=jnp.ones((), bool),
    )
    writer = checkpointing.Checkpointer(folder / "checkpoints", checkpointing.Checkpointing(keep=1))
    writer.save(state, {})
    writer.close()
    model.contract.save(folder)
    return folder


def run_stage(opened, training, folder, **changes):
    options = {
        "objective": make_objective(opened),
        "checkpoint": str(training),
        "tokenizer": opened,
        "serving_default": "embed_query",
        "tolerance": 1e-5,
        "publish_to": None,
        "model_dir": str(folder),
    }
    return export.export(**{**options, **changes})


@pytest.fixture(scope="module")
def exported(tokenizer, training, tmp_path_factory):
    """The stage's folder and the one it published to, each with one version."""
    folder, served = tmp_path_factory.mktemp("export"), tmp_path_factory.mktemp("served")
    outputs = run_stage(tokenizer, training, folder, publish_to=str(served))
    assert outputs == {"saved_model": "saved_model"}
    return folder / "saved_model", served


@pytest.fixture(scope="module")
def version(exported):
    return exported[0] / str(export.versions(exported[0])[-1])


@pytest.fixture(scope="module")
def loaded(version):
    return saved_model.cpu_only_tensorflow().saved_model.load(str(version))


def call(loaded, ids, mask, signature="embed_query", dtype=np.int32):
    tf = saved_model.cpu_only_tensorflow()
    inputs = {"input_ids": np.array(ids, dtype), "attention_mask": np.array(mask, dtype)}
    tensors = {name: tf.constant(value) for name, value in inputs.items()}
    return loaded.signatures[signature](**tensors)["embedding"].numpy()


def test_the_folder_is_complete_and_hashed(exported, version, tokenizer, model):
    folder, served = exported
    assert export.versions(folder) == export.versions(served) == [int(version.name)]
    assert not list(folder.glob(".*")) and not list(served.glob(".*"))
    manifest = versioned_folder.read_manifest(version)
    assert manifest == versioned_folder.read_manifest(served / version.name)
    assert manifest["signatures"] == {
        "embed_query": {"longest": QUERY},
        "embed_passage": {"longest": PASSAGE},
        "embed_query_text": {"longest": QUERY},
        "embed_passage_text": {"longest": PASSAGE},
    }
    assert manifest["left_out"] == {}
    assert manifest["serving_default"] == "embed_query"
    assert manifest["platforms"] == ["cpu", "cuda", "tpu"]
    assert 0 <= manifest["largest_difference"] <= 1e-5
    assert {"saved_model.pb", "assets/tokenizer.json"} <= set(manifest["files"])
    assert Contract.load(version / "assets") == model.contract
    copy = tokenization.Tokenizer(str(version / "assets"))
    assert copy.fingerprint == tokenizer.fingerprint


def test_signatures_are_named_and_polymorphic(loaded):
    tokens = {"embed_query", "embed_passage", "serving_default"}
    assert set(loaded.signatures) == tokens | {"embed_query_text", "embed_passage_text"}
    for signature in map(loaded.signatures.get, tokens):
        specs = signature.structured_input_signature[1]
        assert {name: spec.name for name, spec in specs.items()} == {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
        }
        assert all(s.shape.as_list() == [None, None] for s in specs.values())
        assert all(s.dtype.name == "int32" for s in specs.values())
        (output,) = signature.structured_outputs.items()
        assert output[0] == "embedding" and output[1].shape.as_list() == [None, 16]
        assert output[1].dtype.name == "float32"


def test_every_program_is_for_cpu_cuda_and_tpu(version):
    from tensorflow.core.protobuf import saved_model_pb2

    written = saved_model_pb2.SavedModel.FromString((version / "saved_model.pb").read_bytes())
    functions = written.meta_graphs[0].graph_def.library.function
    nodes = (node for f in functions for node in f.node_def if node.op == "XlaCallModule")
    programs = [list(node.attr["platforms"].list.s) for node in nodes]
    assert len(programs) >= 2  # one for each signature's function
    assert all(platforms == [b"CPU", b"CUDA", b"TPU"] for platforms in programs)


def test_parameters_are_stored_once_and_only_those_that_embedding_reads(loaded, model):
    names = [variable.name.removesuffix(":0") for variable in loaded.tf_var_leaves]
    assert len(set(names)) == len(names)
    assert "encoder/embeddings/word/embedding" in names
    assert "encoder/layers/attention/value/kernel" in names
    assert all(name.startswith("encoder/") for name in names)  # no decoder, no head
    assert len(names) == len(jax.tree.leaves(model.params["encoder"]))


def test_the_default_is_the_query(loaded):
    ids, mask = [[2, 7, 8, 3]], [[1, 1, 1, 1]]
    np.testing.assert_array_equal(
        call(loaded, ids, mask, "serving_default"), call(loaded, ids, mask, "embed_query")
    )


def test_what_stands_at_padding_does_not_matter(loaded):
    alone = call(loaded, [[2, 7, 3]], [[1, 1, 1]])
    padded = call(loaded, [[2, 7, 3, 0, 0], [2, 7, 3, 9, 49]], [[1, 1, 1, 0, 0]] * 2)
    np.testing.assert_allclose(padded, np.repeat(alone, 2, axis=0), atol=1e-6)


BAD = {
    "negative": ([[2, 7, 3], [2, -1, 3]], [[1, 1, 1]] * 2, r"0 to 49.*\[\[1 1\]\].*\[-1\]"),
    "true_size": ([[2, 50, 3]], [[1, 1, 1]], r"0 to 49.*\[50\]"),  # a row that pads the table
    "beyond_table": ([[2, 70_000, 3]], [[1, 1, 1]], r"0 to 49.*\[70000\]"),
    "at_padding": ([[2, 3, 99]], [[1, 1, 0]], r"padding included.*\[99\]"),
    "all_padding": ([[2, 7, 3], [0, 0, 0]], [[1, 1, 1], [0, 0, 0]], r"all padding.*\[\[1\]\]"),
    "mask_value": ([[2, 7, 3]], [[1, 2, 1]], r"expected 0 and 1 only.*\[2\]"),
    "negative_mask": ([[2, 7, 3]], [[1, -1, 0]], r"expected 0 and 1 only.*\[-1\]"),
    "left_padding": ([[0, 2, 3]], [[0, 1, 1]], "padding on the right"),
    "hole": ([[2, 7, 3]], [[1, 0, 1]], "padding on the right"),
    "lengths_differ": ([[2, 7, 3]], [[1, 1]], r"the shape of input_ids.*\[1 3\].*\[1 2\]"),
    "rows_differ": ([[2, 7, 3]], [[1, 1, 1]] * 2, r"the shape of input_ids.*\[1 3\].*\[2 3\]"),
    "empty_batch": (np.zeros((0, 3)), np.zeros((0, 3)), "empty batch"),
    "no_tokens": (np.zeros((2, 0)), np.zeros((2, 0)), rf"1 to {QUERY} tokens a row.*\[0\]"),
    "too_long": ([[2] * 7], [[1] * 7], rf"1 to {QUERY} tokens a row.*\[7\]"),
    "one_axis": (
        [2, 7, 3],
        [1, 1, 1],
        r"tensor (input_ids|attention_mask) \[3\].*expected shape \[\?,\?\]",
    ),
    "three_axes": ([[[2, 3]]], [[[1, 1]]], r" \[1,1,2\].*expected shape \[\?,\?\]"),
    "mask_axes": ([[2, 7, 3]], [1, 1, 1], r"attention_mask \[3\].*expected shape \[\?,\?\]"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused(loaded, name):
    ids, mask, message = BAD[name]
    with pytest.raises(saved_model.cpu_only_tensorflow().errors.InvalidArgumentError) as caught:
        call(loaded, ids, mask)
    assert re.search(message, str(caught.value), re.DOTALL)


def test_other_dtypes_are_refused_and_passages_may_be_longer(loaded):
    with pytest.raises(
        saved_model.cpu_only_tensorflow().errors.InvalidArgumentError, match="int64"
    ):
        call(loaded, [[2, 3]], [[1, 1]], dtype=np.int64)
    assert call(loaded, [[2] * PASSAGE], [[1] * PASSAGE], "embed_passage").shape == (1, 16)


@pytest.mark.parametrize("number", [0, 1], ids=["texts", "tokens"])
def test_the_documented_program_runs_without_jax(version, tokenizer, model, tmp_path, number):
    """The code of docs/export.md, where importing JAX or anything of ours fails."""
    text = (REPOSITORY / "docs/export.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[number]
    absent = ("jax", "jaxlib", "flax", "orbax", "t5x_style", "models", "input_pipelines")
    guard = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in absent)
    script = tmp_path / "plain.py"
    script.write_text(guard + code)
    command = [sys.executable, str(script), str(version), *TEXTS]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = np.array(json.loads(run.stdout))
    questions = question_tokens.QuestionEncoder(tokenizer.folder, QUERY, "")
    jitted = jitted_functions.jitted_functions(model.graphdef, model.functions)
    functions = jitted_functions.bound(jitted, model.params, model.variables)
    expected = np.asarray(embedder(functions, "query")(questions(TEXTS)))[:, 0]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found[0] - found[2]).max() > 0.01  # different texts


def test_what_is_not_the_model_is_not_published(tokenizer, training, tmp_path, monkeypatch):
    write = saved_model.save

    def damaged(folder, model, default, assets, texts):
        arrays = {path: array.copy() for path, array in model.arrays.items()}
        arrays["encoder/embeddings/position/embedding"][QUERY, 3] += 0.5  # only passages reach it
        write(folder, dataclasses.replace(model, arrays=arrays), default, assets, texts)

    monkeypatch.setattr(saved_model, "save", damaged)
    served = tmp_path / "served"
    with pytest.raises(ExportError) as caught:
        run_stage(tokenizer, training, tmp_path, publish_to=str(served))
    message = str(caught.value)
    assert re.search(r"embed_passage: \S+ at row 0 \(9 tokens\) of a batch of \[2, 9\]", message)
    assert "embed_query" not in message and "Nothing was published" in message
    assert not list((tmp_path / "saved_model").iterdir()) and not served.exists()


def test_nan_is_a_difference():
    differences = {"embed_query": saved_model_check.Difference(float("nan"), "row 1")}
    with pytest.raises(ExportError, match="embed_query: nan at row 1"):
        saved_model_check.require(differences, 1e-5)
    differences = {"embed_query": saved_model_check.Difference(1e-6, "row 1")}
    assert saved_model_check.require(differences, 1e-5) == 1e-6


def test_no_version_is_overwritten(tmp_path):
    with export.new_version(tmp_path) as made:
        (made / "a").write_text("first")
        assert made.name.startswith(".")
    with export.new_version(tmp_path) as made:  # in the same second
        (made / "a").write_text("second")
    first, second = export.versions(tmp_path)
    assert second > first and (tmp_path / str(first) / "a").read_text() == "first"
    versioned_folder.write_manifest(tmp_path / str(first), {}, ["a"])
    served = tmp_path / "served"
    export.copy_version(tmp_path / str(first), served)
    with pytest.raises(ExportError, match="is there already"):
        export.copy_version(tmp_path / str(first), served)
    (tmp_path / str(first) / "a").write_text("other")
    with pytest.raises(versioned_folder.IndexDamaged):
        export.copy_version(tmp_path / str(first), tmp_path / "elsewhere")
    assert export.versions(tmp_path / "elsewhere") == [] and not list(served.glob(".*"))


def test_a_failed_export_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), export.new_version(tmp_path) as made:
        (made / "a").write_text("half")
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_another_tokenizer_default_or_model_is_refused(tokenizer, training, tmp_path):
    class Other:
        folder, fingerprint = tokenizer.folder, "another"

    run = functools.partial(run_stage, tokenizer, training, tmp_path)
    with pytest.raises(ContractError, match="tokenizer_fingerprint"):
        run(tokenizer=Other())
    with pytest.raises(ExportError, match=r"\['embed_passage', 'embed_query'\], found 'embed'"):
        run(serving_default="embed")
    with pytest.raises(ContractError, match="dimension"):
        run(objective=make_objective(tokenizer, hidden=32))
    assert not (tmp_path / "saved_model").exists()


def test_export_is_a_single_process(tokenizer, training, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ExportError, match="one process, found 2"):
        run_stage(tokenizer, training, tmp_path)


def test_functions_that_cannot_be_exported_are_named(model):
    with pytest.raises(ExportError, match=r"one of kind 'score', found \{'sort': 'classify'\}"):
        sort = ModelFunction(lambda group: None, {}, "[B, S, C] float32", "classify")
        saved_model.lengths(dataclasses.replace(model, functions={"sort": sort}))
    twice = {name: model.functions["embed_query"] for name in ("one", "other")}
    with pytest.raises(ExportError, match=r"function of a side, found \['one', 'other'\]"):
        saved_model.lengths(dataclasses.replace(model, functions=twice))


def test_a_reranker_is_not_exported(tokenizer, training, model, tmp_path, monkeypatch):
    score = ModelFunction(lambda group: None, {}, "[B, S] float32", "score")
    made = dataclasses.replace(model, functions={"score": score})
    monkeypatch.setattr(export.restored_model, "restore", lambda *arguments: made)
    with pytest.raises(ExportError, match="A re-ranker is served from a bundle"):
        run_stage(tokenizer, training, tmp_path)


def with_function(model, monkeypatch, function):
    """The model, whose query vectors are `function` of a token group."""
    module_type = type(nnx.merge(model.graphdef, model.params, model.variables))
    functions = helpers.embedding_functions(query=function)
    monkeypatch.setattr(module_type, "functions", lambda self: functions)
    return dataclasses.replace(model, functions=functions)


def test_a_feature_that_ids_do_not_give_is_named(model, monkeypatch):
    broken = with_function(model, monkeypatch, lambda group: group["word_starts"])
    with pytest.raises(ExportError, match="'word_starts', which token ids and a mask do not give"):
        saved_model.portable(broken)


def solve(tokens):  # LAPACK's on CPUs, a call by name
    return jax.scipy.linalg.solve_triangular(jnp.eye(3) + tokens.sum(), jnp.ones((3, 4)))[None]


def erf(tokens):  # a composite, which TensorFlow cannot expand where sizes are unknown
    return jax.lax.erf(tokens.astype(jnp.float32))[:, None]


@pytest.mark.parametrize(("function", "name"), [(solve, "trsm"), (erf, "chlo.erf")])
def test_a_kernel_that_tensorflow_lacks_is_named(model, monkeypatch, function, name):
    broken = with_function(model, monkeypatch, lambda group: function(group["tokens"]))
    with pytest.raises(ExportError, match=rf"embed_query calls \['.*{name}.*'\], which TensorFlow"):
        saved_model.portable(broken)


def test_fused_attention_is_refused_with_advice(tokenizer):
    fused = restored(make_objective(tokenizer, attention="fused"))
    with pytest.raises(attention.AttentionError, match="export with attention 'plain'"):
        saved_model.portable(fused)


def test_tensorflow_comes_late():
    code = "import sys; from t5x_style import export; assert 'tensorflow' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY).returncode == 0


def test_tensorflow_takes_no_accelerator(monkeypatch):
    config = saved_model.cpu_only_tensorflow().config
    hidden = []
    monkeypatch.setattr(config, "list_physical_devices", lambda kind: [kind])
    monkeypatch.setattr(config, "set_visible_devices", lambda *given: hidden.append(given))
    saved_model.cpu_only_tensorflow.__wrapped__()
    assert hidden == [([], "GPU"), ([], "TPU")]
