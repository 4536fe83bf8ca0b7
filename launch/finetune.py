"""Fine-tunes a published encoder on labelled text, and says whether it became better.

    python -m launch.finetune --model=path/to/encoder --data=path/to/data --run_dir=runs/mine

`--model` is a sentence-transformers folder on disk, for `--kind=reranker` of transformers as well:
then it learns to put BM25's hits in order, and the verdict is on their order by the scores of both.
`--data` is queries with passages that answer them, in any layout of docs/training_data.md: a folder
in BEIR's layout, pairs, triplets or scored pairs as csv, jsonl, parquet or a `datasets` folder,
FlagEmbedding's or Tevatron's jsonl. A folder with `corpus.jsonl` alone is text without queries: the
encoder learns from crops of it, and there is no verdict.

What is asked for chooses the recipe:

    finetune                  a retriever
    finetune_matryoshka       --matryoshka=128,64: vectors can be truncated to so many dimensions
    finetune_judged           --judge=FOLDER: that re-ranker judges the negatives
    finetune_text             one from text without queries
    finetune_m3               --kind=m3: a vector, weights of words and vectors of tokens at once
    finetune_reranker         --kind=reranker
    finetune_reranker_dense   and --retriever=FOLDER: over the hits of that one, not of BM25

NAME=VALUE are its settings, its flags are those of `kennel run`, and the same command continues
where it stopped. RUN_DIR/summary.md begins with the verdict: better, no difference, worse, or no
verdict. `--folds=5` is for few queries: five runs, RUN_DIR/folds/fold_0 to fold_4, test each query
once, and RUN_DIR/folds/summary.md has one verdict on all of them; nothing is exported.
`--repeats=3` does so three times, divides the queries otherwise each time, and trains with another
seed.
"""

import argparse
import dataclasses
import gzip
import itertools
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from launch import recipe
from t5x_style.configuration import command_flags, gin_checks
from t5x_style.workflow import recipe_checks, recipe_planning, recipe_reader, stage_runner

RECIPES = "gin_configs/recipes"
FOLDS = "folds"  # folder of a run's folds
KINDS = {"retriever": "finetune", "m3": "finetune_m3", "reranker": "finetune_reranker"}
TEXT = "finetune_text"  # the recipe of passages without queries
TEXT_FILE = "corpus.jsonl"  # that it reads
# Flags that choose another recipe: of which kind, and which
OPTIONS = {
    "judge": ("retriever", "finetune_judged"),
    "matryoshka": ("retriever", "finetune_matryoshka"),
    "retriever": ("reranker", "finetune_reranker_dense"),
}
_STOPPED_EARLY = -1
_SEED, _DIVISION_SEED = "--gin.SEED=", "--gin.division.SplitRules.seed"
_QUERY_FIELDS = {"query", "question", "anchor", "pos", "positive", "positive_passages"}
_ROW_ENDINGS = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow")
_ABSOLUTE = re.compile(r"""(?<![\w./-])(?:~[\w.-]*)?/(?:[^/'"\s,]+/)*([^/'"\s,\])}]+)/?""")


def arguments(argv: Sequence[str]) -> list[str]:
    """The recipe that a command line means, as flags of `launch.recipe`.

    >>> arguments(["--model=a/b", "--data=c.csv", "--gin.EPOCHS=2", "--dry_run"])[0]
    '--gin_file=gin_configs/recipes/finetune.gin'
    """
    parser, given, rest = _parsed(argv)
    name = _recipe(parser, given)
    _require_folds(parser, given, rest, name)
    macros = {"PUBLISHED": given.model, "CORPUS": given.data, "RUN_DIR": given.run_dir}
    macros["COMMAND"] = _command(given, rest)
    for flag in ("judge", "retriever"):
        if (folder := getattr(given, flag)) is not None:
            macros[flag.upper()] = folder
    if given.matryoshka is not None:
        macros["MATRYOSHKA"] = _lengths(parser, given.matryoshka)
    return [
        f"--gin_file={RECIPES}/{name}.gin",
        *(f"--gin.{macro}={value!r}" for macro, value in macros.items()),
        *rest,
    ]


def _recipe(parser: argparse.ArgumentParser, given: argparse.Namespace) -> str:
    """The recipe's name; a usage error where the data or two flags do not go together."""
    asked = [flag for flag in OPTIONS if getattr(given, flag) is not None]
    name = KINDS[given.kind]
    if _holds_passages(Path(given.data)):
        parser.error(
            f"--data: {given.data} holds passages alone: expected labelled data, or the folder of "
            f"this file, {Path(given.data).parent}, which is text without queries if there are no "
            "labels in it (docs/training_data.md)"
        )
    if _is_text_alone(Path(given.data)):
        if given.kind != "retriever":
            parser.error(
                f"--data: {given.data} holds passages alone: expected queries with passages that "
                f"answer them, in a layout of docs/training_data.md; --kind={given.kind} needs them"
            )
        name = TEXT
    if not asked:
        return name
    for flag in asked:
        if given.kind != OPTIONS[flag][0]:
            parser.error(f"--{flag} is for --kind={OPTIONS[flag][0]}, found --kind={given.kind}")
        if name == TEXT:
            parser.error(
                f"--{flag}: {given.data} holds passages alone: expected queries with passages that "
                "answer them, in a layout of docs/training_data.md"
            )
    if len(asked) > 1:
        parser.error(f"--{asked[0]} and --{asked[1]} cannot be combined: leave one of the two out")
    if given.folds and asked == ["matryoshka"]:
        parser.error("--matryoshka and --folds cannot be combined: folds export no encoder")
    return OPTIONS[asked[0]][1]


def _parsed(
    argv: Sequence[str],
) -> tuple[argparse.ArgumentParser, argparse.Namespace, list[str]]:
    """(parser, our flags, those of the recipe)."""
    parser = argparse.ArgumentParser(prog="kennel finetune", allow_abbrev=False)
    command_flags.add_finetune(parser)
    return parser, *parser.parse_known_args(list(argv))


def _command(given: argparse.Namespace, rest: Sequence[str]) -> str:
    """The command for the model card: absolute paths without their folders, which are private."""
    settings = [
        _ABSOLUTE.sub(r"\1", word.removeprefix("--gin."))
        for word in rest
        if word.startswith("--gin.")
    ]
    flags = {"model": Path(given.model).name, "data": Path(given.data).name}
    if given.kind != "retriever":
        flags["kind"] = given.kind
    for flag in OPTIONS:
        if (value := getattr(given, flag)) is not None:
            flags[flag] = Path(value).name
    return shlex.join(
        ["kennel", "finetune", *(f"--{flag}={value}" for flag, value in flags.items()), *settings]
    )


def _lengths(parser: argparse.ArgumentParser, given: str) -> list[int]:
    """Numbers of dimensions; a usage error where there are none."""
    lengths = given.split(",")
    if not all(one.strip().isdecimal() and int(one) for one in lengths):
        parser.error(
            f"--matryoshka: expected numbers of dimensions, as 256,128,64, found {given!r}"
        )
    return [int(one) for one in lengths]


def _require_folds(
    parser: argparse.ArgumentParser, given: argparse.Namespace, rest: Sequence[str], recipe: str
) -> None:
    """A usage error where `--folds` and `--repeats` cannot be followed."""
    if given.repeats < 1 or (given.repeats > 1 and not given.folds):
        parser.error(
            f"--repeats: expected 1 or more, and above 1 --folds, which it repeats; found "
            f"--repeats={given.repeats} and --folds={given.folds}"
        )
    if not given.folds:
        return
    if given.folds < 2:
        parser.error(f"--folds: expected 2 or more, found {given.folds}")
    if recipe == TEXT:
        parser.error(
            f"--folds: {given.data} holds passages alone: expected queries with passages that "
            "answer them, in a layout of docs/training_data.md"
        )
    if "://" in given.run_dir:
        parser.error(f"--folds: expected --run_dir on this machine, found {given.run_dir}")
    for flag in rest:
        name, _, value = flag.partition("=")
        if given.repeats > 1 and flag.startswith(_SEED) and not value.isdecimal():
            parser.error(f"--repeats counts SEED up: expected a whole number, found {value}")
        if name == "--until" or name.startswith("--gin.division.SplitRules.fold"):
            parser.error(f"--folds sets {name.removeprefix('--gin.')}: leave one of the two out")
        if given.repeats > 1 and name == _DIVISION_SEED:
            parser.error(f"--repeats sets {name.removeprefix('--gin.')}: leave one of the two out")


def fold(argv: Sequence[str], number: int, repeat: int = 0) -> list[str]:
    """The command line of one run of several, up to its verdict.

    >>> fold(["--model=m", "--data=d", "--run_dir=r", "--folds=5"], 2)[3]
    '--run_dir=r/folds/fold_2'

    Args:
        argv: of the whole.
        number: of the fold, from 0.
        repeat: from 0, which has the seeds of the command; others have later ones.
    """
    _, given, rest = _parsed(argv)
    if repeat:
        seeds = [flag.removeprefix(_SEED) for flag in rest if flag.startswith(_SEED)]
        rest = [flag for flag in rest if not flag.startswith(_SEED)]
        rest += [f"{_SEED}{int((seeds or ['1'])[-1]) + repeat}", f"{_DIVISION_SEED}={repeat}"]
    flags = [
        *(
            f"--{flag}={value}"
            for flag in ("model", "kind", "data", *OPTIONS)
            if (value := getattr(given, flag)) is not None
        ),
        f"--run_dir={given.run_dir}/{FOLDS}/{f'repeat_{repeat}/' if repeat else ''}fold_{number}",
        *rest,
        f"--gin.division.SplitRules.folds={given.folds}",
        f"--gin.division.SplitRules.fold={number}",
        "--until=verdict",
    ]
    if not any(flag.startswith("--gin.STORE=") for flag in rest):  # as of a run without folds
        flags.append(f"--gin.STORE={str(Path(given.run_dir).parent / '.store')!r}")
    return flags


def run(argv: Sequence[str]) -> int:
    """Runs the recipe, or one for each fold and then their verdict; returns the exit code."""
    _, given, rest = _parsed(argv)
    flags = arguments(argv)
    if not given.folds:
        return stage_runner.guarded(recipe.run, flags)
    for repeat, number in itertools.product(range(given.repeats), range(given.folds)):
        code = stage_runner.guarded(_to_its_end, arguments(fold(argv, number, repeat)))
        if code == _STOPPED_EARLY:
            where = f" of repeat {repeat}" if given.repeats > 1 else ""
            print(
                f"stopped in fold {number} of {given.folds}{where}; the same command continues "
                "there."
            )
            return 0
        if code:
            return code
    if "--dry_run" in rest:
        return 0
    counts = [f"--folds={given.folds}", f"--repeats={given.repeats}"]
    command = [sys.executable, "-m", "t5x_style.folds", f"{given.run_dir}/{FOLDS}", *counts]
    return subprocess.run(command, check=False).returncode


def _to_its_end(flags: gin_checks.Flags) -> int:
    """As `recipe.run`, which answers 0 as well where it was asked to stop."""
    code = recipe.run(flags)
    if code or flags.dry_run:
        return code
    now = dataclasses.replace(flags, rerun=())
    problems = recipe_checks.Problems(now.read_all())
    _, decisions = recipe_planning.look_up(recipe_reader.load(now), now, problems)
    done = all(one.status == "done" for one in decisions.values())
    return 0 if done else _STOPPED_EARLY


def _is_text_alone(path: Path) -> bool:
    """Whether a folder has passages, and no file that may hold labels (docs/training_data.md)."""
    names = _tables(path)
    return names == {TEXT_FILE} and not _tables(path / "data") and not (path / "qrels").exists()


def _holds_passages(path: Path) -> bool:
    """Whether a file is a corpus.jsonl of passages: its first line has a text and no query."""
    if path.name.removesuffix(".gz") != TEXT_FILE or not path.is_file():
        return False
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            first = json.loads(file.readline())
    except (OSError, ValueError):
        return False  # the stage that reads it says what is wrong
    return isinstance(first, dict) and "text" in first and not first.keys() & _QUERY_FIELDS


def _tables(folder: Path) -> set[str]:
    """Names of the files of a folder that are read as rows, without .gz; none where it is absent.

    `dataset_dict.json` and `state.json`, which `datasets` saves, are among them.
    """
    names = [one.name.removesuffix(".gz") for one in folder.iterdir()] if folder.is_dir() else []
    return {name for name in names if Path(name).suffix.lower() in _ROW_ENDINGS}


def main() -> None:
    """The command `python -m launch.finetune`."""
    stage_runner.die_with_parent()
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
