"""Tiny inputs of the jobs whose outputs are recorded, see job_outputs.py.

Each function writes inputs to the current folder and returns the arguments of each run of the job,
without `model_dir`. Paths are relative, because some outputs repeat them. Inputs come from no other
job where possible, so that a change of one job does not change the outputs of others.
"""

import dataclasses
import itertools
import json
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from input_pipelines.batches import question_windows
from input_pipelines.batches.classifier_batches import LabelledPairs
from input_pipelines.batches.translation_rows import TranslationFile, Translations
from input_pipelines.gather import (
    dev_split,
    documents,
    language_sentences,
    python_docs,
    translations,
)
from input_pipelines.marge import chunk_layout
from input_pipelines.sources import (
    beir,
    bitext,
    bitext_tables,
    mixtures,
    msmarco,
    qed,
    question_sets,
    squad,
    text_sources,
    triples,
)
from input_pipelines.sources.labelled_pair_files import PairLines
from input_pipelines.sources.squad_questions import AskedPassages
from input_pipelines.store import block_layout, layouts, prepare, salient_spans
from input_pipelines.tokenizers import tokenization, wordpiece
from t5x_style.mining import candidates, hard_negatives
from tests.input_pipelines.batches import test_open_qa_batches
from tests.input_pipelines.gather import (
    test_documents,
    test_language_sentences,
    test_question_collection,
)
from tests.input_pipelines.sources import test_triples
from tests.input_pipelines.store import test_block_layout
from tests.input_pipelines.tokenizers import test_tokenization
from tests.kits import labelled_texts, question_texts, retrieval_helpers, tiny_stores
from tests.t5x_style.mining import test_hard_negatives

Runs = Mapping[str, Mapping[str, Any]]  # folder of a run, "" for a single one -> arguments

LINE_BYTES = 1 << 20


def _lines(path: str, lines: Iterable[str]) -> str:
    """Writes lines to a file and returns its path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _rows(path: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """Writes JSON lines to a file and returns its path."""
    return _lines(path, (json.dumps(row, ensure_ascii=False) for row in rows))


def _jsonl(path: str, rows: Iterable[Mapping[str, Any]]) -> text_sources.Jsonl:
    return text_sources.Jsonl([_rows(path, rows)], ["id"], "title", "text", "", LINE_BYTES)


def _tokenizer(texts: Iterable[str]) -> str:
    """Writes a tokenizer that has all characters and half of the words of some texts.

    No job makes it: a change of train_tokenizer changes the outputs of no other job.
    """
    empty = wordpiece.new_wordpiece(lowercase=True, strip_accents=True)
    split, normalise = empty.pre_tokenizer.pre_tokenize_str, empty.normalizer.normalize_str
    words = sorted({word for text in texts for word, _ in split(normalise(text))})
    letters = sorted(set("".join(words)))
    specials = wordpiece.BERT_SPECIALS
    entries = [*specials, *letters, *(f"##{letter}" for letter in letters)]
    entries += [word for word in words[::2] if len(word) > 1]
    ids = {entry: number for number, entry in enumerate(entries)}
    made = wordpiece.from_vocabulary(ids, lowercase=True, strip_accents=True)
    roles = dict(zip(tokenization.ROLES, specials, strict=True))
    tokenization.write_folder("tokenizer", made, roles, {})
    return "tokenizer"


def _texts(*given: text_sources.TextSource) -> list[str]:
    """The texts of some sources, of which each may have one malformed record."""
    return [
        tokenization.join_title(record.title, record.text)
        for source in given
        for record in source.records(text_sources.BadRecords(1, quiet=True))
    ]


# --- tokenizers -----------------------------------------------------------------------------------


def train_tokenizer() -> Runs:
    """Cased, and lower case from a sampled mixture with tokens of languages."""
    lines = test_tokenization.TEXT.splitlines()
    whole = text_sources.Lines([_lines("lines.txt", lines)], LINE_BYTES)
    part = text_sources.Lines([_lines("part.txt", lines[:2])], LINE_BYTES)
    mixture = mixtures.Mixture([("whole", whole, 1.0), ("part", part, 3.0)], alpha=0.5)
    given = {"alphabet_size": 30, "min_frequency": 1, "seed": 3, "max_bad_records": 0}
    cased = {"lowercase": False, "strip_accents": False, "longest_word": 12}
    lower = {"lowercase": True, "strip_accents": True, "languages": _lines("codes", ['["de"]'])}
    return {
        "cased": given | cased | {"source": whole, "vocabulary_size": 150, "sample": 0},
        "lower": given | lower | {"source": mixture, "vocabulary_size": 120, "sample": 12},
    }


def import_tokenizer() -> Runs:
    """One folder of each kind of file that is read."""
    specials = wordpiece.BERT_SPECIALS
    _lines("wordpiece/vocab.txt", [*specials, "fox", "Fox", "##es", "é"])
    _lines("wordpiece/tokenizer_config.json", ['{"do_lower_case": false, "model_max_length": 64}'])
    ids = {token: number for number, token in enumerate(["<mask>", *specials])}
    _lines("whole/special_tokens_map.json", ['{"mask_token": {"content": "<mask>"}}'])
    wordpiece.from_vocabulary(ids, lowercase=True, strip_accents=False).save("whole/tokenizer.json")
    os.mkdir("unigram")
    Path("unigram/sentencepiece.bpe.model").write_bytes(_sentencepiece())
    return {folder: {"folder": folder} for folder in ("wordpiece", "whole", "unigram")}


def _sentencepiece() -> bytes:
    """A Unigram model of a few pieces in SentencePiece's format, see sentencepiece_model.py."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁fox", -1.5), ("es", -2.25), ("▁", -3)]

    def field(number: int, value: bytes) -> bytes:
        return bytes([number << 3 | 2, len(value)]) + value

    return b"".join(
        field(1, field(1, text.encode()) + bytes([2 << 3 | 5]) + struct.pack("<f", score))
        for text, score in pieces
    )


def vocabulary_report() -> Runs:
    """A language that is known, with a word that is too long, and one that is not."""
    texts = {"de": ["das Haus ist alt", "s" * 120], "ja": ["家は古い", "the old house"]}
    for code, lines in texts.items():
        rows = [{"_id": str(number), "text": text} for number, text in enumerate(lines * 3)]
        _rows(f"sentences/{code}.jsonl", rows)
    mixture = language_sentences.mixture("sentences", 0.3)
    tokenizer = _tokenizer([*texts["de"], "the house"])
    return {
        "": {"tokenizer": tokenizer, "sentences": mixture, "max_sentences": 4, "max_unknown": 1.0}
    }


# --- token stores ---------------------------------------------------------------------------------


def prepare_stores() -> Runs:
    """One store of each layout."""
    words = "alpha beta gamma delta epsilon zeta eta theta".split()
    rows = [{"id": f"p{n}", "title": words[n], "text": " ".join(words[: n + 1])} for n in range(8)]
    rows += [{"id": "empty", "title": "", "text": " "}, {"id": "p0", "title": "", "text": "again"}]
    sides = {n: {"source": "the sea " * n, "target": "das Meer " * n} for n in range(1, 6)}
    pairs = _rows("pairs.jsonl", [{"id": f"en_de/{n}"} | both for n, both in sides.items()])
    texts = [{"id": f"de/x/{n}", "title": "", "text": " ".join(words * n)} for n in range(1, 5)]
    for language in question_texts.LANGUAGES:
        _rows(f"{language}.jsonl", itertools.islice(question_texts.paragraphs(language), 2))
    asked = AskedPassages(".", "{language}.jsonl", question_texts.LANGUAGES)
    windows = question_windows.QuestionWindows(question_texts.QUESTION, question_texts.STRIDE)
    labelled = _rows("labels.jsonl", itertools.islice(labelled_texts.lines(), 10))
    classes, listed = labelled_texts.CLASSES, test_block_layout.Listed()
    runs: dict[str, tuple[text_sources.TextSource, int, layouts.Layout]] = {
        "texts": (_jsonl("texts.jsonl", rows), 8, layouts.WHOLE_TEXTS),
        "blocks": (listed, 24, block_layout.Blocks(salient_spans.Rules())),
        "title_and_body": (listed, 16, block_layout.TitleAndBody()),
        "chunks": (_jsonl("documents.jsonl", texts), 12, chunk_layout.Chunks(2)),
        "translations": (TranslationFile(pairs), 15, Translations(8)),
        "labelled_pairs": (PairLines(labelled, classes), 15, LabelledPairs(8, classes)),
        "question_windows": (asked, question_texts.WINDOW, windows),
    }
    given = {"tokenizer": _tokenizer(_texts(*(source for source, _, _ in runs.values())))}
    given |= {"name": "tiny", "split": "train", "kind": "text", "shard_size": 3, "workers": 1}
    found = {
        name: given | {"source": source, "length": length, "layout": layout, "prefix": ""}
        for name, (source, length, layout) in runs.items()
    }
    found["texts"] |= {"prefix": "query: ", "kind": "query"}
    return {name: one | {"max_bad_records": 1} for name, one in found.items()}


def block_collection() -> Runs:
    """A store of random rows."""
    return {"": {"store": str(tiny_stores.write_store(Path("store"), [5, 9, 7]))}}


def answer_forms() -> Runs:
    """The stores are made by `prepare`: what changes there changes these outputs, too."""
    passages, questions = test_open_qa_batches.Passages(), test_open_qa_batches.Questions()
    tokenizer = _tokenizer(_texts(passages, questions))
    for name, source, layout in (
        ("corpus", passages, block_layout.Blocks(None)),
        ("questions", questions, layouts.WHOLE_TEXTS),
    ):
        settings = ("all", "text", 40, "", 8, 1, 0, layout)
        prepare.prepare(name, source, tokenizer, name, *settings)
    asked = test_open_qa_batches.ASKED.items()
    rows = [{"_id": name, "answers": given, "answer_type": kind} for name, (given, kind) in asked]
    given = {"corpus": "corpus/store", "questions": "questions/store", "tokenizer": tokenizer}
    given |= {"answers": _rows("answers.jsonl", rows), "workers": 1, "max_bad_records": 0}
    return {"": given | {"max_forms": 1, "max_form_length": 12}}


# --- collections ----------------------------------------------------------------------------------


def collection() -> Runs:
    """From a BEIR folder with a part held out, from triples, and from MS MARCO's files."""
    folder = retrieval_helpers.write_corpus(Path("beir"))
    judged = dev_split.BeirJudgements(folder, "test")
    parts = {name: dev_split.HoldOutSplit(judged, 0.5, name == "dev") for name in ("train", "dev")}
    lines = _lines("triples.tsv", test_triples.TEXTS)
    table = _lines("collection.tsv", ["0\tone", "1\ttwo\twith a tab", "no tab"])
    asked = _lines("queries.tsv", ["10\t first", "11\tunanswered", "13\tunjudged"])
    qrels = _lines("qrels", ["10 0 1 1", "10 0 0 0", "11 0 0 0", "12 0 1 1"])
    given = {
        "beir": (
            beir.BeirCorpus(folder, LINE_BYTES),
            beir.BeirQueries(folder, ("test", "dev"), LINE_BYTES),
            parts | {"test": dev_split.BeirJudgements(folder, "dev")},
        ),
        "triples": (
            triples.Texts(lines, queries=False),
            triples.Texts(lines, queries=True),
            {"train": triples.Positives(lines)},
        ),
        "msmarco": (msmarco.Tsv(table), msmarco.Tsv(asked), {"test": msmarco.TrecQrels(qrels)}),
    }
    names = ("passages", "queries", "judgements")
    return {
        run: dict(zip(names, values, strict=True)) | {"max_bad_records": 2}
        for run, values in given.items()
    }


def question_collection() -> Runs:
    """Two sets of questions and half of some articles."""
    squad_row, qed_row = test_question_collection.squad_row, test_question_collection.qed_row
    paragraphs = [squad_row(f"S{article}", para) for article in range(4) for para in range(2)]
    asked = [qed_row(1, "One and two .", [["One", "two"], ["One"]]), qed_row(2, "Two .", [["2"]])]
    tested = [qed_row(5, "Five .", [["Five"]], title="Other")]
    sets = [
        question_sets.GoldSet(
            *(name, reader, [_rows(f"{name}_train.jsonl", train)]),
            *([_rows(f"{name}_test.jsonl", test)], 1.0, dev_share, 0),
        )
        for name, reader, train, test, dev_share in (
            ("squad", squad.paragraphs, paragraphs, [squad_row("T", 0)], 0.25),
            ("qed_nq", qed.paragraphs, asked, tested, 0.0),
        )
    ]
    rows = [{"id": str(n), "title": f"Article {n}", "text": f"Text {n}."} for n in range(20)]
    given = {"sets": sets, "articles": _jsonl("articles.jsonl", rows), "max_bad_records": 0}
    return {"": given | {"share": 0.5, "seed": 1}}


def gather_questions() -> Runs:
    """A collection of which one training question is in the test, and a set of which 8 are read."""
    splits = {"train": ("q0", "q1"), "dev": ("q2",), "test": ("q3",)}
    for split, names in splits.items():
        judged = [f"squad/{name}\tp\t1" for name in names]
        _lines(f"collection/qrels/{split}.tsv", ["query-id\tcorpus-id\tscore", *judged])
    rows = [
        {"_id": f"squad/{name}", "text": f"who is {name} ?", "answers": [name, f"The {name}"]}
        for names in splits.values()
        for name in names
    ]
    rows[1] |= {"text": "WHO is the Q3?"}
    _rows("collection/queries.jsonl", rows)
    asked = dataclasses.replace(test_question_collection.asked_set(Path()), max_questions=8, seed=2)
    return {"": {"collection": "collection", "sets": [asked], "max_bad_records": 0}}


def package_docs() -> Runs:
    """A package `tiny_docs` in the current folder."""
    ends = {
        "sort": "Neighbours in {} change places until none is greater than the next.",
        "merge": "Takes the head of {} that is less, see :func:`sort`. The rest stays as it is.",
        "draw": "Writes a row of characters for {}.\n\n    Colours need a terminal.",
    }
    for module in ("lists", "trees", "graphs", "heaps"):
        lines = [f'"""Functions for {module}."""']
        for verb, end in ends.items():
            summary = f"{verb.title()} all {module} of the given values in {verb} order."
            text = f'    """{summary}\n\n    {end.format(module)}\n    """'
            lines += [f"def {verb}_{module}(values):", text]
        _lines(f"tiny_docs/{module}.py", lines)
    _lines("tiny_docs/__init__.py", ['"""Repeated here: writes one row for each level."""'])
    rules = python_docs.QueryRules(
        dev=3, test=3, min_words=4, max_words=40, min_content=2, near_duplicate=0.9,
        largest_module=1.0,
    )  # fmt: skip
    given = {"packages": ["tiny_docs"], "passage_words": 9, "max_parts": 2, "queries": rules}
    return {"": given | {"min_passage_words": 2, "near_duplicate": 1.0, "shingle_words": 2}}


# --- texts in several languages -------------------------------------------------------------------


def gather_translations() -> Runs:
    """Three kinds of files, with a translation that breaks each rule, and some held out."""
    english = ["fine", "", "same", "long", "Cyrillic", "fine", "tested", "  spaced   out ", "sea"]
    german = ["gut", "leer", "same", "x" * 50, "Привет", "gut", "anders", "mit Platz", "Meer"]
    aligned, tested = (
        bitext.LineAligned(
            *(name, _lines(f"{name}.en", source), _lines(f"{name}.de", target), "en", "deu")
        )
        for name, source, target in (("t", english, german), ("test", ["tested"], ["geprüft"]))
    )
    numbers = [("one", "eins", "一"), ("two", "", "二"), ("three", "drei", "三"), ("six", "", "六")]
    table = _lines("table.tsv", ["en\tde\tja", *map("\t".join, numbers)])
    _lines("tatoeba/deu-eng.tsv", [f"Satz {n}\tsentence {n}" for n in range(20)])
    bitexts = [
        aligned,
        bitext_tables.Columns("table", table, {"en": "en", "de": "de", "ja": "ja"}, pivot="en"),
        bitext_tables.PairFiles("tatoeba", "tatoeba"),
    ]
    given = {"bitexts": bitexts, "held_out": [tested], "rules": translations.TranslationRules()}
    return {"": given | {"max_bad_records": 0, "pivot": "en", "development_share": 0.3}}


def gather_documents() -> Runs:
    """Documents of two languages, and one that breaks each rule."""
    text = test_documents.TEXT
    rows = [
        {"lang": code, "topic": f"n {n}", "date": "2020/03", "title": "", "text": text[to] + str(n)}
        for code, to in (("deu", "de"), ("ru", "ru"))
        for n in range(8)
    ]
    broken = {"short": ("de", "Kurz."), "alone": ("en", text["en"]), "latin": ("ru", text["de"])}
    broken["again"] = ("de", rows[0]["text"])
    for name, (code, said) in broken.items():
        rows.append({"lang": code, "topic": name, "date": 7, "title": name, "text": said})
    path = _rows("documents.jsonl", [*rows, {"lang": "de"}])
    files = documents.DocumentFiles([path], "all", "date", {"ru": "ru-RU"})
    given = {"files": [files], "rules": documents.DocumentRules(40, 0.5, 2)}
    return {"": given | {"development_share": 0.4, "max_bad_records": 1}}


def gather_sentences() -> Runs:
    """Translations and lines of one language, of which some break a rule."""
    pairs = enumerate(test_language_sentences.PAIRS)
    rows = [{"id": str(n), "pair": p, "source": s, "target": t} for n, (p, s, t) in pairs]
    path = _rows("translations.jsonl", [*rows, {"pair": []}])
    lines = ["zu kurz", "ein ganz neuer Satz", "это не по-немецки", "das Haus ist alt"]
    texts = {"deu": text_sources.Lines([_lines("de.txt", lines)], LINE_BYTES)}
    given = {"translations": [path], "texts": texts, "max_bad_records": 1}
    return {"": given | {"rules": language_sentences.SentenceRules()}}


# --- negatives ------------------------------------------------------------------------------------


def triple_negatives() -> Runs:
    """Triples of ids with a malformed line, and of texts."""
    given = {"negatives": 2, "max_bad_records": 1}
    return {
        "ids": given | {"triples": _lines("ids.tsv", [*test_triples.LINES, "q1"]), "texts": False},
        "texts": given | {"triples": _lines("texts.tsv", test_triples.TEXTS), "texts": True},
    }


def mine() -> Runs:
    """BM25 without a filter, with both filters, and among answers alone."""
    passages, asked = enumerate(test_hard_negatives.TEXTS), test_hard_negatives.QUERIES.items()
    _rows("corpus.jsonl", [{"_id": f"p{n}", "title": "", "text": text} for n, text in passages])
    _rows("queries.jsonl", [{"_id": name, "text": text} for name, text in asked])
    judged = ["q\tp0\t1", "other\tp5\t1", "none\tp3\t1"]
    _lines("qrels/train.tsv", ["query-id\tcorpus-id\tscore", *judged])
    everything = hard_negatives.MiningSettings(10, 5, 0, 1.0, 0.0)
    settings = {
        "all": everything,
        "filtered": dataclasses.replace(everything, max_overlap=0.9, max_score_ratio=1.1),
        "answers": dataclasses.replace(everything, skip_top=1, only_answers=True),
    }
    given = {"corpus": ".", "split": "train", "candidates": candidates.Bm25, "part_size": 2}
    runs = {name: given | {"settings": one} for name, one in settings.items()}
    return runs | {"answers": runs["answers"] | {"most_queries": 2}}
