"""Flags of commands, without what the commands import, so that `kennel COMMAND --help` is quick.

Each function adds flags to a parser of the caller: the command itself, or `launch.cli`.
"""

import argparse
from collections.abc import Sequence

from t5x_style.distributed import launch_flags


def add_gin(parser: argparse.ArgumentParser) -> None:
    """Adds what everything that reads gin files takes, apart from `--gin.NAME=VALUE`."""
    parser.add_argument("--gin_file", action="append", default=[], help="repeatable, later wins")
    parser.add_argument("--gin_search_paths", default=".", help="comma list, default: .")
    parser.add_argument("--gin_allow", action="append", default=[], help="module gin may import")
    _add_traceback(parser)


def add_stage(parser: argparse.ArgumentParser) -> None:
    """Adds what every stage and recipe takes."""
    add_gin(parser)
    parser.add_argument("--dry_run", action="store_true", help="say what would run and why")
    add_selection(parser)
    launch_flags.add_flags(parser)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds which versions count, and which stages of a recipe run."""
    parser.add_argument(
        "--strict_code", action="store_true", help="a version that other code made does not count"
    )
    parser.add_argument(
        "--rerun", action="append", default=[], help="make this stage again; repeatable"
    )
    parser.add_argument("--until", help="of a recipe: only this stage and those that it reads")
    add_companions(parser)


def add_companions(parser: argparse.ArgumentParser) -> None:
    """Adds where the companions of a recipe's stages run."""
    parser.add_argument(
        "--companions",
        choices=("here", "elsewhere", "only"),
        default="here",
        help="of a recipe's stages: start them here, leave them to another command, or run them "
        "alone, which is that command; default: here",
    )


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Adds those of `launch.sweep`, next to `add_stage`."""
    parser.add_argument(
        "--retry_failed", action="store_true", help="run failed trials again, as they were"
    )
    parser.add_argument(
        "--report", action="store_true", help="write the report of what is done; run nothing"
    )
    parser.add_argument(
        "--workers", type=int, help="trials at once; default: sweep.run.workers, which is 1"
    )


def add_finetune(parser: argparse.ArgumentParser) -> None:
    """Adds those of `launch.finetune`, next to `add_stage`."""
    parser.add_argument(
        "--model", required=True, help="folder of sentence-transformers or transformers on disk"
    )
    parser.add_argument(
        "--kind",
        choices=("retriever", "m3", "reranker"),
        default="retriever",
        help="what the model becomes; default: retriever",
    )
    parser.add_argument(
        "--retriever",
        help="of a re-ranker: folder of the retriever whose hits it puts in order; default: BM25",
    )
    parser.add_argument("--data", required=True, help="file or folder, see docs/training_data.md")
    parser.add_argument(
        "--judge",
        help="folder of a re-ranker: negatives that it finds as good as the answer are left out",
    )
    parser.add_argument(
        "--matryoshka",
        metavar="N,N",
        help="train the first N dimensions as a vector, too, so that vectors can be truncated",
    )
    parser.add_argument(
        "--run_dir", default="runs/finetune", help="of the results; default: runs/finetune"
    )
    parser.add_argument(
        "--folds",
        type=int,
        default=0,
        help="trains so many times, so that each query is tested once: a verdict on few queries",
    )
    parser.add_argument(
        "--repeats",
        type=int,
        default=1,
        help="with --folds: divides and trains so many times, each time with other seeds",
    )


def add_search(parser: argparse.ArgumentParser) -> None:
    """Adds those of `t5x_style.search`, next to `add_gin`."""
    parser.add_argument("question", nargs="*", help="without one, questions are asked for")
    parser.add_argument("--run", help="folder of a finished recipe")
    parser.add_argument(
        "--answer", action="store_true", help="read the passages, and say what answers"
    )
    parser.add_argument("-k", type=int, default=5, help="how many passages (default 5)")


def split_arguments(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments that every stage takes, `--gin_file FILE` in two words too, and the others."""
    every_stages: list[str] = []
    others: list[str] = []
    is_value = False
    for word in argv:
        is_flag = word.startswith(("--gin", "--traceback"))
        (every_stages if is_flag or is_value else others).append(word)
        is_value = word.startswith("--gin_") and "=" not in word
    return every_stages, others


def add_bundle(parser: argparse.ArgumentParser) -> None:
    """Adds those of `t5x_style.export` that make bundles."""
    parser.add_argument("--bundle", help="folder of a finished recipe, or of a bundle to change")
    parser.add_argument("--to", help="where the bundle goes (default: bundle/ in the run's folder)")
    parser.add_argument("--changes", help="jsonl of passages to add, replace or delete")
    parser.add_argument(
        "--discard_changes",
        action="store_true",
        help="make the bundle again of the run, without the --changes that were made to it since",
    )


def add_preflight(parser: argparse.ArgumentParser) -> None:
    """Adds those of `t5x_style.preflight`, next to `add_stage`."""
    parser.add_argument("--topology", required=True, help="a slice, as v5e:8x8")
    parser.add_argument("--vocabulary_size", type=int, help="of a tokenizer still to be made")
    parser.add_argument("--stage", help="only this training stage of a recipe")
    parser.add_argument("--vary", help="NAME=VALUE,VALUE: FLOPs with these values of a macro, too")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Adds those of `t5x_style.runs`."""
    actions = ("list", "pin", "unpin", "verify", "adopt", "forget")
    parser.add_argument("action", nargs="?", default="list", choices=actions)
    parser.add_argument("names", nargs="*", help="versions, links, or a run folder")
    _add_store(parser)
    parser.add_argument("--gin_allow", action="append", default=[], help="for adopt, as in a run")
    _add_traceback(parser)


def add_gc(parser: argparse.ArgumentParser) -> None:
    """Adds those of `t5x_style.gc`, which sets the default of --days."""
    _add_store(parser)
    parser.add_argument("--days", type=float, help="what was used in so many days stays; 7")
    parser.add_argument("--delete", action="store_true", help="delete, after asking")
    parser.add_argument("--slim", action="store_true", help="drop optimizer states only")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    _add_traceback(parser)


def add_health(parser: argparse.ArgumentParser) -> None:
    """Adds those of `t5x_style.health`."""
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="folder of a run, or a training")
    parser.add_argument(
        "--reference", help="what to compare with: a run's folder, a file of --write, or quickstart"
    )
    parser.add_argument("--write", metavar="FILE", help="make a reference of these runs")
    parser.add_argument("--picture", metavar="PNG", help="draw the run's curves and the bands")
    _add_traceback(parser)


def add_serve(parser: argparse.ArgumentParser) -> None:
    """Adds those of `launch.serve`, with the defaults of `launch.service.settings`."""
    parser.add_argument("path", metavar="PATH", help="folder of a bundle, or of a finished run")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; default: 127.0.0.1, this machine"
    )
    parser.add_argument("--port", type=int, default=8000, help="0: any that is free; default: 8000")
    parser.add_argument(
        "--api_key_file",
        metavar="FILE",
        help="with a key that clients send as Authorization: Bearer KEY; default: no key",
    )
    parser.add_argument(
        "--allow_host",
        metavar="NAME",
        action="append",
        default=[],
        help="name that clients use for the server, such as the name of a proxy; may be repeated; "
        "default: localhost, or any name if other machines can reach --host. With NAME given, all "
        "names that are not listed are refused, also addresses of the machine",
    )
    parser.add_argument("--name", help="of the model in replies; default: the run's")
    limits = (
        ("max_body", 8_000_000, "bytes of a request"),
        ("max_bodies", 1_000_000_000, "bytes of all requests in progress"),
        ("max_texts", 2048, "texts of a request"),
        ("max_characters", 200_000, "characters of a text"),
        ("max_k", 1000, "passages that a search returns"),
        ("max_read", 50, "passages that a reader reads for a request"),
        ("max_requests", 512, "requests at the same time"),
    )
    for name, default, text in limits:
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"most {text}; default: {default:,}"
        )
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds of a request; default: 60"
    )
    _add_traceback(parser)


def _add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", help="folder of the store; default: runs/.store")


def _add_traceback(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--traceback", action="store_true", help="show where an error arose")
