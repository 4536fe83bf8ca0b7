"""Plan every stage of a sweep's trials, as if nothing had been made yet.

Trials whose plans of a stage have one fingerprint share its version: it is made once. The plan of
the stage that is measured identifies a trial's result: a record of a trial with another plan, from
before the recipe was changed, does not count.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from t5x_style.configuration import gin_checks
from t5x_style.configuration.gin_reader import COMMAND_LINE, GinError, to_gin
from t5x_style.storage import places
from t5x_style.sweeps.axes import Axis, Unset, ordered
from t5x_style.sweeps.points import NoChange
from t5x_style.sweeps.sweep_reader import Sweep
from t5x_style.sweeps.trials import Trial
from t5x_style.workflow import links, recipe_planning, recipe_reader, stages
from t5x_style.workflow.fingerprints import InputError
from t5x_style.workflow.plans import Decision, Plan
from t5x_style.workflow.recipe_planning import Known
from t5x_style.workflow.recipe_stage import Recipe, RecipeError
from t5x_style.workflow.store import Version

Bindings = Mapping[str, Any]
WRONG = (GinError, RecipeError, InputError)
PLANNED = "planned"  # name of a run that is planned, never made


@dataclass(frozen=True)
class Planned:
    """The recipe of a trial, up to the stage that is measured.

    Attributes:
      recipe: with a placeholder for the folder of a trial.
      flags: its command line.
      chain: stage -> plan, see `recipe_planning.chained`.
    """

    recipe: Recipe
    flags: gin_checks.Flags
    chain: recipe_planning.Chain

    @property
    def last(self) -> Plan:
        """The plan of the stage that is measured."""
        return self.chain[self.recipe.stages[-1].name]


class Planner:
    """Plans trials; common parts of trials are planned once."""

    def __init__(self, sweep: Sweep, flags: gin_checks.Flags):
        """Args:
        sweep: what is planned.
        flags: its command line; search paths and the like are passed to the recipes.
        """
        self.sweep = sweep
        self._flags = flags
        self._plans: dict[tuple[Any, ...], Plan] = {}
        self._made: dict[str, Planned] = {}
        self._decisions: dict[str, Decision] = {}

    def command(self, bindings: Bindings, run_dir: Path) -> gin_checks.Flags:
        """The command line of a recipe, the same on every machine where the sweep is on gs://.

        Args:
          bindings: of a trial, its seed among them.
          run_dir: its folder.
        """
        store = places.shown(links.of_run(self.sweep.folder).root)
        given = {"RUN_DIR": places.shown(run_dir)} | {
            name: to_gin(value) for name, value in bindings.items()
        }
        if all(name != recipe_reader.STORE_MACRO for name, _ in self.sweep.settings):
            given[recipe_reader.STORE_MACRO] = store
        return gin_checks.Flags(
            files=(self.sweep.recipe,),
            overrides=(*self.sweep.settings, *given.items()),
            search_paths=self._flags.search_paths,
            allow=self._flags.allow,
            strict_code=self._flags.strict_code,
            until=self.sweep.stage,
        )

    def of(self, trial: Trial) -> Planned:
        """The recipe of a trial; see `bound` for errors."""
        return self.bound(self.bindings(trial))

    def gathered(self, trials: Iterable[Trial]) -> tuple[dict[str, Planned], dict[str, list[str]]]:
        """Plans of trials, and the problems of those that cannot be planned, by name."""
        plans: dict[str, Planned] = {}
        wrong: dict[str, list[str]] = {}
        for trial in trials:
            try:
                plans[trial.name] = self.of(trial)
            except WRONG as error:
                wrong[trial.name] = [self.in_words(str(text)) for text in error.args]
        return plans, wrong

    def bindings(self, trial: Trial) -> dict[str, Any]:
        """Bindings of a trial, its seed among them."""
        seed = {} if trial.seed is None else {self.sweep.seed_macro: trial.seed}
        return {**trial.configuration.bindings, **seed}

    def bound(self, bindings: Bindings) -> Planned:
        """The recipe with bindings.

        Raises:
          GinError, RecipeError, InputError: it does not fit together.
        """
        key = to_gin(dict(sorted(bindings.items())))
        if key not in self._made:
            flags = self.command(bindings, self.sweep.folder / PLANNED)
            recipe = recipe_reader.load(flags)
            chain = recipe_planning.chained(recipe, flags, self._plan)
            self._made[key] = Planned(recipe, flags, chain)
        return self._made[key]

    def files(self) -> list[Path]:
        """The gin files of the sweep, of its recipe, and of the recipe's stages."""
        planned = self.bound({})
        found = [*self.sweep.files, *planned.flags.read_all().files]
        for item in planned.recipe.stages:
            found += replace(planned.flags, files=item.gin_files, overrides=()).read_all().files
        return list(dict.fromkeys(found))

    def _plan(self, flags: gin_checks.Flags, known: Mapping[str, str]) -> Plan:
        key = (flags, tuple(known.items()))
        if key not in self._plans:
            self._plans[key] = stages.plan(flags, known=known)
        return self._plans[key]

    def decisions(self, planned: Planned) -> dict[str, Decision]:
        """Stage -> whether it is done, or what would run."""
        known = Known()
        found: dict[str, Decision] = {}
        for item in planned.recipe.stages:
            name = planned.chain[item.name].fingerprint
            if name not in self._decisions:
                self._decisions[name] = self._decide(planned, item.name, known)
            found[item.name] = decision = self._decisions[name]
            if decision.status == "done" and decision.version is not None:
                known.done[item.name] = decision.version
            else:
                known.pending.add(item.name)
        return found

    def _decide(self, planned: Planned, stage: str, known: Known) -> Decision:
        item = next(one for one in planned.recipe.stages if one.name == stage)
        if {one.stage for one in item.needs()} & known.pending:
            return Decision("new", "after others")
        plan = recipe_planning.plan(planned.recipe, item, planned.flags, known)
        return stages.decide(plan)

    def made(self, trial: Trial, run_dir: Path) -> Version | None:
        """The finished version of the measured stage, as gin files say now.

        None where it is not finished, or where they no longer say what was planned.

        Args:
          trial: whose.
          run_dir: where it ran.
        """
        flags = self.command(self.bindings(trial), run_dir)
        try:
            recipe = recipe_reader.load(flags)
            chain = recipe_planning.chained(recipe, flags)
            if chain[self.sweep.stage].fingerprint != self.of(trial).last.fingerprint:
                return None
            known = Known()
            for item in recipe.stages:
                decision = stages.decide(recipe_planning.plan(recipe, item, flags, known))
                if decision.status != "done" or decision.version is None:
                    return None
                known.done[item.name] = decision.version
        except WRONG:
            return None
        return known.done[self.sweep.stage]

    def no_change(self) -> tuple[NoChange, dict[str, Any]]:
        """Values of axes that are the recipe's, and not part of a trial's name.

        Returns:
          axis -> such values, as gin has them; and axis -> the value, of axes that always apply.

        Raises:
          GinError: axes that the recipe does not know, or that change nothing; defaults that are
            not the recipe's.
        """
        same: dict[str, set[str]] = {}
        recipes: dict[str, Any] = {}
        wrong: list[str] = []
        for axis in ordered(self.sweep.axes):
            try:
                found = self._same(axis)
            except WRONG as error:
                wrong += [self.in_words(str(text), axis) for text in error.args]
                continue
            same[axis.name] = {to_gin(value) for value in found}
            if found and not axis.when:
                recipes[axis.name] = found[0]
        if wrong:
            raise GinError(*dict.fromkeys(wrong))
        return same, recipes

    def _same(self, axis: Axis) -> list[Any]:
        around = self._around(axis)
        before = self.bound(around).last.fingerprint

        def changes(value: Any) -> bool:
            return self.bound(around | {axis.macro: value}).last.fingerprint != before

        if not isinstance(axis.default, Unset):
            if changes(axis.default):
                was, now = self.bound(around), self.bound(around | {axis.macro: axis.default})
                raise GinError(
                    f"{axis.where}: axis {axis.name}: default = {axis.default!r} is not what the "
                    f"recipe has: it changes {_different(was, now)}. Set {axis.macro} for all "
                    "trials, or name the recipe's value"
                )
            return [axis.default]
        values = axis.values if axis.is_list else (axis.at(0.25), axis.at(0.75))
        same = [value for value in values if not changes(value)]
        if len(same) == len(values) > 1:
            raise GinError(
                f"{axis.where}: axis {axis.name}: {axis.macro} changes nothing of stage "
                f"{self.sweep.stage}, which is measured, nor of what that reads. A stage that sets "
                f"{axis.macro} itself is named: macro = 'STAGE/{axis.macro}'"
            )
        return same if axis.is_list else []

    def _around(self, axis: Axis) -> dict[str, Any]:
        """Values that make an axis apply: the first value of each condition, and of theirs."""
        by_name = {one.name: one for one in self.sweep.axes}
        found: dict[str, Any] = {}
        for name, wanted in axis.when.items():
            found |= self._around(by_name[name]) | {by_name[name].macro: wanted[0]}
        return found

    def in_words(self, text: str, axis: Axis | None = None) -> str:
        """A problem of a trial's recipe, with the places of the sweep file in place of flags."""
        for name, where in self.sweep.places.items():
            text = text.replace(f"{COMMAND_LINE} --gin.{name}:", f"{where}:")
        text = text.replace(
            f"--until={self.sweep.stage}: no such stage",
            f"sweep.run.metric: the recipe has no stage {self.sweep.stage!r}",
        )
        prefix = "" if axis is None or axis.where in text else f"{axis.where}: axis {axis.name}: "
        return prefix + text


def _different(was: Planned, now: Planned) -> str:
    """The parameters in which two plans differ, in words."""
    found = [
        f"{stage}: {name}"
        for stage, plan in now.chain.items()
        for name, value in plan.values.semantic.items()
        if stage in was.chain and was.chain[stage].values.semantic.get(name) != value
    ]
    return ", ".join(found[:3]) or "its stages"


def digest(paths: Iterable[Path]) -> str:
    """Of the contents of files; one that is gone counts as empty."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            digest.update(path.read_bytes())
        except OSError:
            digest.update(b"gone")
        digest.update(b"\0")
    return digest.hexdigest()
