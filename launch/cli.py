"""The command line: `kennel COMMAND ...`, and `python -m launch.cli COMMAND ...`, the same.

    kennel run quickstart --dry_run
    kennel run beir CORPUS=path/to/folder RUN_DIR=runs/mine STEPS=100
    kennel search --run=runs/quickstart "how do I read a csv file"

Checks words and flags, and then becomes `python -m MODULE` of the command (`launch.commands`): its
output, its signals and its exit code are those of the command. 2 is a command line that cannot be
run, with one line on stderr.
"""

import os
import sys
from collections.abc import Sequence

from launch import words
from launch.commands import COMMANDS, FLAGS, Command, UsageError, parser_of
from t5x_style.configuration.suggestions import did_you_mean

COMPLETE = "_complete"  # of the scripts of `launch.completion`
WIDTH = 100  # of a line of the help


def main() -> None:
    """Runs the command of `sys.argv`."""
    try:
        arguments = python_arguments(sys.argv[1:])
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    os.execv(sys.executable, [sys.executable, *arguments])


def python_arguments(argv: Sequence[str]) -> list[str]:
    """What Python is to run for these words; exits where only something is to be printed.

    >>> python_arguments(["run", "beir", "CORPUS=a/b"])[:3]
    ['-m', 'launch.recipe', '--gin_file=gin_configs/recipes/beir.gin']

    Raises:
      UsageError: the command, its words or its flags are wrong.
    """
    if not argv:
        print(overview(), file=sys.stderr)
        sys.exit(2)
    name, *rest = argv
    _print_and_exit(name, rest)
    command = COMMANDS.get(name)
    if command is None:
        raise UsageError(_no_command(name))
    asks_help = not {"-h", "--help"}.isdisjoint(rest)
    parser = parser_of(command, epilog(command) if asks_help else "")
    if asks_help:
        parser.print_help()
        sys.exit(0)
    flags = words.translate(command, parser, rest)
    parser.check([word for word in flags if not word.startswith("--gin.")])
    return ["-m", command.module, *flags]


def _print_and_exit(name: str, rest: Sequence[str]) -> None:
    """Does what `kennel` does by itself: --help, --version, completions."""
    if name in ("-h", "--help"):
        print(overview())
    elif name == "--version":
        from importlib import metadata

        print(f"kennel {metadata.version('kennel')}")
    elif name == COMPLETE and len(rest) == 1:
        from launch import completion

        for word in completion.candidates(rest[0]):
            print(word)
    else:
        return
    sys.exit(0)


def _no_command(name: str) -> str:
    if name.startswith("-"):
        hint = did_you_mean(name, FLAGS)
        return f"{name} is no command{hint or '; the command comes first: kennel COMMAND [flags]'}"
    if name.endswith(".gin") or name in words.recipes():
        return f"no command {name!r}; did you mean kennel run {name}?"
    hint = did_you_mean(name, [*COMMANDS, *FLAGS]) or "; kennel --help lists all"
    return f"no command {name!r}{hint}"


def overview() -> str:
    """The text of `kennel --help`."""
    lines = [f"  {command.name:<12}{command.help}" for command in COMMANDS.values()]
    return "\n".join(
        (
            "usage: kennel COMMAND ...",
            "",
            *lines,
            "",
            "kennel COMMAND --help says more; kennel --version. To begin: kennel run quickstart",
        )
    )


def epilog(command: Command) -> str:
    """What the help of a command ends with: the rule of settings, and the recipes."""
    parts = [words.RULE] if command.takes_settings else []
    if kind := command.first_word:
        lines = (f"  {name:<26} {about}" for name, about in words.recipes(kind).items())
        short = [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in lines]
        parts += ["\n".join([f"{kind}s, of which any gin file may be one:", *short])]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
