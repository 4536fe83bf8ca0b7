"""BERT's WordPiece tokenizer: made from a vocabulary, or trained on text."""

import collections
from collections.abc import Callable, Iterator, Sequence

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
LONGEST_WORD = 100  # characters of a word in transformers' BERT; the original code has 200

# Between "r" and "F" of "forwardFill", and between "P" and "S" of "HTTPServer".
CASE_CHANGE = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"


def new_wordpiece(
    lowercase: bool, strip_accents: bool, split_case: bool = False
) -> tokenizers.Tokenizer:
    """BERT's tokenizer without a vocabulary: clean-up, words and punctuation, WordPiece.

    Args:
      lowercase, strip_accents, split_case: see `train_tokenizer`.
    """
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token=BERT_SPECIALS[1]))
    bert = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=strip_accents,
        lowercase=lowercase,
    )
    split = normalizers.Replace(tokenizers.Regex(CASE_CHANGE), " ")
    tokenizer.normalizer = normalizers.Sequence([split, bert]) if split_case else bert
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def train_wordpiece(
    texts: Callable[[], Iterator[str]],
    vocabulary_size: int,
    alphabet_size: int,
    min_frequency: int,
    lowercase: bool,
    strip_accents: bool,
    longest_word: int = LONGEST_WORD,
    split_case: bool = False,
) -> tokenizers.Tokenizer:
    """Trains BERT-style WordPiece; the same texts give the same vocabulary.

    The library numbers the characters inside words ("##a") in the order of a randomly seeded hash
    map and breaks ties between merges by these numbers, so two runs differ. Hence three readings:
    count characters; collect the "##" characters; train with both given in sorted order.

    Args:
      texts: called for each reading.
      vocabulary_size, min_frequency, lowercase, strip_accents, longest_word, split_case: see
        train_tokenizer.
      alphabet_size: the most distinct characters; the rarest become unknown.
    """
    empty = new_wordpiece(lowercase, strip_accents, split_case)
    counts: collections.Counter[str] = collections.Counter()
    for text in texts():
        counts.update(empty.normalizer.normalize_str(text))
    characters = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    alphabet = sorted(characters[:alphabet_size])

    def train(size: int, given: Sequence[str]) -> dict[str, int]:
        tokenizer = new_wordpiece(lowercase, strip_accents, split_case)
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=min_frequency,
            special_tokens=[*BERT_SPECIALS, *given],
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            continuing_subword_prefix="##",
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts(), trainer)
        return dict(tokenizer.get_vocab())

    inside = sorted(token for token in train(1, []) if len(token) == 3 and token.startswith("##"))
    vocabulary = train(vocabulary_size, inside)
    return from_vocabulary(vocabulary, lowercase, strip_accents, longest_word, split_case)


def from_vocabulary(
    vocabulary: dict[str, int],
    lowercase: bool,
    strip_accents: bool,
    longest_word: int = LONGEST_WORD,
    split_case: bool = False,
) -> tokenizers.Tokenizer:
    """BERT's tokenizer with a vocabulary that holds the five special tokens."""
    tokenizer = new_wordpiece(lowercase, strip_accents, split_case)
    tokenizer.model = models.WordPiece(
        vocabulary, unk_token=BERT_SPECIALS[1], max_input_chars_per_word=longest_word
    )
    tokenizer.add_special_tokens(list(BERT_SPECIALS))
    cls, sep = BERT_SPECIALS[2], BERT_SPECIALS[3]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, vocabulary[cls]), (sep, vocabulary[sep])],
    )
    return tokenizer
