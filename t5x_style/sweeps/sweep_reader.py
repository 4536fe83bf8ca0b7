"""Read a sweep file: a recipe, its axes, and the metric of its trials.

The gin form is described in `launch.sweep`, which runs sweeps. A sweep file is never executed, and
nothing is imported. All that it sets besides `sweep.run` and `sweep.Axis` goes to the recipe of
every trial, as if it were on that recipe's command line.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t5x_style.configuration import gin_checks, gin_macros, gin_reader
from t5x_style.configuration.gin_reader import (
    COMMAND_LINE,
    Binding,
    Config,
    GinError,
    closest,
    to_gin,
)
from t5x_style.storage import places
from t5x_style.sweeps import axes as axes_of
from t5x_style.sweeps.axes import KINDS, UNSET, Axis

RUN, AXIS = "launch.sweep.run", "launch.sweep.Axis"
FOLDER_MACRO = "SWEEP_DIR"
SAMPLERS = ("grid", "quasi_random", "tpe", "points")
WHOLE = ("grid", "points")  # samplers whose number of configurations follows
DIRECTIONS = {"max": True, "min": False}
SMALL_IS_GOOD = ("loss", "perplexity", "error")  # of a metric's name: the direction must be said
PLACES = ("RUN_DIR", "STORE", "STORE_LIMIT")  # of results: no axes


@dataclass(frozen=True)
class Limits:
    """Limits on the cost; None: no limit.

    Attributes:
      trial_steps: of the training that is measured, in one trial.
      trial_minutes: of one trial, all its attempts together.
      steps, minutes: of all trials together.
    """

    trial_steps: int | None = None
    trial_minutes: float | None = None
    steps: int | None = None
    minutes: float | None = None


@dataclass(frozen=True)
class Sweep:
    """A checked sweep file.

    Attributes:
      title: name of the file.
      folder: of records, trials and the report; of one on gs:// the copy, see `storage.places`.
      recipe: its gin file.
      settings: (NAME, VALUE) of --gin.NAME=VALUE for the recipe of every trial.
      places: NAME of a setting or axis -> where it is set.
      stage: of the recipe, that is measured: trials end with it.
      metric: of that stage, see `measures`.
      larger_is_better: which way the metric is compared.
      at: 'best' or 'last' evaluation of a training.
      axes: what varies.
      seeds: of each configuration; () for the recipe's own.
      seed_macro: what the seeds set.
      sampler: see SAMPLERS.
      points: configurations that are named one by one, axis -> value, before those of the sampler.
      trials: number of configurations, apart from the recipe's own; None for a whole grid.
      sampler_seed: of points that are drawn.
      pruner: name and options, see `pruning.pruner`.
      limits: what may be spent.
      workers: trials at once.
      cores: of this machine, for each trial; None: as many as there are, divided by the workers.
      topology: a slice whose memory every trial must fit into, as `preflight` names it; or None.
      skip_impossible: leave out trials that cannot run, rather than refuse the sweep.
      files: all that was read.
    """

    title: str
    folder: Path
    recipe: str
    settings: tuple[tuple[str, str], ...]
    places: Mapping[str, str]
    stage: str
    metric: str
    larger_is_better: bool
    at: str
    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]
    seed_macro: str
    sampler: str
    points: tuple[Mapping[str, Any], ...]
    trials: int | None
    sampler_seed: int
    pruner: tuple[str, Mapping[str, Any]]
    limits: Limits
    workers: int
    cores: int | None
    topology: str | None
    skip_impossible: bool
    files: tuple[Path, ...]


# Parameter of sweep.run -> (types, default, what is expected)
Check = Callable[[Any], bool]
_NUMBER = (int, float)
PARAMETERS: dict[str, tuple[tuple[type, ...], Any, str, Check]] = {
    "recipe": ((str,), None, "the name of a recipe, or its gin file", bool),
    "metric": ((str,), None, "'STAGE/METRIC', such as 'retriever/eval/dev/MRR@10'", bool),
    "direction": ((str,), None, "'max' or 'min'", lambda one: one in DIRECTIONS),
    "at": ((str,), "best", "'best' or 'last'", lambda one: one in ("best", "last")),
    "seeds": ((list, tuple), (), "a list of different integers", lambda one: _are_seeds(one)),
    "seed_macro": ((str,), "SEED", "NAME of --gin.NAME=SEED", bool),
    "sampler": ((str,), None, f"one of {', '.join(SAMPLERS)}", lambda one: one in SAMPLERS),
    "points": ((list, tuple), (), "a list of {AXIS: value}", lambda one: _are_points(one)),
    "trials": ((int,), None, "a number above 0", lambda one: one > 0),
    "sampler_seed": ((int,), 0, "an integer", lambda one: True),
    "pruner": ((str,), "none", "the name of a pruner", bool),
    "pruner_options": ((dict,), {}, "a dictionary", lambda one: True),
    "trial_steps": ((int,), None, "a number above 0", lambda one: one > 0),
    "trial_minutes": (_NUMBER, None, "a number above 0", lambda one: 0 < one < math.inf),
    "steps": ((int,), None, "a number above 0", lambda one: one > 0),
    "minutes": (_NUMBER, None, "a number above 0", lambda one: 0 < one < math.inf),
    "workers": ((int,), 1, "a number above 0", lambda one: one > 0),
    "cores": ((int,), None, "a number above 0", lambda one: one > 0),
    "topology": ((str,), None, "a slice, such as 'v5e:8x8'", bool),
    "skip_impossible": ((bool,), False, "True or False", lambda one: True),
}


def _are_seeds(value: Sequence[Any]) -> bool:
    return all(type(one) is int for one in value) and len(set(value)) == len(value)


def _are_points(value: Sequence[Any]) -> bool:
    return all(isinstance(one, dict) for one in value)


def is_sweep(config: Config) -> bool:
    """Whether gin files describe a sweep."""
    return any(key[1] in (RUN, AXIS) for key in config.bindings)


def load(flags: gin_checks.Flags) -> Sweep:
    """Reads a sweep file, and checks all that can be known without its recipe.

    Raises:
      GinError: unknown names, wrong values, axes that do not fit together; with all of them.
    """
    config = flags.read_all()
    wrong: list[str] = []
    values = dict(_parameters(config, wrong))
    before = len(wrong)
    axes = tuple(_axes(config, wrong))
    if len(wrong) == before:  # all of them could be read
        wrong += axes_of.problems(axes)
    settings = _settings(config)
    folder = _folder(config, flags, wrong)
    wrong += _clashes(axes, settings, values)
    wrong += _needed(values, config)
    wrong += _samplers(values, axes)
    wrong += _points(values["points"], axes)
    if wrong:
        raise GinError(*dict.fromkeys(wrong))
    stage, _, metric = values["metric"].partition("/")
    return Sweep(
        title=Path(flags.files[-1]).stem,
        folder=folder,
        recipe=_recipe(values["recipe"], flags),
        settings=tuple((one.name, to_gin(one.value)) for one in settings),
        places={one.name: one.where for one in settings} | {a.macro: a.where for a in axes},
        stage=stage,
        metric=metric,
        larger_is_better=DIRECTIONS[values["direction"] or "max"],
        axes=axes,
        seeds=tuple(values["seeds"]),
        sampler=values["sampler"] or _sampler(axes, values["points"]),
        points=tuple(values["points"]),
        pruner=(values["pruner"], values["pruner_options"]),
        limits=Limits(*(values[n] for n in ("trial_steps", "trial_minutes", "steps", "minutes"))),
        files=tuple(config.files),
        **{
            name: values[name]
            for name in ("at", "seed_macro", "trials", "sampler_seed", "workers", "cores")
        },
        **{name: values[name] for name in ("topology", "skip_impossible")},
    )


def _sampler(axes: Sequence[Axis], points: Sequence[Any]) -> str:
    if points:
        return "points"
    return "grid" if all(axis.is_list for axis in axes) else "quasi_random"


def _parameters(config: Config, wrong: list[str]) -> Iterator[tuple[str, Any]]:
    """The parameters of `sweep.run`, defaults included; what is wrong is added to the list."""
    given = {key[2]: one for key, one in config.bindings.items() if key[:2] == ("", RUN)}
    for name, one in given.items():
        if name not in PARAMETERS:
            hint = closest(name, PARAMETERS)
            wrong.append(f"{one.where}: sweep.run has no parameter {name!r}{hint}")
    for name, (types, default, expected, fits) in PARAMETERS.items():
        binding = given.get(name)
        value = default if binding is None else config.expand(binding.value, binding.where)
        if binding is not None and value is not None and not _is(value, types, fits):
            wrong.append(f"{binding.where}: {name}: expected {expected}, found {value!r}")
        yield name, value


def _is(value: Any, types: tuple[type, ...], fits: Check) -> bool:
    if isinstance(value, bool) and bool not in types:
        return False
    return isinstance(value, types) and fits(value)


def _axes(config: Config, wrong: list[str]) -> Iterator[Axis]:
    """The axes, each in the scope of its name, in the order of the file."""
    for name in dict.fromkeys(key[0] for key in config.bindings if key[1] == AXIS):
        found = {key[2]: one for key, one in config.bindings.items() if key[:2] == (name, AXIS)}
        where = next(iter(found.values())).where
        if not name:
            wrong.append(f"{where}: an axis has a name: LEARNING_RATE/sweep.Axis.values = [...]")
            continue
        values = {key: config.expand(one.value, one.where) for key, one in found.items()}
        try:
            yield _axis(name, values, where)
        except GinError as error:
            wrong += [f"{where}: axis {name}: {text}" for text in error.args]


def _axis(name: str, values: dict[str, Any], where: str) -> Axis:
    known = {"macro", "when", "default", *KINDS}
    for parameter in values.keys() - known:
        raise GinError(f"sweep.Axis has no parameter {parameter!r}{closest(parameter, known)}")
    kinds = [kind for kind in KINDS if kind in values]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none"
        raise GinError(f"expected one of {', '.join(KINDS)}, found {found}")
    scale = kinds[0]
    macro = values.get("macro", name)
    if not isinstance(macro, str) or not macro:
        raise GinError(f"macro: expected NAME of --gin.NAME=VALUE, found {macro!r}")
    given = values[scale]
    if not isinstance(given, list | tuple):
        raise GinError(f"{scale}: expected a list, found {given!r}")
    rest = {"when": _when(values.get("when", {})), "default": values.get("default", UNSET)}
    if scale == "values":
        return Axis(name, macro, scale, values=tuple(given), where=where, **rest)
    if len(given) != 2 or not all(map(_is_end, given)):
        raise GinError(f"{scale}: expected (low, high), two numbers, found {given!r}")
    return Axis(name, macro, scale, low=given[0], high=given[1], where=where, **rest)


def _is_end(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    return type(value) is float or (type(value) is int and abs(value) < 1 << 63)


def _when(value: Any) -> dict[str, tuple[Any, ...]]:
    if not isinstance(value, dict) or not all(
        isinstance(name, str) and isinstance(one, list | tuple) for name, one in value.items()
    ):
        raise GinError(f"when: expected {{'AXIS': [value, ...]}}, found {value!r}")
    return {name: tuple(values) for name, values in value.items()}


def _settings(config: Config) -> list[Binding]:
    """Settings for the recipe: all but the sweep's bindings, macros in these, and its folder."""
    of_sweep = [one for key, one in config.bindings.items() if key[1] in (RUN, AXIS)]
    used = gin_macros.in_bindings(of_sweep)
    others = [one for key, one in config.bindings.items() if key[1] not in (RUN, AXIS)]
    macros = [one for name, one in config.macros.items() if name not in {*used, FOLDER_MACRO}]
    return [
        Binding(one.scope, one.text, one.target, one.parameter,
                config.expand(one.value, one.where), one.where)
        for one in (*macros, *others)
    ]  # fmt: skip


def _folder(config: Config, flags: gin_checks.Flags, wrong: list[str]) -> Path:
    default = Path("runs") / Path(flags.files[-1]).stem
    macro = config.macros.get(FOLDER_MACRO)
    if macro is None:
        return default
    value = config.expand(macro.value, macro.where)
    if not isinstance(value, str) or not value:
        wrong.append(f"{macro.where}: {FOLDER_MACRO}: expected a folder, found {value!r}")
        return default
    try:
        folder = places.local(value)
    except places.PathError as error:
        wrong.append(f"{macro.where}: {FOLDER_MACRO}: {error}")
        return default
    if (bucket := places.remote(folder)).count("/") == 2:
        wrong.append(
            f"{macro.where}: {FOLDER_MACRO}: expected a folder, but {bucket} is a whole bucket: "
            f"write {bucket}/{default.name}"
        )
    for part in (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            wrong.append(f"{macro.where}: {FOLDER_MACRO}: expected a folder, but {part} is a file")
    return folder


def _clashes(
    axes: Sequence[Axis], settings: Sequence[Binding], values: Mapping[str, Any]
) -> Iterator[str]:
    by_macro = {axis.macro: axis for axis in axes}
    for one in settings:
        if one.name == "RUN_DIR":
            yield f"{one.where}: RUN_DIR: each trial has its own, below {FOLDER_MACRO}; set that"
        if one.name == values["seed_macro"] and values["seeds"]:
            yield f"{one.where}: {one.name} is set, and by sweep.run.seeds; keep one of them"
        if axis := by_macro.get(one.name):
            yield (
                f"{one.where}: {one.name} is set, and varied by axis {axis.name} ({axis.where}); "
                "keep one of them"
            )
    for name in PLACES:
        if axis := by_macro.get(name):
            yield f"{axis.where}: axis {axis.name}: {name} says where results are; it is no axis"
    if not isinstance(values["seed_macro"], str):
        return
    seed = by_macro.get(values["seed_macro"])
    if seed is not None and values["seeds"]:
        yield f"{seed.where}: axis {seed.name} clashes with sweep.run.seeds: both set {seed.macro}"


def _needed(values: Mapping[str, Any], config: Config) -> Iterator[str]:
    for name in ("recipe", "metric"):
        if values[name] is None:
            yield f"sweep.run.{name} is not set; expected {PARAMETERS[name][2]}"
    metric = values["metric"]
    if not isinstance(metric, str):
        return
    where = config.bindings[("", RUN, "metric")].where
    if not all(metric.partition("/")):
        yield f"{where}: metric: expected {PARAMETERS['metric'][2]}, found {metric!r}"
    if values["direction"] is None and any(word in metric.lower() for word in SMALL_IS_GOOD):
        yield f"{where}: is a small {metric} good? Bind sweep.run.direction = 'min' or 'max'."


def _samplers(values: Mapping[str, Any], axes: Sequence[Axis]) -> Iterator[str]:
    sampler = values["sampler"] or _sampler(axes, values["points"])
    ranges = [axis for axis in axes if not axis.is_list]
    if sampler == "grid" and ranges:
        yield (
            f"{ranges[0].where}: axis {ranges[0].name}: a grid has lists of values; write "
            "`values`, or sweep.run.sampler = 'quasi_random'"
        )
    if sampler in WHOLE and values["trials"] is not None:
        yield f"sweep.run.trials: {sampler} runs all its points; leave it out, or name a sampler"
    if sampler == "points" and not values["points"]:
        yield "sweep.run.points is not set: which configurations are to run?"
    if sampler not in WHOLE and values["trials"] is None:
        yield f"sweep.run.trials is not set: how many configurations is {sampler} to draw?"
    minutes, of_trial = values["minutes"], values["trial_minutes"]
    for name, whole, one in (
        ("minutes", minutes, of_trial),
        ("steps", values["steps"], values["trial_steps"]),
    ):
        if _is(whole, _NUMBER, bool) and _is(one, _NUMBER, bool) and whole < one:
            yield (
                f"sweep.run.{name} = {whole} is less than one trial may use "
                f"(trial_{name} = {one}); raise it, or lower the other"
            )


def _points(points: Any, axes: Sequence[Axis]) -> Iterator[str]:
    """Errors of points that are named one by one."""
    by_name = {axis.name: axis for axis in axes}
    for point in points if _is(points, (list, tuple), _are_points) else ():
        for name, value in point.items():
            axis = by_name.get(name)
            if axis is None:
                yield f"sweep.run.points: no axis {name!r}{closest(str(name), by_name)}"
            elif not axis.holds(value):
                yield f"sweep.run.points: {value!r} is no value of axis {name} ({axis.where})"
            elif not axis.applies(point):
                yield f"sweep.run.points: {name} = {value!r} does not apply by its `when`: {point}"


def _recipe(name: str, flags: gin_checks.Flags) -> str:
    """The gin file of a recipe, which may be given by its name alone."""
    if name.endswith(".gin"):
        return name
    folder = gin_reader.REPOSITORY / "gin_configs/recipes"
    if not (folder / f"{name}.gin").is_file():
        known = [path.stem for path in folder.glob("*.gin")]
        where = f"{COMMAND_LINE}, sweep.run.recipe"
        raise GinError(f"{where}: no recipe {name!r}{closest(name, known)}")
    return f"gin_configs/recipes/{name}.gin"
