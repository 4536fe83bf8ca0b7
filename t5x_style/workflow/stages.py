"""A stage: one job, one gin configuration, and the version of its results in the store.

The job is a callable with a parameter `model_dir: str` that returns its outputs, a dict from name
to path relative to that folder; None, or `Interrupted` raised, means saved and stopped early. Its
module declares it (`configuration.signatures`). An entry point ends with
`stage.main("t5x_style.train.train")`; a job of another package is run by

    python -m t5x_style.stage --gin_file=... --gin.MODEL_DIR=...

whose gin file says which: `stage.run.job = @prepare.prepare`.

A stage's inputs are the macros of `configuration.input_macros` that its bindings lead to, those
that a gin file lists besides, `stage.run.inputs = [%MINE]`, and those that a recipe names. What is
there is part of what identifies a version.

`MODEL_DIR` becomes a link to the version that the configuration describes, see `workflow.store`.
If that version is finished, nothing runs; if it was stopped, it continues where it was; else it is
made next to the others. No version is changed or deleted by a run.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.configuration import gin_checks, input_macros, parameters, signatures
from t5x_style.configuration.gin_reader import FOLDER_MACRO, RUN, Config, GinError, Macro
from t5x_style.storage import places
from t5x_style.workflow import fingerprints, links, remote_store
from t5x_style.workflow.making import continues as continues
from t5x_style.workflow.making import name_of as name_of
from t5x_style.workflow.making import parent_of as parent_of
from t5x_style.workflow.making import process_start as process_start
from t5x_style.workflow.plans import Plan as Plan
from t5x_style.workflow.plans import StageError as StageError
from t5x_style.workflow.plans import decide as decide
from t5x_style.workflow.space import require_room as require_room
from t5x_style.workflow.store import Store

INPUTS = "stage.run.inputs"
STORE_SETTING, LIMIT_SETTING = "stage.run.store", "stage.run.store_limit"
Outputs = dict[str, str]


class Interrupted(BaseException):  # not an Exception: a job's `except Exception` must not eat it
    """The job was asked to stop, has saved what it needs to continue, and stops."""


class Signalled(Interrupted):
    """A signal stopped the job wherever it was; no other process has agreed to it."""


def run(
    job: Callable[..., Outputs | None],
    model_dir: str,
    inputs: Sequence[Any] = (),
    store: str | None = None,
    store_limit: str | int | None = None,
) -> Outputs | None:
    """The call that gin binds; all but the job is read before anything runs.

    Args:
      job: the stage's job.
      model_dir: the folder that it writes.
      inputs: macros that are paths of inputs.
      store: folder of the store; by default that of the run, see `store_setting`.
      store_limit: most bytes that the store may hold, such as '200GB'; None: what the disk holds.
    """
    del inputs, store, store_limit
    return job(model_dir=model_dir)


def job_of(config: Config, entry_job: str = "") -> str:
    """The job's dotted path: what the entry point passes to `main`, else `stage.run.job`."""
    binding = config.bindings.get(("", RUN, "job"))
    if binding is None:
        if entry_job:
            return entry_job
        raise GinError(
            "No job: bind `stage.run.job = @module.function`, or run the module of an engine "
            "entry point, such as `python -m t5x_style.train`."
        )
    target = getattr(config.expand(binding.value, binding.where), "target", None)
    if not target:
        raise GinError(f"{binding.where}: stage.run.job must be a reference: @module.function.")
    if entry_job and target != entry_job:
        raise GinError(
            f"{binding.where}: stage.run.job is {target}, but this entry point runs {entry_job}. "
            "Remove the binding, or use `python -m t5x_style.stage`."
        )
    return str(target)


def inputs_of(config: Config) -> list[str]:
    """Names of the macros that are paths of inputs: known ones, and those that are listed."""
    return list(dict.fromkeys([*input_macros.of(config), *listed_inputs(config)]))


def listed_inputs(config: Config) -> list[str]:
    """Names of the macros in `stage.run.inputs`."""
    binding = config.bindings.get(("", RUN, "inputs"))
    if binding is None:
        return []
    value = binding.value
    if not isinstance(value, list | tuple) or not all(isinstance(m, Macro) for m in value):
        raise GinError(
            f"{binding.where}: stage.run.inputs must be a list of macros, such as "
            "[%STORE, %TOKENIZER]; write the paths into the macros."
        )
    return [macro.name for macro in value]


def setting(config: Config, name: str) -> Any:
    """The value of `stage.run.NAME`; None if it is not bound."""
    binding = config.bindings.get(("", RUN, name))
    return None if binding is None else config.expand(binding.value, binding.where)


def plan(
    flags: gin_checks.Flags,
    entry_job: str = "",
    known: Mapping[str, str] | None = None,
    fresh: bool = False,
) -> Plan:
    """Reads and checks the configuration, and finds out what identifies its version.

    Imports no job.

    Args:
      flags: gin files and overrides.
      entry_job: the job that an entry point passes to `main`, or "".
      known: path -> identity of inputs that are still to be written (a recipe's dry run).
      fresh: the records of a store on object storage are copied first.

    Raises:
      GinError: a name that is unknown, unused or unset.
      fingerprints.InputError: an input that is missing, unfinished or not as it was.
      signatures.DeclarationError: the job is not declared.
    """
    signatures.forget()  # a recipe runs for hours, and its stages read the sources of that time
    config = flags.read()
    job = job_of(config, entry_job)
    gin_checks.check_names(config, (RUN, job))
    link = _link(config)
    found = _store(config, link)
    if fresh:
        remote_store.refresh(found)
    names = inputs_of(config)
    fingerprints.check_declared(config, names)
    values = {name: config.expand(Macro(name), INPUTS) for name in names}
    inputs = fingerprints.of_inputs(values, known)
    if unknown := [name for name in flags.rerun if name != link.name]:
        raise StageError(f"--rerun={unknown[0]}: this stage is called {link.name!r}")
    return Plan(
        link=link,
        store=found,
        limit=setting(config, "store_limit"),
        entry=job,
        job=signatures.job(job),
        values=parameters.of_job(config, job, inputs.identities),
        inputs=inputs,
        code=fingerprints.of_code([job], config, flags.allow),
        strict=flags.strict_code,
        rerun=bool(flags.rerun),
    )


def _link(config: Config) -> Path:
    if FOLDER_MACRO not in config.macros:
        raise GinError(f"No folder to write to: pass --gin.{FOLDER_MACRO}=PATH.")
    folder = config.expand(Macro(FOLDER_MACRO), FOLDER_MACRO)
    if not isinstance(folder, str) or not folder:
        raise GinError(f"{FOLDER_MACRO} must be a path, found {folder!r}.")
    try:
        return places.local(folder)
    except places.PathError as error:
        raise GinError(f"{FOLDER_MACRO}: {error}") from None


def _store(config: Config, link: Path) -> Store:
    """The store that is set, else that of the link's run, see `links.of_stage`."""
    root = setting(config, "store")
    if root is not None and (not isinstance(root, str) or not root):
        raise GinError(f"{STORE_SETTING} must be a path, found {root!r}.")
    return Store(places.local(root)) if root else links.of_stage(link)


def entry_of(job: str) -> str:
    """The module that runs a job, by `python -m`."""
    return job.rpartition(".")[0] if signatures.job(job).program else "t5x_style.stage"
