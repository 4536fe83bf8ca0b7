"""A SavedModel of a model that writes texts has a signature for it, and writes what it writes."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from input_pipelines.marge import generation_requests
from t5x_style import generate
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.serving import saved_model, saved_model_check, signature_inputs
from tests.kits import chunk_stores
from tests.t5x_style.serving import writing_kit

PAIRS = [("de", "en"), ("en", "de")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folders of a SavedModel, of a token store and of its tokenizer; and the model."""
    root = tmp_path_factory.mktemp("writes")
    documents, length = writing_kit.DOCUMENTS, writing_kit.LENGTH
    tokenizer = chunk_stores.make_tokenizer(root / "t", documents, writing_kit.LANGUAGES)
    store = chunk_stores.make_store(root / "s", documents, tokenizer, length)
    model = writing_kit.marge_of(tokenizer, beams=2)
    folder = root / "saved"
    saved_model.save(folder, saved_model.portable(model.restored), "embed_query", {})
    return folder, store, tokenizer, model


@pytest.fixture(scope="module")
def written(made):
    """Signature `generate` as f(ids, mask, language) -> outputs."""
    tf = saved_model.cpu_only_tensorflow()
    loaded = tf.saved_model.load(str(made[0]))

    def call(*given):
        inputs = dict(zip(signature_inputs.of("generate"), map(tf.constant, given), strict=True))
        return {name: one.numpy() for name, one in loaded.signatures["generate"](**inputs).items()}

    return call


def compared(monkeypatch, made, model):
    """The difference of signature `generate` alone, in the last of the batches."""
    folder, _, tokenizer, _ = made
    (*_, last) = saved_model_check.groups(writing_kit.LENGTH, Vocabulary.load(tokenizer))
    monkeypatch.setattr(saved_model, "lengths", lambda _: {"generate": writing_kit.LENGTH})
    monkeypatch.setattr(saved_model_check, "groups", lambda *_: [last])
    return saved_model_check.compare(folder, model, Vocabulary.load(tokenizer))


def test_it_writes_as_stage_generate(made, written, tmp_path):
    _, store, tokenizer, model = made
    length = writing_kit.LENGTH
    requests = generation_requests.Writing(
        store, reading="chunk", choice=generation_requests.Choice(PAIRS, 10), rows=8,
        length=length, segments=1, tokenizer=tokenizer,
    )  # fmt: skip
    generate.generate(model, requests, 100, 0, str(tmp_path))
    lines = [json.loads(line) for line in (tmp_path / "written.jsonl").read_text().splitlines()]
    tokens, scores = [[] for _ in lines], [[] for _ in lines]
    for batch in requests.batches(0, len(lines)):
        mask = (batch.evidence["segment_ids"] > 0).astype(np.int32)
        found = written(batch.evidence["tokens"], mask, batch.language)
        assert found["tokens"].shape == (8, 2, 8) and found["scores"].shape == (8, 2)
        assert np.all(found["tokens"][:, :, 0] == batch.language[:, None])
        assert np.all(found["scores"][:, 0] >= found["scores"][:, 1])
        for row, number in enumerate(batch.request.tolist()):
            if number >= 0:
                tokens[number].append(found["tokens"][row, 0])
                scores[number].append(found["scores"][row, 0])
    assert [requests.text(one) for one in tokens] == [line["text"] for line in lines]
    assert len({line["text"] for line in lines}) > 3
    given = [np.mean(one) for one in scores]
    np.testing.assert_allclose(given, [line["score"] for line in lines], atol=1e-5)


@pytest.mark.slow
def test_all_batches_of_the_check_are_as_the_model_says(made):
    folder, _, tokenizer, model = made
    found = saved_model_check.compare(folder, model.restored, Vocabulary.load(tokenizer))
    assert set(found) == {"embed_query", "embed_passage", "generate"}
    assert saved_model_check.require(found, 1e-5) < 1e-5


@pytest.mark.parametrize("planted", [0.0, 0.5])
def test_a_model_with_another_bias_of_tokens_is_refused(made, monkeypatch, planted):
    def changed(path, leaf):
        is_bias = [part.key for part in path[:-1]] == ["bias"]
        return leaf + planted * (jnp.arange(len(leaf)) % 7) if is_bias else leaf

    model = made[3].restored
    params = jax.tree_util.tree_map_with_path(changed, model.params)
    found = compared(monkeypatch, made, dataclasses.replace(model, params=params))
    if not planted:
        assert saved_model_check.require(found, 1e-5) < 1e-5
    else:
        with pytest.raises(saved_model.ExportError, match=r"generate: inf at row .* output tokens"):
            saved_model_check.require(found, 1e-5)


def test_texts_are_as_long_as_passages(made):
    restored = made[3].restored
    contract = dataclasses.replace(restored.contract, passage_length=9)
    found = saved_model.lengths(dataclasses.replace(restored, contract=contract))
    assert found == {"embed_query": writing_kit.LENGTH, "embed_passage": 9, "generate": 9}


def test_a_model_that_draws_is_refused(made):
    model = writing_kit.marge_of(made[2], temperature=1.0)
    with pytest.raises(saved_model.ExportError, match=r"draws tokens by a key.*temperature = None"):
        saved_model.portable(model.restored)


@pytest.mark.parametrize(
    ("language", "message"),
    [
        ([5], "language: expected one token for each row"),
        ([5, 5, 5], "language: expected one token for each row"),
        ([5, -1], "language: expected ids from 0 to"),
        ([5, 10_000], "language: expected ids from 0 to"),
        ([[5], [5]], "(?i)shape|rank"),
    ],
)
def test_languages_that_do_not_fit_are_refused(written, language, message):
    tf = saved_model.cpu_only_tensorflow()
    ids = np.full((2, 3), 5, np.int32)
    with pytest.raises((tf.errors.InvalidArgumentError, TypeError), match=message):
        written(ids, np.ones_like(ids), np.array(language, np.int32))
