"""Advice on a summary page: the meaning of the table in words, and what to try next.

Every sentence follows from a figure of the evaluation or of a training's log by a rule in this
file. Choices between systems are made on development queries where they were measured there.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MARGIN = 0.02  # a loss that is smaller is called "not worse"
FEW_TRAINING_QUERIES = 1000
FEW_GROUPS = 20
WIDE = 0.03  # half the width of an interval
PADDING = 0.3
RISING = 0.02  # growth over the last quarter of a curve, as a share of its last value

Logs = Mapping[str, Sequence[Mapping[str, Any]]]  # training -> the lines of its log


@dataclasses.dataclass(frozen=True)
class Situation:
    """Facts that the rules use.

    Attributes:
      results: metrics.json of the evaluation.
      logs: training -> the lines of its log.
      retriever: name of the system that the run was made for.
      bag: name of the system without layers; need not be there.
      curve: name of the development metric in logs, as 'eval/dev/MRR@10'.
      budget: of the run.
    """

    results: Mapping[str, Any]
    logs: Logs
    retriever: str
    bag: str
    curve: str
    budget: float = 1.0

    @property
    def metric(self) -> str:
        """The metric that decides: the first of the table."""
        return next(iter(next(iter(self.results["systems"].values()))))

    @property
    def fusion(self) -> str | None:
        """A system that combines two others, not kinds of one; None if there is none."""
        facts = self.results.get("facts", {})
        fusions = (name for name, fact in facts.items() if {"method", "of"} <= set(fact))
        return next(fusions, None)

    @property
    def partner(self) -> str | None:
        """What the fusion combines with the retriever; None if it combines others."""
        of = self.results.get("facts", {}).get(self.fusion, {}).get("of", ())
        return next((one for one in of if one != self.retriever and self.retriever in of), None)

    @property
    def lexical(self) -> str | None:
        """The system that matches words; None if there is none."""
        facts = self.results.get("facts", {})
        return next((name for name, fact in facts.items() if "k1" in fact), None)

    def test(self, one: str | None, other: str | None) -> Mapping[str, float] | None:
        """The paired test of two systems by `metric`, one minus other; None if not tested."""
        for claim in claims(self.results):
            found = claim[self.metric]
            if (claim["one"], claim["other"]) == (one, other):
                return dict(found)
            if (claim["one"], claim["other"]) == (other, one) and "low" in found:
                turned = {"difference": -found["difference"], "p": found["p"]}
                return turned | {"low": -found["high"], "high": -found["low"]}
        return None

    def values(self, *names: str | None) -> tuple[list[float], str] | None:
        """The metric of some systems and where: on development queries if all were run there."""
        for split, one in self.results.get("development", {}).items():
            if all(name in one["systems"] for name in names):
                found = [one["systems"][name][self.metric] for name in names]
                return found, f"on the {split} queries"
        systems = self.results["systems"]
        if all(name in systems for name in names):
            found = [systems[str(name)][self.metric]["value"] for name in names]
            return found, f"on the {self.results['split']} queries"
        return None


def claims(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All pairs of systems that an evaluation tested, each once.

    Returns:
      [{"one", "other", metric: {"difference", "low", "high", "p"}}]; without low and high where the
      evaluation wrote none.
    """
    against = results["against"]
    found = [
        {"one": name, "other": against["baseline"], **tests}
        for name, tests in against["systems"].items()
    ]
    seen = {(one["one"], one["other"]) for one in found}
    later = [dict(pair) for pair in results.get("compared", ())]
    return found + [pair for pair in later if (pair["one"], pair["other"]) not in seen]


def meaning(situation: Situation) -> list[str]:
    """Meaning of the table, a sentence each."""
    pairs = [
        (situation.retriever, situation.lexical),
        (situation.retriever, situation.bag),
        (situation.retriever, situation.partner),
        (situation.fusion, situation.partner),
        (situation.fusion, situation.retriever),
    ]
    said = [
        _pair(str(one), str(other), situation.metric, test)
        for one, other in dict.fromkeys(pairs)
        if one != other and (test := situation.test(one, other)) is not None
    ]
    return [*said, *_recall(situation)]


def _pair(one: str, other: str, metric: str, test: Mapping[str, float]) -> str:
    low, high = test.get("low"), test.get("high")
    amount = f"{metric} {test['difference']:+.3f}"
    if low is None or high is None:
        word = "differs from" if test["p"] < 0.05 else "is not known to differ from"
        return f"`{one}` {word} `{other}` ({amount}, p = {test['p']:.3g})."
    amount += f", 95 % interval {low:+.3f} to {high:+.3f}"
    if low > 0:
        return f"`{one}` is better than `{other}` ({amount})."
    if high < 0:
        return f"`{one}` is worse than `{other}` ({amount})."
    if low > -MARGIN:
        return f"`{one}` is not worse than `{other}` by more than {MARGIN} ({amount})."
    return f"These queries do not show which of `{one}` and `{other}` is better ({amount})."


def _recall(situation: Situation) -> Iterator[str]:
    """The share of relevant passages among the hits of the best system."""
    systems = situation.results["systems"]
    best = max(systems, key=lambda name: systems[name][situation.metric]["value"])
    shares = [
        f"{value['value']:.0%} among the first {name.split('@')[1]}"
        for name, value in systems[best].items()
        if name.startswith("Recall@")
    ]
    if shares:
        yield (
            f"`{best}` has the highest {situation.metric}. Of the relevant passages it lists "
            f"{' and '.join(shares)}."
        )


def next_steps(situation: Situation) -> list[str]:
    """Next steps, the most important first."""
    rules = (_ship, _fuse, _pairs, _rising, _falling, _padding, _intervals)
    return [step for rule in rules for step in rule(situation)]


def _has_layers(situation: Situation) -> bool:
    """Whether the retriever is more than a bag of embeddings, as its contract says."""
    contract = situation.results.get("facts", {}).get(situation.retriever, {}).get("contract", {})
    return bool(contract.get("pooling") != "weighted_mean")


def _ship(situation: Situation) -> Iterator[str]:
    """Advice which of two dense systems to ship, and whether layers pay."""
    found = situation.values(situation.retriever, situation.bag)
    if found is None or situation.retriever == situation.bag:
        return
    (retriever, bag), where = found
    if not _has_layers(situation):
        best = situation.retriever if retriever > bag else situation.bag
        yield (
            f"Of the two dense systems, ship `{best}`: {situation.metric} of "
            f"`{situation.retriever}` is {retriever:.3f} {where}, of `{situation.bag}` {bag:.3f}. "
            "Both are bags of embeddings; after minutes of training an encoder with layers was far "
            "below a bag (docs/results/pretraining.md)."
        )
    elif retriever <= bag:
        yield (
            f"Layers do not pay here: `{situation.retriever}` has {situation.metric} "
            f"{retriever:.3f} {where}, `{situation.bag}`, which has none, {bag:.3f}. Of the two, "
            f"ship `{situation.bag}`."
        )
    else:
        word = "hardly pay" if retriever - bag < MARGIN else "pay"
        yield (
            f"Layers {word} here: `{situation.retriever}` has {situation.metric} {retriever:.3f} "
            f"{where}, `{situation.bag}`, which has none, {bag:.3f}. Of the two, ship "
            f"`{situation.retriever}`."
        )


def _fuse(situation: Situation) -> Iterator[str]:
    """Whether to serve the fusion, where it was tested against the retriever's partner in it."""
    against = situation.test(situation.fusion, situation.partner)
    if against is None or against.get("low") is None:
        return
    retriever = situation.test(situation.fusion, situation.retriever)
    if against["low"] <= 0:
        yield (
            f"`{situation.fusion}` adds nothing that these queries can show over "
            f"`{situation.partner}`; `{situation.partner}` alone is cheaper until "
            f"`{situation.retriever}` is better."
        )
    elif retriever is None or retriever.get("low", 1.0) > 0:
        yield (
            f"Serve `{situation.fusion}`: nothing here is better. It needs both systems for each "
            "query."
        )


def _pairs(situation: Situation) -> Iterator[str]:
    """Whether there are enough training queries."""
    judged = situation.results.get("judged")  # absent in files of version 1
    count = None if judged is None else judged.get("train", 0)
    if count == 0:
        yield (
            "This collection has no training queries: what was trained on it saw text alone. A few "
            "hundred judged queries in qrels/train.tsv are the best next step (docs/pairs.md)."
        )
    elif count is not None and count < FEW_TRAINING_QUERIES:
        yield (
            f"There are {count} training queries, which is little. Judge more, or raise the share "
            "of unsupervised pairs, which are made from text alone (docs/pairs.md)."
        )


def _curves(situation: Situation) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """Training -> (step, development metric), of those with three points or more."""
    for name, lines in situation.logs.items():
        points = [
            (line["step"], line[situation.curve]) for line in lines if situation.curve in line
        ]
        if len(points) >= 3:
            yield name, points


def still_learning(situation: Situation) -> bool:
    """Whether a training was still learning when it ended, so that a longer one may help."""
    return any(True for _ in _rising(situation))


def _rising(situation: Situation) -> Iterator[str]:
    """Trainings that were still learning when they ended."""
    for name, points in _curves(situation):
        last_step, last = points[-1]
        before = [value for step, value in points if step <= 0.75 * last_step]
        if before and last == max(value for _, value in points) and last > 0:
            growth = (last - before[-1]) / last
            if growth > RISING:
                yield (
                    f"`{name}` was still learning when it ended: {situation.curve} grew by "
                    f"{growth:.0%} in the last quarter. Run the same command with a larger BUDGET, "
                    f"such as BUDGET={3 * situation.budget:g}; if it sets STEPS, with more of them."
                )


def _falling(situation: Situation) -> Iterator[str]:
    """Trainings that were best before their end."""
    for name, points in _curves(situation):
        step, best = max(points, key=lambda point: point[1])
        if best > 0 and (best - points[-1][1]) / best > RISING and step < points[-1][0]:
            yield (
                f"`{name}` was best at step {step:,} of {points[-1][0]:,} ({situation.curve} "
                f"{best:.3f}, {points[-1][1]:.3f} at the end): more data, or fewer steps. The best "
                "checkpoint was kept."
            )


def _padding(situation: Situation) -> Iterator[str]:
    """Trainings that computed much padding."""
    for name, lines in situation.logs.items():
        shares = [line["train/padding_share"] for line in lines if "train/padding_share" in line]
        if shares and (mean := sum(shares) / len(shares)) > PADDING:
            yield (
                f"{mean:.0%} of the positions in the batches of `{name}` were padding. Pack more "
                "texts into a row, or make rows shorter: the macros of its gin files that end in "
                "ROWS, ROW_LENGTH and SEGMENTS (docs/recipes.md, packed fine-tuning)."
            )


def _intervals(situation: Situation) -> Iterator[str]:
    """Whether there are enough test queries."""
    count, groups = situation.results["n"], situation.results.get("groups", situation.results["n"])
    widest = max(
        (value[situation.metric]["high"] - value[situation.metric]["low"]) / 2
        for value in situation.results["systems"].values()
    )
    if widest > WIDE + 1e-9:
        yield (
            f"With {count} {situation.results['split']} queries, {situation.metric} is known to "
            f"about ±{widest:.3f}. A difference between two runs that is much smaller may be "
            "chance: judge more queries, and compare several seeds."
        )
    if groups < FEW_GROUPS:
        yield (
            f"The queries come from {groups} groups only; intervals from fewer than {FEW_GROUPS} "
            "are too narrow."
        )
