"""A stage: one job, one gin configuration, one folder, and a record of what made it.

The job is a callable with a parameter `model_dir: str` that returns its outputs, a dict from name
to path relative to that folder; None, or `Interrupted` raised, means saved and stopped early.
An entry point ends with `stage.main("t5x_style.train.train")`; a job of another package is run by

    python -m t5x_style.stage --gin_file=... --gin.MODEL_DIR=...

whose gin file says which: `stage.run.job = @prepare.prepare`.

The gin file names the macros that are paths of inputs, and thereby what a changed input re-runs:

    stage.run.inputs = [%STORE, %TOKENIZER]          # a recipe adds the inputs it names

Files in the folder: `stage.started.json` (first: this folder is ours), `config.gin`,
`operative_config.gin`, and `stage.json` (last: done). If `stage.json` matches the fingerprints of
bindings, inputs and code, the stage is skipped; if they differ, the folder is emptied and the job
runs again; if the job was stopped under the same fingerprints, it finds its folder as it left it.
"""

import ast
import contextlib
import fcntl
import importlib.metadata
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from t5x_style import fingerprints, gin_utils
from t5x_style.fingerprints import STAGE_FILE, STARTED_FILE
from t5x_style.gin_reader import FOLDER_MACRO, RUN, Config, GinError, Macro, closest

INPUTS = "stage.run.inputs"
LOCK_FILE = ".stage.lock"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tensorflow-cpu")
Status = Literal["done", "new", "resume", "changed"]
Outputs = dict[str, str]


class StageError(ValueError):
    """A stage that cannot run as asked; the message says what to do."""


class Interrupted(BaseException):  # not an Exception: a job's `except Exception` must not eat it
    """The job was asked to stop, has saved what it needs to continue, and stops."""


class Signalled(Interrupted):
    """A signal stopped the job wherever it was; no other process has agreed to it."""


def run(
    job: Callable[..., Outputs | None], model_dir: str, inputs: Sequence[Any] = ()
) -> Outputs | None:
    """What gin binds: `stage.run.job` and `stage.run.inputs` (read before anything runs)."""
    del inputs
    return job(model_dir=model_dir)


@dataclass(frozen=True)
class Plan:
    """A stage before it runs: where it writes and the parts of its fingerprint."""

    folder: Path
    job: str
    bindings: dict[str, str]
    inputs: dict[str, str]
    code: dict[str, str]

    @property
    def fingerprints(self) -> dict[str, str]:
        """One hash each of bindings, inputs and code."""
        parts = {"bindings": self.bindings, "inputs": self.inputs, "code": self.code}
        return {name: fingerprints.digest(part) for name, part in parts.items()}

    @property
    def fingerprint(self) -> str:
        """One hash of the job and all three."""
        return fingerprints.digest([self.job, self.fingerprints])

    def record(self) -> dict[str, Any]:
        """What `stage.started.json` and `stage.json` both hold."""
        return {
            "name": self.folder.name,
            "entry": self.job,
            "fingerprint": self.fingerprint,
            "fingerprints": self.fingerprints,
            "bindings": self.bindings,
            "inputs": self.inputs,
            "code": self.code,
        }


@dataclass(frozen=True)
class Decision:
    """Whether a stage runs, and why, in words; `changes` lists names by kind of fingerprint."""

    status: Status
    reason: str
    changes: dict[str, list[str]] = field(default_factory=dict)


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


def input_macros(config: Config) -> list[str]:
    """Names of the macros listed in `stage.run.inputs`."""
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


def plan(
    flags: gin_utils.Flags, entry_job: str = "", known: Mapping[str, str] | None = None
) -> Plan:
    """Reads and checks the configuration, and takes the fingerprints; imports no job.

    Args:
      flags: gin files and overrides.
      entry_job: the job that an entry point passes to `main`, or "".
      known: path -> hash of inputs that are still to be written (a recipe's dry run knows them).

    Raises:
      GinError: a name that is unknown, unused or unset.
      fingerprints.InputError: an input that is missing or unfinished.
    """
    config = flags.read()
    job = job_of(config, entry_job)
    gin_utils.check_names(config, (RUN, job))
    inputs = input_macros(config)
    fingerprints.check_declared(config, inputs)
    paths = {name: config.expand(Macro(name), "stage.run.inputs") for name in inputs}
    if FOLDER_MACRO not in config.macros:
        raise GinError(f"No folder to write to: pass --gin.{FOLDER_MACRO}=PATH.")
    folder = config.expand(Macro(FOLDER_MACRO), FOLDER_MACRO)
    if not isinstance(folder, str) or not folder:
        raise GinError(f"{FOLDER_MACRO} must be a path, found {folder!r}.")
    return Plan(
        folder=Path(folder),
        job=job,
        bindings=fingerprints.of_bindings(config, inputs),
        inputs=fingerprints.of_inputs(paths, known or {}),
        code=fingerprints.of_code([job], config, flags.allow),
    )


def read_record(path: Path) -> dict[str, Any] | None:
    """A stage's json record, or None when it is absent or was cut short."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, json.JSONDecodeError):
        return None
    return record if isinstance(record, dict) and "fingerprint" in record else None


def decide(planned: Plan) -> Decision:
    """Compares the folder's record with the plan.

    Raises:
      StageError: the folder holds files, but no stage of ours wrote it.
    """
    folder = planned.folder
    finished, started = read_record(folder / STAGE_FILE), read_record(folder / STARTED_FILE)
    if finished and finished["fingerprint"] == planned.fingerprint:
        gone = [p for p in finished["outputs"].values() if not (folder / p).exists()]
        if not gone:
            return Decision("done", f"{finished['seconds']:.0f} s, finished {finished['finished']}")
        return Decision("changed", f"output vanished: {', '.join(gone)}", {"outputs": gone})
    record = finished or started
    if record is None:
        marked = (folder / STARTED_FILE).exists() or (folder / STAGE_FILE).exists()
        if folder.is_dir() and not marked and set(os.listdir(folder)) - {LOCK_FILE}:
            raise StageError(
                f"{folder} holds files, but no {STARTED_FILE}: no stage of ours wrote them and "
                f"none is deleted. Choose another --gin.{FOLDER_MACRO}, or empty the folder."
            )
        return Decision("new", "never ran")
    if not finished and record["fingerprint"] == planned.fingerprint:
        return Decision("resume", "was stopped before it finished")
    changes = changes_between(record, planned)
    return Decision("changed", in_words(changes) or "was being emptied", changes)


def changes_between(record: dict[str, Any], planned: Plan) -> dict[str, list[str]]:
    """Names that differ, by kind: bindings, inputs, code, entry."""
    changes = {
        kind: fingerprints.differences(record[kind], getattr(planned, kind))
        for kind in ("bindings", "inputs", "code")
    }
    if record["entry"] != planned.job:
        changes["entry"] = [planned.job]
    return {kind: names for kind, names in changes.items() if names}


def in_words(changes: Mapping[str, list[str]]) -> str:
    """What `changes_between` found, for a message."""
    return "; ".join(f"{kind}: {_some(names)}" for kind, names in changes.items())


def _some(names: list[str], limit: int = 4) -> str:
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def write_json(path: Path, value: Any) -> None:
    """Writes so that a reader, or a crash, sees the old file or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def prepare_folder(planned: Plan, decision: Decision) -> None:
    """Empties an outdated folder of ours and leaves the mark that it is being written.

    Raises:
      StageError: other stages' folders, or an input, lie inside.
    """
    folder = planned.folder
    if decision.status == "changed":
        inside = [p for p in folder.glob(f"*/**/{STAGE_FILE}")]
        inside += [p for p in folder.glob(f"*/**/{STARTED_FILE}")]
        if inside:
            raise StageError(
                f"{folder} must be emptied ({decision.reason}), but {inside[0].parent} is the "
                f"folder of another stage. Choose another --gin.{FOLDER_MACRO}."
            )
        # After a kill in here the folder must still be ours, and match no configuration.
        (folder / STAGE_FILE).unlink(missing_ok=True)
        write_json(folder / STARTED_FILE, planned.record() | {"fingerprint": "", "seconds": 0.0})
        for entry in [p for p in folder.iterdir() if p.name not in (LOCK_FILE, STARTED_FILE)]:
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
    if decision.status != "resume":
        write_json(folder / STARTED_FILE, planned.record() | {"seconds": 0.0})


def check_outputs(folder: Path, outputs: Any, job: str) -> Outputs:
    """Refuses outputs that are not a dict of existing relative paths."""
    if not isinstance(outputs, dict) or not all(
        isinstance(k, str) and isinstance(v, str) for k, v in outputs.items()
    ):
        raise StageError(
            f"{job} must return its outputs, a dict of name -> path relative to {FOLDER_MACRO}, "
            f"or None when it was stopped; found {outputs!r}."
        )
    for name, path in outputs.items():
        inside = (folder / path).resolve().is_relative_to(folder.resolve())
        if os.path.isabs(path) or not inside or not (folder / path).exists():
            present = [p.name for p in folder.iterdir()]
            raise StageError(
                f"{job} promised output {name!r} at {path!r}, but {folder} has no such path"
                f"{closest(path, present)}"
            )
    return outputs


def finish(planned: Plan, outputs: Outputs, seconds: float) -> None:
    """Writes `stage.json`: from now on the stage is done."""
    started = read_record(planned.folder / STARTED_FILE) or {"seconds": 0.0}
    files = {path for path in outputs.values() if (planned.folder / path).is_file()}
    record = planned.record() | {
        "outputs": outputs,
        "hashes": {path: fingerprints.content(planned.folder / path) for path in sorted(files)},
        "seconds": round(started["seconds"] + seconds, 3),
        "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
        "versions": versions(),
    }
    write_json(planned.folder / STAGE_FILE, record)


def add_seconds(planned: Plan, seconds: float) -> None:
    """Remembers the time that a stopped run has spent; the run that finishes adds its own."""
    path = planned.folder / STARTED_FILE
    record = read_record(path)
    if record:
        write_json(path, record | {"seconds": record["seconds"] + seconds})


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that results depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keeps a second process out of the folder; the lock ends with the process, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / LOCK_FILE, "a+", encoding="utf-8") as file:
        try:
            # lockf, not flock: worker processes must not inherit it and hold it after our death
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise StageError(
                f"Process {file.read().strip() or 'unknown'} is running in {folder}. Wait for it, "
                f"stop it, or choose another --gin.{FOLDER_MACRO}."
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def declared_outputs(job: str) -> set[str] | None:
    """Names of the outputs a job returns, read from its source; None when they cannot be told."""
    path = fingerprints.source_path(job.split(".")[:-1])
    if path is None:
        return None
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == job.split(".")[-1]:
            values = [item.value for item in ast.walk(node) if isinstance(item, ast.Return)]
            for value in values:
                if isinstance(value, ast.Dict):
                    names |= {str(k.value) for k in value.keys if isinstance(k, ast.Constant)}
                    if not all(isinstance(k, ast.Constant) for k in value.keys):
                        return None
                elif not (value is None or isinstance(value, ast.Constant)):
                    return None
    return names or None


def entry_job(entry: str) -> str:
    """The job that `python -m entry` runs: the text in its `stage.main("...")`; "" for gin's job.

    Raises:
      StageError: no such module, or it never calls `stage.main`.
    """
    path = fingerprints.source_path(entry.split("."))
    if path is None:
        raise StageError(f"No module {entry!r}: an entry is a module run by `python -m`.")
    if entry == "t5x_style.stage":
        return ""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "stage.main":
            return str(ast.literal_eval(node.args[0])) if node.args else ""
    raise StageError(f"{path} is not an entry point: it never calls stage.main(...).")


def main(job: str = "") -> None:
    """Runs a stage from the command line and exits the process; see `stage_main`."""
    from t5x_style import stage_main  # it imports this module

    stage_main.main(job)


if __name__ == "__main__":
    # through the import system: gin must meet this module under its own name, not as __main__
    importlib.import_module("t5x_style.stage").main()
