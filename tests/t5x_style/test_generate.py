"""Texts that a model writes of documents: read by chunks or whole, drawn, stopped, spread out."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from input_pipelines.batches.token_groups import NONE
from input_pipelines.marge import generation_requests
from input_pipelines.store.token_store import StoreError, TokenStore
from input_pipelines.tokenizers.tokenization import Tokenizer, TokenizerError
from models.networks import decoding, seq2seq
from models.objectives import marge
from t5x_style import generate
from t5x_style.checkpoints import restored_model
from t5x_style.distributed import partitioning
from t5x_style.interfaces import contract
from t5x_style.interfaces.objective import FunctionError, GroupShape, ModelFunction
from tests.kits import chunk_stores, tiny_models
from tests.t5x_style.serving.writing_kit import DOCUMENTS, LANGUAGES, LENGTH, marge_of

PAIRS = [("de", "en"), ("en", "de")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folders of a store and of its tokenizer."""
    folder = tmp_path_factory.mktemp("generate")
    tokenizer = chunk_stores.make_tokenizer(folder / "t", DOCUMENTS, LANGUAGES)
    return chunk_stores.make_store(folder / "s", DOCUMENTS, tokenizer, LENGTH), tokenizer


def asked(made, reading="chunk", **changes):
    store, tokenizer = made
    sizes = {"rows": 8, "length": LENGTH, "segments": 1} | {
        name: changes.pop(name) for name in ("rows", "length", "segments") if name in changes
    }
    choice = generation_requests.Choice(**{"pairs": PAIRS, "max_documents": 10} | changes)
    return generation_requests.Writing(
        store, reading=reading, choice=choice, tokenizer=tokenizer, **sizes
    )


def names(requests):
    return [(one.id, one.target) for one in requests.requests]


# --- requests -------------------------------------------------------------------------------------


def test_documents_that_stand_in_the_other_language_are_asked_for(made):
    shared = [f"news/{n}" for n in range(3)]
    requests = asked(made)
    assert names(requests) == [
        *((f"de/{name}", "en") for name in shared),
        *((f"en/{name}", "de") for name in shared),
    ]
    first = requests.requests[0]
    assert (first.name, first.source) == ("news/0", "de")
    everything = asked(made, translated=False, pairs=[("en", "fr"), ("de", "de")])
    assert [one.id for one in everything.requests if one.target == "fr"] == [
        *(f"en/{name}" for name in shared),
        "en/tales/0",
    ]
    assert len([one for one in everything.requests if one.target == "de"]) == 4


def test_few_documents_are_those_of_the_same_names_in_every_pair(made):
    requests = asked(made, max_documents=2)
    by_pair = {}
    for one in requests.requests:
        by_pair.setdefault((one.source, one.target), []).append(one.name)
    one, other = by_pair.values()
    assert len(one) == 2 and one == other
    assert (
        requests.fingerprint == asked(made, max_documents=2).fingerprint != asked(made).fingerprint
    )


def test_documents_longer_than_asked_for_are_left_out(made):
    chunks = _chunks(made)
    found = {one.id for one in asked(made, pairs=[("de", "en")], max_chunks=2).requests}
    shared = {f"de/news/{n}" for n in range(3)}
    assert found == {name for name in shared if chunks[name] <= 2} and found < shared


def test_what_is_left_out_or_not_read_is_told(made):
    assert asked(made).notes == []
    longer = sum(count > 2 for count in _chunks(made).values())
    (note,) = asked(made, max_chunks=2).notes
    assert note.startswith(f"{longer} of 8 documents in ['de', 'en'] have more than 2 chunks")
    whole = asked(made, "document", length=3 * LENGTH, segments=3)
    chunks = [_chunks(made)[one.id] for one in whole.requests]
    (note,) = whole.notes
    assert note.startswith(f"{sum(count > 3 for count in chunks)} of {len(chunks)} documents are")
    assert asked(made, "document", length=30 * LENGTH, segments=30).notes == []
    with pytest.raises(ValueError, match="would be read to their first chunk: set READ_SEGMENTS"):
        asked(made, "document", length=3 * LENGTH)


def test_a_number_of_pairs_are_those_with_most_documents(made):
    assert names(asked(made, pairs=2)) == names(asked(made))
    assert {one.source for one in asked(made, pairs=1).requests} == {"de"}


def _chunks(made):
    chunks = {}
    for name in TokenStore.open(made[0]).ids:
        document = name.rpartition("#")[0]
        chunks[document] = chunks.get(document, 0) + 1
    return chunks


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"reading": "word"}, ValueError, r"one of \('chunk', 'document'\), found 'word'"),
        ({"rows": 0}, ValueError, "Writing.rows: expected a whole number above 0"),
        ({"length": 8}, ValueError, "rows for chunks of up to 12 tokens, found length 8"),
        ({"pairs": []}, ValueError, "expected one or more pairs of languages"),
        ({"pairs": [("de", "en"), ("de", "en")]}, ValueError, "each once"),
        ({"max_documents": 0}, ValueError, "Choice.max_documents"),
        ({"max_chunks": -1}, ValueError, "Choice.max_chunks: expected 0 or more"),
        ({"pairs": [("sw", "en")]}, StoreError, r"documents in 'sw', found the languages \['de'"),
        ({"pairs": [("de", "fr")]}, StoreError, "that exist in 'fr', too, found none"),
        ({"pairs": [("de", "xx")], "translated": False}, TokenizerError, r"expected \['\[xx\]'\]"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(made, changes, error, message):
    with pytest.raises(error, match=message):
        asked(made, **changes)


def test_no_document_in_two_languages_is_refused(made, tmp_path):
    store = chunk_stores.make_store(tmp_path, {"de/news/0": "eins", "en/a/0": "one"}, made[1])
    with pytest.raises(StoreError, match="expected documents that exist in two languages"):
        asked((store, made[1]), pairs=2, length=16)


# --- a model that writes what it reads ------------------------------------------------------------


def model_of(functions, made, mesh=(1, 1, 1), **changes):
    requests = asked(made)
    shape = partitioning.MeshShape(*mesh)
    given = contract.Contract(
        "cls", False, "cosine", 1.0, 16, LENGTH, LENGTH, "", "", "text", 300,
        requests.tokenizer_fingerprint,
    )  # fmt: skip
    devices = jax.devices()[: int(np.prod(mesh))]
    return restored_model.Trained(
        functions,
        dataclasses.replace(given, **changes),
        partitioning.Partitioner(shape, devices=devices),
        "toy",
    )


def writes(write):
    return {"generate": ModelFunction(write, {}, "", "generate")}


class Copies:
    """Writes the evidence unchanged, with a worse hypothesis after it; counts what it is given."""

    def __init__(self, fails_after=99):
        self.compiled, self.calls, self.fails_after = 0, 0, fails_after
        self._jitted = jax.jit(self._write)

    def __call__(self, evidence, language, key):
        self.calls += 1
        if self.calls > self.fails_after:
            raise KeyboardInterrupt
        return self._jitted(evidence, language, key)

    def _write(self, evidence, language, key):
        self.compiled += 1
        tokens = evidence["tokens"].at[:, 0].set(language)
        scores = -jnp.sum(evidence["segment_ids"] > 0, axis=1).astype(jnp.float32)
        return jnp.stack([tokens, tokens * 0], axis=1), jnp.stack([scores, scores - 1], axis=1)


def run(made, folder, write=None, part_size=100, seed=0, model=None, **changes):
    model = model or model_of(writes(write or Copies()), made)
    requests = asked(made, **changes)
    outputs = generate.generate(model, requests, part_size, seed, str(folder))
    assert outputs == {"written": "written.jsonl"}
    return [json.loads(line) for line in (folder / "written.jsonl").read_text().splitlines()]


def test_what_is_written_of_chunks_is_joined_in_order(made, tmp_path):
    write = Copies()
    lines = run(made, tmp_path, write)
    chunks = _chunks(made)
    assert max(chunks[line["id"]] for line in lines) > 2 and min(chunks.values()) == 1
    for line, request in zip(lines, asked(made).requests, strict=True):
        assert list(line) == ["id", "name", "from", "to", "text", "score"]
        assert (line["id"], line["to"]) == (request.id, request.target)
        assert line["text"] == DOCUMENTS[line["id"]]
    opened = TokenStore.open(made[0])
    lengths = [
        -n for n, name in zip(opened.lengths, opened.ids, strict=True) if "de/news/2" in name
    ]
    assert lines[2]["score"] == pytest.approx(np.mean(lengths), abs=1e-5)
    rows = sum(chunks[line["id"]] for line in lines)
    assert (write.compiled, write.calls) == (1, -(-rows // 8))


def test_first_chunks_that_fit_a_row_are_read_together(made, tmp_path):
    requests = asked(made, "document", length=40, segments=3, pairs=[("de", "de")])
    (batch,) = requests.batches(0, 4)
    opened = TokenStore.open(made[0])
    lines = run(made, tmp_path, reading="document", length=40, segments=3, pairs=[("de", "de")])
    for row, (request, line) in enumerate(zip(requests.requests, lines, strict=True)):
        own = [n for n, name in enumerate(opened.ids) if name.startswith(request.id)]
        fit = [n for n in own[:3] if opened.lengths[own[0] : n + 1].sum() <= 40]
        seen = batch.evidence["example_id"][row]
        assert seen[seen != NONE].tolist() == fit
        assert line["text"] == " ".join(opened.text(n).text for n in fit)
    assert len({len(line["text"]) for line in lines}) > 1
    assert batch.request.tolist() == [0, 1, 2, 3, *[NONE] * 4]
    for array in batch.evidence.values():  # rows that fill up are as the last
        np.testing.assert_array_equal(array[4:], np.repeat(array[3:4], 4, axis=0))


def test_a_stopped_writing_ends_with_the_same_bytes(made, tmp_path, capsys):
    run(made, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(made, tmp_path / "stopped", Copies(fails_after=2), part_size=2)
    assert not (tmp_path / "stopped/written.jsonl").exists()
    run(made, tmp_path / "stopped", part_size=2)
    assert "generate: 2 of 3 parts are there" in capsys.readouterr().err
    whole, stopped = (tmp_path / name / "written.jsonl" for name in ("whole", "stopped"))
    assert whole.read_bytes() == stopped.read_bytes()


def test_models_that_do_not_fit_are_refused(made, tmp_path):
    score = {"score": ModelFunction(Copies(), {}, "", "score")}
    with pytest.raises(FunctionError, match=r"kind 'generate'; found .* offers \['score'\]"):
        run(made, tmp_path, model=model_of(score, made))
    other = model_of(writes(Copies()), made, passage_length=64)
    with pytest.raises(contract.ContractError, match="passage_length: expected 64, found 12"):
        run(made, tmp_path, model=other)
    other = model_of(writes(Copies()), made, tokenizer_fingerprint="else")
    with pytest.raises(contract.ContractError, match="tokenizer_fingerprint"):
        run(made, tmp_path, model=other)
    spread = model_of(writes(Copies()), made, (8, 1, 1))
    with pytest.raises(partitioning.PartitioningError, match="6 rows do not divide by 8"):
        run(made, tmp_path, model=spread, rows=6)


def test_tokens_become_text_again(made):
    tokenizer = Tokenizer(made[1])
    texts = ["eins zwei, drei.", "one ☃ two"]
    tokens = [one.tokens.tolist() for one in tokenizer.encode_batch(texts, 20)]
    assert tokenizer.decode_batch([*tokens, []]) == [texts[0], "one two", ""]


# --- MARGE ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", [{"beams": 2}, pytest.param({"temperature": 1.0, "top_k": 20}, marks=pytest.mark.slow)]
)
def test_eight_devices_write_what_one_writes(made, tmp_path, how):
    one = run(made, tmp_path / "one", model=marge_of(made[1], **how))
    eight = run(made, tmp_path / "eight", model=marge_of(made[1], (2, 2, 2), **how))
    assert len({line["text"] for line in one}) > 1
    for left, right in zip(one, eight, strict=True):
        assert left["score"] == pytest.approx(right["score"], abs=1e-4)
        assert left | {"score": 0} == right | {"score": 0}


def test_a_seed_decides_what_is_drawn(made, tmp_path):
    model = marge_of(made[1], temperature=1.0, top_p=0.9)
    texts = [
        [line["text"] for line in run(made, tmp_path / name, model=model, seed=seed)]
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    assert texts[0] == texts[1] != texts[2]


def test_texts_longer_than_the_decoder_can_write_are_refused(made):
    with pytest.raises(ValueError, match="expected at most 12, the decoder's max_positions, found"):
        vocabulary = contract.load_vocabulary(made[1])
        shape = GroupShape(8, 24, 2)
        config = dataclasses.replace(tiny_models.CONFIG, vocab_size=vocabulary.size)
        marge.Marge(
            config, seq2seq.DecoderConfig(1, 8, 1, 8, LENGTH), marge.RelevanceConfig(1),
            dataclasses.replace(tiny_models.EMBEDDING, similarity="cosine"), vocabulary,
            shape, shape, 16, decoding.GenerationConfig(13), rngs=None,
        )  # fmt: skip
