"""A recipe on a GKE cluster: prints the JobSet that runs it, or starts it.

    python -m launch.gke quickstart --name=mine --slice=v5e:4x4 --run_dir=gs://BUCKET/mine \\
        --image=REGISTRY/kennel@sha256:... --queue=tpus --spot --print [NAME=VALUE ...]

Every host runs `python -m launch.recipe` with the recipe and the settings, which are passed on
unchanged. `--apply`, in the place of `--print`, hands the manifest to kubectl, whose context is the
cluster. `--as=xpk` and `--as=skypilot` print the same run for these launchers. docs/gke.md
begins at zero.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence

from launch import words
from launch.clusters import job_set, job_set_rules, kubectl, other_launchers
from launch.clusters.cluster_job import ClusterJob, IndexBuilder
from launch.clusters.manifest_nodes import Problem
from launch.commands import Command, Parser, UsageError, parser_of
from t5x_style.accelerators import slices
from t5x_style.accelerators.generations import Provisioning
from t5x_style.configuration.python_sources import REPOSITORY

RUN_DIR = "--gin.RUN_DIR="


class ManifestError(ValueError):
    """A manifest that breaks a rule: an error of this program."""


def manifest(job: ClusterJob) -> str:
    """The JobSet of a run, as YAML.

    Raises:
      ManifestError: it breaks a rule of `job_set_rules`; nothing that does is ever printed.
    """
    tree = job_set.manifest(job)
    if problems := job_set_rules.problems(tree, job):
        raise ManifestError(_in_words(job, problems))
    return job_set.text(tree)


def _in_words(job: ClusterJob, problems: Sequence[Problem]) -> str:
    lines = "\n".join(f"  {one}" for one in problems)
    return f"the manifest of {job.name} breaks rules; please report it:\n{lines}"


FORMS: dict[str, Callable[[ClusterJob], str]] = {
    "jobset": manifest,
    "xpk": other_launchers.xpk_command,
    "skypilot": other_launchers.skypilot_task,
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds all flags of a run on GKE."""
    add = parser.add_argument
    add("--name", required=True, help="of the run: lower-case letters, digits and dashes")
    add("--slice", required=True, help="as v5e:4x4, v5litepod-16 or 2x v6e:16x16")
    add("--image", required=True, help="of the Dockerfile, with its digest: NAME@sha256:...")
    add("--run_dir", required=True, help="RUN_DIR of the recipe, gs://BUCKET/PATH")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--spot", action="store_true", help="nodes that may be taken away")
    how.add_argument("--flex_start", action="store_true", help="nodes for at most 7 days")
    how.add_argument("--reservation", default="", help="nodes of this reservation")
    add("--queue", default="", help="a LocalQueue of Kueue; without, pods start at once")
    add("--namespace", default="default", help="of Kubernetes, default: default")
    add("--service_account", default="default", help="of Kubernetes; may write to the bucket")
    add("--env", action="append", default=[], help="NAME=VALUE of all containers; repeatable")
    add("--max_restarts", type=int, default=100, help="preemptions included, default: 100")
    add("--save_seconds", type=int, default=60, help="a save takes at most; default: 60")
    add("--grace_seconds", type=int, default=120, help="from SIGTERM to SIGKILL, default: 120")
    add("--scales_from_zero", action="store_true", help="the node pool has no nodes at first")
    add("--index_builder", metavar="SLICE", help="build indexes next to the trainer, on SLICE")
    add("--index_builder_flags", default="", help="one text: of t5x_style.build_index --watch")
    add("--gin_file", action="append", default=[], help="gin files of the repository, repeatable")
    add("--as", dest="form", choices=sorted(FORMS), default="jobset", help="what to print")
    act = parser.add_mutually_exclusive_group(required=True)
    act.add_argument("--print", action="store_true", help="print the run and start nothing")
    act.add_argument("--apply", action="store_true", help="start the run with kubectl")


COMMAND = Command(
    name="gke",
    help="Run a recipe on a GKE cluster, or print the manifest.",
    module="launch.gke",
    flags=(add_flags,),
    usage="RECIPE [NAME=VALUE ...] [flags]",
)


def read(argv: Sequence[str]) -> tuple[ClusterJob, argparse.Namespace]:
    """The run that a command line describes.

    Args:
      argv: the recipe and settings as words, or as `launch.words` translates them.

    Raises:
      UsageError: words, flags, or a gin file that the image does not have.
      ClusterJobError: a run that GKE would not start or keep alive.
      SliceError: no such slice.
    """
    parser = _parser()
    flags = words.translate(COMMAND, parser, argv)
    settings = [flag for flag in flags if flag.startswith("--gin.")]
    others = [flag for flag in flags if not flag.startswith("--gin.")]
    parser.check(others)
    options = parser.parse_args(others)
    return cluster_job(options, settings), options


def cluster_job(options: argparse.Namespace, settings: Sequence[str]) -> ClusterJob:
    """The run of parsed flags; `settings` are those of gin, `--gin.NAME=VALUE`."""
    for setting in settings:
        if setting.startswith(RUN_DIR):
            raise UsageError(
                f"RUN_DIR is set by --run_dir; found {setting.removeprefix('--gin.')} as well"
            )
    files = [f"--gin_file={_in_image(path)}" for path in options.gin_file]
    recipe = ("python", "-m", "launch.recipe", *files, f"{RUN_DIR}{options.run_dir}", *settings)
    return ClusterJob(
        name=options.name,
        slices=slices.parse(options.slice),
        image=options.image,
        command=recipe,
        run_dir=options.run_dir,
        provisioning=_provisioning(options),
        reservation=options.reservation,
        environment=dict(_variable(text) for text in options.env),
        queue=options.queue,
        namespace=options.namespace,
        service_account=options.service_account,
        max_restarts=options.max_restarts,
        save_seconds=options.save_seconds,
        grace_seconds=options.grace_seconds,
        scales_from_zero=options.scales_from_zero,
        index_builder=_index_builder(options),
    )


def _provisioning(options: argparse.Namespace) -> Provisioning:
    if options.spot:
        return "spot"
    if options.flex_start:
        return "flex_start"
    return "reserved" if options.reservation else "on_demand"


def _index_builder(options: argparse.Namespace) -> IndexBuilder | None:
    if options.index_builder is None:
        if options.index_builder_flags:
            raise UsageError("--index_builder_flags without --index_builder=SLICE")
        return None
    command = ("python", "-m", "t5x_style.build_index", "--watch")
    flags = tuple(shlex.split(options.index_builder_flags))
    return IndexBuilder(slices.parse(options.index_builder), (*command, *flags))


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise UsageError(f"--env: expected NAME=VALUE, found {text!r}")
    return name, value


def _in_image(path: str) -> str:
    """A gin file as the image has it: relative to the repository."""
    full = (REPOSITORY / path).resolve()
    if not full.is_relative_to(REPOSITORY) or not full.is_file():
        raise UsageError(
            f"--gin_file={path}: the image has the gin files of {REPOSITORY} only; put it there "
            "and build the image again"
        )
    return str(full.relative_to(REPOSITORY))


def start(job: ClusterJob) -> int:
    """Has kubectl create the JobSet; its exit code.

    Raises:
      UsageError: there is no kubectl.
    """
    text = manifest(job)
    try:
        done = subprocess.run(kubectl.apply_arguments(job, text), input=text, text=True)
    except FileNotFoundError:
        raise UsageError("--apply needs kubectl on the PATH; --print prints the manifest") from None
    if not done.returncode:
        print(follow_up(job))
    return done.returncode


def follow_up(job: ClusterJob) -> str:
    """The commands with which a run is watched and ended."""
    place = job.name, job.namespace
    lines = {
        "how it is": kubectl.status_arguments(*place),
        "its output": kubectl.logs_arguments(*place, follow=True),
        "end it": kubectl.delete_arguments(*place),
    }
    return "\n".join(
        [
            *(f"{what}: {shlex.join(command)}" for what, command in lines.items()),
            "Nodes cost money until the node pool has scaled down after the run.",
        ]
    )


def main(argv: Sequence[str]) -> int:
    """Prints or starts a run; 0, kubectl's exit code, or 2 for what is refused."""
    if not {"-h", "--help"}.isdisjoint(argv):
        _parser(words.RULE).print_help()
        return 0
    try:
        job, options = read(argv)
        if options.apply:
            if options.form != "jobset":
                raise UsageError(f"--apply starts a jobset; --as={options.form} is printed only")
            return start(job)
        print(FORMS[options.form](job), end="")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser(epilog: str = "") -> Parser:
    parser = parser_of(COMMAND, epilog)
    parser.prog = f"python -m {COMMAND.module}"
    parser.usage = f"{parser.prog} {COMMAND.usage}"
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
