"""Which tokens are punctuation, of each kind of tokenizer."""

from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, models

from models.interop import punctuation


def folder(path: Path, words: list[str]) -> str:
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.add_special_tokens([AddedToken("[UNK]", special=True), AddedToken("!", special=True)])
    backend.save(str(path / "tokenizer.json"))
    return str(path)


def test_tokens_of_punctuation_alone(tmp_path: Path) -> None:
    words = ["[UNK]", "!", ",", "##.", "a,", "...", "\u2581?", "\u0120(", "\u2581", "##", "\u3002",
             "##s", "1", "'s"]  # fmt: skip
    found = punctuation.token_ids(folder(tmp_path, words))
    assert [words[one] for one in found] == [",", "##.", "...", "\u2581?", "\u0120("]


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Expected the folder of a trained or imported"):
        punctuation.token_ids(str(tmp_path))
