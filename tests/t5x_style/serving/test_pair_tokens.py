"""Texts in two parts by tokenizers that count the space to the word after it."""

import dataclasses

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from input_pipelines.batches import query_passage_concat
from input_pipelines.store.token_store import Passages
from t5x_style.interfaces.contract import TITLE_AND_BODY, Contract, Vocabulary
from t5x_style.serving.pair_tokens import PairTokenizer
from t5x_style.serving.service import Tokens

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
SENTENCE = "Bread is made of flour and salt"
CONTRACT = Contract("cls", False, "dot", 1.0, 8, 20, 30, "", "", TITLE_AND_BODY, 300, "fingerprint")
WAYS = {
    "ByteLevel": (pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()),
    "Metaspace": (pre_tokenizers.Metaspace(prepend_scheme="first"), decoders.Metaspace()),
}


@pytest.fixture(params=WAYS)
def made(request) -> tuple[tokenizers.Tokenizer, PairTokenizer]:
    """A tokenizer that knows the words of SENTENCE, and the texts in two parts that it makes."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = WAYS[request.param]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator([SENTENCE] * 50, trainer)
    vocabulary = Vocabulary(300, 0, 1, 2, 3, 4, tuple(range(5)), "fingerprint")
    return backend, PairTokenizer(backend.to_str(), vocabulary, CONTRACT)


def test_a_mask_takes_the_place_of_a_word_with_its_space(made) -> None:
    backend, pairs = made
    ids = backend.encode(SENTENCE, add_special_tokens=False).ids
    assert len(ids) == 7  # a token a word
    ids[4] = 4
    found = pairs.masked(SENTENCE.replace("flour", "[MASK]"), 3)
    assert found.ids.tolist() == [2, *ids, 3]


def test_places_begin_with_a_word(made) -> None:
    _, pairs = made
    question = Tokens(np.array([2, 5, 3], np.int32), ["<s>", "a", "</s>"], [None] * 3, 0)
    found = pairs.joint(question, SENTENCE)
    shown = [SENTENCE[slice(*place)] for place in found.places if place is not None]
    assert shown == SENTENCE.split()


@pytest.mark.parametrize("separators", [1, 2])
def test_pairs_of_a_reranker_are_joined_as_in_training(made, separators) -> None:
    backend, _ = made
    between = "</s>" + " </s>" * (separators - 1)
    special = [("<s>", 2), ("</s>", 3)]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A </s>", f"<s> $A {between} $B </s>", special
    )
    vocabulary = Vocabulary(300, 0, 1, 2, 3, 4, tuple(range(5)), "fingerprint")
    pairs = PairTokenizer(backend.to_str(), vocabulary, CONTRACT)
    question, passage = (
        Tokens(np.array(found.ids, np.int32), found.tokens, found.offsets, cut)
        for found, cut in ((backend.encode("Bread is"), 1), (backend.encode(SENTENCE), 2))
    )
    found = pairs.scored(question, passage)
    lengths = [np.array([len(one.ids)]) for one in (question, passage)]
    joined = query_passage_concat.join(
        *(
            Passages(one.ids, np.zeros(len(one.ids), bool), length)
            for one, length in zip((question, passage), lengths, strict=True)
        ),
        separators,
    )
    assert found.ids.tolist() == joined.tokens.tolist()
    assert found.ids.tolist() == backend.encode("Bread is", SENTENCE).ids
    assert found.cut_off == 3 and len(found.pieces) == len(found.places) == len(found.ids)
    kept = [place for place in found.places if place is not None]
    assert [SENTENCE[slice(*place)] for place in kept if place[1]] == [
        SENTENCE[slice(*place)] for place in passage.places[1:] if place[1]
    ]


def test_nothing_has_no_prefix(made) -> None:
    backend, _ = made
    contract = dataclasses.replace(CONTRACT, passage_prefix="Bread")
    vocabulary = Vocabulary(300, 0, 1, 2, 3, 4, tuple(range(5)), "fingerprint")
    pairs = PairTokenizer(backend.to_str(), vocabulary, contract)
    assert pairs.nothing().ids.tolist() == [2, 3, 3]
    assert len(pairs.titled("", "").ids) > 3
