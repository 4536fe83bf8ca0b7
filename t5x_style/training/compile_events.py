"""Seconds in which JAX compiled a program, charged to the account of a training.

The step is compiled ahead of time and counted as a whole (`Trainer.compile`). Programs of
evaluators and of initialisation are compiled when they are first called: JAX reports how long the
compiler took. Their tracing and lowering, and programs that other threads compile, are left where
they are.
"""

from t5x_style.goodput.account import Account
from t5x_style.step import compile_events


def charge_to(account: Account) -> None:
    """From now on what JAX compiles in the account's thread is its part `compile`.

    The events end with the account.
    """
    compile_events.observe(account, lambda one, seconds: one.charge("compile", seconds))
