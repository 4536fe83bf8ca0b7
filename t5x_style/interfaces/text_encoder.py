"""A trained model that turns texts into representations."""

from collections.abc import Sequence
from typing import Protocol

from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.representation import DENSE, Representation, Representations
from t5x_style.interfaces.texts import EncodeSource


class TextEncoder(Protocol):
    """A trained model, as `restored_model.Trained`."""

    @property
    def contract(self) -> Contract:
        """Contract of the model."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of the checkpoint."""
        ...

    def encode(self, side: str, source: EncodeSource, kind: str = DENSE) -> Representation:
        """Encode the texts of a source, in its order.

        Args:
          side: 'query' or 'passage'.
          source: N texts.
          kind: of the representation.

        Returns:
          [N, D] float32, or `Entries` of N texts.

        Raises:
          ContractError: its texts were tokenized otherwise than the model's contract says.
          RepresentationError: the model does not offer the kind for this side.
        """
        ...

    def represent(self, side: str, source: EncodeSource, kinds: Sequence[str]) -> Representations:
        """Kind -> what `encode` gives, of several kinds and one pass of the model.

        Args:
          side, source: as for `encode`.
          kinds: of the representations, each once.

        Raises:
          ContractError, RepresentationError: as `encode`.
        """
        ...
