"""Tokenizer training, import, word starts, fingerprints, and the token group of a question."""

import json
import os
import shutil

import numpy as np
import pytest
import tokenizers

from input_pipelines.sources.mixtures import Mixture
from input_pipelines.sources.text_sources import Lines, SourceError
from input_pipelines.tokenizers import import_tokenizer, tokenization, wordpiece
from input_pipelines.tokenizers.question_tokens import QuestionEncoder
from input_pipelines.tokenizers.tokenization import Tokenizer, TokenizerError

TEXT = (
    """the quick brown fox jumps over the lazy dog
Der schnelle Fuchs springt über den faulen Hund
le renard brun est passé par là, été comme hiver
numpy.linalg.norm returns a norm; tokens and tokenization
"""
    * 5
)


@pytest.fixture(scope="module")
def text_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "t.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def train(folder, source, size=200, lowercase=True, strip_accents=True, sample=0, alphabet=1000):
    out = tokenization.train_tokenizer(
        model_dir=str(folder), source=source, vocabulary_size=size, alphabet_size=alphabet,
        min_frequency=1, lowercase=lowercase, strip_accents=strip_accents, sample=sample, seed=0,
        max_bad_records=0,
    )  # fmt: skip
    return os.path.join(str(folder), out["tokenizer"])


@pytest.fixture(scope="module")
def folder(text_file, tmp_path_factory):
    return train(tmp_path_factory.mktemp("tok"), Lines([text_file], 1 << 20))


def vocabulary(folder):
    with open(os.path.join(folder, "vocabulary.json")) as f:
        return json.load(f)


def test_special_ids_files_and_size(folder):
    found = vocabulary(folder)
    assert [found[r] for r in tokenization.ROLES] == [0, 1, 2, 3, 4]
    assert found["special_ids"] == [0, 1, 2, 3, 4]
    with open(os.path.join(folder, "vocab.txt"), encoding="utf-8") as f:
        lines = f.read().splitlines()
    assert lines[:5] == list(wordpiece.BERT_SPECIALS)
    assert len(lines) == found["size"] == Tokenizer(folder).size
    assert set(found) == {*tokenization.ROLES, "size", "special_ids", "fingerprint"}


def test_training_twice_gives_the_same_tokenizer(text_file, folder, tmp_path):
    again = train(tmp_path, Lines([text_file], 1 << 20))
    assert vocabulary(again) == vocabulary(folder)


def test_the_alphabet_is_limited_to_the_most_frequent_characters(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("aab aab\nabc\n")
    folder = train(tmp_path, Lines([str(path)], 1 << 20), alphabet=2)
    with open(os.path.join(folder, "vocab.txt")) as f:
        entries = f.read().split()[5:]
    assert {"a", "b", "##a", "##b"} <= set(entries)
    assert not any("c" in e for e in entries)
    with pytest.raises(ValueError, match=r"vocabulary_size=6, but the characters .* need 9"):
        train(tmp_path, Lines([str(path)], 1 << 20), size=6, alphabet=2)


def wordpiece_folder(tmp_path, pieces, **config):
    """An existing vocabulary, imported."""
    source = tmp_path / "hf"
    source.mkdir()
    (source / "vocab.txt").write_text("\n".join([*wordpiece.BERT_SPECIALS, *pieces]) + "\n")
    if config:
        (source / "tokenizer_config.json").write_text(json.dumps(config))
    out = import_tokenizer.import_tokenizer(str(tmp_path), str(source))
    return os.path.join(str(tmp_path), out["tokenizer"])


def test_word_starts_by_hand(tmp_path):
    tokenizer = Tokenizer(wordpiece_folder(tmp_path, ["token", "##ize", "##d", "don", "'", "t"]))
    (one,) = tokenizer.encode_batch(["Tokenized zzz don't"], 16)
    #                      CLS token ##ize ##d UNK don ' t SEP
    assert one.tokens.tolist() == [2, 5, 6, 7, 1, 8, 9, 10, 3]
    assert one.word_starts.tolist() == [1, 1, 0, 0, 1, 1, 1, 1, 1]
    assert one.tokens.dtype == np.int32
    assert one.word_starts.dtype == np.bool_
    assert not one.truncated


def test_word_starts_are_the_pieces_without_hashes(folder):
    tokenizer = Tokenizer(folder)
    backend = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    for one in tokenizer.encode_batch(TEXT.splitlines(), 64):
        pieces = [backend.id_to_token(i) for i in one.tokens]
        assert one.word_starts.tolist() == [not p.startswith("##") for p in pieces]


def test_a_cut_text_keeps_its_last_special_token_and_says_so(folder):
    short, long = Tokenizer(folder).encode_batch(["fox", "fox dog " * 9], 5)
    assert (len(short.tokens), short.truncated, short.cut_off) == (3, False, 0)
    (whole,) = Tokenizer(folder).pieces(["fox dog " * 9])
    assert (len(long.tokens), long.truncated, long.cut_off) == (5, True, len(whole.tokens) - 3)
    assert long.tokens[[0, -1]].tolist() == [2, 3]


def test_special_tokens_in_a_text_are_ordinary_characters(folder):
    (one,) = Tokenizer(folder).encode_batch(["fox [SEP] [MASK] dog"], 64)
    assert one.tokens[[0, -1]].tolist() == [2, 3]
    assert not np.isin(one.tokens[1:-1], [0, 2, 3, 4]).any()


def test_empty_text_is_its_special_tokens(folder):
    (one,) = Tokenizer(folder).encode_batch([""], 8)
    assert one.tokens.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("lowercase", "strip_accents", "expected"),
    [(True, True, "passe"), (True, False, "passé"), (False, False, "Über")],
)
def test_case_and_accents(text_file, tmp_path, lowercase, strip_accents, expected):
    path = tmp_path / "more.txt"
    path.write_text(TEXT + "Über Über Über\n" * 9, encoding="utf-8")
    folder = train(tmp_path, Lines([str(path)], 1 << 20), 400, lowercase, strip_accents)
    with open(os.path.join(folder, "vocab.txt"), encoding="utf-8") as f:
        entries = set(f.read().splitlines())
    assert expected in entries
    assert any(e != e.lower() and not e.startswith("[") for e in entries) == (not lowercase)
    assert any("é" in e for e in entries) == (not strip_accents)


def test_trains_on_a_sample_of_a_mixture(text_file, tmp_path):
    member = Lines([text_file], 1 << 20)
    mixture = Mixture([("a", member, 1.0), ("b", member, 3.0)], alpha=0.5)
    assert Tokenizer(train(tmp_path, mixture, sample=12)).size > 20
    with pytest.raises(SourceError, match="only a Mixture is sampled"):
        train(tmp_path, member, sample=12)


def test_nothing_to_train_on(tmp_path):
    path = tmp_path / "empty.txt"
    path.write_text("\n \n")
    with pytest.raises(SourceError, match="no text to train a tokenizer on"):
        train(tmp_path, Lines([str(path)], 1 << 20))


def test_fingerprint_follows_content_not_truncation(folder):
    backend = tokenizers.Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    before = tokenization.fingerprint(backend.to_str())
    assert before == Tokenizer(folder).fingerprint
    backend.enable_truncation(7)
    backend.enable_padding()
    assert tokenization.fingerprint(backend.to_str()) == before
    backend.add_tokens(["newword"])
    assert tokenization.fingerprint(backend.to_str()) != before


def test_a_changed_or_missing_file_is_refused(folder, tmp_path):
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        Tokenizer(str(tmp_path))
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), encoding="utf-8") as f:
            (tmp_path / name).write_text(f.read(), encoding="utf-8")
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(text.replace('"fox"', '"fix"'), encoding="utf-8")
    with pytest.raises(TokenizerError, match="one of them was changed"):
        Tokenizer(str(tmp_path))


def test_a_size_that_is_not_the_tokenizers_is_refused(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    path = copy / "vocabulary.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "size": fields["size"] - 1}))
    with pytest.raises(
        TokenizerError, match=rf"says size {fields['size'] - 1}, but .* {fields['size']}"
    ):
        Tokenizer(str(copy))


def test_a_store_of_another_tokenizer_is_refused(folder):
    tokenizer = Tokenizer(folder)
    tokenizer.require(tokenizer.fingerprint, "store x")
    with pytest.raises(TokenizerError, match="store x was made with tokenizer ffff"):
        tokenizer.require("f" * 64, "store x")


# --- import ---


def test_import_of_our_own_folder_changes_nothing(folder, tmp_path):
    out = import_tokenizer.import_tokenizer(str(tmp_path), folder)
    imported = os.path.join(str(tmp_path), out["tokenizer"])
    assert vocabulary(imported) == vocabulary(folder)


def test_import_of_a_cased_vocabulary(tmp_path):
    tokenizer = Tokenizer(wordpiece_folder(tmp_path, ["Fox", "fox"], do_lower_case=False))
    (one,) = tokenizer.encode_batch(["Fox fox FOX"], 8)
    assert one.tokens.tolist() == [2, 5, 6, 1, 3]


def test_import_of_another_family_finds_roles_by_name(tmp_path):
    """XLM-R's layout: <s>=0, <pad>=1, </s>=2, <unk>=3, a mask at the end, and metaspace words."""
    pieces = [
        ("<s>", 0.0),
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        ("▁fox", -1.0),
        ("es", -2.0),
    ]
    backend = tokenizers.Tokenizer(tokenizers.models.Unigram([*pieces, ("▁", -3.0)], unk_id=3))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    backend.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    source = tmp_path / "hf"
    source.mkdir()
    backend.save(str(source / "tokenizer.json"))
    out = import_tokenizer.import_tokenizer(str(tmp_path), str(source))
    tokenizer = Tokenizer(os.path.join(str(tmp_path), out["tokenizer"]))
    found = tokenizer.vocabulary
    assert [found[r] for r in tokenization.ROLES] == [1, 3, 0, 2, 7]
    assert (found["size"], found["special_ids"]) == (8, [0, 1, 2, 3, 7])
    (one,) = tokenizer.encode_batch(["fox foxes"], 9)
    assert one.tokens.tolist() == [0, 4, 4, 5, 2]
    assert one.word_starts.tolist() == [1, 1, 1, 0, 1]


def test_import_says_what_is_missing(tmp_path):
    with pytest.raises(
        TokenizerError, match=r"with its tokenizer, one of tokenizer\.json, vocab\.txt"
    ):
        import_tokenizer.import_tokenizer(str(tmp_path), str(tmp_path))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\nfox\n")
    with pytest.raises(TokenizerError, match=r"missing \['\[CLS\]', '\[SEP\]', '\[MASK\]'\]"):
        import_tokenizer.import_tokenizer(str(tmp_path), str(tmp_path))


def test_import_of_chinese_left_in_words_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nfox\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenize_chinese_chars": false}')
    with pytest.raises(TokenizerError, match="tokenize_chinese_chars false"):
        import_tokenizer.import_tokenizer(str(tmp_path), str(tmp_path))


def test_import_of_another_size_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(wordpiece.BERT_SPECIALS) + "\nfox\n")
    with pytest.raises(TokenizerError, match="expected 30522 tokens, found 6"):
        import_tokenizer.import_tokenizer(str(tmp_path), str(tmp_path), vocabulary_size=30522)
    import_tokenizer.import_tokenizer(str(tmp_path), str(tmp_path), vocabulary_size=6)


@pytest.mark.parametrize(("rows", "fits"), [(5, False), (6, True), (133, True), (134, False)])
def test_import_compares_the_size_with_the_word_table(rows, fits, tmp_path):
    """Rows beyond the last token are padding, of less than 128."""
    (tmp_path / "vocab.txt").write_text("\n".join(wordpiece.BERT_SPECIALS) + "\nfox\n")
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": rows}))
    if fits:
        import_tokenizer.check(str(tmp_path), None)
        return
    with pytest.raises(TokenizerError, match=rf"has 6 tokens.*{rows} rows.*vocabulary_size = 6"):
        import_tokenizer.check(str(tmp_path), None)
    import_tokenizer.check(str(tmp_path), 6)


def test_import_of_a_damaged_file_names_it(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: expected a tokenizer"):
        import_tokenizer.check(str(tmp_path), None)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("fox")
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json: expected a JSON object"):
        import_tokenizer.check(str(tmp_path), None)


def test_transformers_opens_the_folder_and_gives_the_same_ids(folder):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    text = "The quick Füchse, tokenization"
    (ours,) = Tokenizer(folder).encode_batch([text], 64)
    assert theirs(text)["input_ids"] == ours.tokens.tolist()
    assert (theirs.pad_token_id, theirs.mask_token_id) == (0, 4)


# --- questions ---


def test_question_group_by_hand(tmp_path):
    encoder = QuestionEncoder(wordpiece_folder(tmp_path, ["q", ":", "fox", "##es"]), 7, "q: ")
    group = encoder(["foxes", ""])
    expected = {
        "tokens": [[2, 5, 6, 7, 8, 3, 0], [2, 5, 6, 3, 0, 0, 0]],
        "positions": [[0, 1, 2, 3, 4, 5, 0], [0, 1, 2, 3, 0, 0, 0]],
        "segment_ids": [[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0]],
        "word_starts": [[1, 1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 0, 0]],
        "cls_at": [[0], [0]],
        "segment_valid": [[1], [1]],
        "example_id": [[0], [1]],
    }
    assert {k: v.astype(int).tolist() for k, v in group.items()} == expected
    assert {k: v.dtype for k, v in group.items() if v.dtype != np.int32} == {
        "word_starts": np.bool_,
        "segment_valid": np.bool_,
    }
