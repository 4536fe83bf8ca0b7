"""Whether test queries are answered by passages that training queries had as answers.

    python -m benchmarks.overlap --run=runs/mine [--metric=MRR@10]

Of a finished run folder of beir.gin or quickstart.gin. Prints the metric of each system on the test
queries that share a relevant passage with a training query, and on the others. A system that
learned from labelled queries may know the answers of the first: its figure on the others says what
it makes of new passages.
"""

import json
from pathlib import Path

import numpy as np
from absl import app, flags

from benchmarks import code_hash
from input_pipelines.sources import beir
from input_pipelines.sources.text_sources import BadRecords

_RUN = flags.DEFINE_string("run", "runs/quickstart", "A finished run folder.")
_METRIC = flags.DEFINE_string("metric", "MRR@10", "One of the evaluation's metrics.")


def relevant(corpus: str, split: str) -> dict[str, set[str]]:
    """Query -> ids of the passages that a split judges relevant."""
    found: dict[str, set[str]] = {}
    for qrel in beir.read_qrels(corpus, split, BadRecords(0)):
        if qrel.score > 0:
            found.setdefault(qrel.query, set()).add(qrel.passage)
    return found


def shares_answers(train: dict[str, set[str]], test: dict[str, set[str]]) -> set[str]:
    """The test queries of which a relevant passage answers a training query, too."""
    answers = set().union(*train.values()) if train else set()
    return {query for query, passages in test.items() if passages & answers}


def main(argv: list[str]) -> None:
    """Prints the table."""
    del argv
    code_hash.announce("overlap")
    run = Path(_RUN.value)
    corpus = str(run / "collection/corpus")
    train, test = relevant(corpus, "train"), relevant(corpus, "test")
    train |= relevant(corpus, "dev")  # held out of the training queries where there were none
    shared = shares_answers(train, test)
    scores = json.loads((run / "evaluation/per_query.json").read_text(encoding="utf-8"))
    known = np.array([query in shared for query in scores["queries"]])
    print(f"{known.sum()} of {len(known)} test queries share a relevant passage with training or")
    print(f"development queries. {_METRIC.value} on these, and on the others:")
    for system, values in scores["systems"].items():
        parts = [np.array(values[_METRIC.value])[which] for which in (known, ~known)]
        shown = [f"{part.mean():.4f}" if len(part) else "     -" for part in parts]
        print(f"  {system:20}{shown[0]:>8}{shown[1]:>8}")


if __name__ == "__main__":
    app.run(main)
