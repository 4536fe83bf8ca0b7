"""A recipe on a GKE cluster: prints the JobSet that runs it, or starts it.

    python -m launch.gke quickstart RUN_DIR=gs://BUCKET/mine --slice=v5e:4x4 \\
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
from dataclasses import replace

from launch import words
from launch.cloud import recipe_job, tpu_request
from launch.clusters import job_set, job_set_rules, kubectl, other_launchers
from launch.clusters.cluster_job import ClusterJob, IndexBuilder
from launch.clusters.manifest_nodes import Problem
from launch.commands import COMMANDS, UsageError, parser_of
from t5x_style.accelerators import slices
from t5x_style.accelerators.generations import Provisioning
from t5x_style.configuration.gin_checks import Flags
from t5x_style.configuration.gin_reader import COMMAND_LINE, find_file, search_folders
from t5x_style.configuration.python_sources import REPOSITORY

COMMAND = COMMANDS["gke"]
WITH_IMAGE = ("jobset", "xpk")  # SkyPilot uses TPU VMs


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


def read(argv: Sequence[str]) -> tuple[ClusterJob, argparse.Namespace]:
    """The run that a command line describes.

    Args:
      argv: the recipe and settings as words, or as `launch.words` translates them.

    Raises:
      UsageError: words, flags, or a gin file that the image does not have.
      GinError, RecipeError: of the recipe, see `recipe_job.read`.
      ClusterJobError: a run that GKE would not start or keep alive.
      SliceError: no such slice.
    """
    parser = parser_of(COMMAND)
    flags = words.translate(COMMAND, parser, argv)
    settings = [flag for flag in flags if flag.startswith("--gin.")]
    others = [flag for flag in flags if not flag.startswith("--gin.")]
    parser.check(others)
    options = parser.parse_args(others)
    if not options.image and options.form in WITH_IMAGE:
        raise UsageError("no image: pass --image=NAME@sha256:DIGEST, docs/gke.md has how to build")
    files = [f"--gin_file={name}" for name in options.gin_file]
    recipe = recipe_job.read([*files, *settings])
    job = cluster_job(options, recipe)
    hosts = job.slices.hosts * job.slices.count
    if job.index_builder is None and (
        note := recipe_job.companion_note(recipe, hosts, "--index_builder=SLICE")
    ):
        print(f"kennel gke: warning: {note}", file=sys.stderr)
    return job, options


def cluster_job(options: argparse.Namespace, recipe: recipe_job.RecipeJob) -> ClusterJob:
    """The run of parsed flags.

    Raises:
      UsageError: see `read`.
      ClusterJobError: see `read`.
      SliceError: see `read`.
    """
    builder = _index_builder(options, recipe)
    trainer = "elsewhere" if builder else "here"
    name = options.name or tpu_request.default_name(recipe.run_dir)
    if not name:
        raise UsageError(f"no name: pass --name=NAME; {recipe.run_dir} ends with none")
    return ClusterJob(
        name=name,
        slices=slices.parse(options.slice),
        image=options.image,
        command=_command(recipe, trainer),
        run_dir=recipe.run_dir,
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
        index_builder=builder,
    )


def _provisioning(options: argparse.Namespace) -> Provisioning:
    if options.spot:
        return "spot"
    if options.flex_start:
        return "flex_start"
    return "reserved" if options.reservation else "on_demand"


def _index_builder(
    options: argparse.Namespace, recipe: recipe_job.RecipeJob
) -> IndexBuilder | None:
    if options.index_builder is None:
        return None
    if not recipe.companions:
        raise UsageError(
            "--index_builder: expected a recipe whose stages have companions, such as "
            "realm_refresh, found none in it"
        )
    return IndexBuilder(slices.parse(options.index_builder), _command(recipe, "only"))


def _command(recipe: recipe_job.RecipeJob, companions: str) -> tuple[str, ...]:
    flags = replace(_in_image(recipe), companions=companions)
    return ("python", "-m", "launch.recipe", *flags.arguments())


def _variable(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign:
        raise UsageError(f"--env: expected NAME=VALUE, found {text!r}")
    return name, value


def _in_image(recipe: recipe_job.RecipeJob) -> Flags:
    """The recipe's flags with gin files as the image has them: relative to the repository."""
    for path in recipe.files:
        if not path.resolve().is_relative_to(REPOSITORY / "gin_configs"):
            raise UsageError(
                f"{path}: the image has the gin files of {REPOSITORY / 'gin_configs'} only; put it "
                "there and build the image again"
            )
    folders = search_folders(recipe.flags.search_paths)
    found = [find_file(name, folders, COMMAND_LINE).resolve() for name in recipe.flags.files]
    return replace(recipe.flags, files=tuple(str(one.relative_to(REPOSITORY)) for one in found))


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
        parser_of(COMMAND, words.RULE).print_help()
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
