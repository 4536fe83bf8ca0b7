"""Values that process 0 of a training sets for the others, without a disk that all see.

They go through the key-value store of JAX's coordination service, which needs no devices: any
thread may read them while the main thread computes. See `peer_watch`, which uses other keys.
"""

from typing import Any

import jax
from jax._src.distributed import global_state  # the key-value store has no public name

ROOT = "kennel/values/"
TURN_MILLISECONDS = 1000  # a blocking read of this long lets Python see signals in between


def _client() -> Any:
    return global_state.client


def put(key: str, value: str) -> None:
    """Sets a value; one that was set before is replaced."""
    _client().key_value_set(ROOT + key, value, allow_overwrite=True)


def find(key: str) -> str | None:
    """The value of a key now; None where none is set."""
    try:
        return str(_client().key_value_try_get(ROOT + key))
    except jax.errors.JaxRuntimeError as error:
        if "NOT_FOUND" not in str(error):
            raise
        return None


def wait(key: str) -> str:
    """The value of a key, once it is set. All processes end when one does: see `peer_watch`."""
    while True:
        try:
            return str(_client().blocking_key_value_get(ROOT + key, TURN_MILLISECONDS))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise


def below(folder: str) -> dict[str, str]:
    """Key below FOLDER/ -> value, of those that are set now."""
    found = _client().key_value_dir_get(f"{ROOT}{folder}/")
    return {key.removeprefix(f"{ROOT}{folder}/"): value for key, value in found}


def forget(key: str) -> None:
    """Deletes a key."""
    _client().key_value_delete(ROOT + key)
