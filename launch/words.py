"""What the words after `kennel run` become: a recipe and settings, as flags of gin.

The first word is the recipe: a name of gin_configs/recipes, or a path that ends in `.gin`; after
`kennel sweep` a sweep, in the same way. Every other word is a setting: `NAME=VALUE` is
`--gin.NAME=VALUE`, in the same order. Flags stay unchanged.
`t5x_style.configuration.gin_reader.override_value` decides what VALUE means: one gin value, or
else the text itself.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from launch.commands import Command, Parser, UsageError
from t5x_style.configuration.python_sources import REPOSITORY
from t5x_style.configuration.suggestions import did_you_mean

FOLDERS = {"recipe": "gin_configs/recipes", "sweep": "gin_configs/sweeps"}
SETTING = re.compile(r"(?P<name>[A-Za-z_][\w./]*)=(?P<value>.*)", re.DOTALL)
# A recipe describes stages, or includes one that does; kinds.gin, which others include, does not.
DESCRIBES = {
    "recipe": re.compile(
        r"^(\w+/recipe\.Stage\b|include ['\"](?:gin_configs/)?recipes/(?!kinds\.gin))",
        re.MULTILINE,
    ),
    "sweep": re.compile(r"^sweep\.run\b", re.MULTILINE),
}
RULE = """words:
  NAME=VALUE sets a macro or a parameter; it is the same as --gin.NAME=VALUE. VALUE is a gin
  value (3, 1e-4, True, None, [1, 2], %MACRO) or else text, without quotes: CORPUS=path/to/folder.
  Text that would be a gin value, or begins with one of % @ ' " [ ( {, needs quotes of gin
  within those of the shell: NAME="'2024'". See docs/cli.md."""


def recipes(kind: str = "recipe") -> dict[str, str]:
    """Names of the recipes, or sweeps, that Kennel has, with the first line of each."""
    found = {}
    for path in sorted((REPOSITORY / FOLDERS[kind]).glob("*.gin")):
        text = path.read_text(encoding="utf-8")
        if DESCRIBES[kind].search(text):
            found[path.stem] = text.partition("\n")[0].strip("# ")
    return found


def find_recipe(word: str, kind: str = "recipe") -> str:
    """The gin file of a recipe or sweep that a word names, as `--gin_file` takes it.

    Raises:
      UsageError: a folder, or a name that no recipe has.
    """
    path, name = Path(word), word.removesuffix(".gin")
    known = recipes(kind)
    if name in known and not (word.endswith(".gin") and path.is_file()):
        return f"{FOLDERS[kind]}/{name}.gin"
    if word and path.is_dir():
        raise UsageError(f"{word} is a folder; expected a {kind}'s name, or its gin file")
    if word.endswith(".gin") or path.is_file():
        return word  # a file that is missing is reported with the folders in which it was sought
    files = [str(one) for one in path.parent.glob("*.gin")]
    command = {"recipe": "run", "sweep": "sweep"}[kind]
    hint = did_you_mean(word, [*known, *files]) or f"; `kennel {command} --help` lists all"
    raise UsageError(f"no {kind} {word!r}{hint}")


def translate(command: Command, parser: Parser, words: Sequence[str]) -> list[str]:
    """The words as flags.

    >>> from launch.commands import COMMANDS, parser_of
    >>> run = COMMANDS["run"]
    >>> translate(run, parser_of(run), ["beir", "CORPUS=a/b", "--dry_run"])
    ['--gin_file=gin_configs/recipes/beir.gin', '--gin.CORPUS=a/b', '--dry_run']

    Raises:
      UsageError: a word that is neither, a setting without a value, no recipe.
    """
    if command.verbs:
        verb, *rest = words or [""]
        if not verb:
            names = ", ".join(command.verbs)
            raise UsageError(
                f"name a verb of kennel {command.name}: {names}; "
                f"kennel {command.name} --help says what each does"
            )
        if verb not in command.verbs:
            return list(words)  # the parser says what is wrong
        return [verb, *translate(command.of_verb(verb), parser, rest)]
    if not command.takes_settings:
        return list(words)
    recipe, flags = split(command, parser, words)
    named = any(word.partition("=")[0] == "--gin_file" for word in flags)
    kind = command.first_word
    if not kind or (recipe is None and named):
        return flags
    if recipe is None:
        example = next(iter(recipes(kind))) if kind == "sweep" else "quickstart"
        raise UsageError(f"name a {kind}: `kennel {command.name} {example}`, or --help lists all")
    return [f"--gin_file={find_recipe(recipe, kind)}", *flags]


def split(command: Command, parser: Parser, words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The word that is a recipe, if there is one, and the others as flags.

    Raises:
      UsageError: a word that is neither, a setting without a value or before the recipe.
    """
    takes_value = parser.flags()
    recipe, flags, is_value = None, [], False
    for word in words:
        if is_value or word.startswith("-"):
            flags.append(word)
            is_value = not is_value and takes_value.get(word, False)
        elif setting := SETTING.fullmatch(word):
            if (kind := command.first_word) and recipe is None:
                raise UsageError(
                    f"{word} comes before the {kind}: kennel {command.name} {kind.upper()} {word}"
                )
            flags.append(_flag(**setting.groupdict()))
        elif command.first_word and recipe is None:
            recipe = word
        else:
            raise UsageError(_no_setting(word))
    return recipe, flags


def _flag(name: str, value: str) -> str:
    if not value:
        raise UsageError(
            f"{name}= has no value: write {name}=VALUE, with no space; an empty text is "
            f"{name}=\"''\""
        )
    return f"--gin.{name}={value}"


def _no_setting(word: str) -> str:
    if word.startswith("="):
        return f"{word!r} is no setting: write NAME=VALUE, with no space"
    if word.isupper():
        return f"{word} has no value: write {word}=VALUE, with no space"
    return f"{word!r} is no setting NAME=VALUE; further gin files are --gin_file=FILE"
