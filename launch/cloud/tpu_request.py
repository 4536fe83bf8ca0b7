"""From the flags of `kennel tpu` to a place and a request; gcloud's configuration has defaults."""

import argparse
from collections.abc import Callable

from launch.cloud import durations, resource_names
from launch.cloud.gcloud import Gcloud
from launch.cloud.requests import Place, Request, RequestError
from t5x_style.accelerators import slices

DEFAULTS = {"project": "project", "zone": "compute/zone"}  # flag -> property of gcloud


def place(
    options: argparse.Namespace, gcloud: Gcloud, say: Callable[[str], None], name: str = ""
) -> Place:
    """Where the run's resource is.

    Args:
      options: of `tpu_flags`.
      gcloud: whose configuration is asked for what the flags leave out.
      say: prints where a value came from.
      name: of the run where `--name` is not given.

    Raises:
      RequestError: no name, zone or project, or one that cannot be.
    """
    found = {}
    for flag, setting in DEFAULTS.items():
        value = getattr(options, flag)
        if not value:
            value = gcloud.setting(setting)
            if value:
                say(f"{flag} {value}: from gcloud's configuration ({setting})")
        found[flag] = value
    name = options.name or name
    problems = [
        resource_names.run_name(name, 1) if name else "no name: pass --name=NAME of the run",
        resource_names.zone(found["zone"]),
        resource_names.project(found["project"]),
    ]
    if any(problems):
        raise RequestError("\n".join(filter(None, problems)))
    return Place(name, tunnel=options.internal_ips, **found)


def default_name(run_dir: str, macro: str = "RUN_DIR") -> str:
    """A run's name from its RUN_DIR: its last part, as names may look.

    Args:
      run_dir: its folder.
      macro: that names the folder, for the error.

    >>> default_name("gs://bucket/runs/My_Run/")
    'my-run'

    Raises:
      RequestError: a part without a letter.
    """
    part = run_dir.rstrip("/").rpartition("/")[2]
    if name := resource_names.tidy(part):
        return name
    raise RequestError(
        f"the last part of {macro} {run_dir!r} names the run, and {part!r} is no name, since it "
        "has none of a-z: pass --name=NAME"
    )


def request(options: argparse.Namespace, where: Place, run_dir: str = "") -> Request:
    """What is asked from Google.

    Raises:
      RequestError, SliceError, DurationError: what cannot be filled; nothing was asked.
    """
    if not options.slice:
        raise RequestError("no slice: pass --slice=v5e:2x4, or v5litepod-8, or 2x v6e:4x4")
    return Request(
        name=where.name,
        slices=slices.parse(options.slice),
        zone=where.zone,
        project=where.project,
        provisioning=options.provisioning or "on_demand",
        reservation=options.reservation,
        valid_until=durations.seconds(options.valid_until) if options.valid_until else None,
        max_run=durations.seconds(options.max_run) if options.max_run else None,
        network=options.network,
        subnetwork=options.subnetwork,
        internal_ips=options.internal_ips,
        service_account=options.service_account,
        run_dir=run_dir,
        labels=dict(_label(text) for text in options.label),
        service=options.service,
    )


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign:
        raise RequestError(f"--label={text}: expected KEY=VALUE")
    return key, value
