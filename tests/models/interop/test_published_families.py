"""Folders that transformers writes, of each family but BERT: our stages give the same vectors.

Those of BERT are in test_untouched.py. The tokenizers are those of the families: SentencePiece's
unigrams for XLM-R, bytes for RoBERTa, words in pieces for ELECTRA and ModernBERT.
"""

import json
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from input_pipelines.sources import beir
from input_pipelines.tokenizers import tokenization
from tests.kits import published_folders as folders
from tests.kits.interop import needs_interop
from tests.models.interop import test_untouched

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 34,
}
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # ids 0 to 4
FAMILIES = {
    "XLMRobertaModel": {"type_vocab_size": 1},
    "RobertaModel": {"type_vocab_size": 1},
    "ElectraModel": {"embedding_size": 8},
    "ModernBertModel": {"pad_token_id": 0, "local_attention": 8, "global_attn_every_n_layers": 2},
}


def unigrams(folder: Path) -> None:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    wanted = {"special_tokens": list(ROBERTA), "unk_token": "<unk>", "vocab_size": 90}
    made.train_from_iterator(folders.TEXTS * 9, trainers.UnigramTrainer(**wanted))
    save(made, folder)


def byte_pairs(folder: Path) -> None:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    wanted = {"special_tokens": list(ROBERTA), "initial_alphabet": alphabet, "vocab_size": 300}
    made.train_from_iterator(folders.TEXTS, trainers.BpeTrainer(**wanted))
    save(made, folder)


def save(made: tokenizers.Tokenizer, folder: Path) -> None:
    ends = [(token, made.token_to_id(token)) for token in ("<s>", "</s>")]
    made.post_processor = processors.TemplateProcessing("<s> $A </s>", None, ends)
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    roles = zip(("cls", "pad", "sep", "unk", "mask"), ROBERTA, strict=True)
    named = {f"{role}_token": token for role, token in roles}
    folders.write(
        folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **named}
    )


def word_pieces(folder: Path) -> None:
    source = beir.BeirCorpus(str(folder.parent / "texts"), 1000)
    tokenization.train_tokenizer(str(folder.parent), source, 120, 64, 1, True, True, 0, 0, 0)
    (folder.parent / "tokenizer").rename(folder)


TOKENIZERS = {"XLMRobertaModel": unigrams, "RobertaModel": byte_pairs}


def published(folder: Path, kind: str) -> Path:
    """A sentence-transformers folder around a random model of transformers."""
    import torch
    import transformers

    made = folder / "encoder"
    TOKENIZERS.get(kind, word_pieces)(made)
    text = (made / "tokenizer.json").read_text()
    size = tokenizers.Tokenizer.from_str(text).get_vocab_size()
    torch.manual_seed(3)
    model = getattr(transformers, kind)
    encoder = model(model.config_class(**SIZES, vocab_size=size, **FAMILIES[kind])).eval()
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    encoder.save_pretrained(made)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    listed = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{name}"}
        for n, (name, path) in enumerate(modules)
    ]
    folders.write(made / "modules.json", listed)
    folders.write(made / "sentence_bert_config.json", {"max_seq_length": folders.MAX_LENGTH})
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    folders.write(made / "1_Pooling/config.json", pooling)
    return made


@needs_interop
@pytest.mark.parametrize(
    "kind",
    [
        "XLMRobertaModel",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in FAMILIES if kind[0] != "X"),
    ],
)
def test_vectors_through_tokenizer_stores_and_weights(kind: str, tmp_path: Path) -> None:
    texts = folders.corpus(tmp_path / "texts")
    made = published(tmp_path, kind)
    test_untouched.assert_vectors_of_sentence_transformers(tmp_path / "ours", made, texts)
    fields = json.loads((made / "config.json").read_text())
    vocabulary = json.loads((tmp_path / "ours/tokenizer/vocabulary.json").read_text())
    assert (vocabulary["pad"], vocabulary["size"]) == (fields["pad_token_id"], fields["vocab_size"])
