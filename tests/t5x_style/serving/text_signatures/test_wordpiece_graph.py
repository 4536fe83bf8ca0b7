"""The tokenizer in the graph gives the ids of the tokenizer, on any text."""

import functools
import json

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipelines.tokenizers import wordpiece
from t5x_style.serving import saved_model
from t5x_style.serving.text_signatures import sample_texts, text_signature, wordpiece_graph
from tests.t5x_style.serving.text_signatures.language_texts import LANGUAGES

slow = pytest.mark.slow
TEXTS = [*LANGUAGES.values(), *sample_texts.TEXTS]
# Characters of which each is a piece, so that none hides as unknown: all of the alphabets, marks.
CHARACTERS = "".join(map(chr, [*range(0x3100), *range(0xA800, 0xAB00), *range(0x1D100, 0x1D200)]))
LONGEST = 20  # characters of a word

# clean_text, handle_chinese_chars, strip_accents, lowercase, split_case
KINDS = {
    "uncased": (True, True, None, True, False),
    "cased": (True, True, None, False, False),
    "cased_split": (True, True, False, False, True),
    "uncased_split": (True, True, True, True, True),
    "accents_kept": pytest.param((True, True, False, True, False), marks=slow),
    "cased_stripped": pytest.param((True, True, True, False, False), marks=slow),
    "chinese_together": pytest.param((True, False, True, True, False), marks=slow),
    "not_cleaned": pytest.param((False, True, True, True, False), marks=slow),
}
kinds = pytest.mark.parametrize("settings_of", KINDS.values(), ids=KINDS)


@functools.cache
def both(settings_of):
    """The tokenizer, and its graph."""
    *bert, split = settings_of
    normalizer = tokenizers.normalizers.BertNormalizer(*bert)
    characters = set(normalizer.normalize_str(CHARACTERS + "".join(TEXTS)))
    words = {word for text in TEXTS for word in normalizer.normalize_str(text).split()}
    words |= {word[:3] for word in words} | {"sort", "a", "list", "un", "Fill"}
    pieces = sorted(characters | {word for word in words if len(word) <= LONGEST})
    known = dict.fromkeys([*wordpiece.BERT_SPECIALS, *pieces, *("##" + one for one in pieces)])
    vocabulary = {piece: number for number, piece in enumerate(known)}
    made = wordpiece.from_vocabulary(vocabulary, True, True, LONGEST, split)
    facts = json.loads(made.to_str())
    inner = facts["normalizer"]["normalizers"][1] if split else facts["normalizer"]
    names = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    inner |= dict(zip(names, bert, strict=True))
    made = tokenizers.Tokenizer.from_str(json.dumps(facts))
    made.encode_special_tokens = True
    return made, wordpiece_graph.tokenizer(text_signature.of_tokenizer(made))


def require_equal(settings_of, texts):
    tokenizer, graph = both(settings_of)
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    found = graph(saved_model.cpu_only_tensorflow().constant(texts)).to_list()
    assert found == [one.ids for one in encoded]


@kinds
def test_sentences_of_30_languages_and_hard_texts(settings_of):
    assert len(LANGUAGES) >= 30
    require_equal(settings_of, TEXTS)
    for text in TEXTS:  # a batch of one has no neighbours
        require_equal(settings_of, [text])


anything = st.text(
    st.one_of(
        st.characters(exclude_categories=["Cs"]),
        st.sampled_from(CHARACTERS),
        st.sampled_from("aAbBzZ09 \n.-[]#|\u0301\u0345\u0334\u034f\u302e\U0001d165\u09fe\u200d"),
    ),
    max_size=60,
)


@kinds
@settings(deadline=None, max_examples=60)
@given(texts=st.lists(anything, max_size=6))
def test_any_text(settings_of, texts):
    require_equal(settings_of, texts or [""])


@pytest.mark.slow
def test_every_code_point():
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(codes), 50_000):
        texts = [f"a{chr(code)}b" for code in codes[start : start + 50_000]]
        require_equal(KINDS["uncased"], texts)


def test_the_tree_holds_each_piece_once():
    keys, ids = wordpiece_graph.tree({"ab": 3, "a": 4, "##b": 5, "##": 6}, "##")
    edges = [(int(key) >> 21, chr(int(key) & 0x1FFFFF)) for key in keys]
    assert edges == [(0, "#"), (0, "a"), (1, "b"), (2, "#"), (3, "b"), (5, "b")]
    assert ids.tolist() == [-1, 4, 5, 6, 3, 5]


def test_the_case_change_is_that_of_training():
    assert text_signature.CASE_CHANGE == wordpiece.CASE_CHANGE
