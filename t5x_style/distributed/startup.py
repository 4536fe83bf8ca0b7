"""The process and its devices: distributed start-up, compilation cache."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import jax
from jax._src import distributed  # processes of which JAX's devices know nothing: no public name

from t5x_style.distributed import launch_flags, numbering, rendezvous
from t5x_style.distributed.peer_watch import Peers

_COMPILER_STACK = "--fibers_default_thread_stack_size"
_CPU_SCHEDULER = "--xla_cpu_enable_concurrency_optimized_scheduler"

_peers: Peers | None = None  # of this process, which joins others once or never


def start(together: bool = True) -> None:
    """Joins the other processes, if any, and turns the compilation cache on. Call it once, first.

    An entry point whose job computes on devices calls it before `stage.main`: its job then runs on
    all processes. Every other job is run by process 0 alone. Several processes are described by
    flags or variables: see `launch_flags`. Bad ones, or processes that do not come, end this one
    with a message and exit code 1; 143 where some did not come in time, which another start may
    change.

    Args:
      together: whether the job runs on all processes; False: see `join`.
    """
    widen_compiler_stack()
    schedule_for_memory()
    tolerate_absent_tpu()
    try:
        join(together)
    except launch_flags.AbsentError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(launch_flags.AGAIN)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    _enable_compilation_cache()


def join(together: bool) -> Peers | None:
    """Meets the other processes that flags or variables describe; None if there are none.

    Called again, it returns what it returned first.

    Args:
      together: the job is to run on all of them. Otherwise it runs on process 0, and what it
        computes there, it computes on that host's CPU: JAX would wait for the devices of all
        hosts, and one host of a TPU slice cannot use its chips alone.

    Raises:
      ProcessesError: the description is incomplete or wrong, or processes did not come in time.
    """
    global _peers
    if _peers is None and (described := numbering.read(sys.argv[1:], os.environ)):
        rendezvous.meet(described, numbering.place)
        # SIGTERM is ours until a training loop asks for steps to be agreed on; see hooks.Preemption
        jax.config.update("jax_enable_preemption_service", False)
        state = distributed.global_state
        initialize: Callable[..., None] = jax.distributed.initialize
        if not together:
            jax.config.update("jax_platforms", "cpu")
            state = distributed.State()
            initialize = state.initialize
        initialize(
            described.address,
            described.count,
            described.number,
            initialization_timeout=described.initialization_timeout,
            heartbeat_timeout_seconds=described.heartbeat_timeout,
        )
        _peers = Peers(described, together, state)
    return _peers


def peers() -> Peers | None:
    """The other processes that this one has joined; None if there are none."""
    return _peers


def widen_compiler_stack() -> None:
    """Gives the threads of the TPU compiler 4 MiB of stack; to be called before it is loaded.

    On what it takes by itself, libtpu 0.0.42 dies (SIGSEGV STACK OVERFLOW) of BERT-base's attention
    products on v6e. The program does not depend on it.
    """
    arguments = os.environ.get("LIBTPU_INIT_ARGS", "")
    if _COMPILER_STACK not in arguments:
        os.environ["LIBTPU_INIT_ARGS"] = f"{arguments} {_COMPILER_STACK}={4 << 20}".strip()


def tolerate_absent_tpu() -> None:
    """`describe_absent_tpu` where there is no TPU; to be called before JAX runs anything."""
    if os.environ.get("TPU_SKIP_MDS_QUERY") == "1":  # JAX sets it where it finds no chip
        describe_absent_tpu()


def describe_absent_tpu() -> None:
    """Pass to libtpu what it cannot detect without a TPU; call it before libtpu is loaded.

    It would ask Google Cloud's metadata server which machine this is, and complain of the silence:
    in preflight, and wherever JAX looks for a TPU that is not there. These values describe no
    slice; preflight names its own to the compiler.
    """
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v4-8")


def schedule_for_memory() -> None:
    """Lets XLA order a CPU program's operations by memory; to be called before the first one.

    By itself it orders them so that many could run at once. A BERT-base step then holds 832 MiB
    more, most of it in the optimizer, and BERT-mini's was no faster (docs/results/benchmarks.md).
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if _CPU_SCHEDULER not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_CPU_SCHEDULER}=false".strip()


def _enable_compilation_cache() -> None:
    """A folder that only its owner can write: a cache entry is a program that will be run."""
    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    path = Path(folder) if folder else Path.home() / ".cache" / "kennel" / "jax"
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    jax.config.update("jax_compilation_cache_dir", str(path))
