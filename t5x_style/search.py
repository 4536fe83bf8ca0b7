"""Asks a trained retriever: `python -m t5x_style.search --run=runs/quickstart "how do I ...?"`.

Without a question it prompts for them. `--run` takes the folder of a recipe that has a search
stage, `--gin_file` any gin file that binds `search.search.searcher`. As a stage it answers a list
of questions into answers.md.
"""

import argparse
import dataclasses
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from t5x_style.configuration import command_flags
from t5x_style.configuration.gin_checks import Flags
from t5x_style.distributed import startup
from t5x_style.serving.searcher import (
    Answer,
    AnySearcher,
    Hit,
    SearchError,
    find_config,
    open_searcher,
)
from t5x_style.workflow import remote_store, stage_runner

SNIPPET = 240  # characters

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"search": {"name": "search", "version": 1, "outputs": ["answers"]}}


def search(
    searcher: AnySearcher, questions: Sequence[str], k: int, model_dir: str
) -> dict[str, str]:
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
    """The text before a span, the span, and the text after it: SNIPPET characters, one line.

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


def main(argv: Sequence[str]) -> int:
    """Returns the exit code; 1 with a message where a question or a folder is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    command_flags.add_search(parser)
    parser.epilog = "--gin_file, --gin.NAME=VALUE and --gin_search_paths as in every stage."
    stage_argv, search_argv = command_flags.split_arguments(argv)
    options = parser.parse_args(search_argv)

    def answer(flags: Flags) -> int:
        if options.question and not " ".join(options.question).strip():
            raise SearchError("the question is empty; expected a few words")
        if options.k < 1:
            raise SearchError(f"-k: expected at least 1, found {options.k}")
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

    return stage_runner.guarded(answer, stage_argv)


if __name__ == "__main__":
    from t5x_style import search as this  # so that gin sees one searcher, not two

    sys.exit(this.main(sys.argv[1:]))
