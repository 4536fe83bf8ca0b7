"""Compilations of this process, as JAX reports them."""

import weakref
from collections.abc import Callable
from typing import TypeVar

import jax

T = TypeVar("T")
# As `jax._src.dispatch` names it; a read from the compilation cache is one, too.
_EVENT = "/jax/core/compile/backend_compile_duration"


def observe(owner: T, compiled: Callable[[T, float], None]) -> None:
    """Reports each program that JAX compiles from now on, in the thread that compiles it.

    Args:
      owner: the reports end with it.
      compiled: called with the owner, which it must not hold, and seconds of the compiler.
    """
    reference = weakref.ref(owner)

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del kwargs
        found = reference()
        if event == _EVENT and found is not None:
            compiled(found, duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    weakref.finalize(owner, jax.monitoring.unregister_event_duration_listener, listen)
