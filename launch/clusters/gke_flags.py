"""Flags of `kennel gke`; imports nothing that takes time, for `--help`."""

import argparse

FORMS = ("jobset", "skypilot", "xpk")


def add_gke(parser: argparse.ArgumentParser) -> None:
    """Adds all flags but settings of the recipe."""
    add = parser.add_argument
    add("--name", default="", help="of the run; default: the last part of RUN_DIR")
    add("--slice", required=True, help="as v5e:4x4, v5litepod-16 or 2x v6e:16x16")
    add("--image", default="", help="of the Dockerfile, with its digest: NAME@sha256:...")
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
    add("--index_builder", metavar="SLICE", help="run the companions of its stages on SLICE")
    add("--gin_file", action="append", default=[], help="gin files of the repository, repeatable")
    add("--as", dest="form", choices=FORMS, default="jobset", help="what to print")
    act = parser.add_mutually_exclusive_group(required=True)
    act.add_argument("--print", action="store_true", help="print the run and start nothing")
    act.add_argument("--apply", action="store_true", help="start the run with kubectl")
