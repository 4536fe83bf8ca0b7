"""Order of examples, one a row, as a function of seed and step alone."""

import functools
import hashlib
import json

import numpy as np

from input_pipelines.batches import packing_plan
from input_pipelines.store.token_store import StoreError

_ORDER = 1 << 40  # the stream of random numbers that orders an epoch
_VERSION = 1  # part of every fingerprint: raise it when the same arguments would give other batches


class EpochPlan:
    """Assignment of examples, one a row, to steps.

    Every epoch shows each that can be used once, in a new order; those that are left over when an
    epoch does not divide into batches are not shown in it.

    Attributes:
      fingerprint: sha256 hex of everything that decides it.
    """

    def __init__(self, usable: np.ndarray, rows: int, seed: int, about: list[object], what: str):
        """
        Args:
          usable: int [n], numbers of the examples that are shown.
          rows: of a step.
          seed: of the order.
          about: whatever else decides a batch, for the fingerprint.
          what: the examples are, for messages.

        Raises:
          StoreError: fewer examples than rows.
        """
        if len(usable) < rows:
            raise StoreError(
                f"expected {rows} {what} at least, one for each row of a step, found "
                f"{len(usable)} that can be used. Use smaller batches, or more text."
            )
        self._usable, self._rows, self._seed = usable, rows, seed
        self.steps = len(usable) // rows  # of an epoch
        value = json.dumps([_VERSION, rows, seed, about], default=str)
        digest = hashlib.sha256(value.encode())
        digest.update(np.ascontiguousarray(usable, np.int64).tobytes())
        self.fingerprint = digest.hexdigest()
        self._order = functools.lru_cache(maxsize=2)(self._compute_order)

    def step(self, step: int) -> np.ndarray:
        """Numbers of the examples of a step: int64 [rows]."""
        if step < 0:
            raise ValueError(f"plan: step: expected 0 or more, found {step}")
        epoch, place = divmod(step, self.steps)
        return self._order(epoch)[place * self._rows : (place + 1) * self._rows]

    def _compute_order(self, epoch: int) -> np.ndarray:
        order = packing_plan.permutation(self._seed, _ORDER, epoch, len(self._usable))
        return self._usable[order].astype(np.int64)
