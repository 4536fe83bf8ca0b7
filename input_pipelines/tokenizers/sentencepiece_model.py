"""A Unigram model of SentencePiece, with fairseq's ids (XLM-R), as a tokenizer.

fairseq's ids are <s> 0, <pad> 1, </s> 2, <unk> 3, then the model's pieces from its own id 3 on,
moved up by one, and <mask> after them. The file is read by its wire format (SentencePiece's
sentencepiece_model.proto): its generated classes want a newer protobuf than other libraries allow.
"""

import struct
from collections.abc import Iterator

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

_FIRST = (("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0))
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3  # fields of ModelProto
_TEXT, _SCORE = 1, 2  # of SentencePiece
_MODEL_TYPE, _UNIGRAM = 3, 1  # of TrainerSpec; Unigram is the default
_CHARSMAP = 2  # of NormalizerSpec
_OWN = ["<unk>", "<s>", "</s>"]  # the model's own ids 0, 1, 2


def read(path: str) -> tokenizers.Tokenizer:
    """The tokenizer of a `sentencepiece.bpe.model` as XLM-R's.

    Raises:
        ValueError: not a Unigram model whose first pieces are <unk>, <s>, </s>, or damaged.
    """
    with open(path, "rb") as file:
        model = list(_fields(file.read(), path))
    pieces = [_piece(value, path) for number, value in model if number == _PIECES]
    trainer = dict(_fields(_last(model, _TRAINER), path))
    kind, first = trainer.get(_MODEL_TYPE, _UNIGRAM), [text for text, _ in pieces[:3]]
    if kind != _UNIGRAM or first != _OWN:
        raise ValueError(
            f"{path}: expected a Unigram model (type {_UNIGRAM}) that begins with {_OWN}, found "
            f"type {kind!r} and {first}; convert it to a tokenizer.json with its own library"
        )
    charsmap = dict(_fields(_last(model, _NORMALIZER), path)).get(_CHARSMAP)
    entries = [*_FIRST, *pieces[3:], ("<mask>", 0.0)]
    tokenizer = tokenizers.Tokenizer(models.Unigram(entries, unk_id=3, byte_fallback=False))
    steps = [normalizers.Precompiled(charsmap)] if isinstance(charsmap, bytes) and charsmap else []
    collapse = [normalizers.Strip(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence([*steps, *collapse])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([*(token for token, _ in _FIRST), "<mask>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return tokenizer


def _piece(message: int | bytes, path: str) -> tuple[str, float]:
    fields = dict(_fields(message, path))
    text, score = fields[_TEXT], fields.get(_SCORE, b"\0\0\0\0")
    assert isinstance(text, bytes) and isinstance(score, bytes)
    return text.decode("utf-8"), struct.unpack("<f", score)[0]


def _last(model: list[tuple[int, int | bytes]], number: int) -> int | bytes:
    return next((value for field, value in reversed(model) if field == number), b"")


def _fields(message: int | bytes, path: str) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of a message's fields; fixed-size ones as bytes.

    Raises:
        ValueError: the message ends inside a field, or holds what no message does.
    """
    if not isinstance(message, bytes):
        raise ValueError(f"{path}: expected a SentencePiece model, found something else")
    at = 0
    try:
        while at < len(message):
            tag, at = _varint(message, at)
            kind = tag & 7
            if kind == 0:
                value, at = _varint(message, at)
                yield tag >> 3, value
                continue
            size = {1: 8, 5: 4}.get(kind)
            if kind == 2:
                size, at = _varint(message, at)
            if size is None or at + size > len(message):
                raise IndexError(at)
            yield tag >> 3, message[at : at + size]
            at += size
    except IndexError:
        raise ValueError(f"{path}: no SentencePiece model, or cut short at byte {at}") from None


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A base-128 number and where the next field begins."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
