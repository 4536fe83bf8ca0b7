"""Results of sweeps that never ran."""

import dataclasses
import random

from t5x_style.sweeps.trials import Configuration, Record, Results, Stages, Trial

AXES = ("RATE", "KIND")


def configuration(number, values, default=None):
    """A configuration that binds what differs from the default's values."""
    default = default or {}
    bound = {k: v for k, v in values.items() if k not in default or repr(default[k]) != repr(v)}
    return Configuration(number, values, bound, bound)


def done(value, step=None, curve=(), **others):
    """The record of a finished trial."""
    return Record("done", value, step, tuple(curve), **{"attempts": 1, "seconds": 5.0} | others)


def results(table, seeds=(1, 2, 3), axes=AXES, earlier=(), **others):
    """Results of configurations.

    Args:
      table: (values of the axes, [record or value or None of each seed]); the first is the default.
      seeds: of each configuration; () for the recipe's.
      earlier: places in the table of what the sweep file describes no more.
    """
    trials, records, gone = [], {}, set()
    for number, (values, row) in enumerate(table):
        one = configuration(number, values, table[0][0])
        for seed, found in zip(seeds or (None,), row, strict=True):
            trial = Trial(one, seed)
            trials.append(trial)
            if found is not None:
                records[trial.name] = found if isinstance(found, Record) else done(found)
            if number in earlier:
                gone.add(trial.name)
    given = {
        "title": "rates", "metric": "tuned/eval/dev/MRR@10", "larger_is_better": True,
        "logarithmic": frozenset(), "seconds": Stages(),
    } | others  # fmt: skip
    return Results(
        axes=tuple(axes), seeds=tuple(seeds), trials=tuple(trials), records=records,
        earlier=frozenset(gone), **given,
    )  # fmt: skip


def shuffled(found, seed):
    """The same results with trials and records in another order, from another run."""
    draw = random.Random(seed)
    trials, names = list(found.trials), list(found.records)
    draw.shuffle(trials)
    draw.shuffle(names)
    records = {
        name: dataclasses.replace(
            found.records[name], seconds=draw.random(), attempts=draw.randint(1, 9)
        )
        for name in names
    }
    seconds = Stages(draw.random(), {trial.name: draw.random() for trial in trials})
    return dataclasses.replace(found, trials=tuple(trials), records=records, seconds=seconds)
