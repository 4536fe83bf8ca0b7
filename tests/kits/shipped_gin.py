"""Lets gin read files of gin_configs as a stage would: names, conventions and includes resolved."""

import contextlib
from collections.abc import Iterator

import gin

from t5x_style.configuration import gin_checks, gin_text


@contextlib.contextmanager
def parsed(*files: str, **settings: object) -> Iterator[None]:
    """gin's state holds the files and settings (macros or parameters) while the block runs."""
    flags = [f"--gin_file={file}" for file in files]
    flags += [f"--gin.{name}={value!r}" for name, value in settings.items()]
    text = gin_text.text_of(gin_checks.parse_flags(flags).read())
    gin.clear_config()
    try:
        with gin.unlock_config():
            gin.parse_config(text)
        yield
    finally:
        gin.clear_config()
