"""Training, development and test queries that have no query in common, nor nearly the same one.

Queries that nearly repeat each other are in one part. Queries that share a relevant passage are,
too, where that leaves enough for each part. Splits that the data has are kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from input_pipelines.gather import near_duplicates, query_families
from input_pipelines.labelled.examples import UNDIVIDED, LayoutError

PARTS = ("train", "dev", "test")
LEAST_DEVELOPMENT = 200  # queries; with fewer, a difference of systems is hardly ever significant
SHINGLE = 1  # words: questions are short
_SHOWN = 3

Given = Mapping[str, Mapping[str, str]]  # query -> split -> place, see `gathering.Labelled`
Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class SplitRules:
    """Rules for dividing queries.

    Attributes:
      dev_share, test_share: of the queries, or of the training queries where the other split is
        given; 0 for none.
      most: queries of either at most.
      near_duplicate: share of words in (0, 1] from which two queries count as the same.
      leaks: 'refuse' data with test queries among its training queries, or 'drop' these.
      keep_given: whether splits of the data are kept; otherwise all queries are divided again.
      folds: 0, or into how many test parts the queries are divided, of which `fold` is this one.
      fold: from 0.
      seed: another one gives another division.
    """

    dev_share: float = 0.15
    test_share: float = 0.15
    most: int = 1000
    near_duplicate: float = 0.9
    leaks: str = "refuse"
    keep_given: bool = True
    folds: int = 0
    fold: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        shares = (self.dev_share, self.test_share)
        for expected, found, holds in (
            ("dev_share and test_share 0 or more, below 1 together", shares, _are_shares(shares)),
            ("most of 1 or more", self.most, self.most >= 1),
            ("near_duplicate in (0, 1]", self.near_duplicate, 0 < self.near_duplicate <= 1),
            ("leaks 'refuse' or 'drop'", self.leaks, self.leaks in ("refuse", "drop")),
            ("folds of 2 or more, or 0 for none", self.folds, self.folds == 0 or self.folds >= 2),
            (
                f"fold from 0 to {max(0, self.folds - 1)}",
                self.fold,
                0 <= self.fold < max(1, self.folds),
            ),
        ):
            if not holds:
                raise ValueError(f"SplitRules: expected {expected}, found {found!r}")


@dataclass(frozen=True)
class Division:
    """Queries by part.

    Attributes:
      parts: 'train', 'dev' and 'test' -> ids; a part may be empty.
      given: the splits that the data came with, as they were.
      near: pairs of ids of queries that nearly repeat each other.
      dropped: training queries that were left out because a held-out query repeats them.
      how: 'given', 'by passage' or 'by query', of what was divided here.
      notes: what a reader of results has to know.
    """

    parts: Mapping[str, set[str]]
    given: Mapping[str, set[str]]
    near: Pairs
    dropped: Sequence[str]
    how: str
    notes: Sequence[str]


def divide(
    queries: Mapping[str, str],
    relevant: Mapping[str, Iterable[str]],
    given: Given,
    rules: SplitRules,
) -> Division:
    """Divides queries; the result does not depend on their order.

    Args:
      queries: id -> text of those that have a relevant passage.
      relevant: query -> its relevant passages.
      given: query -> the splits that it came in.
      rules: see there.

    Raises:
      LayoutError: a test query or its near duplicate is a training query, there are no training
        queries, or folds are asked for and splits are given.
    """
    names = sorted(queries)
    texts = [queries[name] for name in names]
    near = [
        (names[i], names[j])
        for i, j in near_duplicates.similar_pairs(texts, rules.near_duplicate, SHINGLE)
    ]
    splits = _given(names, given) if rules.keep_given else {}
    if rules.folds:
        _require_undivided(splits)
        return _folded(names, relevant, near, rules)
    if not splits:
        return _divided(Division({"train": set(names)}, {}, near, [], "given", []), relevant, rules)
    parts = _exclusive(splits)
    dropped, notes = _leaking(splits, near, queries, given, rules)
    parts["train"] = parts.get("train", set()) - set(dropped)
    if not parts["train"]:
        raise LayoutError(
            f"expected training queries, found {_counts(splits)}. Name a file or split 'train', or "
            "divide all queries again: KEEP_GIVEN=False"
        )
    return _divided(Division(parts, splits, near, dropped, "given", notes), relevant, rules)


def _given(names: Sequence[str], given: Given) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name in names:
        for split in given[name]:
            if split != UNDIVIDED:
                found.setdefault(split, set()).add(name)
    return found


def _exclusive(splits: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """A query of several splits is held out: in the last of them."""
    taken: set[str] = set()
    parts = {}
    for part in reversed(PARTS):
        if part in splits:
            parts[part] = splits[part] - taken
            taken |= splits[part]
    return parts


def _leaking(
    splits: Mapping[str, set[str]],
    near: Pairs,
    queries: Mapping[str, str],
    given: Given,
    rules: SplitRules,
) -> tuple[list[str], list[str]]:
    """The training queries to leave out, and notes: none or an error, unless they are dropped."""
    train, dev, test = (splits.get(part, set()) for part in PARTS)
    same = [(name, name) for name in sorted(train)]
    pairs = [*same, *near, *((b, a) for a, b in near)]
    tested = [(a, b) for a, b in pairs if a in train and b in test]
    if tested and rules.leaks == "refuse":
        shown = "; ".join(
            f"{queries[a]!r:.100} ({given[a]['train']}) and "
            f"{queries[b]!r:.100} ({given[b]['test']})"
            for a, b in tested[:_SHOWN]
        )
        raise LayoutError(
            f"{len({b for _, b in tested})} test queries are training queries, too, or share "
            f"{rules.near_duplicate:.0%} of their words with one: {shown}. Remove them from one "
            "side, or leave the training queries out: LEAKS=drop"
        )
    if rules.leaks == "drop":
        return sorted({a for a, b in pairs if a in train and b in test | dev}), []
    chosen = len({b for a, b in pairs if a in train and b in dev})
    note = f"{chosen} development queries are training queries, too, or nearly: LEAKS=drop"
    return [], [note] if chosen else []


def _require_undivided(splits: Mapping[str, set[str]]) -> None:
    if splits:
        raise LayoutError(
            f"folds divide all queries, and the data has the splits {_counts(splits)}, which are "
            "kept. Divide all queries again with KEEP_GIVEN=False, or leave folds out"
        )


def _counts(splits: Mapping[str, set[str]]) -> dict[str, int]:
    return {split: len(names) for split, names in splits.items()}


def _are_shares(shares: Sequence[float]) -> bool:
    return min(shares) >= 0 and sum(shares) < 1


def _folded(
    names: Sequence[str], relevant: Mapping[str, Iterable[str]], near: Pairs, rules: SplitRules
) -> Division:
    """One fold as test queries; development queries are held out of the others."""
    shares = {str(number): 1 / rules.folds for number in range(rules.folds)}
    folds, how, notes = _parts(set(names), relevant, near, shares, rules.seed)
    test = folds[str(rules.fold)]
    if not test or len(test) == len(names):
        raise LayoutError(
            f"fold {rules.fold} of {rules.folds}: expected test queries and others, found "
            f"{len(test)} of {len(names)}: too many queries nearly repeat each other. Use fewer "
            "folds"
        )
    start = Division({"train": set(names) - test, "test": test}, {}, near, [], how, notes)
    return _divided(start, relevant, rules)


def _divided(start: Division, relevant: Mapping[str, Iterable[str]], rules: SplitRules) -> Division:
    """Holds the parts that are missing out of the training queries."""
    train = start.parts["train"]
    wanted = {"dev": rules.dev_share, "test": rules.test_share}
    shares = {
        part: min(share, rules.most / len(train))
        for part, share in wanted.items()
        if part not in start.parts and share
    }
    parts, how, notes = {**start.parts}, start.how, [*start.notes]
    if shares:
        every = {"train": 1 - sum(shares.values()), **shares}
        made, how, more = _parts(train, relevant, start.near, every, rules.seed)
        how = "by query" if start.how == "by query" else how
        parts.update(made)
        notes += [note for note in more if note not in notes]
    parts = {part: parts.get(part, set()) for part in PARTS}
    if len(parts["dev"]) < LEAST_DEVELOPMENT:
        notes.append(
            f"{len(parts['dev'])} development queries, fewer than {LEAST_DEVELOPMENT}: too few "
            "for a verdict"
        )
    return replace(start, parts=parts, how=how, notes=notes)


def _parts(
    names: set[str],
    relevant: Mapping[str, Iterable[str]],
    near: Pairs,
    shares: Mapping[str, float],
    seed: int,
) -> tuple[dict[str, set[str]], str, list[str]]:
    """Parts of these queries, how they were divided, and a note where passages are shared."""
    alike = [(name, f"query {name}") for name in names]
    alike += [(b, f"query {a}") for a, b in near if a in names and b in names]
    passages = [(name, f"passage {one}") for name in names for one in relevant[name]]
    families = query_families.families([*alike, *passages])
    parts = query_families.fill(families, shares, seed)
    short = query_families.short_parts(parts, shares)
    if not short:
        return parts, "by passage", []
    least = min(shares.values()) * len(names)
    large = [family for family in families if len(family) > least] or families
    connected = {name for family in large for name in family}
    note = (
        f"{len(connected)} of {len(names)} queries are connected by passages that answer several "
        f"of them, so that {', '.join(short)} get less than half of the queries meant for them: "
        "these are divided one by one, and parts have relevant passages in common"
    )
    groups = [family for family in families if family[0] not in connected]
    groups += [group for group in query_families.families(alike) if group[0] in connected]
    return query_families.fill(groups, shares, seed), "by query", [note]
