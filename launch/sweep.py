"""Runs a sweep: a recipe many times, with what varies said in a gin file.

    python -m launch.sweep --gin_file=gin_configs/sweeps/rates.gin [--dry_run] [--gin.X=...]

A sweep file is read, never executed:

    sweep.run:
      recipe = 'finetune'                       # a name of gin_configs/recipes, or a gin file
      metric = 'retriever/eval/dev/MRR@10'      # STAGE/METRIC: trials run up to this stage
      seeds = [1, 2, 3]                         # of each configuration; set SEED of the recipe

    CORPUS = 'path/to/folder'                   # all else is set in the recipe of every trial,
    retriever/LOG_EVERY = 10                    # as on its command line

    LEARNING_RATE/sweep.Axis.values = [1e-5, 2e-5, 5e-5]
    WARMUP_STEPS/sweep.Axis.integer = (0, 20)   # or uniform, log_uniform, log_integer

What an axis may say is in `t5x_style.sweeps.axes`. Lists alone are a grid; with a range among them,
`sweep.run.trials` quasi-random points are drawn; `sampler = 'tpe'` asks Optuna; `points = [{...}]`
names configurations one by one. The recipe's configuration is always among the trials, as
`default`. Further parameters of `sweep.run`:

    direction = 'max'         # or 'min'
    at = 'best'               # the best evaluation of a training, or the 'last'
    pruner = 'median'         # stops trials early; or 'halving'; pruner_options = {...}
    trial_steps, trial_minutes, steps, minutes    # limits of one trial, and of all together
    workers = 2               # trials at once, each with its part of the cores, or `cores`
    topology = 'v5e:8x8'      # trials that do not fit into its memory are impossible
    skip_impossible = True    # leave out what is impossible, rather than refuse the sweep
    seed_macro, sampler_seed

With `--slice=v5e:2x4 --workers=4` trials run on Cloud TPU slices, SWEEP_DIR being on gs://; see
docs/sweeps.md for the other flags.

Everything is in SWEEP_DIR (by default runs/NAME): `trials/NAME/` has a trial's record, log and run,
`report.md` what came out, `best.gin` the winner as a recipe. Trials share one store: a stage that
an axis does not touch runs once. Stop the command anywhere, start it again, start it twice: each
trial is trained once. Nothing is deleted: a trial that the file describes no more keeps its record.

Exit code: 0 done, or stopped as asked; 1 an error, a failed trial, a changed file, or slices that
could not be deleted; 2 wrong flags.
"""

import argparse
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FrameType

from rich.console import Console
from rich.table import Table

from launch import sweep_machines
from launch.cloud import tpu_flags
from launch.cloud.sweep_slices import SliceLauncher
from t5x_style.configuration import command_flags, gin_checks
from t5x_style.configuration.gin_reader import GinError
from t5x_style.distributed import launch_flags
from t5x_style.storage import places
from t5x_style.sweeps import (
    best,
    driver,
    estimates,
    journal,
    points,
    pruning,
    report,
    results,
    sources,
    standings,
    sweep_reader,
    trial_checks,
    trial_records,
)
from t5x_style.sweeps.driver import Driver
from t5x_style.sweeps.launchers import LocalLauncher
from t5x_style.sweeps.planning import Planner
from t5x_style.sweeps.remote_sweep import RemoteSweep
from t5x_style.sweeps.sweep_reader import Sweep
from t5x_style.sweeps.trials import Configuration, Record, Results, Trial
from t5x_style.workflow import recipe_reader, stage_runner
from t5x_style.workflow.store import Store

CONSOLE = Console(highlight=False, soft_wrap=True)
SHOWN = 60  # trials of a table


def main() -> None:
    """The command `python -m launch.sweep`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    command_flags.add_sweep(parser)
    tpu_flags.add_slices(parser)
    options, rest = parser.parse_known_args(sys.argv[1:])
    sys.exit(stage_runner.guarded(lambda flags: run(flags, options, rest), rest))


def run(flags: gin_checks.Flags, options: argparse.Namespace, argv: Sequence[str] = ()) -> int:
    """Runs a sweep, or says what would run; returns the exit code.

    Args:
      flags: of gin.
      options: of sweeps and slices.
      argv: the command line that `flags` are from.
    """
    if not flags.files:
        raise GinError("No sweep file: kennel sweep FILE.gin, or --gin_file=FILE.gin")
    _refuse_flags_of_recipes(flags, argv)
    sweep = _with_workers(sweep_reader.load(flags), options.workers)
    planner = Planner(sweep, flags)
    sweep_machines.check(options, sweep, planner)
    pruner = pruning.pruner(*sweep.pruner)
    trial_checks.check_recipes(planner)
    store = planner.bound({}).recipe.store
    remote = _remote(sweep, store)
    source, left_out = _source(planner, store, check=not options.report)
    sweep_machines.check_trials(options, (planner.of(one) for one in source.trials()))
    launcher = sweep_machines.launcher(options, sweep, store.leases, CONSOLE.print)
    worker = Driver(planner, source, pruner, launcher, store.leases, remote, CONSOLE.print)
    if left_out:
        CONSOLE.print(f"{left_out} impossible configurations are left out (skip_impossible)")
    if flags.dry_run:
        _say_what_would_run(planner, source.trials(), worker.view())
        return 0
    if options.print and isinstance(launcher, SliceLauncher):
        sweep_machines.show(launcher, worker.command(source.trials()[0]))
        return 0
    if options.report:
        return _report(planner, source, worker, launcher, remote)
    with sweep_machines.kept(launcher, options.delete_at_end, worker, CONSOLE.print):
        _work(worker, options.retry_failed)
    reported = _report(planner, source, worker, launcher, remote)
    return reported or sweep_machines.exit_code(launcher)


def _refuse_flags_of_recipes(flags: gin_checks.Flags, argv: Sequence[str]) -> None:
    """Refuses what no trial would get."""
    if flags.until or flags.rerun:
        raise GinError(
            "--until and --rerun are of one recipe: trials run up to the stage of "
            "sweep.run.metric; a stage is made again by kennel run best.gin --rerun=STAGE"
        )
    if flags.companions != "here":
        raise GinError(
            f"--companions={flags.companions} is of one recipe: the companions of a trial run "
            "next to its stage; leave the flag out"
        )
    if wrong := launch_flags.given(argv):
        raise GinError(
            f"{', '.join(wrong)}: of one recipe: the processes of a trial are started for it; "
            "leave this out"
        )


def _with_workers(sweep: Sweep, workers: int | None) -> Sweep:
    """With the number of workers of the command line, where it has one.

    Raises:
      GinError: it is less than one.
    """
    if workers is not None and workers < 1:
        raise GinError(f"--workers={workers}: expected a number above 0")
    return sweep if workers is None else replace(sweep, workers=workers)


def _report(
    planner: Planner,
    source: driver.Source,
    worker: Driver,
    launcher: LocalLauncher | SliceLauncher,
    remote: RemoteSweep,
) -> int:
    """Writes what came out, and says what is left; returns the exit code."""
    remote.look(now=True)
    remote.look_at_store()
    found = results.gather(planner, source.trials(), worker.view(), launcher.devices)
    _write(planner, found)
    retired = launcher.retired if isinstance(launcher, SliceLauncher) else []
    _say_what_is_left(worker, found, retired)
    return _exit_code(worker, found, retired)


def _remote(sweep: Sweep, store: Store) -> RemoteSweep:
    """The sweep's folder on object storage, with what is there copied here.

    Raises:
      GinError: a store on a disk for a sweep on object storage.
    """
    if places.remote(sweep.folder) and not store.url:
        raise GinError(
            f"{sweep_reader.FOLDER_MACRO} is {places.shown(sweep.folder)}, and "
            f"{recipe_reader.STORE_MACRO} {store.root} is on this machine: expected both on object "
            f"storage. Leave {recipe_reader.STORE_MACRO} out: it is next to the sweep's folder."
        )
    found = RemoteSweep(sweep.folder, store)
    found.look()
    found.look_at_store()
    return found


def _source(planner: Planner, store: Store, check: bool) -> tuple[driver.Source, int]:
    """Where trials come from, and how many configurations are left out.

    Args:
      planner: of the sweep.
      store: of its trials.
      check: whether trials that cannot run are looked for; a report of what was run needs it only
        where such trials are left out.
    """
    sweep = planner.sweep
    CONSOLE.print(f"plans and checks the trials of {sweep.title}")
    no_change, recipes = planner.no_change()
    known = points.configurations(sweep, no_change, recipes)
    trials = trial_checks.first_trials(known, sweep.seeds)
    check = check or sweep.skip_impossible
    problems = trial_checks.impossible(planner, trials) if check else {}
    if not sweep.skip_impossible or len(problems) == len(trials):
        trial_checks.refuse(problems, trials)
    possible = [one.configuration for one in trials if one.name not in problems]
    if sweep.sampler not in sources.ADAPTIVE:
        distinct = _distinct(planner, possible)
        return sources.Known(sources.by_seed(distinct, sweep.seeds)), len(problems)

    def can_run(one: Configuration) -> bool:
        return not trial_checks.impossible(planner, trial_checks.first_trials([one], sweep.seeds))

    lease = f"sweep-{trial_records.folder_key(sweep.folder)}-asks"
    asked = sources.Asked(sweep, possible, no_change, store.leases, lease, can_run)
    return asked, len(problems)


def _distinct(planner: Planner, known: Sequence[Configuration]) -> list[Configuration]:
    """Configurations that differ in what they would make; of equal ones, the first."""
    found: dict[str, Configuration] = {}
    for one in known:
        (trial,) = trial_checks.first_trials([one], planner.sweep.seeds)
        first = found.setdefault(planner.of(trial).last.fingerprint, one)
        if first is not one:
            CONSOLE.print(
                f"note: {trial_checks.described(trial)} makes the same as {first.name}: left out"
            )
    return list(found.values())


def _work(worker: Driver, retry_failed: bool) -> None:
    """Runs trials until nothing is left to do, or somebody stops this process."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        worker.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    if retry_failed:
        CONSOLE.print(f"{worker.retry_failed()} failed trials run again")
    worker.run()


def _say_what_would_run(
    planner: Planner, trials: Sequence[Trial], view: Mapping[str, Record]
) -> None:
    """Prints trials, the stages that they share, and an estimate."""
    sweep = planner.sweep
    axes = [axis.name for axis in sweep.axes]
    table = Table(
        title=f"{places.shown(sweep.folder)}: what would run (nothing was)", title_justify="left"
    )
    for column in ("trial", *axes, "seed", "status"):
        table.add_column(column)
    for trial in trials[:SHOWN]:
        values = [str(trial.configuration.values.get(axis, "")) for axis in axes]
        seed = "" if trial.seed is None else str(trial.seed)
        table.add_row(trial.name, *values, seed, view[trial.name].in_words)
    CONSOLE.print(table)
    if len(trials) > SHOWN:
        CONSOLE.print(f"and {len(trials) - SHOWN} more trials")
    if sweep.sampler in sources.ADAPTIVE:
        CONSOLE.print(f"{sweep.sampler} names {sweep.trials} configurations as results come in")
    left = [one for one in trials if view[one.name].status not in ("done", "pruned")]
    _say_stages(estimates.shared_stages(planner, [planner.of(one) for one in left]), len(left))


def _say_stages(shared: Sequence[estimates.Shared], trials: int) -> None:
    table = Table(title=f"stages of the {trials} trials that are left", title_justify="left")
    for column in ("stage", "versions", "trials", "done", "seconds (estimate)"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage in dict.fromkeys(one.stage for one in shared):
        ones = [one for one in shared if one.stage == stage]
        todo = [one.seconds for one in ones if not one.done]
        known = [seconds for seconds in todo if seconds is not None]
        said = f"{sum(known):.0f}" if len(known) == len(todo) else "not known"
        users, done = sum(one.trials for one in ones), sum(one.done for one in ones)
        table.add_row(stage, str(len(ones)), str(users), str(done), said)
    CONSOLE.print(table)
    open_ = [one for one in shared if not one.done]
    known = [one.seconds for one in open_ if one.seconds is not None]
    unknown = len(open_) - len(known)
    without = f", without {unknown} versions of which the store has no example" if unknown else ""
    CONSOLE.print(f"estimate: {sum(known) / 60:.1f} minutes of one worker{without}")


def _write(planner: Planner, found: Results) -> None:
    """Writes the report, best.gin and the journal, and prints where they are."""
    folder = planner.sweep.folder
    folder.mkdir(parents=True, exist_ok=True)
    winner = standings.best(found)
    command = ""
    if winner is not None:
        path = folder / best.FILE
        report.write_text(path, best.text(planner, winner.trial))
        command = best.command(folder)
    report.write(found, folder, command)
    journal.write(found, folder)
    CONSOLE.print(f"{places.shown(folder / report.PAGE)}: {report.sentence(found)}")


def _left(found: Results) -> int:
    """How many trials have not ended."""
    statuses = [found.record(trial).status for trial in found.trials]
    return sum(one in ("queued", "running", "preempted") for one in statuses)


def _say_what_is_left(worker: Driver, found: Results, retired: Sequence[str]) -> None:
    left = _left(found)
    if left and retired:
        CONSOLE.print(f"error: {left} trials have not ended, and slices are lacking:")
        for line in retired:
            CONSOLE.print(f"  {line}")
        CONSOLE.print("The same command continues.")
    elif left:
        why = (
            ""
            if worker.was_stopped()
            else " (what sweep.run.minutes and steps allow is used up, or --report)"
        )
        CONSOLE.print(f"{left} trials have not ended{why}; the same command continues with them")


def _exit_code(worker: Driver, found: Results, retired: Sequence[str]) -> int:
    failed = [one for one in found.records.values() if one.status == "failed"]
    if failed:
        CONSOLE.print(
            f"error: {len(failed)} trials failed: {failed[0].reason}. --retry_failed runs them "
            "again with the same parameters."
        )
    return 1 if failed or worker.changed or (retired and _left(found)) else 0


if __name__ == "__main__":
    main()
