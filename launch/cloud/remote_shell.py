"""Words of a command, as one shell text that `gcloud compute tpus tpu-vm ssh --command=TEXT` runs.

gcloud splits TEXT at spaces and hands the parts to the local `ssh` without a shell; `ssh` joins
them with spaces; the remote `sshd` gives the result to the login shell with `-c`. TEXT is therefore
evaluated once, by the remote shell, and each word of it arrives byte for byte.
"""

import re
import shlex
from collections.abc import Mapping, Sequence

# Linux refuses one argument of a program above 128 KiB; gcloud's is `--command=TEXT` and a NUL.
MAX_BYTES = 128 * 1024 - len("--command=") - 1
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class RemoteShellError(ValueError):
    """A command that cannot pass through ssh; the message says which word, and what to do."""


def command_text(argv: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Returns a shell text that replaces the remote shell by a program.

    Args:
      argv: the program and its arguments; any text without NUL.
      environment: variables that the program gets in addition to the remote shell's.

    Raises:
      RemoteShellError: no program, a word with NUL or that is not Unicode, the name of a variable
        that no shell accepts, or a text above MAX_BYTES.
    """
    if not argv or not argv[0]:
        raise RemoteShellError(f"expected a program and its arguments, found {list(argv)!r}")
    variables = dict(environment or {})
    for name in variables:
        if not _VARIABLE.fullmatch(name):
            raise RemoteShellError(
                f"expected the name of an environment variable (letters, digits and _), "
                f"found {name!r}"
            )
    assignments = [f"{name}={value}" for name, value in variables.items()]
    for word in (*assignments, *argv):
        _check(word)
    words = (*(("env", *assignments) if assignments else ()), *argv)
    text = f"exec {shlex.join(words)}"
    if (size := len(text.encode())) > MAX_BYTES:
        raise RemoteShellError(
            f"the command is {size} bytes long as a shell text, and at most {MAX_BYTES} bytes pass "
            "through ssh. Put long settings into a gin file of the recipe: files are copied to the "
            f"hosts. The longest word begins with {max(words, key=len)[:60]!r}"
        )
    return text


def _check(word: str) -> None:
    """Refuses what no argument of a program can hold."""
    if "\0" in word:
        raise RemoteShellError(
            f"{word[:60]!r} contains NUL (at character {word.index(chr(0))}), which cannot be part "
            "of a command or of an environment variable; remove it"
        )
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise RemoteShellError(
            f"{word[:60]!r} is not Unicode (at character {error.start}), so it would arrive as "
            "something else; expected text that UTF-8 can encode"
        ) from None
