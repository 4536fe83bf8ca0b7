"""Condenser: MLM pre-training in which the last [CLS] state must inform a head on early states.

Gao and Callan 2021, arXiv:2104.08253, with the facts of the official code. The head, a few layers,
reads the encoder's last [CLS] state with the states of an early layer for all other tokens, and
predicts the masked tokens by the encoder's own MLM head. The early states lack what late layers
found out; it must come through [CLS].

Per segment of a packed row. Letters: B rows, L row length, D hidden width.
"""

import jax

from models.networks import layers
from models.objectives.condensed_text import CondensedText
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch


class Condenser(CondensedText):
    """See the module's docstring, and `CondensedText` for arguments."""

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """The head's mean cross-entropy at `labels` != -100, plus the encoder's if `late_mlm`."""
        text = batch["text"]
        encoder_key, head_key = layers.split_key(key, 2)
        early, late = self.early_and_late(text, encoder_key)
        _, condensed = self.condense(text, early, late, head_key)
        budget = self.mask.row_budget(late.shape[1], text["example_id"].shape[1])
        loss, accuracy = self.predict(condensed, text["labels"], budget)
        metrics = {"head_loss": loss, "head_accuracy": accuracy}
        if self.late_mlm:
            late_loss, metrics["late_accuracy"] = self.predict(late, text["labels"], budget)
            metrics["late_loss"] = late_loss
            loss = loss + late_loss
        return loss, metrics
