"""The tokenizers of other families, in transformers, from the folder of a fine-tuned encoder."""

import json
import shutil
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from input_pipelines.tokenizers import import_tokenizer, tokenization
from models.interop import kept_files
from tests.kits import published_folders as folders

TEXTS = [*folders.TEXTS, "naïve CAFÉ 中文!", "[SEP] <s> in a text </s>", "key " * 40]
LENGTH = 16
SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
FIELDS = dict(
    zip(("cls_token", "pad_token", "sep_token", "unk_token", "mask_token"), SPECIALS, strict=True)
)


def roberta() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(TEXTS, trainer)
    made.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), add_prefix_space=False
    )
    return made


def xlm_roberta() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=90, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(TEXTS * 20, trainer)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return made


FAMILIES = {
    "RobertaTokenizer": roberta,
    "XLMRobertaTokenizer": xlm_roberta,
    "PreTrainedTokenizerFast": roberta,  # as ModernBERT's
}


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_the_training(family, tmp_path):
    from transformers import AutoTokenizer

    published, folder = tmp_path / "published", tmp_path / "folder"
    published.mkdir()
    made = FAMILIES[family]()
    made.save(str(published / "tokenizer.json"))
    made.model.save(str(published))  # vocab.json and merges.txt, or unigram.json
    settings = FIELDS | {"tokenizer_class": family, "mine": 1, "padding_side": "left"}
    folders.write(published / "tokenizer_config.json", settings)
    import_tokenizer.import_tokenizer(str(tmp_path), str(published))
    exported(tmp_path / "tokenizer", folder)
    kept_files.keep_tokenizer(published, folder, LENGTH)
    opened = AutoTokenizer.from_pretrained(str(folder))
    wanted = tokenization.Tokenizer(str(tmp_path / "tokenizer")).encode_batch(TEXTS, LENGTH)
    found = opened(TEXTS, truncation=True)["input_ids"]
    assert found == [one.tokens.tolist() for one in wanted]
    kept = json.loads((folder / "tokenizer_config.json").read_text())
    assert kept.get("padding_side", "right") == "right"


def exported(tokenizer: Path, folder: Path) -> None:
    """What `export_hf` leaves of a tokenizer."""
    shutil.copytree(tokenizer, folder)
    ours = json.loads((folder / "tokenizer_config.json").read_text())
    more = {"model_max_length": LENGTH, "model_input_names": ["input_ids", "attention_mask"]}
    folders.write(folder / "tokenizer_config.json", ours | more | {"split_special_tokens": True})


def test_a_tokenizer_that_transformers_reads_otherwise_is_refused(tmp_path):
    published, folder = tmp_path / "published", tmp_path / "folder"
    published.mkdir()
    roberta().save(str(published / "tokenizer.json"))
    folders.write(published / "tokenizer_config.json", FIELDS)
    import_tokenizer.import_tokenizer(str(tmp_path), str(published))
    exported(tmp_path / "tokenizer", folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    folders.write(folder / "tokenizer_config.json", settings | {"model_max_length": LENGTH - 1})
    with pytest.raises(kept_files.KeptFilesError, match="transformers' tokenizer does not give"):
        kept_files.keep_tokenizer(published, folder, LENGTH)
