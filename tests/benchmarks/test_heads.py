"""All forms of a kind of score have one value and one gradient."""

import jax
import pytest

from benchmarks import heads

SIZES = heads.Sizes(query_length=6, length=24, vocabulary=40, dimension=8)


@pytest.mark.parametrize("kind", heads.forms(SIZES.vocabulary))
def test_forms_agree(kind):
    sides = heads.batch(kind, 3, SIZES)
    found = {}
    for name, loss in heads.forms(SIZES.vocabulary)[kind].items():
        made = heads.program(loss, sides)
        assert made is not None and made.bytes > 0
        found[name] = made.call()
    heads.require_same(found)
    value, gradients = found["ours"]
    assert value > 0 and any(abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradients))


def test_other_gradients_end_the_benchmark():
    with pytest.raises(AssertionError, match="other"):
        heads.require_same({"ours": (1.0, [2.0]), "other": (1.0, [2.1])})


@pytest.mark.parametrize("kind", heads.forms(SIZES.vocabulary))
def test_shapes_are_those_of_a_batch(kind):
    sides, made = heads.batch(kind, 3, SIZES), heads.shapes(kind, 3, SIZES, None)
    assert jax.tree.map(lambda a: (a.shape, a.dtype), sides) == jax.tree.map(
        lambda a: (a.shape, a.dtype), made
    )
