"""Write verdict.json as Markdown: the first lines of a fine-tuning's page."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]
MANY_SUSPECTS = 0.1  # of all pairs
SHOWN, LETTERS = 3, 100  # suspect pairs, and letters of each text
BM25, FUSION, ONE_VECTOR = "bm25", "fusion", ("finetuned",)  # systems of recipes/finetune.gin

_TRAINED = {"shared": "is also that of a training query", "apart": "is in no training query"}
_MEANING = {  # of {system}, the tuned one, and {baseline}
    "better": "`{system}` finds more on held-out queries than `{baseline}`.",
    "no difference": "These queries do not show that `{system}` is better or worse than "
    "`{baseline}`. Keep `{baseline}`, or bring more training data.",
    "worse": "`{system}` finds less than `{baseline}`: keep `{baseline}`. The tuned model is not "
    "exported unless `FORCE_EXPORT=True`.",
    "no verdict": "Too few held-out queries, or passages that they ask for, to say so: the "
    "interval is what is known. Label more queries.",
}


def page(verdict: Report, collection: Report) -> str:
    """The page.

    Args:
      verdict: content of verdict.json.
      collection: report.json of the labelled collection.
    """
    lines = [
        verdict["line"],
        "",
        _meaning(verdict) + _warning(verdict),
        "",
        *_systems(verdict),
        *_weighed(verdict),
        *_words(verdict),
        *_folds(verdict),
        *_parts(verdict, verdict["parts"], _TRAINED),
        *_long(verdict),
        *_measured(verdict, "others", "{metric} on collections that nothing was trained on"),
        *_others_not_measured(verdict),
        *_measured(verdict, "short", "{metric} by number of dimensions kept"),
        *_mixture(verdict),
        *_suspects(verdict),
        *(f"- {note}" for note in collection.get("notes", ())),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _meaning(verdict: Report) -> str:
    word = verdict["verdict"]
    meaning = _MEANING[word].format_map(verdict)
    # Folds export nothing, whatever they find.
    return meaning.partition(" The tuned model")[0] if verdict.get("folds") else meaning


def _warning(verdict: Report) -> str:
    """Warning if the interval of too few queries is below 0."""
    below = verdict["verdict"] == "no verdict" and verdict["high"] < 0
    return " **It lies below 0: do not use the tuned model without more queries.**" if below else ""


def _systems(verdict: Report) -> list[str]:
    metric = verdict["metric"]
    rows = [[name, _value(found[metric])] for name, found in verdict["systems"].items()]
    counts = verdict["queries"]
    return [
        f"{counts['train']} queries for training, {counts['dev']} to choose the checkpoint, "
        f"{counts['test']} to judge it, over {verdict['passages']:,} passages.",
        "",
        *_table(["system", metric], rows),
    ]


def _weighed(verdict: Report) -> list[str]:
    """What the tuned system is, where it adds the scores of two."""
    found = verdict.get("weighed")
    if not found:
        return []
    first, second = found["first"], found["second"]
    hits = "all hits" if found["hits"] is None else f"the {found['hits']} best hits of `{second}`"
    return [
        f"`{verdict['system']}` puts {hits} in order by the scores of `{first}` and `{second}`, "
        f"each scaled to 0 to 1 over these hits: {_share(verdict)}." + _alone(verdict),
        "",
    ]


def _share(verdict: Report) -> str:
    """How much of each score is taken, and how that was chosen."""
    found = verdict["weighed"]
    shares = found.get("weights", [found["weight"]])
    low, high = min(shares), max(shares)
    amount = f"{low:.0%}" if low == high else f"{low:.0%} to {high:.0%}"
    split = "development" if found["tuned_on"] == "dev" else found["tuned_on"]
    each = " in each fold" if len(shares) > 1 else ""
    return (
        f"{amount} is the share of `{found['first']}`, the best one on {found['queries']} {split} "
        f"queries{each}, moved towards a default where these are few"
    )


def _alone(verdict: Report) -> str:
    """A warning where the first of two that are added is worse alone."""
    found, metric = verdict["weighed"], verdict["metric"]
    one, other = (verdict["systems"][found[name]][metric]["value"] for name in ("first", "second"))
    if one >= other:
        return ""
    return (
        f" **Alone, `{found['first']}` is below `{found['second']}` ({metric} {one:.4f}, "
        f"{other:.4f}): use it with the scores of `{found['second']}`.**"
    )


def _words(verdict: Report) -> list[str]:
    """A warning where matching words alone is better than one vector."""
    systems, metric = verdict["systems"], verdict["metric"]
    if BM25 not in systems or verdict["system"] not in ONE_VECTOR:
        return []
    words, tuned = (systems[name][metric]["value"] for name in (BM25, verdict["system"]))
    if words <= tuned:
        return []
    both = systems.get(FUSION, {}).get(metric, {"value": 0.0})["value"]
    together = f"Use both together (`{FUSION}`, {both:.4f})" if both > words else f"Use `{BM25}`"
    return [
        f"**`{BM25}` alone finds more than `{verdict['system']}`** ({metric} {words:.4f}, "
        f"{tuned:.4f}), as where queries repeat words of their passages. {together}, or train "
        "weights of words and vectors of tokens as well: `--kind=m3`.",
        "",
    ]


def _folds(verdict: Report) -> list[str]:
    """Of a cross-validation: what each fold found."""
    folds = verdict.get("folds", ())
    if not folds:
        return []
    repeats = 1 + max(one["repeat"] for one in folds)
    count = len(folds) // repeats
    rows = []
    for number, one in enumerate(folds):
        place = [str(number % count), str(one["n"]), f"{one['difference']:+.4f}"]
        rows.append([str(one["repeat"]), *place] if repeats > 1 else place)
    head = ["fold", "test queries", f"{verdict['metric']}, difference"]
    tested = (
        "each query is tested once, by one that has not seen it"
        if repeats == 1
        else f"each query is tested {repeats} times, each time by a model that was not trained on "
        "it, and its score is the mean"
    )
    return [
        f"{len(folds)} trainings: {tested}. Queries "
        "for training and to choose the checkpoint are counted in the first of them. What is "
        "judged is the procedure: for an encoder to use, run the same command without `--folds`.",
        "",
        *_table(["repeat", *head] if repeats > 1 else head, rows),
    ]


def _parts(verdict: Report, parts: Report, names: Mapping[str, str]) -> list[str]:
    """Two parts of the test queries, by their relevant passages."""
    rows = []
    for part, found in parts.items():
        values = [f"{found['systems'][name]:.4f}" for name in _pair(verdict)]
        rows.append([f"{names[part]} ({found['n']})", *values, _difference(found)])
    head = ["test queries whose relevant passage", *_pair(verdict), "difference"]
    return _table(head, rows) if rows else []


def _long(verdict: Report) -> list[str]:
    """Test queries for passages that the model may not have read to their end, and the others."""
    found = verdict.get("long")
    if not found:
        return []
    tokens, share = found["tokens"], found["passages"] / verdict["passages"]
    names = {"long": f"has {tokens} tokens or more", "whole": "has fewer"}
    return [
        *_parts(verdict, found["parts"], names),
        f"{found['passages']:,} passages, {share:.1%}, have {tokens} tokens or more. Of longer "
        f"ones the encoder reads the first {tokens}: what follows is in no vector. If the first "
        "row is much lower, try a longer `PASSAGE_LENGTH`, at most the encoder's positions.",
        "",
    ]


def _measured(verdict: Report, key: str, head: str) -> list[str]:
    """Changes by the tuning: on other collections, or of shorter vectors."""
    metric, rows = verdict["metric"], []
    for name, found in verdict.get(key, {}).items():
        values = [f"{found['systems'][one][metric]['value']:.4f}" for one in _pair(verdict)]
        rows.append([f"{name} ({found['queries']} queries)", *values, _difference(found)])
    heads = [head.format(metric=metric), *_pair(verdict), "difference"]
    return _table(heads, rows) if rows else []


def _others_not_measured(verdict: Report) -> list[str]:
    if not verdict.get("others_not_measured"):
        return []
    return [
        "**Nothing was measured on other collections**, so that this page does not know what the "
        "training lost there: `OTHER_COLLECTIONS=\"['path/to/a/BEIR/folder']\"`.",
        "",
    ]


def _mixture(verdict: Report) -> list[str]:
    share = verdict["interpolation"]
    if share is None:
        return []
    return [
        f"The weights are {share:.0%} those of the training and {1 - share:.0%} those of the "
        "original (`INTERPOLATION`).",
        "",
    ]


def _suspects(verdict: Report) -> list[str]:
    """Training pairs that are probably wrong."""
    found = verdict["suspects"]
    if not found or not found["suspect"]:
        return []
    many = found["suspect"] > MANY_SUSPECTS * found["pairs"]
    advice = " **That is much: is a column shifted, or a join wrong?**" if many else ""
    return [
        f"{found['suspect']:,} of {found['pairs']:,} training pairs are suspect: neither BM25 nor "
        f"the untouched encoder has the passage among its {found['depth']} best.{advice} All are "
        "in `suspects/suspects.jsonl`; the first:",
        "",
        *(
            f"- {_short(one['query'])} → {_short(one['passage'])}"
            for one in found["examples"][:SHOWN]
        ),
        "",
    ]


def _short(text: str) -> str:
    """The first characters of a text, escaped for Markdown."""
    words = " ".join(text.split())
    cut = words if len(words) <= LETTERS else words[: LETTERS - 1] + "…"
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", cut)


def _pair(verdict: Report) -> tuple[str, str]:
    return verdict["baseline"], verdict["system"]


def _value(one: Mapping[str, float]) -> str:
    return f"{one['value']:.4f} ({one['low']:.3f}–{one['high']:.3f})"


def _difference(one: Mapping[str, float]) -> str:
    return f"{one['difference']:+.4f} ({one['low']:+.3f} to {one['high']:+.3f})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|---" * len(head) + "|",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
