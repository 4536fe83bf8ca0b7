"""README.md of a fine-tuned encoder or re-ranker: a model card filled from the run that made it."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from models.interop import collection_files, export_checks, finetuned_usage, front_matter
from t5x_style.interfaces import verdict_record as verdict_lib
from t5x_style.interfaces.contract import TEXT, Contract

_TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "kennel")
_RERANKER_TAGS = ("sentence-transformers", "cross-encoder", "reranker", "kennel")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)  # an id on the Hub
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#])")


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts of a model card.

    Attributes:
        base: name of the encoder that the training started from; no path.
        licence: fields of the card, see `licences.chosen`.
        published: fields of that encoder's card.
        contract: of the model.
        max_tokens: at which sentence-transformers cuts a text.
        verdict: on the model.
        files: that were trained on and tested with.
        division: sentences on how these came to be.
        command: that made the model.
        token_vector_size: of the vectors of tokens that M3 also has; None: there are none.
    """

    base: str
    licence: Mapping[str, Any]
    published: Mapping[str, Any]
    contract: Contract
    max_tokens: int
    verdict: verdict_lib.Verdict
    files: Sequence[collection_files.File]
    division: Sequence[str]
    command: str
    token_vector_size: int | None = None

    @property
    def data(self) -> str:
        """Name of the data."""
        return self.verdict.data.get("name") or "labelled data"

    @property
    def reranker(self) -> bool:
        """Whether the model puts hits in order, and makes no vectors."""
        return export_checks.is_reranker(self.contract)

    @property
    def name(self) -> str:
        """Of the model."""
        return f"{self.base.rpartition('/')[2]} fine-tuned on {self.data}"


def card(facts: Facts) -> str:
    """README.md, ready for the Hugging Face Hub."""
    sections = [
        _first_line(facts.verdict),
        f"# {_plain(facts.name)}",
        _introduction(facts),
        "## Results",
        *_results(facts),
        *_elsewhere(facts.verdict),
        *_short(facts),
        "## How to use it",
        finetuned_usage.text(
            facts.contract,
            facts.max_tokens,
            _shortest(facts),
            facts.token_vector_size,
            facts.verdict.weighed,
        ),
        "## How it was made",
        *_made(facts),
        "## Limits",
        _items(_limits(facts)),
    ]
    return front_matter.text(metadata(facts)) + "\n" + "\n\n".join(sections) + "\n"


def metadata(facts: Facts) -> dict[str, Any]:
    """The fields of the card that the Hub reads."""
    verdict = facts.verdict
    places = [(facts.data, verdict.systems), *((n, o.systems) for n, o in verdict.others.items())]
    # Of the model alone, which is what the Hub lists.
    alone = verdict.system if verdict.weighed is None else verdict.weighed.first
    results = [_result(name, systems[alone]) for name, systems in places if alone in systems]
    fields = {
        "language": facts.published.get("language"),
        **facts.licence,
        "library_name": "sentence-transformers",
        "pipeline_tag": "text-ranking" if facts.reranker else "sentence-similarity",
        "tags": list(_RERANKER_TAGS if facts.reranker else _TAGS),
        "base_model": facts.base if _REPOSITORY.fullmatch(facts.base) else None,
        "base_model_relation": "finetune" if _REPOSITORY.fullmatch(facts.base) else None,
        "model-index": [{"name": facts.name, "results": results}] if results else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _result(collection: str, metrics: verdict_lib.Metrics) -> dict[str, Any]:
    """An element of `results` in a model index, for the test queries of a collection."""
    return {
        "task": {"type": "information-retrieval", "name": "Information Retrieval"},
        "dataset": {"name": collection, "type": _slug(collection), "split": "test"},
        "metrics": [
            {"type": _slug(name.replace("@", " at ")), "name": name, "value": round(one.value, 4)}
            for name, one in metrics.items()
        ],
    }


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") or "unnamed"


def _first_line(verdict: verdict_lib.Verdict) -> str:
    if not verdict.is_worse:
        return f"**{_plain(verdict.line)}**"
    return (
        f"**`{verdict.system}` is worse than `{verdict.baseline}`, and was exported because "
        f"{verdict_lib.FORCE} asked for it. {_plain(verdict.line)}**"
    )


def _introduction(facts: Facts) -> str:
    contract = facts.contract
    if facts.reranker:
        return (
            f"A re-ranker, `{facts.base}` fine-tuned with Kennel on {_plain(facts.data)}: it reads "
            f"a query of at most {contract.query_length} tokens and a passage of at most "
            f"{contract.passage_length} in one text, and gives one score. Higher is better; "
            "scores rank the passages of one query, and are no probabilities."
        )
    return (
        f"`{facts.base}` fine-tuned with Kennel on {_plain(facts.data)}: a retriever with "
        f"{contract.dimension} dimensions, {contract.pooling} pooling and {contract.similarity} "
        f"similarity, for queries of at most {contract.query_length} tokens and passages of at "
        f"most {contract.passage_length}."
    )


def _results(facts: Facts) -> Iterable[str]:
    verdict = facts.verdict
    if not verdict.systems:
        yield "There were no test queries, so nothing was measured."
        return
    yield (
        f"Means over {verdict.queries.get('test', 0):,} test queries that were not trained on, "
        f"with 95 % intervals. {_names(facts)}"
    )
    yield _table(verdict.systems)
    if verdict.difference is not None:
        p = "" if verdict.p is None else f", p = {verdict.p:.2g}"
        yield (
            f"{verdict.metric}, `{verdict.system}` minus `{verdict.baseline}`, paired over the "
            f"same queries: {verdict.difference.signed}{p}."
        )


def _names(facts: Facts) -> str:
    verdict = facts.verdict
    if facts.reranker and verdict.weighed is not None:
        one, rest = verdict.weighed, round(1 - verdict.weighed.weight, 4)
        hits = "hits" if one.hits is None else f"{one.hits} best hits"
        return (
            f"`{one.first}` is the {hits} of `{one.second}` in the order of this model. "
            f"`{verdict.system}` adds {one.weight:g} of this model's score and {rest:g} of that of "
            f"`{one.second}`, each scaled to 0 to 1 over these hits, as the code below does."
            + _alone(verdict, one)
        )
    if facts.reranker:
        return (
            f"`{verdict.system}` is the hits of `{verdict.baseline}` in the order of this model."
            + _others(verdict)
        )
    return f"The base is called `{verdict.baseline}`, this model `{verdict.system}`."


def _alone(verdict: verdict_lib.Verdict, weighed: verdict_lib.Weighed) -> str:
    """A warning where the model alone is worse than the search."""
    one, other = (verdict.systems[name][verdict.metric] for name in (weighed.first, weighed.second))
    if one.value >= other.value:
        return ""
    return (
        f" **Alone, this model puts the hits in a worse order than `{weighed.second}` "
        f"({verdict.metric} {one.value:.3f}, {other.value:.3f}): use it with those scores.**"
    )


def _others(verdict: verdict_lib.Verdict) -> str:
    """What rows of the table are that are neither of the two."""
    names = [name for name in verdict.systems if name not in (verdict.system, verdict.baseline)]
    if not names:
        return ""
    rows = ", ".join(f"`{name}`" for name in names)
    return f" For comparison only, and described on the page of the run that made it: {rows}."


def _table(systems: Mapping[str, verdict_lib.Metrics]) -> str:
    names = list(dict.fromkeys(name for metrics in systems.values() for name in metrics))
    rows = [
        [_plain(system), *(str(metrics[name]) if name in metrics else "" for name in names)]
        for system, metrics in systems.items()
    ]
    return _rows([["system", *map(_plain, names)], *rows])


def _elsewhere(verdict: verdict_lib.Verdict) -> Iterable[str]:
    """Changes by fine-tuning on collections that it did not see."""
    if not verdict.others:
        return
    yield "### On other collections"
    yield (
        f"{verdict.metric} on collections that were not trained on. A negative difference is what "
        "fine-tuning lost there."
    )
    yield _differences("collection", verdict.others, verdict)


def _short(facts: Facts) -> Iterable[str]:
    """Quality of truncated vectors, if the model was trained for it."""
    verdict = facts.verdict
    if not _is_matryoshka(verdict):
        return
    yield "### Shorter vectors"
    lengths = [length for length in verdict.short if length != str(facts.contract.dimension)]
    yield (
        f"Vectors can be truncated to their first {_listed(lengths)} dimensions, which were "
        f"trained for it (Matryoshka learning). {verdict.metric} on the test queries, by number "
        "of dimensions kept:"
    )
    yield _differences("dimensions", verdict.short, verdict)


def _is_matryoshka(verdict: verdict_lib.Verdict) -> bool:
    """Whether the weights, which may be the original ones, were trained for short vectors."""
    return bool(verdict.short) and verdict.interpolation != 0


def _shortest(facts: Facts) -> int | None:
    """The smallest number of dimensions that vectors were trained for; None: no fewer than all."""
    if not _is_matryoshka(facts.verdict):
        return None
    return min(map(int, facts.verdict.short))


def _differences(
    what: str, found: Mapping[str, verdict_lib.Elsewhere], verdict: verdict_lib.Verdict
) -> str:
    """A table: the metric of both systems on each, and the difference."""
    head = [what, "queries", verdict.baseline, verdict.system, "difference"]
    rows = [
        [
            _plain(name),
            f"{one.queries:,}",
            *(_cell(one, system, verdict.metric) for system in (verdict.baseline, verdict.system)),
            one.difference.signed if one.difference else "",
        ]
        for name, one in found.items()
    ]
    return _rows([head, *rows])


def _listed(words: Sequence[str]) -> str:
    """Words as a sentence has them.

    >>> _listed(["256", "128", "64"])
    '256, 128 and 64'
    """
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _cell(one: verdict_lib.Elsewhere, system: str, metric: str) -> str:
    found = one.systems.get(system, {}).get(metric)
    return "" if found is None else str(found)


def _made(facts: Facts) -> Iterable[str]:
    verdict = facts.verdict
    started = [f"It started from `{facts.base}`"]
    if verdict.interpolation is not None:
        started.append(
            f"and its weights are {verdict.interpolation:g} of the fine-tuned ones and "
            f"{1 - verdict.interpolation:g} of the original ones"
        )
    yield (", ".join(started) + ".")
    yield "The command:\n\n" + _code(facts.command)
    digest = verdict.data.get("sha256")
    said = [f"Data: {_plain(facts.data)}" + (f", sha256 `{digest}`." if digest else ".")]
    if verdict.queries:
        counts = ", ".join(f"{count:,} for {split}" for split, count in verdict.queries.items())
        said.append(f"{verdict.passages:,} passages; queries: {counts}.")
    yield (" ".join([*said, *map(_plain, facts.division)]))
    yield _rows(
        [["file", "holds", "sha256"]]
        + [[f"`{one.name}`", one.holds, f"`{one.sha256}`"] for one in facts.files]
    )


def _limits(facts: Facts) -> Iterable[str]:
    contract = facts.contract
    if facts.reranker:
        yield (
            f"In training, a query was cut to {contract.query_length} tokens and a passage to "
            f"{contract.passage_length}, special tokens included, before they were joined. "
            "sentence-transformers cuts the pair as a whole, the longer text first: scores can "
            "differ where a text is longer."
        )
    else:
        yield from _limits_of_vectors(facts)
    if contract.query_prefix or contract.passage_prefix:
        yield (
            f"It expects `{contract.query_prefix!r}` before queries and "
            f"`{contract.passage_prefix!r}` before passages; without these its "
            f"{'scores' if facts.reranker else 'vectors'} are others."
        )
    yield (
        "A passage with a title was read as title, space, text."
        if contract.passage_layout == TEXT
        else "A passage with a title was read as title, [SEP], text, which sentence-transformers "
        "cannot be given."
    )
    compared = "the order that it changes" if facts.reranker else "the encoder it started from"
    measured = "" if facts.verdict.others else ", and no other collection was measured"
    if facts.verdict.systems:
        yield (
            "The results are those of the queries and passages above. On texts of another kind it "
            f"may be worse than {compared}{measured}."
        )
    else:
        yield f"It may be worse than {compared}: nothing was measured."

    theirs = facts.published.get("license")
    if theirs and theirs != facts.licence["license"]:
        yield f"The encoder that it started from has the licence `{theirs}`."


def _limits_of_vectors(facts: Facts) -> Iterable[str]:
    contract = facts.contract
    yield (
        f"In training, queries were cut to {contract.query_length} tokens and passages to "
        f"{contract.passage_length}, special tokens included. sentence-transformers has one "
        f"length, {facts.max_tokens}; the code for transformers above cuts both as in training."
    )
    if contract.pooling != "pooler":
        yield (
            "The weights hold no pooler. transformers makes one up and says so; no vector above "
            "comes from it."
        )


def _plain(text: str) -> str:
    """Escape text for Markdown, on one line."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def _items(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _rows(cells: Sequence[Sequence[str]]) -> str:
    head, *rows = (f"| {' | '.join(row)} |" for row in cells)
    return "\n".join([head, "|" + "---|" * len(cells[0]), *rows])


def _code(text: str) -> str:
    """A block of code, whatever it holds."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.strip()}\n{fence}"
