"""A trained model that turns texts into representations."""

from typing import Protocol

import numpy as np

from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.texts import EncodeSource


class TextEncoder(Protocol):
    """A trained model, as `restored_model.Trained`."""

    @property
    def contract(self) -> Contract:
        """How the model turns text into vectors."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of the checkpoint."""
        ...

    def encode(self, side: str, source: EncodeSource) -> np.ndarray:
        """Dense vectors [N, D] float32 of a source, as queries or as passages.

        Raises:
          ContractError: its texts were tokenized otherwise than the model's contract says.
          RepresentationError: the model offers no dense vectors of this side.
        """
        ...
