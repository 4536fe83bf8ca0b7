"""On which machines the trials of a sweep run: on this one, or on Cloud TPU slices (`--slice`)."""

import argparse
import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator

from launch.cloud import precautions, recipe_job, recovery, tpu_flags, tpu_request
from launch.cloud.gcloud import Gcloud
from launch.cloud.remote_job import RemoteJob
from launch.cloud.sweep_fleet import Fleet
from launch.cloud.sweep_slices import SliceLauncher
from t5x_style.accelerators import slices
from t5x_style.configuration.gin_reader import GinError
from t5x_style.leases.lease import Leases
from t5x_style.storage import locations, places
from t5x_style.sweeps import planning
from t5x_style.sweeps.driver import Driver
from t5x_style.sweeps.launchers import LocalLauncher
from t5x_style.sweeps.planning import Planned, Planner
from t5x_style.sweeps.sweep_reader import FOLDER_MACRO, Sweep
from t5x_style.workflow import recipe_reader
from t5x_style.workflow.recipe_stage import Recipe

Say = Callable[[str], None]


def check(options: argparse.Namespace, sweep: Sweep, planner: Planner) -> None:
    """Refuses what cannot run on slices, or flags of slices without any; plans nothing.

    Args:
      options: of the command.
      sweep: what is to run.
      planner: of it.

    Raises:
      GinError: a flag without `--slice`; results or inputs on a disk, which hosts do not see;
        companions, for slices of several hosts.
      SliceError: slices that Google does not have.
    """
    if not options.slice:
        if wrong := tpu_flags.without_slice(options):
            raise GinError(f"{', '.join(wrong)}: of slices; name them: --slice=v5e:2x4")
        return
    if not places.remote(sweep.folder):
        raise GinError(
            f"--slice: {FOLDER_MACRO} {sweep.folder} is a folder of this machine, which hosts do "
            f"not see: write {FOLDER_MACRO}=gs://BUCKET/{sweep.folder.name}"
        )
    try:
        flags = planner.command({}, sweep.folder)
        recipe = recipe_reader.load(flags)
        recipe_job.refuse_local_data(recipe, flags.read_all(), places.shown(sweep.folder))
        _refuse_companions(options, recipe)
    except planning.WRONG as error:
        raise GinError(*(planner.in_words(str(text)) for text in error.args)) from error


def _refuse_companions(options: argparse.Namespace, recipe: Recipe) -> None:
    """Refuses companions on several hosts: none would start, and their stages would wait."""
    found = slices.parse(options.slice)
    hosts = found.count * found.hosts
    if recipe.companions and hosts > 1:
        names = ", ".join(one.name for one in recipe.companions)
        raise GinError(
            f"--slice={options.slice} has {hosts} hosts, and the recipe has companions ({names}), "
            "which start on none of several hosts: expected a slice of one host, as v5e:2x4"
        )


def check_trials(options: argparse.Namespace, planned: Iterable[Planned]) -> None:
    """Refuses trials whose own inputs hosts do not see; see `check`."""
    for one in planned if options.slice else ():
        run_dir = places.shown(one.recipe.run_dir)
        recipe_job.refuse_local_data(one.recipe, one.flags.read_all(), run_dir)


def launcher(
    options: argparse.Namespace, sweep: Sweep, leases: Leases, say: Say
) -> LocalLauncher | SliceLauncher:
    """What starts trials; asks for nothing yet.

    Raises:
      RequestError, SliceError, DurationError: slices that Google does not have.
    """
    if not options.slice:
        return LocalLauncher(sweep.workers, sweep.cores)
    gcloud = Gcloud()
    folder = places.shown(sweep.folder)
    name = options.name or tpu_request.default_name(folder, FOLDER_MACRO)
    where = tpu_request.place(options, gcloud, say, name)
    fleet = Fleet(tpu_request.request(options, where, folder), sweep.workers)
    return SliceLauncher(fleet, sweep.folder, leases, gcloud, say, options.delete_at_end)


def _warn(slices: SliceLauncher, say: Say) -> None:
    """Says what is wrong with the bucket's place or the keys of ssh, before slices cost money."""
    request = slices.fleet.request
    for text in precautions.warnings_of(
        request.run_dir, request.zone, request.hosts, locations.warning
    ):
        say(f"warning: {text}")


def show(slices: SliceLauncher, arguments: list[str]) -> None:
    """Prints what would be asked for the first worker.

    Args:
      slices: of the sweep.
      arguments: of the recipe of its first trial.
    """
    request = slices.fleet.requests[0]
    job = recipe_job.read(arguments)
    commands = recipe_job.host_commands(request.name, job, request.hosts)
    for what, lists in recovery.commands(request, RemoteJob(request.place, commands)).items():
        print(f"# {what}")
        for words in lists:
            print(shlex.join([slices.gcloud.name, *words]))


def exit_code(machines: LocalLauncher | SliceLauncher) -> int:
    """1 where slices still cost money that should have been deleted, else 0."""
    return int(isinstance(machines, SliceLauncher) and bool(machines.undeleted))


@contextlib.contextmanager
def kept(
    machines: LocalLauncher | SliceLauncher,
    delete_at_end: bool,
    driver: Driver,
    say: Say,
) -> Iterator[None]:
    """Inside, trials run. After it other drivers may have the slices, and the user knows the costs.

    Args:
      machines: of the sweep.
      delete_at_end: whether slices are deleted where no trial needs them any more: all have ended,
        or the limits of the sweep are used up.
      driver: of the trials.
      say: prints a line.
    """
    if not isinstance(machines, SliceLauncher):
        yield
        return
    _warn(machines, say)
    delete = False
    try:
        yield
        spent = not (driver.was_stopped() or machines.retired)
        delete = delete_at_end and (spent or driver.has_ended())
    finally:
        machines.close(delete)
        for line in machines.fleet.costs(machines.gcloud):
            say(line)
