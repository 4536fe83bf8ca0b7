"""The code that a benchmark runs, named next to its figures: equal code, comparable tables."""

import sys

from t5x_style.configuration.gin_reader import Config
from t5x_style.workflow import fingerprints
from t5x_style.workflow.plans import code_hash


def announce(name: str) -> None:
    """Prints a hash of all sources of ours that a benchmark imports, on stderr.

    Args:
      name: of the benchmark's module, such as `train_step`.
    """
    code = fingerprints.of_code([f"benchmarks.{name}"], Config(), ["benchmarks"], machinery=True)
    print(f"code {code_hash(code)} ({len(code)} modules)", file=sys.stderr, flush=True)
