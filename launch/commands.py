"""The commands of `kennel`: a table, and their flags as a parser that suggests what was meant.

A command is a line of COMMANDS. It runs a module as `python -m` does; that module is not imported
here, so that `--help` is quick.
"""

import argparse
import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from launch.cloud import tpu_flags
from launch.clusters import gke_flags
from t5x_style.configuration import command_flags
from t5x_style.configuration.python_sources import REPOSITORY
from t5x_style.configuration.suggestions import did_you_mean

AddFlags = Callable[[argparse.ArgumentParser], None]
FLAGS = ("--help", "--version")  # without a command
SHELLS = ("bash", "zsh", "fish")


class UsageError(ValueError):
    """A command line that cannot be run; the message says what to write instead."""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes:
      name: as the user types it.
      help: one line.
      module: what `python -m` runs.
      flags: functions that add flags to a parser.
      usage: what follows its name. RECIPE or SWEEP first there is the name of one of Kennel's, or
        a gin file, and NAME=VALUE a setting; see `launch.words`.
      verbs: its first words, where it has several; each with the usage of what follows.
    """

    name: str
    help: str
    module: str
    flags: tuple[AddFlags, ...]
    usage: str
    verbs: Mapping[str, str] = field(default_factory=dict)

    def of_verb(self, verb: str) -> "Command":
        """What follows one of its verbs."""
        return replace(self, name=f"{self.name} {verb}", usage=self.verbs[verb], verbs={})

    @property
    def first_word(self) -> str:
        """'recipe' or 'sweep' where its first word names one, else ''."""
        word = self.usage.partition(" ")[0]
        return word.lower() if word in ("RECIPE", "SWEEP") else ""

    @property
    def takes_settings(self) -> bool:
        """Whether its words are settings."""
        return "NAME=VALUE" in self.usage


def add_shell(parser: argparse.ArgumentParser) -> None:
    """Adds the one word of `launch.completion`."""
    parser.add_argument("shell", choices=SHELLS, help="whose script to print")


_STAGE_FLAGS = (command_flags.add_stage,)
_RECIPE, _STAGE = "RECIPE [NAME=VALUE ...] [flags]", "[NAME=VALUE ...] [flags]"

_TABLE = (
    Command("run", "Run a recipe, or say what would run.", "launch.recipe", _STAGE_FLAGS, _RECIPE),
    Command(
        "finetune",
        "Fine-tune a published encoder on labelled text; is it better?",
        "launch.finetune",
        (command_flags.add_finetune, command_flags.add_stage),
        "--model=FOLDER --data=PATH [NAME=VALUE ...] [flags]",
    ),
    Command(
        "sweep",
        "Run a recipe many times with other settings, and compare.",
        "launch.sweep",
        (command_flags.add_sweep, tpu_flags.add_slices, command_flags.add_stage),
        "SWEEP [NAME=VALUE ...] [flags]",
    ),
    Command(
        "search",
        "Ask a trained retriever.",
        "t5x_style.search",
        (command_flags.add_search, command_flags.add_gin),
        "--run=FOLDER [QUESTION] [flags]",
    ),
    Command(
        "serve",
        "Serve a bundle or a finished run on HTTP.",
        "launch.serve",
        (command_flags.add_serve,),
        "PATH [flags]",
    ),
    Command(
        "preflight",
        "Memory and FLOPs of a training on a TPU slice, before it is paid for.",
        "t5x_style.preflight",
        (command_flags.add_preflight, command_flags.add_stage),
        f"RECIPE --topology=SLICE {_STAGE}",
    ),
    Command(
        "tpu",
        "Cloud TPU VMs: ask for slices, run a recipe on them, recover from preemption.",
        "launch.tpu_vm",
        (tpu_flags.add_tpu, command_flags.add_gin, command_flags.add_selection),
        "VERB [RECIPE] [NAME=VALUE ...] [flags]",
        {name: verb.usage for name, verb in tpu_flags.VERBS.items()},
    ),
    Command(
        "gke",
        "Run a recipe on a GKE cluster, or print the manifest.",
        "launch.gke",
        (gke_flags.add_gke,),
        "RECIPE [NAME=VALUE ...] --slice=SLICE --image=IMAGE --print|--apply [flags]",
    ),
    Command(
        "runs",
        "List, pin, verify and adopt versions of stages.",
        "t5x_style.runs",
        (command_flags.add_runs,),
        "[ACTION] [NAME ...] [flags]",
    ),
    Command(
        "gc",
        "Free disk space: what no run uses.",
        "t5x_style.gc",
        (command_flags.add_gc,),
        "[flags]",
    ),
    Command(
        "health",
        "Is my run healthy? Checks its curves, and compares them with a reference.",
        "t5x_style.health",
        (command_flags.add_health,),
        "RUN_DIR [flags]",
    ),
    Command(
        "export",
        "Write a SavedModel: one stage. With --bundle=RUN, a bundle for kennel serve.",
        "t5x_style.export",
        (command_flags.add_bundle, command_flags.add_stage),
        _STAGE,
    ),
    Command(
        "evaluate", "Compare retrievers: one stage.", "t5x_style.evaluate", _STAGE_FLAGS, _STAGE
    ),
    Command(
        "completion",
        "Print the completion script of a shell.",
        "launch.completion",
        (add_shell,),
        "bash|zsh|fish",
    ),
)
COMMANDS = {command.name: command for command in _TABLE}


class Parser(argparse.ArgumentParser):
    """Flags of a command; what is wrong with them is a `UsageError`."""

    def flags(self) -> dict[str, bool]:
        """Each flag, and whether it takes a value."""
        return {name: one.nargs != 0 for one in self._actions for name in one.option_strings}

    def choices(self) -> list[str]:
        """What its first word may be; empty where that is free."""
        words = [one.choices for one in self._actions if not one.option_strings and one.choices]
        return [str(choice) for choices in words[:1] for choice in choices or ()]

    def check(self, words: Sequence[str]) -> None:
        """Prints the help and exits where it is asked for; refuses what the command would.

        Raises:
          UsageError: unknown flags, and values of another type.
        """
        _, rest = self.parse_known_args(list(words))
        for word in rest:
            flag = word.partition("=")[0]
            if not word.startswith("-"):
                raise UsageError(f"{self.prog}: {word!r} is one word too many")
            if flag.removeprefix("--").isupper():
                name = word.removeprefix("--")
                raise UsageError(
                    f"{self.prog}: unknown flag {flag}; settings have no dashes: {name}"
                )
            hint = did_you_mean(flag, self.flags()) or f"; {self.prog} --help lists all"
            raise UsageError(f"{self.prog}: unknown flag {flag}{hint}")

    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"argument (\w+): invalid choice: '(.*?)' \(choose from", message):
            kind, word = wrong.groups()
            known = self.choices()
            hint = did_you_mean(word, known) or f"; expected {', '.join(known)}"
            message = f"no {kind} {word!r}{hint}"
        raise UsageError(f"{self.prog}: {message}")


def parser_of(command: Command, epilog: str = "") -> Parser:
    """The flags of a command, in a parser named after it.

    Args:
      command: of COMMANDS.
      epilog: what the help ends with.
    """
    parser = Parser(
        prog=f"kennel {command.name}",
        usage=f"kennel {command.name} {command.usage}",
        description=_documentation(command) if _is_documented(command) else command.help,
        epilog=epilog,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for add in command.flags:
        add(parser)
    return parser


def _is_documented(command: Command) -> bool:
    """Whether its help is its module's text; that of a recipe is about gin files."""
    return bool(command.verbs) or not command.takes_settings


def _documentation(command: Command) -> str:
    """The text of its module, which is not imported, with commands as `kennel` has them."""
    path = REPOSITORY / f"{command.module.replace('.', '/')}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    for other in _TABLE:
        text = text.replace(f"python -m {other.module}", f"kennel {other.name}")
    return text
