"""Verbs and flags of `kennel tpu`; imports nothing that takes time, for `--help`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

_RECIPE = "RECIPE [NAME=VALUE ...] [flags]"
_WHERE = ("name", "zone", "project", "internal_ips", "print")
_HOST = ("node", "worker")
_ASKED = (
    *("slice", "provisioning", "reservation", "valid_until", "max_run", "network", "subnetwork"),
    *("service_account", "label"),
)
_GIN = (
    *("gin_file", "gin_search_paths", "gin_allow"),
    *("until", "strict_code", "initialization_timeout", "companions"),
)


@dataclass(frozen=True)
class Verb:
    """What one verb takes.

    Attributes:
      help: one line.
      flags: destinations of its flags; others are refused.
      usage: what follows it.
    """

    help: str
    flags: Sequence[str]
    usage: str = "[flags]"


VERBS = {
    "create": Verb("ask for slices", (*_WHERE, *_ASKED, "service")),
    "run": Verb("start a recipe on slices that are there", (*_WHERE, *_GIN, "rerun"),
                _RECIPE),
    "status": Verb("state of slices and job; without --name of all runs of the zone", _WHERE),
    "logs": Verb("print the job's log", (*_WHERE, *_HOST, "follow")),
    "ssh": Verb("open a shell on a host", (*_WHERE, *_HOST, "command")),
    "fetch": Verb("copy a folder of a bucket or a host to this machine",
                  (*_WHERE, *_HOST, "source", "to")),
    "stop": Verb("have the job save and end; the slices stay, and cost money", _WHERE),
    "delete": Verb("delete the slices of a run", _WHERE),
    "up": Verb("create, run, and recover from preemption until the recipe is done",
               (*_WHERE, *_ASKED, *_GIN, "delete_at_end"), _RECIPE),
}  # fmt: skip
_COMMON = ("verb", "traceback")


def add_tpu(parser: argparse.ArgumentParser) -> None:
    """Adds the verb and all flags but those of recipes."""
    parser.add_argument("verb", choices=tuple(VERBS))
    add = parser.add_argument
    add("--name", help="of the run; `up` and `run`: by default the last part of RUN_DIR")
    _add_where(parser)
    add("--print", action="store_true", help="print the commands and run none")
    _add_request(parser)
    add(
        "--service",
        choices=("queued_resources", "instance_groups"),
        default="queued_resources",
        help="of `create`; instance_groups, of Compute Engine, are printed only",
    )
    add("--node", default="0", help="number of the slice, or all; default: 0")
    add("--worker", default="0", help="number of a host in its slice, or all; default: 0")
    add("--follow", action="store_true", help="`logs`: until the job ends")
    add("--command", default="", help="`ssh`: run this text instead of opening a shell")
    add("--source", help="`fetch`: gs://BUCKET/FOLDER, or a folder on a host")
    add("--to", help="`fetch`: folder on this machine; default: runs/NAME")
    add("--delete_at_end", action="store_true", help="`up`: delete the slices after the job")
    add(
        "--initialization_timeout",
        help="`run`, `up`: seconds that hosts wait for each other to start; default: 1800",
    )


def add_slices(parser: argparse.ArgumentParser) -> None:
    """Adds those of `kennel sweep`, whose trials may run on slices."""
    add = parser.add_argument
    add("--name", help="of the slices, NAME-w0 and so on; default: the last part of SWEEP_DIR")
    _add_where(parser)
    add("--print", action="store_true", help="print the commands of the first trial; run none")
    _add_request(parser)
    add(
        "--delete_at_end",
        action="store_true",
        help="delete the sweep's slices when all trials have ended",
    )
    parser.set_defaults(service="queued_resources")


def without_slice(options: argparse.Namespace) -> list[str]:
    """Flags of `add_slices` that are given, though nothing runs on slices."""
    named = (*_WHERE, *_ASKED, "delete_at_end")
    return [f"--{name}" for name in named if getattr(options, name)]


def _add_where(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--zone", help="as us-west4-a; default: that of gcloud's configuration")
    add("--project", help="its id; default: that of gcloud's configuration")
    add(
        "--internal_ips",
        action="store_true",
        help="hosts without external addresses; ssh goes through IAP, with this flag for each verb",
    )


def _add_request(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--slice", help="as v5e:4x4, v5litepod-16 or 2x v6e:4x4")
    _add_provisioning(parser)
    add("--reservation", default="", help="name of one, with --reserved")
    add("--valid_until", help="drop a request that still waits after so long, as 6h")
    add(
        "--max_run",
        help="flex_start: Google ends the slices after so long, at most 7d; new ones are asked "
        "for then, so that it limits no costs",
    )
    add("--network", default="", help="default: that of the project")
    add("--subnetwork", default="", help="default: that of the network")
    add("--service_account", default="", help="e-mail that the hosts act as")
    add("--label", action="append", default=[], help="KEY=VALUE of the nodes; repeatable")


def _add_provisioning(parser: argparse.ArgumentParser) -> None:
    """Four spellings of one choice; two of them together are an error."""
    how = parser.add_mutually_exclusive_group()
    choices = ("on_demand", "spot", "reserved", "flex_start")
    how.add_argument("--provisioning", choices=choices, help="default: on_demand")
    for choice, meaning in (
        ("spot", "cheaper, and may be taken away at any time"),
        ("reserved", "from a reservation of the project"),
        ("flex_start", "for at most 7 days, when there is capacity"),
    ):
        how.add_argument(
            f"--{choice}", dest="provisioning", action="store_const", const=choice, help=meaning
        )


def unused(options: argparse.Namespace, parser: argparse.ArgumentParser) -> list[str]:
    """Flags that are given, and that the verb does not take."""
    allowed = (*VERBS[options.verb].flags, *_COMMON)
    return [
        f"--{name}"
        for name, value in vars(options).items()
        if name not in allowed and value != parser.get_default(name)
    ]
