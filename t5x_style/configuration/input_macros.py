"""Macros that are paths of inputs, in every gin file: what is there is part of what a result is.

A macro has one meaning, so whether it is an input is said here once. A stage's inputs are those of
these macros that its bindings lead to. For a macro of yours, and for a file that a job reads but
no binding names, there is `stage.run.inputs = [%NAME]`.
"""

from t5x_style.configuration import gin_macros
from t5x_style.configuration.gin_reader import Config

_GIVEN = """
ARTICLES ARTICLES_FILE BIBLE BUCC COLLECTION CORPUS CURATED_TEST CURATED_TRAIN DEVELOPMENT_FOLDER
DOCUMENTS ENTITY_TEST ENTITY_TRAIN GUIDES LABELLED_CORPUS LABELLED_DATA LANGUAGES NQ_TEST NQ_TRAIN
NTREX OPUS OTHER_COLLECTIONS PAIR_FILE PAIR_FOLDER PUBLISHED PUBLISHED_GENERATOR PYTHON_DOCS
QED_TEST QED_TRAIN QUESTION_FILE QUESTION_FOLDER SPANS_FILE SQUAD_TEST SQUAD_TRAIN STORYBOOKS
STS_FILE TATOEBA TEST_FILE TEST_QRELS TEST_QUERIES TEXTS TICO19 TRAIN_FILE TRAIN_QRELS TRAIN_QUERIES
TRIPLES TUTORIAL WEB_TEST WEB_TRAIN XQUAD
"""
_MADE = """
ANSWERS ANSWER_FILE BLOCK_TEXTS CHECKPOINT CHUNKS DEVELOPMENT_ANSWERS DEVELOPMENT_CHUNKS
DEVELOPMENT_PAIRS DEVELOPMENT_QUESTIONS DEVELOPMENT_TRANSLATIONS DEV_NEGATIVES EMBEDDINGS
EVALUATED_CHUNKS EVALUATION FIRST_STORE FURTHER GENERATED GIVEN_NEGATIVES HELD_OUT INDEX
INTERPOLATION_REPORT LABELLED_PAIRS LABELLED_REPORT LABSE MARGE MINER NEGATIVES NTREX_CHUNKS
NTREX_STORE ORIGINAL OTHERS_SCORES PARAGRAPH_STORE PER_QUERY PRETRAINED PRETRAINED_READER QA
QUERY_STORE QUESTION_STORE READ_CHUNKS REFERENCES RERANKER SECOND_STORE SENTENCES SENTENCE_FOLDER
SOURCE_STORE STORE TARGET_STORE TATOEBA_STORE TOKENIZER TRAINED_ON TRAININGS TRANSLATIONS
TRANSLATION_FILE TUNED VERDICT VERDICT_PAGE WINDOWS WRITTEN
"""
NAMES = frozenset(_GIVEN.split()) | frozenset(_MADE.split())  # from outside, and from other stages


def of(config: Config) -> list[str]:
    """Those that a stage's configuration leads to, in alphabetical order.

    A macro of a user that has one of these names, and a number, is none.
    """
    return sorted(
        name
        for name in NAMES & gin_macros.needed(config)
        if name not in config.macros or not isinstance(config.macros[name].value, int | float)
    )
