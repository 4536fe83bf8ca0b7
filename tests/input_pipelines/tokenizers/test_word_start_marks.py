"""Word boundaries among the pieces of every kind of tokenizer, written out."""

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from input_pipelines.tokenizers import import_tokenizer
from input_pipelines.tokenizers.tokenization import Tokenizer
from input_pipelines.tokenizers.word_start_marks import word_starts

XLMR = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = ["Hello world, it's 2024! naïve café 東京に行く 😀 ok.", "foo-bar baz(qux) 3.14"] * 50
SENTENCE = "Hello world, it's 2024! naïve 東京に行く 😀 foo-bar"


def unigram():
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=90, special_tokens=XLMR, unk_token="<unk>")
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return made


def byte_level():
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=XLMR, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


def wordpiece():
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=90, special_tokens=BERT))
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def starts_of(tokenizer, text):
    encoding = tokenizer.encode(text)
    marked = isinstance(tokenizer.model, models.WordPiece)
    return encoding.tokens, word_starts(text, encoding.word_ids, encoding.offsets, marked)


def shown(tokens, starts):
    """Pieces run together, '|' before each word."""
    return "".join(("|" if s else "") + t for t, s in zip(tokens, starts, strict=True))


def test_sentencepiece_cuts_at_marks_and_ideographs_too():
    assert shown(*starts_of(unigram(), SENTENCE)) == (
        "|<s>|▁Hello|▁world|,|▁it|'|s|▁2024|!|▁naïve|▁東|京|に|行|く|▁😀|▁foo|-|bar|</s>"
    )


def test_byte_level_bpe_never_cuts_inside_a_character():
    # Pieces that end in the middle of a character cannot be distinguished at its edges.
    assert shown(*starts_of(byte_level(), "Hello world, it's 2024! foo-bar 😀")) == (
        "|<s>|Hello|Ġworld|,|Ġit|'s|Ġ2024|!|Ġfoo|-|bar|ĠðŁĺĢ|</s>"
    )


def test_wordpiece_is_as_bert_has_it():
    tokens, starts = starts_of(wordpiece(), SENTENCE)
    assert starts.tolist() == [not t.startswith("##") for t in tokens]
    assert "|東|京|に|行|く|😀|" in shown(tokens, starts)


def test_scripts_without_spaces_have_a_word_a_piece():
    text = "ไทยดี ペンです"  # Thai with a vowel sign above, kana
    words = [0, 0, 0, 0, 1, 1]
    offsets = [(0, 3), (3, 4), (4, 5), (4, 5), (5, 8), (8, 10)]
    assert word_starts(text, words, offsets).tolist() == [1, 1, 0, 0, 1, 1]
    assert word_starts(text, words, offsets, wordpiece=True).tolist() == [1, 0, 0, 0, 1, 0]


def test_a_loaded_wordpiece_joins_pieces_of_such_scripts_and_a_unigram_does_not(tmp_path):
    pieces = ["これ", "##は", "##ペン"]
    wordpiece = tokenizers.Tokenizer(
        models.WordPiece({t: i for i, t in enumerate([*BERT, *pieces])}, unk_token="[UNK]")
    )
    wordpiece.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    entries = [(t, -1.0) for t in [*XLMR, "▁これ", "は", "ペン"]]
    unigram = tokenizers.Tokenizer(models.Unigram(entries, unk_id=3))
    unigram.pre_tokenizer = pre_tokenizers.Metaspace()
    for made, expected in ((wordpiece, [1, 0, 0]), (unigram, [1, 1, 1])):
        folder = tmp_path / type(made.model).__name__
        folder.mkdir()
        made.save(str(folder / "tokenizer.json"))
        import_tokenizer.import_tokenizer(str(folder / "out"), str(folder))
        (one,) = Tokenizer(str(folder / "out/tokenizer")).encode_batch(["これはペン"], 9)
        assert one.word_starts.tolist() == expected


def test_a_piece_over_a_boundary_stays_whole():
    words, offsets = [0, 0], [(0, 3), (3, 5)]
    assert word_starts("ab,cd", words, offsets).tolist() == [True, True]
    assert word_starts("abccd", words, offsets).tolist() == [True, False]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_every_tokenizer_gives_a_flag_a_piece_whatever_the_text(text):
    for tokenizer in TOKENIZERS:
        tokens, starts = starts_of(tokenizer, text)
        assert starts.dtype == np.bool_ and len(starts) == len(tokens)
        assert starts[0] and starts[-1]  # specials


TOKENIZERS = [unigram(), byte_level(), wordpiece()]


@pytest.mark.parametrize("make", [unigram, byte_level])
def test_an_imported_tokenizer_keeps_its_specials_out_of_words(tmp_path, make):
    make().save(str(tmp_path / "tokenizer.json"))
    import_tokenizer.import_tokenizer(str(tmp_path / "out"), str(tmp_path))
    tokenizer = Tokenizer(str(tmp_path / "out/tokenizer"))
    assert tokenizer.vocabulary["pad"] == 1 and tokenizer.vocabulary["cls"] == 0
    (one,) = tokenizer.encode_batch(["Hello world"], 32)
    assert one.tokens[0] == 0 and one.tokens[-1] == 2
    assert one.word_starts.sum() == 4  # <s>, two words, </s>
