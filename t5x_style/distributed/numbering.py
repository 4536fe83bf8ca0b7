"""Number this host among those of a TPU slice, or of several slices, as JAX does.

On a TPU VM JAX asks the metadata server, on GKE it reads the variables that GKE sets; with several
slices `MEGASCALE_*` say which one this is. Hosts are numbered slice by slice, and by worker within
a slice; process 0 is on worker 0 of slice 0. `jax.process_index()`, which is the order of the
devices, need not be the same number.

    python -m t5x_style.distributed.numbering [FLAGS]

prints what `read` returns as JSON, for `pod`, which does without JAX.
"""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence

from jax._src.clusters import cloud_tpu_cluster  # what `jax.distributed.initialize` asks

from t5x_style.distributed import launch_flags
from t5x_style.distributed.launch_flags import AUTOMATIC, PROCESSES, Processes, ProcessesError

# JAX's own service has the same port in every job. This one is none that the TPU runtime uses.
MEETING_PORT = 8492

Cluster = type[cloud_tpu_cluster.BaseTpuCluster]


def read(argv: Sequence[str], env: Mapping[str, str]) -> Processes | None:
    """The processes that flags or variables describe, numbered; None if there is only this one.

    Args:
      argv: flags of `launch_flags`.
      env: variables in their place. JAX itself reads those of the process.

    Raises:
      ProcessesError: a wrong description; no TPU slice where one should say the numbers; or a slice
        of several hosts, of which nothing was said: its devices would be those of one host.
    """
    described = launch_flags.read(argv, env)
    if launch_flags.alone(argv, env) or (described is not None and described.address is not None):
        return described
    with _asking():
        found = cluster()
        count = 1 if found is None else found.get_process_count()
    if described is None:
        _require_one(count)
        return None
    if found is None:
        raise ProcessesError(
            f"--{PROCESSES}={AUTOMATIC}: JAX finds no TPU slice here: no TPU chip, or neither "
            "TPU_WORKER_HOSTNAMES (GKE) nor a metadata server that knows agent-worker-number "
            "(TPU VM; not asked where TPU_SKIP_MDS_QUERY is set). Set --coordinator_address, "
            "--num_processes and --process_id instead."
        )
    return _numbered(described, found, count) if count > 1 else None


def cluster() -> Cluster | None:
    """JAX's class for the TPU slice of this host, which may have one host; None without one.

    Raises:
      OSError: the metadata server does not answer.
    """
    kinds: tuple[Cluster, ...] = (cloud_tpu_cluster.GkeTpuCluster, cloud_tpu_cluster.GceTpuCluster)
    return next((kind for kind in kinds if kind.is_env_present()), None)


def place(number: int) -> str:
    """Place of a process: 'worker 1 of slice 0, 10.0.0.2'; "" without a TPU slice.

    Addresses are known of the slice of this host alone.
    """
    found = cluster()
    if found is None:
        return ""
    workers = found._get_worker_list_in_slice()
    slice_id, worker = divmod(number, len(workers))
    address = f", {workers[worker]}" if slice_id == found._get_slice_id() else ""
    return f"worker {worker} of slice {slice_id}{address}"


def _numbered(described: Processes, found: Cluster, count: int) -> Processes:
    with _asking():
        number = found.get_process_id()
        address = found.get_coordinator_address(
            described.initialization_timeout, os.environ.get("JAX_COORDINATOR_PORT")
        )
    return dataclasses.replace(
        described,
        address=address,
        count=count,
        number=number,
        meeting_port=described.meeting_port or MEETING_PORT,
    )


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    """Names what to do where JAX finds a slice, and not all that belongs to it."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise ProcessesError(
            f"the number of this TPU host cannot be found out: {error}. Set --{PROCESSES}=1 to "
            "run on this host alone, or --coordinator_address, --num_processes and --process_id."
        ) from error


def _require_one(count: int) -> None:
    if count > 1:
        raise ProcessesError(
            f"this is one of {count} TPU hosts, and nothing says whether the others take part. Set "
            f"--{PROCESSES}={AUTOMATIC} (or {launch_flags.VARIABLES[PROCESSES]}={AUTOMATIC}) on "
            f"all of them to run on all, or --{PROCESSES}=1 to run on this one alone."
        )


def main() -> None:
    """See the module's docstring."""
    try:
        described = read(sys.argv[1:], os.environ)
    except ValueError as error:
        sys.exit(str(error))
    print(json.dumps(None if described is None else dataclasses.asdict(described)))


if __name__ == "__main__":
    main()
