"""Prints the script that completes commands, recipes, flags and settings in a shell.

    source <(kennel completion bash)           # in ~/.bashrc
    source <(kennel completion zsh)            # in ~/.zshrc, after compinit
    kennel completion fish | source            # in ~/.config/fish/config.fish

The script asks `kennel _complete LINE`. Where that says nothing, the shell completes file names.
"""

import argparse
import sys
from collections.abc import Sequence

from launch import words
from launch.commands import COMMANDS, FLAGS, Command, Parser, UsageError, add_shell, parser_of

BASH = r"""_kennel() {
    local IFS=$'\n'
    COMPREPLY=($("$1" _complete "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -ne 1 || $COMPREPLY != *= ]] || compopt -o nospace
}
complete -o default -F _kennel kennel
"""
ZSH = r"""#compdef kennel
_kennel() {
    local -a found
    found=(${(f)"$("${words[1]}" _complete "${(j: :)words[1,CURRENT]}" 2>/dev/null)"})
    (( $#found )) || { compset -P '*='; _files; return }
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
}
compdef _kennel kennel
"""
FISH = r"""function __kennel
    set -l command (commandline -po)[1]
    set -l found ($command _complete (commandline -cp | string collect) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c kennel -f -n 'not string match -q "*=*" -- (commandline -ct)' -a '(__kennel)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def candidates(line: str) -> list[str]:
    """What the last word of a command line may become; nothing where it is a file or a value.

    Args:
      line: up to the cursor, with `kennel` or the path of it as the first word.
    """
    *before, current = line.split() + [""] * line[-1:].isspace()
    found = _all(before[1:], current)
    return [word for word in found if word.startswith(current)]


def _all(before: Sequence[str], current: str) -> list[str]:
    if not before:
        return list(FLAGS) if current.startswith("-") else list(COMMANDS)
    command = COMMANDS.get(before[0])
    if command is None or "=" in current:
        return []
    parser = parser_of(command)
    flags = parser.flags()
    if flags.get(before[-1]):
        return []
    if current.startswith("-"):
        return [f"{flag}=" if value else flag for flag, value in flags.items() if flag[1] == "-"]
    if command.verbs and len(before) > 1:
        usage = command.verbs.get(before[1], "")
        if "NAME=VALUE" not in usage:
            return []
        command, before = command.of_verb(before[1]), before[1:]
    if command.takes_settings and not command.verbs:
        return _settings(command, parser, before[1:])
    return parser.choices() if len(before) == 1 else []


def _settings(command: Command, parser: Parser, before: Sequence[str]) -> list[str]:
    """Recipes, or after one the macros that it has, but for those that are set already."""
    try:
        recipe, _ = words.split(command, parser, before)
        if command.first_word and recipe is None:
            return list(words.recipes(command.first_word))
        flags = words.translate(command, parser, before)
    except UsageError:
        return []
    given = {flag.partition("=")[0].removeprefix("--gin.") for flag in flags}
    return [f"{name}=" for name in _macros(flags) if name not in given]


def _macros(flags: Sequence[str]) -> list[str]:
    """The macros that the gin files of a command line set or refer to."""
    from t5x_style.configuration import gin_checks, gin_macros
    from t5x_style.sweeps.sweep_reader import FOLDER_MACRO, is_sweep
    from t5x_style.workflow.recipe_reader import LIMIT_MACRO, STORE_MACRO, is_recipe

    try:
        config = gin_checks.parse_flags(flags).read()
    except (ValueError, SystemExit):  # the command itself says what is wrong
        return []
    names = {*config.macros, *gin_macros.in_use(config)}
    if is_recipe(config):
        names |= {STORE_MACRO, LIMIT_MACRO}
    if is_sweep(config):
        names.add(FOLDER_MACRO)
    return sorted(name for name in names if name.isidentifier())


def main(argv: Sequence[str]) -> int:
    """Prints the script; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_shell(parser)
    print(SCRIPTS[parser.parse_args(argv).shell], end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
