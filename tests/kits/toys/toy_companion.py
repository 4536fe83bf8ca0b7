"""A toy stage that a companion has to finish, and that companion.

They meet at a named pipe, or at an object where their folder is on object storage.
"""

import contextlib
import importlib
import os
import signal
import sys
import threading
from typing import Annotated

from t5x_style.companions import companion_runner
from t5x_style.storage import objects, places

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"hear": {"name": "toy_hear", "version": 1, "outputs": ["text"]}}


SPEAK = """from tests.kits.toys import toy_companion
toy_companion.speak:
  folder = %MEET
  stage = %STAGE
  text = %TEXTS
  says = %SAYS
"""  # speak.gin


def described(stage: str, texts: str) -> str:
    """Gin of the companion `voice` of a recipe, whose `speak.gin` is SPEAK.

    Args:
      stage: that it runs next to.
      texts: what it reads, such as '%first.text'.
    """
    return f"""from tests.kits.toys import toy_companion
voice/recipe.Companion:
  stage = '{stage}'
  program = @toy_companion.speak
  gin_files = ['speak.gin']
  inputs = {{'TEXTS': {texts}}}
  watches = 'STAGE'
  shares = 'MEET'
"""


def _pipe(folder: str) -> str:
    path = os.path.join(folder, "pipe")
    os.makedirs(folder, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path)
    return path


def _read(folder: str) -> str:
    """What the companion says, once it does."""
    if not places.is_remote(folder):
        with open(_pipe(folder), encoding="utf-8") as pipe:
            return pipe.read()
    pause = threading.Event()
    while objects.default().find(f"{folder}/said") is None:
        pause.wait(0.1)
    return objects.default().read(f"{folder}/said")[0].decode()


def _write(folder: str, text: str) -> None:
    if places.is_remote(folder):
        objects.default().write(f"{folder}/said", text.encode())
        return
    with open(_pipe(folder), "w", encoding="utf-8") as pipe:
        pipe.write(text)


def hear(
    folder: Annotated[str, "operational"], source: str, model_dir: str
) -> dict[str, str] | None:
    """A job: writes down what its companion says, and waits for that."""
    del source
    said = _read(folder)
    if said == "stop":
        return None
    with open(os.path.join(model_dir, "out.txt"), "w", encoding="utf-8") as file:
        file.write(said)
    return {"text": "out.txt"}


def speak(folder: str, stage: str, text: str, says: str) -> None:
    """What runs next to it; it would never end by itself.

    Args:
      folder: where they meet.
      stage: the link of the stage, which has begun.
      text: a file that an earlier stage wrote.
      says: 'size', 'stop', or how it fails: 'error' or 'kill'; 'end' kills the recipe.
    """
    if says == "error":
        raise ValueError("expected a voice, found none")
    if says in ("kill", "end"):
        os.kill(os.getpid() if says == "kill" else os.getppid(), signal.SIGKILL)
    with open(text, encoding="utf-8") as file:
        heard = f"{file.read()} {os.path.basename(stage)} {os.environ.get('JAX_PLATFORMS')}"
    _write(folder, says if says == "stop" else heard)
    while True:
        signal.pause()


if __name__ == "__main__":
    # gin must meet this module under its own name
    module = importlib.import_module("tests.kits.toys.toy_companion")
    sys.exit(companion_runner.main(module.speak, sys.argv[1:]))
