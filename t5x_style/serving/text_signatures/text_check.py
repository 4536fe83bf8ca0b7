"""Does a signature that takes texts give what the signature on tokens gives for these texts?"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.representation import SIDES, function_name
from t5x_style.serving import saved_model, saved_model_check, warmup_requests
from t5x_style.serving.saved_model_check import Difference
from t5x_style.serving.text_signatures import sample_texts
from t5x_style.serving.text_tokens import TextTokenizer

# A short text and an empty one in a batch, and one that is cut.
_BATCHES = ((sample_texts.SHORT, ""), (sample_texts.LONG,))


def compare(
    folder: Path,
    signatures: Mapping[str, saved_model.TextSignature],
    contract: Contract,
    tokenizer: Path,
) -> dict[str, Difference]:
    """Signature on texts -> its largest difference from the one on tokens, for a few texts.

    The tokens are those that `kennel serve` makes of them.

    Args:
      folder: of the SavedModel.
      signatures: that take texts.
      contract: of the model.
      tokenizer: its folder.
    """
    if not signatures:
        return {}
    tf = saved_model.cpu_only_tensorflow()
    loaded = tf.saved_model.load(str(folder)).signatures
    tokens = TextTokenizer(tokenizer, contract)
    sides = {function_name(side): side for side in SIDES}
    found = {}
    for name, signature in signatures.items():
        side, differences = sides[signature.function], []
        for texts in _BATCHES:
            ids = [one.ids for one in tokens(side, texts)]
            inputs = padded(ids, int(getattr(contract, f"{side}_length")), tokens.vocabulary.pad)
            expected = loaded[signature.function](**{k: tf.constant(v) for k, v in inputs.items()})
            made = loaded[name](text=tf.constant(texts))
            differences.append(_difference(made, expected, texts))
        found[name] = max(differences, key=lambda one: np.inf if np.isnan(one.value) else one.value)
    return found


def padded(ids: list[np.ndarray], longest: int, pad: int) -> dict[str, np.ndarray]:
    """input_ids and attention_mask, int32 [b, s], of a length of warm-up requests.

    Args:
      ids: int32 [n] of each text.
      longest: of the signature.
      pad: id.
    """
    most = max(map(len, ids))
    width = next(width for width in warmup_requests.lengths(longest) if width >= most)
    tokens = np.full((len(ids), width), pad, np.int32)
    mask = np.zeros_like(tokens)
    for row, one in enumerate(ids):
        tokens[row, : len(one)], mask[row, : len(one)] = one, 1
    return {"input_ids": tokens, "attention_mask": mask}


def _difference(
    made: Mapping[str, object], given: Mapping[str, object], texts: tuple[str, ...]
) -> Difference:
    expected = {output: np.asarray(array) for output, array in given.items()}
    found = {output: np.asarray(array) for output, array in made.items()}
    shapes = [{output: one.shape for output, one in side.items()} for side in (expected, found)]
    if shapes[0] != shapes[1]:
        return Difference(np.inf, f"texts {texts!r:.80}: expected {shapes[0]}, found {shapes[1]}")
    value, output, row = saved_model_check.largest_difference(found, expected)
    return Difference(value, f"text {texts[row]!r:.80}, output {output}")
