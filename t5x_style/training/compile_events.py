"""Seconds in which JAX compiled a program, charged to the account of a training.

The step is compiled ahead of time and counted as a whole (`Trainer.compile`). Programs of
evaluators and of initialisation are compiled when they are first called: JAX reports how long the
compiler took. Their tracing and lowering, and programs that other threads compile, are left where
they are.
"""

import weakref

import jax

from t5x_style.goodput.account import Account

# As `jax._src.dispatch` names it; a read from the compilation cache is one, too.
_EVENT = "/jax/core/compile/backend_compile_duration"


def charge_to(account: Account) -> None:
    """From now on what JAX compiles in the account's thread is its part `compile`.

    The events end with the account.
    """
    reference = weakref.ref(account)

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del kwargs
        found = reference()
        if event == _EVENT and found is not None:
            found.charge("compile", duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    weakref.finalize(account, jax.monitoring.unregister_event_duration_listener, listen)
