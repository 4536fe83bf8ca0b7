"""SentencePiece's own models as tokenizers: the library's ids, moved to where fairseq has them."""

import json
import shutil
from pathlib import Path

import pytest
import sentencepiece

from input_pipelines.tokenizers import import_tokenizer
from input_pipelines.tokenizers.tokenization import Tokenizer, TokenizerError

LINES = ["the quick brown fox jumps over lazy dogs", "hello world again", "東京に行く ペンです"]
TEXTS = ["hello fox, 東京 world", "  two  spaces ", "ﬁne ＡＢ", "lazy ☃ dogs", "ペンです"]


def train(folder, **options):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lines.txt").write_text("\n".join(LINES * 30))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "lines.txt"), model_prefix=str(folder / "m"), vocab_size=60,
        hard_vocab_limit=False, minloglevel=2, **options,
    )  # fmt: skip
    (folder / "hf").mkdir()
    shutil.copy(folder / "m.model", folder / "hf/sentencepiece.bpe.model")
    return folder / "hf"


def imported(folder, out):
    import_tokenizer.import_tokenizer(str(out), str(folder))
    return Tokenizer(str(out / "tokenizer"))


def test_ids_are_the_librarys_moved_by_one(tmp_path):
    folder = train(tmp_path)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    ours = imported(folder, tmp_path / "out")
    roles = [ours.vocabulary[r] for r in ("cls", "pad", "sep", "unk", "mask")]
    assert roles == [0, 1, 2, 3, theirs.vocab_size() + 1]
    for text, one in zip(TEXTS, ours.encode_batch(TEXTS, 64), strict=True):
        expected = [3 if i == 0 else i + 1 for i in theirs.encode(text)]
        assert one.tokens.tolist() == [0, *expected, 2], text


def test_other_models_and_damaged_ones_are_refused(tmp_path):
    with pytest.raises(TokenizerError, match="expected a Unigram model.*found type 2"):
        imported(train(tmp_path / "bpe", model_type="bpe"), tmp_path / "out")
    folder = train(tmp_path / "cut")
    path = Path(folder, "sentencepiece.bpe.model")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(TokenizerError, match="cut short at byte"):
        imported(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", {"model_type": "camembert"}),
        ("tokenizer_config.json", {"tokenizer_class": "MBartTokenizer"}),
    ],
)
def test_a_file_of_that_name_with_other_ids_is_refused(tmp_path, file, content):
    folder = train(tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "xlm-roberta"}))
    imported(folder, tmp_path / "out")
    (folder / file).write_text(json.dumps(content))
    with pytest.raises(TokenizerError, match="numbers pieces in its own way"):
        imported(folder, tmp_path / "other")
