"""The job of `kennel tpu`: a recipe and settings, as texts for the hosts of a run."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from launch.cloud import bootstrap, code_archive, recipe_files
from launch.cloud.remote_job import HostCommands
from launch.cloud.requests import RequestError
from t5x_style.configuration import gin_checks
from t5x_style.configuration.gin_reader import Config, GinError, leaves
from t5x_style.configuration.python_sources import REPOSITORY
from t5x_style.distributed import launch_flags
from t5x_style.storage import places
from t5x_style.workflow import recipe_reader
from t5x_style.workflow.recipe_reader import STORE_MACRO
from t5x_style.workflow.recipe_stage import Recipe

# Of several hosts: numbers by themselves, and time for one whose set-up is tried again.
SEVERAL_HOSTS = {"KENNEL_PROCESSES": "auto", "KENNEL_INITIALIZATION_TIMEOUT": "1800"}
ARCHIVES = Path.home() / ".cache" / "kennel" / "code"  # on this machine
STOP_SECONDS = 240.0  # for the last save; ssh waits for `remote_job.STATUS_TIMEOUT`


@dataclass(frozen=True)
class RecipeJob:
    """A recipe with settings, read and checked on this machine.

    Attributes:
      flags: of `launch.recipe`.
      run_dir: RUN_DIR, as the configuration has it.
      files: gin files that it and its stages read.
      several: variables of the job on several hosts.
      companions: names of the companions of its stages.
    """

    flags: gin_checks.Flags
    run_dir: str
    files: tuple[Path, ...]
    several: Mapping[str, str] = field(default_factory=lambda: SEVERAL_HOSTS)
    companions: tuple[str, ...] = ()


def read(argv: Sequence[str]) -> RecipeJob:
    """Reads flags of gin; all that is wrong with them is found before anything is paid for.

    Raises:
      GinError: no recipe; unknown names, wrong types, references that lead nowhere; inputs that
        hosts do not have.
      RecipeError: stages that do not fit together.
      ProcessesError: a time that cannot be.
    """
    flags = gin_checks.parse_flags(argv)
    flags = replace(flags, files=tuple(map(_portable, flags.files)))
    recipe = recipe_reader.load(flags)
    config = flags.read_all()
    run_dir = str(config.expand(config.macro("RUN_DIR", "kennel tpu"), "RUN_DIR"))
    refuse_local_data(recipe, config, run_dir)
    files = tuple(recipe_files.of_recipe(flags, recipe))
    names = tuple(one.name for one in recipe.companions)
    return RecipeJob(flags, run_dir, files, _several(argv), names)


def _several(argv: Sequence[str]) -> dict[str, str]:
    """Variables of the job on several hosts, as flags have them."""
    described = launch_flags.read(argv, SEVERAL_HOSTS)
    assert described is not None
    timeout = launch_flags.VARIABLES[launch_flags.INITIALIZATION]
    return SEVERAL_HOSTS | {timeout: str(described.initialization_timeout)}


def companion_note(job: RecipeJob, hosts: int, how: str) -> str:
    """What becomes of the companions of a recipe's stages; "" where that was said.

    Args:
      job: what runs.
      hosts: of all slices.
      how: to run them on a separate slice.
    """
    if not job.companions or job.flags.companions != "here":
        return ""
    names = ", ".join(job.companions)
    if hosts == 1:
        return f"{names} runs next to its stage, on the CPUs of the host. For a slice: {how}"
    return f"{names} starts on none of several hosts, and its stage waits for it: {how}"


def refuse_local_data(recipe: Recipe, config: Config, run_dir: str) -> None:
    """Refuses inputs of a disk: hosts have nothing but the code and what is on gs://.

    Args:
      recipe: whose stages have inputs.
      config: of the recipe, with all macros.
      run_dir: its RUN_DIR. A store on a disk is refused where this is on gs://.

    Raises:
      GinError: naming a macro for each, and how to copy what it names.
    """
    places_of: dict[str, str] = {}  # an input -> the setting that it comes from
    for stage in (*recipe.stages, *recipe.companions):
        for name, value in stage.inputs.items():
            for text in leaves(value):
                if isinstance(text, str):
                    places_of.setdefault(text, _setting(config, text, f"{stage.name}/{name}"))
    wrong = [_input_problem(name, text) for text, name in sorted(places_of.items())]
    wrong.append(_store_problem(recipe.store.root, run_dir))
    if found := [one for one in wrong if one]:
        raise GinError(*found)


def _setting(config: Config, text: str, otherwise: str) -> str:
    """The macro of the recipe that has this text."""
    named = (name for name, one in config.macros.items() if text in leaves(one.value))
    return next(named, otherwise)


def _input_problem(name: str, text: str) -> str:
    scheme, remote, rest = text.partition("://")
    if remote and scheme == "gs":
        return ""
    if remote:
        hint = f"write gs://{rest}" if scheme == "gcs" else f"copy it, and name {name}=gs://..."
        return f"{name}={text}: hosts read gs://, and no {scheme}://; {hint}"
    if _is_ours(Path(text)) or not ("/" in text or os.path.exists(text)):
        return ""
    return (
        f"{name}={text} is a path of a disk, and hosts have nothing there. Copy it: gcloud "
        f"storage cp --recursive {text} gs://BUCKET/, and name {name}=gs://BUCKET/..."
    )


def _store_problem(store: Path, run_dir: str) -> str:
    if not places.is_remote(run_dir) or places.remote(store):
        return ""
    return (
        f"{STORE_MACRO}={store} is a folder of a disk, and RUN_DIR is on gs://: what stages make "
        f"would be lost with the host. Name {STORE_MACRO}=gs://BUCKET/..., or leave it out"
    )


def _is_ours(path: Path) -> bool:
    """Whether a path is one of the project's files, which the archive holds."""
    return path.exists() and path.resolve().is_relative_to(REPOSITORY / "gin_configs")


def _portable(name: str) -> str:
    """A gin file by a path that hosts have, too: they run in a copy of the current folder."""
    path = Path(name)
    for folder in (Path.cwd(), REPOSITORY):
        if path.is_absolute() and path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return name


def host_commands(name: str, job: RecipeJob, hosts: int) -> HostCommands:
    """Archives the code, and writes the texts that hosts run.

    Args:
      name: of the run.
      job: what runs.
      hosts: of all slices; several processes join each other.

    Raises:
      CodeError: code that cannot be archived.
      RemoteShellError: a setting that cannot pass through ssh.
      RequestError: companions alone, on several hosts.
    """
    if job.flags.companions == "only" and hosts > 1:
        raise RequestError(
            f"--companions=only: expected a slice of one host, found {hosts} hosts: a companion is "
            "one process"
        )
    archive = code_archive.build(ARCHIVES, job.files)
    described = bootstrap.Job(
        name=name,
        command=("-m", "launch.recipe", *job.flags.arguments()),
        code=archive.hash,
        archive=archive.path.name,  # in the home folder of each host
        environment=job.several if hosts > 1 else {},
    )
    return HostCommands(
        identity=described.identity,
        files=[(str(archive.path), archive.path.name)],
        start=bootstrap.start_text(described),
        status=bootstrap.status_text(name),
        log=lambda follow: bootstrap.log_text(name, follow),
        stop=bootstrap.stop_text(name, STOP_SECONDS),
        kill=bootstrap.stop_text(name, STOP_SECONDS, kill=True),
    )


def started(name: str) -> HostCommands:
    """Texts for a job that runs already, whatever it is; `start` is empty."""
    return HostCommands(
        identity="",
        files=(),
        start="",
        status=bootstrap.status_text(name),
        log=lambda follow: bootstrap.log_text(name, follow),
        stop=bootstrap.stop_text(name, STOP_SECONDS),
        kill=bootstrap.stop_text(name, STOP_SECONDS, kill=True),
    )
