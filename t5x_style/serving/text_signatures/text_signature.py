"""Signatures that take texts: which a model gets, and why it does not get the others.

    embed_query_text, embed_passage_text    text, string [b] in UTF-8 -> what embed_query gives

The contract's prefix, the tokenizer and the padding are inside the graph, so that a client sends
what a person wrote. Only a tokenizer that the graph equals is offered: it is asked about each code
point (`code_points`), and both are compared on texts before anything is written.
"""

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from t5x_style.interfaces.contract import TITLE_AND_BODY, Contract, Vocabulary
from t5x_style.interfaces.representation import PASSAGE, SIDES, function_name
from t5x_style.serving import saved_model, warmup_requests
from t5x_style.serving.text_signatures import code_points, sample_texts, wordpiece_graph

# As in `input_pipelines.tokenizers.wordpiece`, of which an export has no code.
CASE_CHANGE = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
LONGEST_BATCH = 1 << 21  # bytes; each takes some hundred bytes while it is tokenized
_SPLIT_CASE = {"type": "Replace", "pattern": {"Regex": CASE_CHANGE}, "content": " "}


class NotInGraphError(ValueError):
    """A tokenizer that the graph cannot equal; says what was expected, and what was found."""


@dataclasses.dataclass(frozen=True)
class Offered:
    """What a SavedModel takes as texts.

    Attributes:
      signatures: of `saved_model.save`.
      left_out: name of a signature -> why the model does not have it.
    """

    signatures: Mapping[str, saved_model.TextSignature]
    left_out: Mapping[str, str]


def offered(folder: Path, contract: Contract, functions: Iterable[str]) -> Offered:
    """The signatures that take texts, for the functions that embed.

    Args:
      folder: of the tokenizer, with tokenizer.json and vocabulary.json.
      contract: of the model.
      functions: signatures of the model on tokens.
    """
    sides = {f"{name}_text": side for side in SIDES if (name := function_name(side)) in functions}
    left_out: dict[str, str] = {}
    if contract.passage_layout == TITLE_AND_BODY:
        for name in [name for name, side in sides.items() if side == PASSAGE]:
            del sides[name]
            left_out[name] = (
                f"its passages have a title and a body apart (layout {TITLE_AND_BODY!r}), but a "
                "signature on texts takes one text; send token ids"
            )
    if not sides:
        return Offered({}, left_out)
    try:
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        backend.encode_special_tokens = True  # "[SEP]" in a text is text
        backend.no_padding()
        backend.no_truncation()
        vocabulary = Vocabulary.load(str(folder))
        tokenize = wordpiece_graph.tokenizer(of_tokenizer(backend))
        _require_specials(backend, vocabulary)
        prefixes = {getattr(contract, f"{side}_prefix") for side in sides.values()}
        require_equal(backend, tokenize, [p + t for p in prefixes for t in sample_texts.TEXTS])
    except NotInGraphError as error:
        return Offered({}, left_out | dict.fromkeys(sides, str(error)))
    found = {
        name: _signature(side, contract, vocabulary, tokenize, backend)
        for name, side in sides.items()
    }
    return Offered(found, left_out)


def of_tokenizer(backend: tokenizers.Tokenizer) -> wordpiece_graph.WordPiece:
    """A tokenizer as the graph takes it.

    Raises:
      NotInGraphError: it is no WordPiece tokenizer of BERT's kind.
    """
    facts = json.loads(backend.to_str())
    kinds = [facts[part] and facts[part]["type"] for part in ("model", "pre_tokenizer")]
    normalizer = facts["normalizer"] or {"type": None}
    parts = normalizer["normalizers"] if normalizer["type"] == "Sequence" else [normalizer]
    split_case = parts[:1] == [_SPLIT_CASE]
    parts = parts[split_case:]
    kinds += [part["type"] for part in parts]
    if kinds != ["WordPiece", "BertPreTokenizer", "BertNormalizer"]:
        raise NotInGraphError(
            "expected a tokenizer of BERT's kind (WordPiece, BertPreTokenizer, BertNormalizer), "
            f"found {kinds[0]} with {', '.join(map(str, kinds[1:]))}; send token ids"
        )
    added = [one["content"] for one in facts["added_tokens"] if not one["special"]]
    if added:
        raise NotInGraphError(
            f"expected no added tokens but special ones, found {added[:3]}, which the tokenizer "
            "finds before it looks for words; send token ids"
        )
    model, bert = facts["model"], parts[0]
    if model["unk_token"] not in model["vocab"]:
        raise NotInGraphError(
            f"expected the unknown token {model['unk_token']!r} in the vocabulary, found none; "
            "send token ids"
        )
    lowercase, strips = bert["lowercase"], bert["strip_accents"]
    return wordpiece_graph.WordPiece(
        points=code_points.of_bert(
            bert["clean_text"],
            bert["handle_chinese_chars"],
            lowercase if strips is None else strips,
            lowercase,
        ),
        vocabulary=model["vocab"],
        continuing=model["continuing_subword_prefix"],
        unknown=model["vocab"][model["unk_token"]],
        longest_word=model["max_input_chars_per_word"],
        split_case=split_case,
    )


def _require_specials(backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Raises NotInGraphError unless texts become [CLS] text [SEP]."""
    inside = backend.encode("a", add_special_tokens=False).ids
    found, expected = backend.encode("a").ids, [vocabulary.cls, *inside, vocabulary.sep]
    if found != expected:
        raise NotInGraphError(
            f"expected [CLS], a text and [SEP], as ids {expected} for 'a', found {found}; send "
            "token ids"
        )


def require_equal(
    backend: tokenizers.Tokenizer, tokenize: Callable[[Any], Any], texts: Sequence[str]
) -> None:
    """Compares the graph with the tokenizer.

    Args:
      backend: that special tokens in texts are text for.
      tokenize: of `wordpiece_graph.tokenizer`.
      texts: any.

    Raises:
      NotInGraphError: the ids of a text differ.
    """
    tf = saved_model.cpu_only_tensorflow()
    encoded = backend.encode_batch(list(texts), add_special_tokens=False)
    made = tokenize(tf.constant(list(texts))).to_list()
    for text, one, found in zip(texts, encoded, made, strict=True):
        if one.ids != found:
            raise NotInGraphError(
                f"expected the tokenizer's ids of {text!r:.80}, {one.ids[:20]}, found "
                f"{found[:20]} in the graph: the library tokenizers "
                f"({tokenizers.__version__}) works in a way that the graph does not know; send "
                "token ids"
            )


def _signature(
    side: str,
    contract: Contract,
    vocabulary: Vocabulary,
    tokenize: Callable[[Any], Any],
    backend: tokenizers.Tokenizer,
) -> saved_model.TextSignature:
    length = int(getattr(contract, f"{side}_length"))
    prefix = str(getattr(contract, f"{side}_prefix"))
    inputs = _inputs(tokenize, prefix, length, vocabulary)
    fewest = len(backend.encode(prefix).ids)
    warmups = []
    for width in warmup_requests.lengths(length):
        if width >= min(fewest, length):
            warmups.append(" a" * max(0, width - fewest))  # a word is one token, or unknown
    return saved_model.TextSignature(function_name(side), inputs, tuple(warmups))


def _inputs(
    tokenize: Callable[[Any], Any], prefix: str, length: int, vocabulary: Vocabulary
) -> Callable[[Any], dict[str, Any]]:
    """A TensorFlow function from texts to ids and mask, padded to a length of warm-up requests."""
    tf = saved_model.cpu_only_tensorflow()
    widths = list(warmup_requests.lengths(length))

    def checked(text: Any) -> Any:
        # At run time: TensorFlow believes the ranks that a signature declares, whatever comes.
        text = tf.ensure_shape(text, (None,))
        size = tf.reduce_sum(tf.strings.length(text))
        short = tf.debugging.Assert(
            size <= LONGEST_BATCH,
            [f"text: expected at most {LONGEST_BATCH} bytes in a batch, found", size],
        )
        with tf.control_dependencies([short]):
            decoded = tf.strings.unicode_decode(text, "UTF-8", errors="replace")
        # Without the text: an error message is UTF-8, too.
        wrong = tf.where(tf.strings.unicode_encode(decoded, "UTF-8") != text)[:1]
        checks = [
            tf.debugging.Assert(
                tf.size(text) > 0,
                ["text: expected at least 1 text, found an empty batch", tf.shape(text)],
            ),
            tf.debugging.Assert(
                tf.size(wrong) == 0,
                ["text: expected Unicode in UTF-8, found other bytes in the text at", wrong],
            ),
        ]
        with tf.control_dependencies(checks):
            return tf.identity(text)

    def inputs(text: Any) -> dict[str, Any]:
        with tf.device("/CPU:0"):
            ids = tokenize(tf.strings.join([prefix, checked(text)]))[:, : length - 2]
            ends = tf.ones((ids.nrows(), 1), tf.int32)
            ids = tf.concat([ends * vocabulary.cls, ids, ends * vocabulary.sep], 1)
            counts = tf.cast(ids.row_lengths(), tf.int32)
            fitting = tf.searchsorted(widths, tf.reduce_max(counts)[None])[0]
            width = tf.gather(widths, fitting)
            return {
                "input_ids": ids.to_tensor(vocabulary.pad, shape=tf.stack([-1, width])),
                "attention_mask": tf.sequence_mask(counts, width, tf.int32),
            }

    return tf.autograph.experimental.do_not_convert(inputs)
