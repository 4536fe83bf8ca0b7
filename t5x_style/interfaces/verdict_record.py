"""The verdict on a fine-tuned encoder, as stored in verdict.json, and what a bad one withholds.

Held-out queries decide whether fine-tuning helped. Everything that hands the model on, a folder
for other libraries or a SavedModel, reads the verdict first: a model that is worse than the encoder
it started from is not exported unless that is asked for.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BETTER, NO_DIFFERENCE, WORSE, NO_VERDICT = "better", "no difference", "worse", "no verdict"
VERDICTS = (BETTER, NO_DIFFERENCE, WORSE, NO_VERDICT)
FORCE = "FORCE_EXPORT"  # the macro that exports a model which is worse
NOTICE = "NOT_EXPORTED.md"


class VerdictError(ValueError):
    """A verdict.json that cannot be read; the message says what was expected."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean over queries with its 95 % interval.

    Attributes:
      value: the mean.
      low, high: the interval; None where there is none.
    """

    value: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def signed(self) -> str:
        """The same of a difference, with the signs of all three."""
        if self.low is None or self.high is None:
            return f"{self.value:+.3f}"
        return f"{self.value:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


Metrics = Mapping[str, Estimate]  # name -> its estimate


@dataclasses.dataclass(frozen=True)
class Elsewhere:
    """The same systems on a collection that was not trained on, or with shorter vectors.

    Attributes:
      queries: how many were asked.
      systems: system -> its metrics.
      difference: of the tuned system from the baseline, paired; None where there is none.
    """

    queries: int
    systems: Mapping[str, Metrics]
    difference: Estimate | None


@dataclasses.dataclass(frozen=True)
class Weighed:
    """A system that adds the scores of two, each query's scaled to [0, 1].

    Attributes:
      first, second: names of the two; a re-ranker, and the search whose hits it scores.
      weight: of the first; 1 - weight is that of the second.
      hits: of a query that are scaled and put in order; None: all that either lists.
    """

    first: str
    second: str
    weight: float
    hits: int | None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Content of verdict.json.

    Attributes:
      line: `VERDICT better: ...`, the first line of a report.
      verdict: one of VERDICTS.
      metric: that decided, such as 'nDCG@10'.
      difference: of `system` from `baseline` in that metric, paired; None without test queries.
      p: of that difference; None without test queries.
      system, baseline: names of the tuned encoder and the untouched one; or of an order by a
        re-ranker's scores, perhaps `weighed`, and of the order that it changes.
      queries: split -> how many queries it has.
      passages: of the collection.
      systems: system -> its metrics on the test queries.
      others: collection -> what became of it.
      short: number of dimensions -> what vectors find that are cut to so many; {} where nobody
        measured it.
      interpolation: share of the tuned weights, the rest being the original ones; None: all.
      data: what was read, `name` and `sha256`.
      weighed: what `system` adds; None: it is no sum of scores.
    """

    line: str
    verdict: str
    metric: str
    difference: Estimate | None
    p: float | None
    system: str
    baseline: str
    queries: Mapping[str, int]
    passages: int
    systems: Mapping[str, Metrics]
    others: Mapping[str, Elsewhere]
    short: Mapping[str, Elsewhere]
    interpolation: float | None
    data: Mapping[str, str]
    weighed: Weighed | None = None

    @property
    def is_worse(self) -> bool:
        """Whether the baseline is better."""
        return self.verdict == WORSE

    @classmethod
    def load(cls, path: str | Path) -> "Verdict":
        """Reads a verdict.json; fields that it has besides are left.

        Raises:
          VerdictError: it is not JSON, lacks a field, or has another verdict than VERDICTS.
          FileNotFoundError: there is no such file.
        """
        fields = _fields(Path(path))
        try:
            return _read(fields)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise VerdictError(
                f"{path}: expected a verdict with the fields "
                f"{[field.name for field in dataclasses.fields(cls)]}, low and high, found "
                f"{sorted(fields)}: {error!r}. Run the stage again that wrote it"
            ) from error


def unmeasured(data: str, interpolation: float | None) -> Verdict:
    """The verdict on an encoder that was trained without queries.

    Args:
      data: name of the text.
      interpolation: see `Verdict`.
    """
    return Verdict(
        line="VERDICT no verdict: the text has no queries, so nothing was measured.",
        verdict=NO_VERDICT, metric="", difference=None, p=None, system="finetuned",
        baseline="untouched", queries={}, passages=0, systems={}, others={}, short={},
        interpolation=interpolation, data={"name": data},
    )  # fmt: skip


def _fields(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (TypeError, ValueError) as error:
        raise VerdictError(f"{path}: expected a JSON object, found {error!r}") from error


def _read(fields: Mapping[str, Any]) -> Verdict:
    if fields["verdict"] not in VERDICTS:
        raise ValueError(f"expected one of {VERDICTS}, found verdict {fields['verdict']!r}")
    return Verdict(
        line=str(fields["line"]),
        verdict=fields["verdict"],
        metric=str(fields["metric"]),
        difference=_difference(fields),
        p=fields["p"],
        system=str(fields["system"]),
        baseline=str(fields["baseline"]),
        queries={split: int(count) for split, count in fields["queries"].items()},
        passages=int(fields["passages"]),
        systems=_systems(fields["systems"]),
        others=_elsewhere(fields["others"]),
        short=_elsewhere(fields.get("short", {})),
        interpolation=fields["interpolation"],
        data={name: str(value) for name, value in fields["data"].items() if value is not None},
        weighed=_weighed(fields.get("weighed")),
    )


def _difference(fields: Mapping[str, Any]) -> Estimate | None:
    if fields["difference"] is None:
        return None
    return Estimate(float(fields["difference"]), fields["low"], fields["high"])


def _weighed(found: Mapping[str, Any] | None) -> Weighed | None:
    if not found:
        return None
    hits = None if found["hits"] is None else int(found["hits"])
    return Weighed(str(found["first"]), str(found["second"]), float(found["weight"]), hits)


def _elsewhere(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Elsewhere]:
    return {
        name: Elsewhere(int(one["queries"]), _systems(one["systems"]), _difference(one))
        for name, one in found.items()
    }


def _systems(
    found: Mapping[str, Mapping[str, Mapping[str, Any]]],
) -> dict[str, dict[str, Estimate]]:
    return {
        system: {
            name: Estimate(float(one["value"]), one.get("low"), one.get("high"))
            for name, one in metrics.items()
        }
        for system, metrics in found.items()
    }


def withheld(verdict: Verdict, force: bool, what: str, folder: str | Path) -> bool:
    """Whether the verdict keeps a model from being exported; then a notice says so.

    Args:
      verdict: on the model.
      force: export it whatever the verdict is.
      what: would be exported, in words.
      folder: of the stage, which gets NOTICE.
    """
    if force or not verdict.is_worse:
        return False
    path = Path(folder) / NOTICE
    path.write_text(_notice(verdict, what), encoding="utf-8")
    print(f"{what} was not written: {verdict.line} ({path.name} says how to write it)", flush=True)
    return True


def _notice(verdict: Verdict, what: str) -> str:
    change = "" if verdict.difference is None else f": {verdict.metric} {verdict.difference.signed}"
    test = verdict.queries.get("test", 0)
    return f"""# Not exported

{verdict.line}

There is no {what} here, because `{verdict.system}` is worse than `{verdict.baseline}`
({verdict.system} minus {verdict.baseline}{change}, on {test} test queries). Use
`{verdict.baseline}`.

To try again, train on more or cleaner data, for fewer steps or at a lower learning rate. To have
this model all the same, run the same command again with `{FORCE}=True`: the stages before this one
are done, and a model card that is written then says in its first line that the model is worse.
"""
