"""The job of `kennel tpu`: a recipe and settings, as texts for the hosts of a run."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from launch.cloud import bootstrap, code_archive, recipe_files
from launch.cloud.remote_job import HostCommands
from t5x_style.configuration import gin_checks, input_macros
from t5x_style.configuration.gin_reader import Config, GinError, leaves
from t5x_style.configuration.python_sources import REPOSITORY

ARCHIVES = Path.home() / ".cache" / "kennel" / "code"  # on this machine
STOP_SECONDS = 240.0  # for the last save; ssh waits for `remote_job.STATUS_TIMEOUT`


@dataclass(frozen=True)
class RecipeJob:
    """A recipe with settings, read and checked on this machine.

    Attributes:
      flags: of `launch.recipe`.
      run_dir: RUN_DIR, as the configuration has it.
      files: gin files that it and its stages read.
    """

    flags: gin_checks.Flags
    run_dir: str
    files: tuple[Path, ...]


def read(argv: Sequence[str]) -> RecipeJob:
    """Reads flags of gin; all that is wrong with them is found before anything is paid for.

    Raises:
      GinError: no recipe; unknown names, wrong types, references that lead nowhere; inputs that
        hosts do not have.
    """
    flags = gin_checks.parse_flags(argv)
    flags = replace(flags, files=tuple(map(_portable, flags.files)))
    files = recipe_files.of_recipe(flags)
    config = flags.read_all()
    run_dir = config.expand(config.macro("RUN_DIR", "kennel tpu"), "RUN_DIR")
    refuse_local_data(config)
    return RecipeJob(flags, str(run_dir), tuple(files))


def refuse_local_data(config: Config) -> None:
    """Refuses inputs of this machine's disk: hosts have nothing but the code and what is on gs://.

    Raises:
      GinError: naming each macro, and how to copy what it names.
    """
    wrong = []
    for name in sorted(input_macros.NAMES & config.macros.keys()):
        for leaf in leaves(config.macros[name].value):
            if isinstance(leaf, str) and os.path.exists(leaf) and not _is_ours(Path(leaf)):
                wrong.append(
                    f"{name}={leaf} is on this machine, and hosts have none of it. Copy it: gcloud "
                    f"storage cp --recursive {leaf} gs://BUCKET/, and name {name}=gs://BUCKET/..."
                )
    if wrong:
        raise GinError(*wrong)


def _is_ours(path: Path) -> bool:
    """Whether a path is one of the project's own, which the archive holds."""
    return path.resolve().is_relative_to(REPOSITORY / "gin_configs")


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
    """
    archive = code_archive.build(ARCHIVES, job.files)
    described = bootstrap.Job(
        name=name,
        command=("-m", "launch.recipe", *job.flags.arguments()),
        code=archive.hash,
        archive=archive.path.name,  # in the home folder of each host
        environment={"KENNEL_PROCESSES": "auto"} if hosts > 1 else {},
    )
    return HostCommands(
        identity=described.identity,
        files=[(str(archive.path), archive.path.name)],
        start=bootstrap.start_text(described),
        status=bootstrap.status_text(name),
        log=lambda follow: bootstrap.log_text(name, follow),
        stop=bootstrap.stop_text(name, STOP_SECONDS),
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
    )
