"""How many steps suit a collection, by its size: for recipes that run on any collection."""

import math

from absl import logging

from input_pipelines.batches import packing_plan
from input_pipelines.pairs.pair_kinds import LabelledPairs
from input_pipelines.pairs.pair_mixture import PairMixture


def fitting_steps(pairs: PairMixture, steps: int, passes: float) -> int:
    """The steps of a training, fewer where a collection is small.

    A bag of embeddings that has seen each passage some hundred times remembers passages instead of
    what their words mean: on Cranfield (1,400 passages) 1,500 steps of 256 pairs give MRR@10 .455,
    230 give .521 (docs/results/collections.md).

    Args:
      pairs: what is trained on.
      steps: the most; 0 stays 0.
      passes: pairs for each passage and each labelled query of the collection, at most.

    Returns:
      `steps`, or as many as have `passes` times as many pairs as there are passages and labelled
      queries, whichever is fewer.

    Raises:
      ValueError: steps below 0, passes that are not above 0, or an error of `pairs`.
    """
    if steps == 0:  # nothing is trained
        return 0
    packing_plan.check_sizes("fitting_steps", steps=steps)
    if not passes > 0:
        raise ValueError(f"fitting_steps.passes: expected a number above 0, found {passes}")
    opened = pairs.open()
    labelled = sum(
        size for name, size in opened.sizes.items() if isinstance(pairs.kinds[name], LabelledPairs)
    )
    texts = len(opened.corpus) + labelled
    fitting = math.ceil(passes * texts / opened.batch)
    if fitting < steps:
        logging.info(
            "%d passages and %d labelled queries: %d steps of %d pairs show each %.0f times on "
            "average, instead of %d steps; PASSES allows more",
            *(len(opened.corpus), labelled, fitting, opened.batch, passes, steps),
        )
    return min(steps, fitting)


def fitting_warmup(steps: int, warmup_steps: int) -> int:
    """Steps of warmup: `warmup_steps`, at most a quarter of `steps`, the training's length."""
    return min(warmup_steps, steps // 4)
