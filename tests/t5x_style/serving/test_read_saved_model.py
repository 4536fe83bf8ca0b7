"""A SavedModel of a model that reads has a signature for it, and gives what the model gives."""

import numpy as np
import pytest

from t5x_style.interfaces.contract import Vocabulary
from t5x_style.serving import saved_model, saved_model_check
from tests.t5x_style.serving import bundle_kit, reading_kit


@pytest.mark.parametrize("reads", ["answer", pytest.param("fill", marks=pytest.mark.slow)])
def test_it_reads_as_the_model(tmp_path, reads):
    tokenizer, _, _ = bundle_kit.folders(tmp_path / "parts")
    model = reading_kit.restored(reading_kit.model(reads, str(tokenizer)))
    folder = tmp_path / "saved"
    saved_model.save(folder, saved_model.portable(model), "embed_query", {})
    found = saved_model_check.compare(folder, model, Vocabulary.load(str(tokenizer)))
    assert set(found) == {"embed_query", "embed_passage", reads}
    assert saved_model_check.require(found, 1e-5) < 1e-5
    assert saved_model.lengths(model)[reads] == 36
    loaded = saved_model.cpu_only_tensorflow().saved_model.load(str(folder))
    ids = np.array([[2, 5, 6, 3, 7, 8, 9, 3]], np.int32)
    shapes = {
        name: tuple(one.shape)
        for name, one in loaded.signatures[reads](
            input_ids=ids, attention_mask=np.ones_like(ids)
        ).items()
    }
    size = model.contract.vocabulary_size
    one = {"log_probability": (1, reading_kit.MOST_MASKS, size)}
    spans = dict.fromkeys(("start", "end", "score", "log_probability"), (1,))
    assert shapes == (spans if reads == "answer" else one)
