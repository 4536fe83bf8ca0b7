"""A SavedModel that takes texts gives what it gives for the tokens of these texts."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from t5x_style.interfaces.contract import TITLE_AND_BODY
from t5x_style.serving import saved_model, warmup_requests
from t5x_style.serving.text_signatures import text_check, text_signature
from t5x_style.serving.text_tokens import TextTokenizer
from tests.t5x_style.serving import bundle_kit
from tests.t5x_style.serving.text_signatures.language_texts import LANGUAGES

NAMES = ("embed_query_text", "embed_passage_text")
FUNCTIONS = ("embed_query", "embed_passage", "answer")


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Tokenizer folder, model of all kinds of representations, contract with a prefix."""
    tokenizer, trained, contract = bundle_kit.folders(tmp_path_factory.mktemp("m3") / "parts")
    return tokenizer, trained.restored, contract


@pytest.fixture(scope="module")
def offered(parts):
    tokenizer, _, contract = parts
    return text_signature.offered(tokenizer, contract, FUNCTIONS)


@pytest.fixture(scope="module")
def folder(parts, offered, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    portable = saved_model.portable(parts[1])
    saved_model.save(folder, portable, "embed_query", {}, offered.signatures)
    return folder


@pytest.fixture(scope="module")
def loaded(folder):
    return saved_model.cpu_only_tensorflow().saved_model.load(str(folder)).signatures


def test_each_function_that_embeds_takes_texts(offered, loaded):
    assert offered.left_out == {} and set(offered.signatures) == set(NAMES)
    assert set(loaded) == {*NAMES, "embed_query", "embed_passage", "serving_default"}
    for name in NAMES:
        ((key, spec),) = loaded[name].structured_input_signature[1].items()
        assert (key, spec.name, spec.dtype.name, spec.shape.as_list()) == (
            "text", "text", "string", [None],
        )  # fmt: skip
        tokens = loaded[name.removesuffix("_text")].structured_outputs
        assert loaded[name].structured_outputs.keys() == tokens.keys()


@pytest.mark.parametrize("side", ["query", "passage"])
def test_all_outputs_are_those_of_the_tokens(parts, loaded, side):
    tf = saved_model.cpu_only_tensorflow()
    tokenizer, _, contract = parts
    tokens = TextTokenizer(tokenizer, contract)
    longest = getattr(contract, f"{side}_length")
    for texts in ([bundle_kit.QUESTION, ""], [*LANGUAGES.values(), "", "[SEP] a\x00b " * 40]):
        ids = [one.ids for one in tokens(side, texts)]
        inputs = text_check.padded(ids, longest, tokens.vocabulary.pad)
        expected = loaded[f"embed_{side}"](**{k: tf.constant(v) for k, v in inputs.items()})
        found = loaded[f"embed_{side}_text"](text=tf.constant(texts))
        assert found.keys() == expected.keys() and len(found) == 6
        for name, one in expected.items():
            np.testing.assert_array_equal(found[name], one)


def test_an_empty_text_is_its_prefix(parts, offered):
    tokenizer, _, contract = parts
    tf = saved_model.cpu_only_tensorflow()
    expected = TextTokenizer(tokenizer, contract)("query", [""])[0].ids.tolist()
    found = offered.signatures["embed_query_text"].inputs(tf.constant([""]))
    count = len(expected)
    assert count > 2 and contract.query_prefix == "ask: "
    assert found["input_ids"].shape == (1, 12)
    assert found["input_ids"].numpy()[0, :count].tolist() == expected
    assert found["attention_mask"].numpy().sum() == count


def test_the_check_compares_with_the_tokens(folder, offered, parts):
    tokenizer, _, contract = parts
    found = text_check.compare(folder, offered.signatures, contract, tokenizer)
    assert found.keys() == set(NAMES) and {one.value for one in found.values()} == {0.0}
    swapped = dataclasses.replace(contract, query_prefix="what is ")
    found = text_check.compare(folder, offered.signatures, swapped, tokenizer)
    assert found["embed_query_text"].value > 0 and "text " in found["embed_query_text"].where


def test_warmups_compile_each_width(parts, tmp_path):
    tokenizer, _, contract = parts
    longer = dataclasses.replace(contract, query_length=100)
    offered = text_signature.offered(tokenizer, longer, ["embed_query"])
    one = offered.signatures["embed_query_text"]
    tf = saved_model.cpu_only_tensorflow()
    made = [one.inputs(tf.constant([text]))["attention_mask"].numpy() for text in one.warmups]
    assert [mask.shape for mask in made] == [(1, width) for width in (16, 32, 64, 100)]
    assert all(mask.all() for mask in made)
    warmup_requests.write(
        tmp_path, "embed_query", {"embed_query": 16}, {"embed_query_text": one.warmups}
    )
    written = tf.data.TFRecordDataset(str(tmp_path / warmup_requests.FILE))
    assert sum(b"embed_query_text" in record.numpy() for record in written) == 4


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([b"fine", b"\xff"], r"Unicode in UTF-8, found other bytes in the text at.*\[\[1\]\]"),
        ([b"\xed\xa0\x80"], r"Unicode in UTF-8.*\[\[0\]\]"),  # half of a surrogate pair
        ([b"a\xe2\x82"], "Unicode in UTF-8"),
        (np.zeros(0, "S1"), "at least 1 text, found an empty batch"),
        ([[b"a"]], r"\[1,1\].*expected shape \[\?\]"),
        (b"a", r"\[\].*expected shape \[\?\]"),
        ([1, 2], "int32"),
        ([b"a b " * 300_000] * 2, "at most 2097152 bytes in a batch, found.*2400000"),
    ],
)
def test_bad_requests_are_refused(loaded, texts, message):
    tf = saved_model.cpu_only_tensorflow()
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        loaded["embed_query_text"](text=tf.constant(texts))
    assert re.search(message, str(caught.value), re.DOTALL)


def test_passages_in_two_parts_are_left_out(parts):
    tokenizer, _, contract = parts
    apart = dataclasses.replace(contract, passage_layout=TITLE_AND_BODY)
    offered = text_signature.offered(tokenizer, apart, FUNCTIONS)
    assert set(offered.signatures) == {"embed_query_text"}
    assert "a title and a body apart" in offered.left_out["embed_passage_text"]


def changed(tokenizer: Path, target: Path, change) -> Path:
    """A tokenizer folder with another tokenizer.json."""
    shutil.copytree(tokenizer, target)
    facts = json.loads((target / "tokenizer.json").read_text())
    change(facts)
    (target / "tokenizer.json").write_text(json.dumps(facts))
    return target


def unigram(facts) -> None:
    pieces = [["[UNK]", 0.0], ["a", -1.0]]
    facts["model"] = {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}


def added(facts) -> None:
    facts["added_tokens"].append({**facts["added_tokens"][0], "content": "sea", "special": False})
    facts["added_tokens"][-1]["id"] = len(facts["model"]["vocab"])


def no_specials(facts) -> None:
    facts["post_processor"] = None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (unigram, "of BERT's kind .*found Unigram with BertPreTokenizer, BertNormalizer"),
        (lambda facts: facts.update(normalizer=None), "with BertPreTokenizer, None"),
        (lambda facts: facts.update(normalizer={"type": "NFC"}), "BertPreTokenizer, NFC"),
        (lambda facts: facts.update(pre_tokenizer={"type": "Whitespace"}), "with Whitespace"),
        (added, r"no added tokens but special ones, found \['sea'\]"),
        (
            lambda facts: facts["model"].update(unk_token="[?]"),
            r"the unknown token '\[\?\]' in the vocabulary",
        ),
        (no_specials, r"expected \[CLS\], a text and \[SEP\]"),
    ],
)  # fmt: skip
def test_other_tokenizers_are_left_out(parts, tmp_path, change, message):
    tokenizer, _, contract = parts
    folder = changed(tokenizer, tmp_path / "other", change)
    offered = text_signature.offered(folder, contract, FUNCTIONS)
    assert offered.signatures == {} and set(offered.left_out) == set(NAMES)
    assert all(re.search(message, reason) for reason in offered.left_out.values())
    assert all(reason.endswith("send token ids") for reason in offered.left_out.values())


def test_a_difference_from_the_tokenizer_is_named(parts):
    tokenizer, _, _ = parts
    backend = tokenizers.Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    tf = saved_model.cpu_only_tensorflow()

    def wrong(texts):
        return tf.ragged.constant([[7]] * len(texts), tf.int32)

    with pytest.raises(text_signature.NotInGraphError, match=r"ids of 'river', .* found \[7\] in"):
        text_signature.require_equal(backend, wrong, ["river"])
