"""Whether a served run finds what its evaluation measured, and how long each mode of search takes.

    kennel export --bundle=runs/mine
    python -m benchmarks.served_fusion --run=runs/mine
    python -m benchmarks.served_fusion --run=runs/reranker --system=reranker_and_search

Of every `--each`-th test query the ten best of the bundle's last mode, `hybrid` or `reranked`, are
compared with the list of an evaluation's system. Times are of searches alone, without the encoding
of the query, but with a re-ranker's scores, in one process; medians.
"""

import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

from benchmarks import code_hash
from t5x_style.evaluation import ranking
from t5x_style.interfaces.representation import QUERY
from t5x_style.retrieval import beir_collection, versioned_folder
from t5x_style.serving import bundle
from t5x_style.serving.opened.bundle_service import BundleService
from t5x_style.serving.service import RERANKED, Encoded, Hit

_RUN = flags.DEFINE_string("run", None, "Folder of a run, which has a bundle.", required=True)
_MEASURED = flags.DEFINE_string(
    "measured", None, "Folder of the run that has the evaluation; by default --run."
)
_SYSTEM = flags.DEFINE_string("system", "fusion", "Of the evaluation, that the run searches as.")
_EACH = flags.DEFINE_integer("each", 100, "Test queries from one that is asked to the next.")
K = 10


def asked(service: BundleService, text: str) -> Encoded:
    """A query with all that any mode needs of it."""
    if not service.facts.kinds:
        return Encoded(text=text)
    tokens = service.tokenize(QUERY, text)
    found = service.submit(QUERY, tokens, service.facts.kinds).result()
    return dataclasses.replace(found, text=text)


def search(service: BundleService, query: Encoded, mode: str) -> list[Hit]:
    """The K best passages."""
    if mode != RERANKED:
        return service.search(query, mode, K)
    reranker = service.reranker
    assert reranker is not None  # of a bundle with this mode
    candidates = reranker.candidates(query.text, None)
    logits = [one.result() for one in map(reranker.score, candidates.pairs)]
    return reranker.ordered(candidates, logits, K)


def milliseconds(service: BundleService, query: Encoded, mode: str) -> float:
    """Of one search."""
    begin = time.perf_counter()
    search(service, query, mode)
    return 1000 * (time.perf_counter() - begin)


def main(argv: Sequence[str]) -> None:
    """Prints how many lists are equal, and the time of each mode."""
    code_hash.announce("served_fusion")
    run = Path(_RUN.value)
    of_evaluation = run if _MEASURED.value is None else Path(_MEASURED.value)
    measured = ranking.read_run(of_evaluation / f"evaluation/runs/{_SYSTEM.value}.trec")
    texts = beir_collection.read_queries(of_evaluation / "collection/corpus")
    service = BundleService(versioned_folder.current(bundle.of_run(run)))
    service.warm_up()  # before any text
    names = list(measured)[:: _EACH.value]
    queries = {name: asked(service, texts[name]) for name in names}
    mode = service.facts.modes[-1]
    found = {name: search(service, query, mode) for name, query in queries.items()}
    equal = sum(
        [hit.id for hit in found[name]] == [passage for passage, _ in measured[name][:K]]
        for name in names
    )
    print(f"{equal} of {len(names)} lists are those of the evaluation")
    for mode in service.facts.modes:
        times = [milliseconds(service, query, mode) for query in queries.values()]
        print(f"{mode}: {statistics.median(times):.1f} ms", flush=True)
    service.close()


if __name__ == "__main__":
    app.run(main)
