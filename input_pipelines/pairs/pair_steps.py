"""Number of steps for a collection, by its size: for recipes that run on any collection."""

import math

from absl import logging

from input_pipelines.batches import packing_plan
from input_pipelines.batches.negatives import read_pairs
from input_pipelines.pairs.pair_kinds import LabelledPairs
from input_pipelines.pairs.pair_mixture import PairMixture
from input_pipelines.store.token_store import TokenStore


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


def epoch_steps(
    pairs: PairMixture,
    epochs: float | None,
    budget: float,
    steps: int | None = None,
    of_thousands: float = 2.0,
) -> int:
    """The steps of a training on labelled queries, or on other pairs where there are none.

    Args:
      pairs: what is trained on.
      epochs: how often each query is seen; None: by their number, see `usual_epochs`.
      budget: of the full length; multiplies the epochs.
      steps: taken instead, times the budget; None: by the epochs.
      of_thousands: see `usual_epochs`.

    Raises:
      ValueError: epochs below 0, or an error of `pairs`.
    """
    opened = pairs.open()
    kinds = [name for name in opened.sizes if isinstance(pairs.kinds[name], LabelledPairs)]
    count = sum(opened.sizes[name] for name in kinds or opened.sizes)
    each = sum(opened.counts.get(name, 0) for name in kinds or opened.sizes)
    return _steps(count, each, epochs, budget, steps, of_thousands)


def _steps(
    count: int,
    each: int,
    epochs: float | None,
    budget: float,
    steps: int | None,
    of_thousands: float = 2.0,
) -> int:
    """Of `count` examples, `each` of them a step."""
    if steps is not None:
        return min(steps, max(1, round(budget * steps)))
    if epochs is None:
        epochs = usual_epochs(count, of_thousands)
    if not epochs >= 0:
        raise ValueError(f"epoch_steps.epochs: expected 0 or more, or None, found {epochs}")
    found = math.ceil(budget * epochs * count / each)
    said = (count, budget * epochs, each, found)
    logging.info("%d queries, %g epochs of %d a step: %d steps", *said)
    return found


def joint_epoch_steps(
    queries: str,
    passages: str,
    negatives: str,
    batch: int,
    epochs: float | None,
    budget: float,
    steps: int | None = None,
) -> int:
    """`epoch_steps` of a re-ranker, which learns from the queries that have negatives.

    Args:
      queries, passages: token stores.
      negatives: a negatives.jsonl, see `negatives.read_pairs`.
      batch: queries in a step.
      epochs, budget, steps: see `epoch_steps`.

    Raises:
      ValueError: epochs below 0, or an error of `negatives.read_pairs`.
    """
    pairs = read_pairs(negatives, TokenStore.open(queries), TokenStore.open(passages))
    return _steps(len(pairs.queries), batch, epochs, budget, steps)


def usual_epochs(pairs: int, of_thousands: float = 2.0) -> float:
    """Number of epochs, more for few pairs; development queries choose the checkpoint.

    Args:
      pairs: how many there are.
      of_thousands: epochs of 5,000 to 50,000 pairs.
    """
    for least, epochs in ((50_000, 1.0), (5_000, of_thousands), (1_000, 3.0)):
        if pairs >= least:
            return epochs
    return 5.0


def share_of(steps: int, parts: int, least: int, given: int | None = None) -> int:
    """One of the parts of a training, in steps.

    Args:
      steps: of the training.
      parts: how many parts there are.
      least: steps of a part at least.
      given: taken instead; None: by the parts.

    Raises:
      ValueError: parts below 1.
    """
    packing_plan.check_sizes("share_of", parts=parts)
    return max(least, steps // parts) if given is None else given


def fitting_warmup(steps: int, warmup_steps: int) -> int:
    """Steps of warmup: `warmup_steps`, at most a quarter of `steps`, the training's length."""
    return min(warmup_steps, steps // 4)
