"""Find the finished version from which a longer run of the same job may continue.

A job declares the parameters that only make it longer (`"length"` in its declaration). A version
that differs in nothing else, and is shorter, becomes the parent of the new one; whether and from
where the job can really continue is the job's to decide (`longer_training`).
"""

from t5x_style.workflow import fingerprints
from t5x_style.workflow.plans import Plan, is_of_code
from t5x_style.workflow.store import Version


def parent(planned: Plan) -> Version | None:
    """The longest finished version that is shorter than the planned one and else the same."""
    if not planned.job.length:
        return None
    found = []
    for version in planned.store.all():
        if version.manifest is None or version.manifest["job"]["name"] != planned.job.name:
            continue
        if planned.strict and not is_of_code(version, planned.code):
            continue
        if version.manifest.get("slimmed"):  # it has no optimizer state any more
            continue
        length = _length_if_shorter(version, planned)
        if length is not None and not version.missing_outputs():
            found.append((length, version))
    return max(found, key=lambda pair: pair[0])[1] if found else None


def _length_if_shorter(version: Version, planned: Plan) -> float | None:
    """The version's length, the first of the job's parameters of it; None if it does not fit."""
    old, new = version.record["parameters"], planned.values.semantic
    if version.record["job"]["version"] != planned.job.version:
        return None
    if set(fingerprints.differences(old, new)) - set(planned.job.length):
        return None
    measure = planned.job.length[0]
    try:
        before, after = float(old[measure]), float(new[measure])
    except (KeyError, ValueError):
        return None
    return before if before < after else None
