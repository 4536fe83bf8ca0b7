"""Places in files, as records name them: without folders, so that moved files give the same."""

import os
from collections.abc import Sequence


def place(path: str, where: str) -> str:
    """A place in a file without the file's folder, e.g. for `Record.source`.

    Args:
      path: of the file.
      where: the place, beginning with the path.

    >>> place("data/corpus.tsv", "data/corpus.tsv:12")
    'corpus.tsv:12'
    """
    return where.removeprefix(os.path.join(os.path.dirname(path), ""))


def file_names(paths: Sequence[str]) -> list[str]:
    """Names of files for ids: without folders and white space, numbered where they repeat.

    >>> file_names(["data/a.txt", "data/b/c d.txt", "data/e/a.txt"])
    ['0/a.txt', 'c_d.txt', '2/a.txt']
    """
    names = ["_".join(os.path.basename(path).split()) for path in paths]
    return [name if names.count(name) == 1 else f"{i}/{name}" for i, name in enumerate(names)]
