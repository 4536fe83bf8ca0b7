"""Programs of a bundle: of batches of any size they give what the model gives."""

import numpy as np
import pytest

from t5x_style.serving import programs, saved_model
from t5x_style.serving.programs import Programs
from tests.kits import tiny_models
from tests.models.losses.contrastive_batches import PLAIN
from tests.models.objectives import test_colbert, test_splade
from tests.t5x_style.serving import reading_kit

FAMILIES = {"splade": test_splade.objective, "colbert": test_colbert.objective}


@pytest.mark.parametrize("family", FAMILIES)
def test_they_give_what_the_model_gives(family, tmp_path) -> None:
    model = FAMILIES[family](PLAIN)
    portable = saved_model.portable(reading_kit.restored(model), in_tensorflow=False)
    programs.write(tmp_path, portable)
    opened, rng = Programs(tmp_path), np.random.default_rng(0)
    assert set(opened.names) == {"embed_query", "embed_passage"}
    functions = reading_kit.functions(model)
    for name in opened.names:
        for shape in ((1, 4), (5, 8)):
            tokens = rng.integers(5, tiny_models.VOCABULARY.size, shape, np.int32)
            mask = (np.arange(shape[1]) < np.linspace(shape[1], 2, shape[0])[:, None]).astype("i4")
            kinds = functions[name].representations
            group = dict(saved_model.token_group(tokens, mask))
            expected = saved_model.outputs(functions[name](group, kinds=kinds))
            found = opened(name, tokens, mask)
            assert set(found) == set(expected)
            for output, one in expected.items():
                np.testing.assert_allclose(found[output], one, atol=1e-5)
            assert any(np.asarray(one).any() for one in expected.values())
