"""Plan a stage: the version that it would make, and whether it exists already."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from t5x_style.configuration.parameters import Effective, Values
from t5x_style.configuration.signatures import Job
from t5x_style.storage import places
from t5x_style.workflow import fingerprints, links
from t5x_style.workflow.store import FORMAT, Store, Version, version_id

Status = Literal["done", "new", "changed", "resume", "rerun", "code", "damaged"]


class StageError(ValueError):
    """A stage that cannot run as asked; the message says what to do."""


@dataclass(frozen=True)
class Plan:
    """A stage before it runs: which version it makes, and where.

    Attributes:
      link: MODEL_DIR, a link to the version.
      store: where versions are.
      limit: most bytes of the store, as the user wrote it; None for no limit.
      entry: dotted path of the job.
      job: its declaration.
      values: effective parameters; the semantic ones identify the version.
      inputs: what it reads.
      code: module -> hash; recorded, and compared where `strict`.
      strict: a version that other code made does not count.
      rerun: make it again even if it is finished.
    """

    link: Path
    store: Store
    entry: str
    job: Job
    values: Effective
    inputs: fingerprints.Inputs
    code: dict[str, str]
    limit: Any = None
    strict: bool = False
    rerun: bool = False

    @property
    def fingerprint(self) -> str:
        """sha256 of the job's name and version, and its semantic parameters, inputs among them."""
        return fingerprints.digest([self.job.name, self.job.version, self.values.semantic])

    @property
    def id(self) -> str:
        """The name of the version's first revision."""
        return version_id(self.job.name, self.fingerprint)

    @property
    def shown(self) -> str:
        """The link, as the user knows it."""
        return places.shown(self.link)

    def record(self) -> dict[str, Any]:
        """Common content of `stage.started.json` and `stage.json`."""
        return {
            "format": FORMAT,
            "name": self.link.name,
            "entry": self.entry,
            "job": {"name": self.job.name, "version": self.job.version},
            "fingerprint": self.fingerprint,
            "parameters": self.values.semantic,
            "operational": self.values.operational,
            "inputs": self.inputs.flat(),
            "made_from": list(self.inputs.versions),
            "code_hash": code_hash(self.code),
            "code": self.code,
        }


@dataclass(frozen=True)
class Decision:
    """Decision whether a stage runs, and the reason.

    Attributes:
      reason: in words.
      version: that is used (`done`), continued (`resume`), or was current before; else None.
      changes: what differs from the version that was current before, see `changes_between`.
      note: one more line for the user, such as that the code has changed since; or "".
    """

    status: Status
    reason: str
    version: Version | None = None
    changes: dict[str, list[str]] = field(default_factory=dict)
    note: str = ""


def code_hash(code: Mapping[str, str]) -> str:
    """A hash of all of a stage's code: twelve digits."""
    return fingerprints.digest(dict(code))[:12]


def decide(planned: Plan) -> Decision:
    """Looks for the planned version in the store.

    Raises:
      StoreError: something else is at the link's place.
    """
    current = links.check(planned.store, planned.link)
    if current is not None:
        _check_same_job(planned, current)
    revisions = planned.store.revisions_of(planned.job.name, planned.fingerprint)
    finished = [one for one in revisions if one.manifest is not None]
    intact = [one for one in finished if not one.missing_outputs()]
    same_code = [one for one in intact if is_of_code(one, planned.code)]
    usable = same_code if planned.strict else same_code or intact
    if usable and not planned.rerun:
        return _done(planned, usable[-1])
    after = revisions.index(finished[-1]) if finished else -1
    begun = [one for one in revisions[after + 1 :] if _can_continue(one, planned)]
    if begun:
        version = max(begun, key=lambda one: int(one.started["token"]))
        changed = fingerprints.differences(version.started["code"], planned.code)
        note = f"it continues with changed code: {some(changed)}" if changed else ""
        holder = planned.store.leases.holder(planned.id)
        reason = f"{holder} is making it" if holder else version.damage or "was stopped"
        return Decision("resume", reason, version, note=note)
    if intact and planned.rerun:
        return Decision("rerun", "asked for", intact[-1])
    if intact:
        code = fingerprints.differences(intact[-1].record["code"], planned.code)
        return Decision("code", f"made by other code: {some(code)}", intact[-1], {"code": code})
    if finished:
        gone = finished[-1].missing_outputs()
        return Decision(
            "damaged", f"output vanished: {some(gone)}", finished[-1], {"outputs": gone}
        )
    return _new(planned, current)


def _done(planned: Plan, version: Version) -> Decision:
    manifest = version.manifest or {}
    changed = fingerprints.differences(manifest["code"], planned.code)
    note = ""
    if changed:
        note = (
            f"code has changed since it was made ({some(changed)}): "
            f"--rerun={planned.link.name} makes it again, --strict_code counts code as a change"
        )
    reason = f"{manifest['seconds']:.0f} s, finished {manifest['finished']}"
    return Decision("done", reason, version, note=note)


def _new(planned: Plan, current: Version | None) -> Decision:
    """Says what differs from the version that the link points to."""
    if current is None and planned.link.is_symlink():
        name = planned.link.resolve().name
        return Decision(
            "new", f"its current version, {name}, is not in the store {planned.store.root}"
        )
    if current is None or not current.record:
        return Decision("new", "never ran")
    changes = changes_between(current.record, planned)
    return Decision("changed", in_words(changes) or "its version is gone", current, changes)


def _check_same_job(planned: Plan, current: Version) -> None:
    other = current.record.get("job", {}).get("name", planned.job.name)
    if other != planned.job.name:
        raise StageError(
            f"{planned.link} is a stage of job {other!r}, and this one runs {planned.job.name!r}: "
            f"two stages are bound to one folder. Choose {links.OTHER_FOLDER} for one of them."
        )


def _can_continue(version: Version, planned: Plan) -> bool:
    started = version.started
    if version.manifest is not None or version.foreign or started.get("spoiled"):
        return False
    if not {"token", "code", "fingerprint"} <= started.keys():
        return False
    return not (planned.strict or planned.rerun) or is_of_code(version, planned.code)


def is_of_code(version: Version, code: Mapping[str, str]) -> bool:
    """Whether all of a version was made by this code."""
    record = version.record
    return record.get("code") == code and not record.get("mixed_code")


def changes_between(record: Mapping[str, Any], planned: Plan) -> dict[str, list[str]]:
    """Differences in words, by kind: parameters and job."""
    found = {"parameters": differing(record.get("parameters", {}), planned.values.semantic)}
    job = {"name": planned.job.name, "version": planned.job.version}
    if record.get("job", job) != job:
        found["job"] = [f"version {record['job'].get('version')} -> {planned.job.version}"]
    return {kind: names for kind, names in found.items() if names}


def differing(old: Values, new: Values) -> list[str]:
    """Parameters that differ, each as `name old -> new`."""
    return [
        f"{name} {old.get(name, 'unset')} -> {new.get(name, 'unset')}"
        for name in fingerprints.differences(old, new)
    ]


def in_words(changes: Mapping[str, list[str]]) -> str:
    """Result of `changes_between`, for a message."""
    return "; ".join(
        some(names) if kind == "parameters" else f"{kind} {some(names)}"
        for kind, names in changes.items()
    )


def some(names: list[str], limit: int = 4) -> str:
    """The first names of a list, and how many more there are."""
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest
