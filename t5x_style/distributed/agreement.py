"""Before they compute, all hosts of a stage compare what they run, and pass one all-gather.

`compare` goes through the key-value store, needs no device, and names who differs in what: stage,
gin, inputs, code or lock. `gather` then starts the devices, which may hang where a host is missing
or the network between hosts is broken; a watchdog ends that, and names who did not arrive.
"""

import collections
import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import sys
import threading
from collections.abc import Iterator, Mapping

import jax
import numpy as np
from jax.experimental import multihost_utils

from t5x_style.distributed.launch_flags import ProcessesError
from t5x_style.distributed.peer_watch import Peers

# What a launcher says of what it has put on a host.
CODE_HASH, LOCK_HASH = "KENNEL_CODE_HASH", "KENNEL_LOCK_HASH"
PACKAGES = ("jax", "jaxlib", "libtpu", "flax", "optax", "numpy")
SHOWN = 8  # differences of a host, and hosts that differ
HASHED = ("input", "code")  # their values say nothing to a reader

Identity = Mapping[str, Mapping[str, str]]  # kind -> name -> value
DEVICES, GATHER = "devices", "gather"  # what a host has begun


def compare(peers: Peers, identity: Identity) -> None:
    """Before anything collective: all hosts must be about to run the same.

    Args:
      peers: all processes of the stage; each calls this.
      identity: what this process is about to run: kind -> name -> value or hash. What is installed
        here is added.

    Raises:
      ProcessesError: on every process: some differ, and in what; or some do not come to this
        within `initialization_timeout`.
    """
    installed = installation(os.environ)
    local = {
        kind: {**identity.get(kind, {}), **installed.get(kind, {})}
        for kind in dict.fromkeys((*identity, *installed))
    }
    peers.put(f"identity/{peers.number}", json.dumps(local))  # read where digests differ
    ordered = json.dumps(local, sort_keys=True).encode()
    peers.put(f"digest/{peers.number}", hashlib.sha256(ordered).hexdigest())
    digests = peers.everyone("digest", "say what it is about to run")
    most, _ = collections.Counter(digests).most_common(1)[0]  # of equally many the first
    usual = digests.index(most)
    differing = [number for number, digest in enumerate(digests) if digest != most]
    if not differing:
        return
    expected = _identity(peers, usual)
    lines = [
        f"  {peers.named(number)}: {_differences(_identity(peers, number), expected, usual)}"
        for number in differing[:SHOWN]
    ]
    if len(differing) > SHOWN:
        lines.append(f"  and {len(differing) - SHOWN} others")
    raise ProcessesError(
        f"the processes of this stage do not run the same; these differ from {peers.named(usual)}:"
        "\n" + "\n".join(lines) + "\nStart all of them with the same command, gin files, inputs, "
        "code and packages."
    )


def installation(env: Mapping[str, str]) -> Identity:
    """Installation of this host: hashes that a launcher gives, and versions of packages."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # libtpu may be absent
            versions[name] = importlib.metadata.version(name)
    code = {CODE_HASH: env[CODE_HASH]} if CODE_HASH in env else {}
    lock = {LOCK_HASH: env[LOCK_HASH]} if LOCK_HASH in env else {}
    return {"code": code, "lock": lock | versions}


def gather(peers: Peers) -> None:
    """Start the devices of all hosts and pass one all-gather of their numbers.

    If that takes longer than `initialization_timeout`, a watchdog ends all processes with exit code
    1 and names those that did not arrive.

    Raises:
      ProcessesError: the devices are not those of all processes, or could not be started because
        a host did not arrive.
    """
    with _time_limit(peers):
        try:
            peers.put(f"gather/{peers.number}", DEVICES)
            processes = jax.process_count()
            peers.put(f"gather/{peers.number}", GATHER)
            found = multihost_utils.process_allgather(np.asarray([peers.number], np.int32))
        except jax.errors.JaxRuntimeError as error:
            if late := _late(peers):  # JAX's own time-out, which names nobody
                raise ProcessesError(f"the devices could not be started: {late}") from error
            raise
    numbers = sorted(np.asarray(found).reshape(-1).tolist())
    if numbers != list(range(peers.count)):
        raise ProcessesError(
            f"{peers.count} processes have joined, and the devices that JAX sees are those of "
            f"{processes}, numbers {numbers}. The hosts of a TPU slice must all take part, each "
            "with one process: start none without the others."
        )


def _identity(peers: Peers, number: int) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(str(peers.get(f"identity/{number}")))
    return found


def _differences(found: Identity, expected: Identity, usual: int) -> str:
    """The first things that differ: 'gin seed is 5, on process 0 3; code models.bert'."""
    texts = []
    for kind in dict.fromkeys((*expected, *found)):
        here, there = found.get(kind, {}), expected.get(kind, {})
        for name in sorted({*here, *there}):
            if here.get(name) != there.get(name):
                value, other = (values.get(name, "absent") for values in (here, there))
                shown = "" if kind in HASHED else f" is {value}, on process {usual} {other}"
                texts.append(f"{kind} {name}{shown}")
    more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more


@contextlib.contextmanager
def _time_limit(peers: Peers) -> Iterator[None]:
    """Ends all processes, with the reason, if the block takes longer than hosts wait for others."""

    def expire() -> None:
        late = _late(peers) or (
            "all hosts have entered the all-gather, and it does not end: a device or the network "
            "between the hosts hangs"
        )
        why = f"waited {peers.patience} s for all hosts to pass one all-gather: {late}"
        print(f"error: {why}", file=sys.stderr, flush=True)
        peers.end(1, f"failed: {why}")

    watchdog = threading.Timer(peers.patience, expire)
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()


def _late(peers: Peers) -> str:
    """Hosts that keep the others waiting, and their places; "" if all have arrived."""
    begun = peers.set_by("gather")
    absent = [number for number in range(peers.count) if number not in begun]
    starting = [number for number, what in sorted(begun.items()) if what == DEVICES]
    texts = []
    if absent:
        texts.append(f"{peers.named(*absent)} did not arrive")
    elif starting:  # each waits for the devices of all: where one is absent, all are here
        texts.append(f"{peers.named(*starting)} cannot start the devices")
    return "; ".join(texts)
