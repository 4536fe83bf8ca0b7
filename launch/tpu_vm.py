"""Cloud TPU VMs through queued resources: ask for slices, run a recipe, recover from preemption.

    kennel tpu up beir CORPUS=gs://BUCKET/beir RUN_DIR=gs://BUCKET/mine --slice=v5e:2x4 --spot

The order of words is VERB [RECIPE] [NAME=VALUE ...] [flags]. Settings go to the recipe unchanged.

    create    ask for slices; the request waits in Google's queue
    run       set up the hosts of ACTIVE slices, start the recipe there, and return
    status    the slices, and the job on each host; without --name, all runs of the zone
    logs      the job's log; --follow until it ends
    ssh       a shell on a host, or --command=TEXT
    fetch     copy --source (gs://... or a folder on a host) to --to
    stop      have the job save and end on all hosts; the slices stay, and cost money
    delete    delete the slices of a run, whatever runs there
    up        create, wait, run, watch; after a preemption again, until the recipe is done

With `--print` the commands are printed, and none runs. The job runs detached on the hosts: this
program may be stopped and started again at any time. Only slices with the label of the run are
touched. --max_run is no limit under `up`, which asks for new slices after it. docs/tpu_vms.md
begins at zero, and lists the exit codes of `up`.
"""

import argparse
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from launch.cloud import (
    decisions,
    instance_groups,
    queued_resources,
    recipe_job,
    recovery,
    reports,
    ssh_keys,
    tpu_flags,
    tpu_request,
)
from launch.cloud.endings import MEANINGS, Ending
from launch.cloud.gcloud import Gcloud, GcloudError, run_on_terminal
from launch.cloud.precautions import Distance, warnings_of
from launch.cloud.recipe_job import RecipeJob
from launch.cloud.remote_job import LogFollower, RemoteJob
from launch.cloud.reports import Host, Resource
from launch.cloud.requests import Place, Request, RequestError
from t5x_style.configuration import command_flags
from t5x_style.storage import locations
from t5x_style.workflow import stage_runner

COMPANION_SLICE = (
    "this command with --companions=elsewhere, and again with --companions=only --slice=SLICE"
)


def say(line: str) -> None:
    """Prints a line about what happens; commands and logs go to standard output."""
    print(f"kennel tpu: {line}", file=sys.stderr, flush=True)


def read(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Flags, and those for gin.

    Raises:
      RequestError: a flag that the verb does not take.
    """
    parser = argparse.ArgumentParser(prog="kennel tpu", description=__doc__, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    tpu_flags.add_tpu(parser)
    command_flags.add_gin(parser)
    command_flags.add_selection(parser)
    settings = [word for word in argv if word.startswith("--gin.")]
    options = parser.parse_args([word for word in argv if not word.startswith("--gin.")])
    if wrong := tpu_flags.unused(options, parser):
        raise RequestError(f"kennel tpu {options.verb} takes no {', '.join(wrong)}")
    files = [f"--gin_file={name}" for name in options.gin_file]
    allowed = [f"--gin_allow={name}" for name in options.gin_allow]
    given = {name: getattr(options, name) for name in ("until", "initialization_timeout")}
    return options, [
        *files, f"--gin_search_paths={options.gin_search_paths}", *allowed, *settings,
        *(f"--{name}={value}" for name, value in given.items() if value),
        *(["--strict_code"] if options.strict_code else []),
        *(f"--rerun={name}" for name in options.rerun),
        f"--companions={options.companions}",
    ]  # fmt: skip


class Launcher:
    """The verbs, for one command line.

    Args:
      options: its flags.
      gin: flags of the recipe.
      gcloud: the command.
      distance: what is wrong with a bucket's place for a zone, see `locations.warning`.
    """

    def __init__(
        self, options: argparse.Namespace, gin: Sequence[str], gcloud: Gcloud, distance: Distance
    ) -> None:
        self.options = options
        self.gin = gin
        self.gcloud = gcloud
        self._distance = distance

    def create(self) -> int:
        """Asks for slices."""
        request = tpu_request.request(self.options, self._place())
        if request.service == "instance_groups":
            return self._print_groups(request)
        arguments = queued_resources.create(request)
        if self.options.print:
            return self._print([arguments])
        if warning := ssh_keys.warning(request.hosts):
            say(f"warning: {warning}")
        self.gcloud.once(arguments)
        say(recovery.costs(self.gcloud, request.place))
        return Ending.DONE

    def run(self) -> int:
        """Starts the recipe on slices that are there."""
        job = recipe_job.read(self.gin)
        place = self._place_of(job.run_dir)
        found = self._found(place)
        if found.state != "ACTIVE":
            raise RequestError(f"{place} is {found.state}: the hosts are there once it is ACTIVE")
        request = Request(place.name, found.slices, place.zone, place.project, run_dir=job.run_dir)
        if why := decisions.foreign(request, found):
            return _end(Ending.NAME_TAKEN, why)
        remote = RemoteJob(place, recipe_job.host_commands(place.name, job, request.hosts))
        if self.options.print:
            return self._print(remote.starting())
        _say_companions(job, request.hosts)
        self._check(job.run_dir, place.zone, request.hosts)
        done = remote.start(self.gcloud)
        if done.code:
            return _end(Ending.NO_SETUP, f"exit code {done.code}: {done.err.strip()}")
        say(f"{len(reports.hosts(done.out))} of {request.hosts} hosts run the job")
        say(recovery.costs(self.gcloud, place))
        return Ending.DONE

    def status(self) -> int:
        """Shows slices and job."""
        if not self.options.name:
            return self._list()
        place = self._place()
        describe, asking = queued_resources.describe(place), self._remote(place).asking()
        if self.options.print:
            return self._print([describe, queued_resources.nodes(place), asking])
        found = self._found(place)
        print(f"{place.name}: {found.state}, {found.count}x {found.accelerator} {found.failure}")
        if found.state == "ACTIVE":
            for node in reports.nodes(self.gcloud.read(queued_resources.nodes(place)), place.name):
                print(f"  node {node.name}: {node.state}")
            _print_hosts(found, *self._remote(place).hosts(self.gcloud))
        say(recovery.costs(self.gcloud, place))
        return Ending.DONE

    def logs(self) -> int:
        """Prints the log of one host."""
        place, options = self._place(), self.options
        job = self._remote(place)
        return self._call(job.log(options.follow, options.node, options.worker))

    def ssh(self) -> int:
        """Opens a shell, or runs a text."""
        options = self.options
        command = queued_resources.ssh(self._place(), options.command, options.node, options.worker)
        return self._call(command)

    def fetch(self) -> int:
        """Copies a folder to this machine."""
        options, place = self.options, self._place()
        if not options.source:
            raise RequestError("no source: pass --source=gs://BUCKET/FOLDER, or a host's folder")
        target = Path(options.to or f"runs/{place.name}")
        if options.source.startswith("gs://"):
            words = ["storage", "rsync", "--recursive", options.source, str(target)]
            if not options.print:
                target.mkdir(parents=True, exist_ok=True)
            return self._call(words)
        if target.exists():
            raise RequestError(f"{target} is there already: choose another folder with --to")
        source = queued_resources.on_host(place, options.source)
        return self._call(
            queued_resources.scp(place, [source], str(target), options.node, options.worker)
        )

    def stop(self) -> int:
        """Has the job save and end on all hosts; deletes nothing."""
        place = self._place()
        remote = self._remote(place)
        if self.options.print:
            return self._print([remote.stopping()])
        found = self._found(place)
        if found.run != place.name:
            return _end(Ending.NAME_TAKEN, f"{place} is no resource of kennel: it has no label")
        if found.state != "ACTIVE":
            raise RequestError(f"{place} is {found.state}: no job runs there")
        hosts, said = remote.stop(self.gcloud)
        _print_hosts(found, hosts, said)
        say(recovery.costs(self.gcloud, place))
        running = sum(one.state == "running" for one in hosts)
        silent = found.slices.count * found.slices.hosts - len(hosts)
        if running or silent:
            why = f"the job still runs on {running} hosts, and {silent} hosts did not answer"
            return _end(Ending.UNREACHABLE, f"{why}: the same command asks again")
        say("a `kennel tpu up` that still runs would start the job again: stop it, too")
        return Ending.DONE

    def delete(self) -> int:
        """Deletes the slices of a run, and nothing else."""
        place = self._place()
        arguments = queued_resources.delete(place)
        if self.options.print:
            return self._print([arguments])
        found = recovery.find(self.gcloud, place)
        if found is None:
            say(f"nothing is left of {place}")
            return Ending.DONE
        if found.run != place.name:
            return _end(
                Ending.NAME_TAKEN, f"{place} is no resource of kennel: it has no such label"
            )
        self.gcloud.once(arguments)
        say(f"{place} ({found.state}) is being deleted")
        return Ending.DONE

    def up(self) -> int:
        """Runs a recipe until it is done."""
        job = recipe_job.read(self.gin)
        place = self._place_of(job.run_dir)
        request = tpu_request.request(self.options, place, job.run_dir)
        if self.options.delete_at_end and not job.run_dir.startswith("gs://"):
            raise RequestError(
                f"--delete_at_end would delete RUN_DIR {job.run_dir!r} with its host: write "
                f"RUN_DIR=gs://BUCKET/{place.name}"
            )
        remote = RemoteJob(place, recipe_job.host_commands(place.name, job, request.hosts))
        _say_companions(job, request.hosts)
        if self.options.print:
            return self._print_up(request, remote)
        self._check(job.run_dir, place.zone, request.hosts)
        follower = LogFollower(remote, self.gcloud)
        loop = recovery.Recovery(
            request, remote, self.gcloud, follower, say, self.options.delete_at_end
        )
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            end = loop.up()
        except KeyboardInterrupt:
            end = decisions.End(Ending.INTERRUPTED, "stopped; the same command continues")
        code = _end(end.ending, end.why)
        say(recovery.costs(self.gcloud, place))
        return code

    def _check(self, run_dir: str, zone: str, hosts: int) -> None:
        for text in warnings_of(run_dir, zone, hosts, self._distance):
            say(f"warning: {text}")

    def _place_of(self, run_dir: str) -> Place:
        """With the name of the run from its RUN_DIR, unless it is given."""
        suffix = "-companion" if self.options.companions == "only" else ""
        return self._place(self.options.name or tpu_request.default_name(run_dir) + suffix)

    def _place(self, name: str = "") -> Place:
        return tpu_request.place(self.options, self.gcloud, say, name)

    def _remote(self, place: Place) -> RemoteJob:
        """A job that was started before."""
        return RemoteJob(place, recipe_job.started(place.name))

    def _found(self, place: Place) -> Resource:
        found = recovery.find(self.gcloud, place)
        if found is None:
            raise RequestError(f"there is no {place}: kennel tpu create, or kennel tpu up")
        return found

    def _list(self) -> int:
        """All runs of the zone."""
        where = self._place("any")
        arguments = queued_resources.list_all(where.zone, where.project)
        if self.options.print:
            return self._print([arguments])
        found = [reports.resource(one) for one in self.gcloud.read(arguments) or ()]
        for one in found:
            if one.run:
                print(f"{one.name}: {one.state}, {one.count}x {one.accelerator} {one.failure}")
        say(f"{sum(bool(one.run) for one in found)} runs in {where.zone} of {where.project}")
        return Ending.DONE

    def _print(self, commands: Sequence[Sequence[str]]) -> int:
        for arguments in commands:
            print(shlex.join([self.gcloud.name, *arguments]))
        return Ending.DONE

    def _print_groups(self, request: Request) -> int:
        if not self.options.print:
            raise RequestError("instance groups are printed only: add --print, and run them")
        self._print(instance_groups.commands(request))
        print("# to delete them:")
        return self._print(instance_groups.deletion(request))

    def _print_up(self, request: Request, remote: RemoteJob) -> int:
        for what, commands in recovery.commands(request, remote).items():
            print(f"# {what}")
            self._print(commands)
        return Ending.DONE

    def _call(self, arguments: Sequence[str]) -> int:
        """Runs a command on our terminal; its exit code."""
        if self.options.print:
            return self._print([arguments])
        return run_on_terminal([self.gcloud.name, *arguments])


def _print_hosts(found: Resource, hosts: Sequence[Host], said: str) -> None:
    """The job on each host, and why others did not answer."""
    for host in hosts:
        code = "" if host.exit_code is None else f", exit code {host.exit_code}"
        print(f"  host {host.name}: job {host.state}{code}")
    count = found.slices.count * found.slices.hosts
    print(f"  {len(hosts)} of {count} hosts answered")
    if said and len(hosts) < count:
        say(f"gcloud says: {said}")


def _say_companions(job: RecipeJob, hosts: int) -> None:
    """Where the companions of the recipe's stages run."""
    if text := recipe_job.companion_note(job, hosts, COMPANION_SLICE):
        say(text)


def _end(ending: Ending, why: str) -> Ending:
    say(f"{MEANINGS[ending]} (exit code {ending:d}): {why}")
    return ending


ENDINGS = {
    "permission": Ending.NO_PERMISSION,
    "quota": Ending.NO_QUOTA,
    "exists": Ending.NAME_TAKEN,
    "program": Ending.REFUSED,
}


def main(
    argv: Sequence[str],
    gcloud: Gcloud | None = None,
    distance: Distance = locations.warning,
) -> int:
    """Runs a verb; returns the exit code: one of `Ending`, or gcloud's."""
    try:
        options, gin = read(argv)
        launcher = Launcher(options, gin, gcloud or Gcloud(), distance)
        verb: Callable[[], int] = getattr(launcher, options.verb)
        return verb()
    except GcloudError as error:
        return _end(ENDINGS.get(error.kind, Ending.UNREACHABLE), str(error))
    except ValueError as error:
        if "--traceback" in argv or not stage_runner.is_users(error):
            raise
        print(f"error: {error}", file=sys.stderr)
        return Ending.REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
