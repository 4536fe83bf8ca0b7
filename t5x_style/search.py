"""Asks a trained retriever: `python -m t5x_style.search --run=runs/quickstart "how do I ...?"`.

Without a question it prompts for them. `--run` takes the folder of a recipe that has a search
stage, `--gin_file` any gin file that binds `search.Searcher`. As a stage it answers a list of
questions into answers.md.
"""

import argparse
import dataclasses
import functools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from rich.console import Console
from rich.text import Text

from t5x_style.checkpoints import restored_model
from t5x_style.configuration import command_flags, gin_checks
from t5x_style.distributed import startup
from t5x_style.interfaces import index as index_lib
from t5x_style.interfaces.objective import embedding_function
from t5x_style.interfaces.reading import Reading
from t5x_style.interfaces.representation import QUERY
from t5x_style.retrieval import hybrid
from t5x_style.retrieval.answer_reader import reader_of
from t5x_style.retrieval.beir_collection import Passage, Passages
from t5x_style.retrieval.text_collector import TextCollector
from t5x_style.workflow import links, remote_store, stage_runner
from t5x_style.workflow.store import STAGE_FILE

JOB = "t5x_style.search.search"
SNIPPET = 240  # characters

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"search": {"name": "search", "version": 1, "outputs": ["answers"]}}


class SearchError(ValueError):
    """A question that cannot be asked, or a folder that cannot be searched."""


class QuestionEncoder(Protocol):
    """Tokenizes questions as training did; called with a list of them, returns a token group."""

    folder: str  # of the tokenizer
    length: int
    prefix: str

    @property
    def fingerprint(self) -> str:
        """Of the tokenizer."""
        ...

    def tokens(self, question: str) -> int:
        """How many a question has, specials included, before it is cut at `length`."""
        ...

    def __call__(self, questions: Sequence[str]) -> Mapping[str, np.ndarray]:
        """A token group: a question a row, its one segment valid, `example_id` its number."""
        ...


@dataclasses.dataclass(frozen=True)
class Hit:
    """A passage with its score, see `retrieval.similarity`."""

    score: float
    passage: Passage


@dataclasses.dataclass(frozen=True)
class Answer:
    """A span of a passage, or none.

    Attributes:
      hit: the passage, with its relevance.
      span: characters of its text; None where the reader finds nothing to point at.
      score: of reader and relevance together.
      passage_probability: p(z|x), among the passages that were read.
      span_probability: p(y|z,x), among the spans of the passage.
    """

    hit: Hit
    span: tuple[int, int] | None
    score: float
    passage_probability: float
    span_probability: float

    @property
    def text(self) -> str:
        """The answer; empty where there is none."""
        return "" if self.span is None else self.hit.passage.text[slice(*self.span)]


class Searcher:
    """A model, an index of what it made of passages, their texts, and perhaps a reader of these."""

    def __init__(
        self,
        model: restored_model.Trained,
        index: hybrid.Searched,
        questions: QuestionEncoder,
        passages: Passages,
        reading: Reading | None = None,
    ):
        """Args:
        model: embeds questions; reads, where `reading` is given.
        index: of what it made of the passages; questions are embedded as its kind, or kinds.
        questions: tokenizes them.
        passages: those of the index.
        reading: makes the texts of the model's reader, for `answer`.

        Raises:
        ContractError: model, index and tokenizer do not belong together.
        FunctionError: `reading` is given, and the model has no reader.
        RepresentationError: the model does not embed queries as the kinds of the index.
        SearchError: the index holds a passage that the corpus does not.
        """
        for one in hybrid.indexes(index):
            index_lib.check_contract(one, model.contract, "the index", one.kind)
            index_lib.check_checkpoint(one, model.fingerprint, "the index")
        found = dataclasses.replace(
            model.contract,
            tokenizer_fingerprint=questions.fingerprint,
            query_length=questions.length,
            query_prefix=questions.prefix,
        )
        model.contract.require(found, "the tokenizer of questions")
        unknown = next((name for name in index.ids if name not in passages), None)
        if unknown is not None:
            raise SearchError(
                f"{passages.path}: the index holds passage {unknown!r}, which is not there; the "
                "index was built from another corpus"
            )
        kinds = hybrid.asked_kinds(index)
        represent = embedding_function(model.functions, QUERY, kinds)
        self._represent = functools.partial(represent, kinds=kinds)
        self.model, self.index = model, index
        self.questions, self.passages = questions, passages
        self._reader = None if reading is None else reader_of(model, reading)

    @property
    def reads(self) -> bool:
        """Whether there is a reader, for `answer`."""
        return self._reader is not None

    def search(self, question: str, k: int) -> list[Hit]:
        """The best k passages, best first.

        Raises:
          SearchError: the question is empty.
        """
        if not question.strip():
            raise SearchError("the question is empty; expected a few words")
        if (count := self.questions.tokens(question)) > self.questions.length:
            print(
                f"the question has {count} tokens, of which the model reads the first "
                f"{self.questions.length}: the rest does not count",
                file=sys.stderr,
            )
        group = self.questions([question])
        collected = TextCollector([question])
        collected.add(group, self._represent(group))
        scores, rows = hybrid.ask(self.index, collected.finish(), k)
        return [
            Hit(float(score), self.passages.passage(self.passages.row(self.index.ids[row])))
            for score, row in zip(scores[0], rows[0], strict=True)
            if row != index_lib.NO_ROW
        ]

    def answer(self, question: str, k: int) -> list[Answer]:
        """The best span of each of the best k passages, the best one first.

        Raises:
          SearchError: the question is empty, or there is no reader.
        """
        if self._reader is None:
            raise SearchError(
                "nothing here reads passages: bind search.Searcher.reading, for a model of open "
                "question answering (docs/open_qa.md), or search without --answer"
            )
        hits = self.search(question, k)
        if not hits:
            return []
        read = self._reader.read([question] * len(hits), [hit.passage.text for hit in hits])
        relevance = np.array([hit.score for hit in hits])
        chances = np.exp(relevance - relevance.max())
        chances /= chances.sum()
        answers = [
            Answer(hit, found.span, found.score + hit.score, float(chance), found.probability)
            for hit, found, chance in zip(hits, read, chances, strict=True)
        ]
        return sorted(answers, key=lambda answer: -answer.score)


def search(searcher: Searcher, questions: Sequence[str], k: int, model_dir: str) -> dict[str, str]:
    """Stage: answers questions into answers.md; leaves the config.gin that `--run` reads.

    Passages, or answers in them where the searcher reads.
    """
    pages = []
    for question in questions:
        if searcher.reads:
            entries = map(_answer_markdown, searcher.answer(question, k))
        else:
            entries = map(_markdown, searcher.search(question, k))
        lines = [f"{rank}. {one}" for rank, one in enumerate(entries, start=1)]
        pages.append(f"## {question}\n\n" + "\n".join(lines))
    (Path(model_dir) / "answers.md").write_text("\n\n".join(pages) + "\n", encoding="utf-8")
    return {"answers": "answers.md"}


def _markdown(hit: Hit) -> str:
    text = " ".join(hit.passage.text.split())[:SNIPPET]
    return (
        f"**{hit.passage.title}** ({_joined(f'{hit.score:.4f}', hit.passage.source)})  \n   {text}"
    )


def _answer_markdown(answer: Answer) -> str:
    passage, said = answer.hit.passage, " ".join(answer.text.split()) or "(nothing)"
    chances = f"p(z|x) {answer.passage_probability:.4f}, p(y|z,x) {answer.span_probability:.4f}"
    before, span, after = around(passage.text, answer.span)
    marked = f"{before}**{span}**{after}" if span else before
    return f"**{said}** ({_joined(chances, passage.title, passage.source)})  \n   {marked}"


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def show(question: str, hits: Sequence[Hit], console: Console) -> None:
    """Prints hits: coloured on a terminal, tab-separated lines elsewhere."""
    if not hits:
        console.print("no passages found")
    for rank, hit in enumerate(hits, start=1):
        part = snippet(hit.passage.text, question)
        score, title = f"{hit.score:.4f}", hit.passage.title or hit.passage.id
        if not console.is_terminal:
            line = "\t".join((str(rank), score, title, hit.passage.source, part))
            print(line, file=console.file)
            continue
        body = Text("    " + part)
        body.highlight_words(_words(question), "bold yellow", case_sensitive=False)
        console.print(Text.assemble(f"{rank:>2}. ", (title, "bold"), "  ", (score, "green")))
        console.print(Text("    " + hit.passage.source, "dim"))
        console.print(body)


def show_answers(answers: Sequence[Answer], console: Console) -> None:
    """Prints answers with their passages, the span marked: « » where no terminal is."""
    if not answers:
        console.print("no passages found")
    for rank, answer in enumerate(answers, start=1):
        passage = answer.hit.passage
        title, text = passage.title or passage.id, " ".join(answer.text.split()) or "(nothing)"
        chances = f"{answer.passage_probability:.4f}", f"{answer.span_probability:.4f}"
        before, span, after = around(passage.text, answer.span)
        if not console.is_terminal:
            marked = f"{before}«{span}»{after}" if answer.span else before
            line = "\t".join((str(rank), text, *chances, title, passage.source, marked))
            print(line, file=console.file)
            continue
        said = f"  p(z|x) {chances[0]}  p(y|z,x) {chances[1]}"
        console.print(Text.assemble(f"{rank:>2}. ", (text, "bold green"), (said, "dim")))
        console.print(Text.assemble("    ", (title, "bold"), "  ", (passage.source, "dim")))
        console.print(Text.assemble("    ", before, (span, "bold yellow"), after))


def around(text: str, span: tuple[int, int] | None) -> tuple[str, str, str]:
    """What stands before a span, the span, and what stands behind it: SNIPPET characters, a line.

    Without a span: the text's beginning, and nothing.
    """
    if span is None:
        return " ".join(text[:SNIPPET].split()), "", ""
    room = max(0, SNIPPET - (span[1] - span[0]))
    start, end = max(0, span[0] - room // 2), span[1] + room // 2
    before, inside, after = (
        re.sub(r"\s+", " ", part)
        for part in (text[start : span[0]], text[slice(*span)], text[span[1] : end])
    )
    return ("…" if start else "") + before, inside, after + ("…" if end < len(text) else "")


def snippet(text: str, question: str) -> str:
    """The SNIPPET characters of a passage that hold most of the question's words, on one line."""
    text = " ".join(text.split())
    words = "|".join(re.escape(word) for word in _words(question))
    places = [found.start() for found in re.finditer(words, text, re.I)] if words else []
    starts = {max(0, text.rfind(" ", 0, max(0, place - SNIPPET // 4)) + 1) for place in places}
    best = max(
        sorted({0} | starts), key=lambda s: sum(s <= place < s + SNIPPET for place in places)
    )
    end = best + SNIPPET
    return ("…" if best else "") + text[best:end].rstrip() + ("…" if end < len(text) else "")


def _words(question: str) -> list[str]:
    return [word for word in re.findall(r"\w+", question) if len(word) > 2]


def find_config(run: str) -> Path:
    """The config.gin of the finished search stage below a recipe's folder.

    Stages are links to their current versions; hidden ones, which a killed process may have left,
    do not count.

    Raises:
      SearchError: there is no such folder, or no such stage, or its current version is not
        finished.
    """
    folder = links.run_here(run)
    if not folder.is_dir():
        raise SearchError(f"{run}: not found. Expected a recipe's folder, as runs/quickstart")
    stages = sorted(folder.glob(f"[!.]*/{STAGE_FILE}"))
    for manifest in (*folder.glob(STAGE_FILE), *stages):
        if json.loads(manifest.read_text(encoding="utf-8")).get("entry") == JOB:
            return remote_store.with_files(manifest).with_name("config.gin")
    finished = [manifest.parent.name for manifest in stages]
    raise SearchError(
        f"{run}: no finished search stage; finished are {finished}. Let the recipe run to its end, "
        "or name a gin file that binds search.Searcher with --gin_file."
    )


def open_searcher(flags: gin_checks.Flags) -> Searcher:
    """Builds the searcher that the gin files describe."""
    config = flags.read()
    gin_checks.check_names(config, ("t5x_style.stage.run", JOB, "t5x_style.search.Searcher"))
    gin_checks.check_code(config)
    gin_checks.parse(config)
    searcher: Searcher = gin_checks.configured(Searcher)()
    return searcher


def questions_from(words: Sequence[str]) -> Iterator[str]:
    """The question of the command line, else lines typed at a prompt or piped in."""
    if words:
        yield " ".join(words)
        return
    while True:
        try:
            line = input("question> " if sys.stdin.isatty() else "")
        except (EOFError, KeyboardInterrupt):
            return
        if line.strip():
            yield line


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments that every stage takes, `--gin_file FILE` in two words too, and the others."""
    every_stages: list[str] = []
    others: list[str] = []
    is_value = False
    for word in argv:
        is_flag = word.startswith(("--gin", "--traceback"))
        (every_stages if is_flag or is_value else others).append(word)
        is_value = word.startswith("--gin_") and "=" not in word
    return every_stages, others


def main(argv: Sequence[str]) -> int:
    """Returns the exit code; 1 with a message where a question or a folder is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    command_flags.add_search(parser)
    parser.epilog = "--gin_file, --gin.NAME=VALUE and --gin_search_paths as in every stage."
    flags_argv, own_argv = split_arguments(argv)
    options = parser.parse_args(own_argv)

    def answer(flags: gin_checks.Flags) -> int:
        if options.question and not " ".join(options.question).strip():
            raise SearchError("the question is empty; expected a few words")
        if options.run:
            flags = dataclasses.replace(flags, files=(str(find_config(options.run)), *flags.files))
        if not flags.files:
            raise SearchError("nothing to search: pass --run=FOLDER or --gin_file=FILE")
        startup.start()
        with remote_store.named_here(flags) as here:
            searcher, console = open_searcher(here), Console()
            for question in questions_from(options.question):
                if options.answer:
                    show_answers(searcher.answer(question, options.k), console)
                else:
                    show(question, searcher.search(question, options.k), console)
        return 0

    return stage_runner.guarded(answer, flags_argv)


if __name__ == "__main__":
    from t5x_style import search as this  # so that gin sees one Searcher, not two

    sys.exit(this.main(sys.argv[1:]))
