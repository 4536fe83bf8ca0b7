"""Finished versions of stages that tests make without running a job."""

from collections.abc import Mapping
from pathlib import Path

from t5x_style.configuration.parameters import Effective
from t5x_style.configuration.signatures import Job
from t5x_style.leases.holders import Holder
from t5x_style.workflow import fingerprints, links, making, remote_store, stages
from t5x_style.workflow.store import Store, Version


def plan(
    link: Path,
    job: str,
    *inputs: Path,
    store: Path | None = None,
    entry: str = "",
    code: str = "1",
    rerun: bool = False,
    **parameters: object,
) -> stages.Plan:
    """A plan of a job that exists only in a test, made without gin files.

    Args:
      link: `RUN_DIR/<stage>`.
      job: its declared name.
      inputs: what it reads.
      store: folder of the store; by default that of a stage which is run by hand.
      entry: dotted path of the job; by default `tests.<job>`.
      code: in place of its source code.
      rerun: as `--rerun` of this stage.
      parameters: what identifies the version, next to the inputs.
    """
    found = fingerprints.of_inputs({"INPUTS": [str(path) for path in inputs]})
    semantic = {name: str(value) for name, value in parameters.items()} | found.flat()
    return stages.Plan(
        link=link,
        store=links.of_stage(link) if store is None else Store(store),
        entry=entry or f"tests.{job}",
        job=Job(job, 1),
        values=Effective(semantic),
        inputs=found,
        code={f"tests.{job}": code},
        rerun=rerun,
    )


def finished(
    planned: stages.Plan,
    files: Mapping[str, str],
    outputs: Mapping[str, str],
    seconds: float = 1.0,
) -> Version:
    """A finished version of a planned stage, linked to and recorded as if its job had run.

    The version that is finished already, if there is one.

    Args:
      planned: the stage, e.g. of `recipe_planning.plan`.
      files: what its job writes: path relative to the version -> text; a path that ends in `/` is
        an empty folder.
      outputs: what its job returns: name -> relative path.
      seconds: how long the job ran.

    Returns:
      The version; `version.output(name)` is the path of an output.
    """
    decision = stages.decide(planned)
    if decision.status == "done" and decision.version is not None:
        links.point(planned.store, planned.link, decision.version.folder)
        return decision.version
    lease = planned.store.leases.acquire(planned.id, _nobody, _lost)
    try:
        folder = making.begin(planned, decision, lease)
        for name, text in files.items():
            path = folder / name
            if name.endswith("/"):
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
        remote_store.push(planned.store, folder)
        making.finish(planned, folder, dict(outputs), seconds, lease)
    finally:
        lease.release()
    return planned.store.read(folder)


def started(planned: stages.Plan) -> Path:
    """The folder of a version that was begun and stopped: linked to, without a manifest."""
    lease = planned.store.leases.acquire(planned.id, _nobody, _lost)
    try:
        return making.begin(planned, stages.decide(planned), lease)
    finally:
        lease.release()


def _nobody(holder: Holder) -> None:
    raise AssertionError(f"{holder} makes the version that a test makes")


def _lost() -> None:
    raise AssertionError("the lease of a test's version was lost")
