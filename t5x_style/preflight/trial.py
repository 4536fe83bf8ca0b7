"""Make the arguments of a stage's job, as far as they are known before anything has run.

A value has its range where it is used: in the `__post_init__` of a configuration, in the
constructor of an objective. So these are made, as gin would make them, and what they refuse is
known before the first stage runs. No array is made, and no function is called but these:
- the check that a job declares (`signatures.Job.check`);
- `check_arguments`, a static method of a class that reads files where it is made;
- `measures` of an evaluator, see `hooks.Evaluator`;
- those that a module lists as `READ_EARLY`, which give values of the configuration of a model.
These look at names of files, at manifests and at headers of weights; only of tokenizers and
configurations is more read.

What depends on a file that is still to be written is `Unknown`, and what cannot be made for that
reason is made of assumed values, see `unknowns`: a rule that is not about these holds whatever they
will be.
"""

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from t5x_style.configuration import code_checks, gin_types, parameters, signatures
from t5x_style.configuration.gin_reader import FOLDER_MACRO, Config, Macro, Reference, to_gin
from t5x_style.interfaces import contract
from t5x_style.preflight import unknowns
from t5x_style.preflight.unknowns import NOT_KNOWN, Named, NotKnownError, Refused, Unknown
from t5x_style.workflow import stage_runner

PARTITIONER = "t5x_style.distributed.partitioning.Partitioner"
OBJECTIVE = "t5x_style.interfaces.objective"
EARLY = "READ_EARLY"


@dataclasses.dataclass(frozen=True)
class _Factory:
    """The value of `@module.Class`: a factory that is called later with these arguments."""

    thing: Any
    arguments: Mapping[str, Any]

    def __call__(self, **more: Any) -> Any:
        return self.thing(**self.arguments, **more)


class Trial:
    """One stage's configuration, tried."""

    def __init__(self, config: Config, inputs: Sequence[str], refused: Collection[str] = ()):
        """Args:
        config: read, with no problem in its names.
        inputs: macros that are paths of inputs.
        refused: places of bindings that are known to be wrong.
        """
        self.config, self.inputs, self.refused = config, inputs, refused
        self._refusals: dict[str, tuple[str, dict[str, None]]] = {}  # -> reference, places
        # id of a factory -> what it makes, whether of known values alone
        self._modules: dict[int, tuple[Any, bool]] = {}
        # id of a half-known object -> it, one with assumed fields, the names of these
        self._assumed: dict[int, tuple[Any, Any, list[str]]] = {}
        self._made: dict[tuple[str, str, bool], Any] = {}

    @property
    def problems(self) -> list[str]:
        """Refused values, each once, with all places where it is bound."""
        return [
            f"@{reference}: {said} ({'; '.join(places)})"
            for said, (reference, places) in self._refusals.items()
        ]

    def arguments(self, target: str, scope: str = "") -> dict[str, Any]:
        """Arguments that gin gives a call of `target` in a scope."""
        bound = parameters.bound(self.config, target, scope)
        return {
            name: Refused() if where in self.refused else self._value(value, scope, where)
            for name, (value, where) in bound.items()
        }

    def check_job(self, job: str) -> None:
        """Errors that the job would raise about its arguments.

        Args:
          job: the dotted path.
        """
        arguments = self.arguments(job)
        self._check_batch(arguments, job)
        module, _, name = job.rpartition(".")
        if check := signatures.job(job).check:
            declared = code_checks.locate(f"{module}.{check}", job)
            thing = code_checks.locate(job, job)
            reference = Reference(f"{module.rpartition('.')[2]}.{name}", "", job, True)
            self._check(declared, thing, arguments, reference, "", reference.text)

    def _check(
        self,
        check: Any,
        thing: Any,
        arguments: Mapping[str, Any],
        reference: Reference,
        scope: str,
        where: str,
    ) -> Any:
        """Apply `_try` to a check of some of the arguments that a call of `thing` gets."""
        known = {**_defaults(thing), **arguments}
        wanted = code_checks.parameters(check)
        if not wanted.keys() <= known.keys():
            return Unknown()  # a parameter that nothing sets, which others refuse
        asked = {name: known[name] for name in wanted}
        return self._try(lambda: check(**asked), reference, scope, where)

    def _check_batch(self, arguments: Mapping[str, Any], job: str) -> None:
        """Whether the mesh and micro-batches divide a training's batch; whether it may be trained.

        Args:
          arguments: of its job.
          job: the dotted path.
        """
        module, known = self._modules.get(id(arguments.get("objective")), (None, False))
        mesh = arguments.get("partitioner")
        if module is None or mesh is None:
            return
        micro_batches = arguments.get("micro_batches", 1)
        reference = Reference(job.rpartition(".")[2], "", job, True)
        if known:
            make = functools.partial(_check_batch, module, mesh, micro_batches)
            self._try(make, reference, "", reference.text)
        if "pipeline" in arguments:  # others only use a model
            self._try(lambda: module.contract().require_trainable(), reference, "", reference.text)

    def _value(self, value: Any, scope: str, where: str) -> Any:
        if isinstance(value, Macro):
            return self._macro(value.name, where)
        if isinstance(value, Reference):
            return self._reference(value, value.scope or scope, where)
        if isinstance(value, dict):
            return {key: self._value(item, scope, where) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._value(item, scope, where) for item in value)
        return value

    def _macro(self, name: str, where: str) -> Any:
        if name == FOLDER_MACRO:
            return Unknown()
        value = self._value(self.config.macro(name, where), name, where)
        return unknowns.existing(value) if name in self.inputs else value

    def _reference(self, reference: Reference, scope: str, where: str) -> Any:
        key = (reference.target, scope, reference.call)
        if key not in self._made:
            self._made[key] = None  # a cycle, which other checks refuse
            self._made[key] = self._make(reference, scope, where)
        return self._made[key]

    def _make(self, reference: Reference, scope: str, where: str) -> Any:
        if reference.target.startswith("gin."):
            return Unknown()
        thing = code_checks.locate(reference.target, where)
        arguments = self.arguments(reference.target, scope)
        check = getattr(thing, "check_arguments", None)
        if check is not None:
            found = self._check(check, thing, arguments, reference, scope, where)
            if isinstance(found, Refused):
                return found
        if not reference.call:
            factory = _Factory(thing, arguments)
            if _is_objective(thing):
                self._modules[id(factory)] = self._objective(factory, reference, scope, where)
            return factory
        if reference.target == PARTITIONER:
            make = functools.partial(_without_devices, thing, **arguments)
            return self._try(make, reference, scope, where)
        if thing in (contract.load_vocabulary, contract.vocabulary_size, contract.special_ids):
            return self._try(
                lambda: unknowns.tokenizer(thing, **arguments), reference, scope, where
            )
        if not _configures(thing):
            measures = getattr(thing, "measures", None)
            if measures is not None:
                found = self._check(measures, thing, arguments, reference, scope, where)
                return Named(*found) if isinstance(found, tuple) else Unknown()
            name = {**_defaults(thing), **arguments}.get("name")
            return Named(name) if isinstance(name, str) else Unknown()
        made = self._try(lambda: thing(**arguments), reference, scope, where)
        if type(made) is not Unknown or not inspect.isclass(thing):
            return made
        half = unknowns.half_known(thing, arguments)
        guess, guessed = self._guess(thing, arguments)
        if guessed:
            whole = self._try(lambda: thing(**guess), reference, scope, where, guessed)
            self._assumed[id(half)] = (half, whole, guessed)
        return half

    def _objective(
        self, factory: _Factory, reference: Reference, scope: str, where: str
    ) -> tuple[Any, bool]:
        """An objective of shapes alone, and whether it is made of known values alone."""
        make = functools.partial(_without_arrays, factory)
        made = self._try(make, reference, scope, where)
        if type(made) is not Unknown:
            return made, True
        guess, guessed = self._guess(factory.thing, factory.arguments)
        make = functools.partial(_without_arrays, _Factory(factory.thing, guess))
        return self._try(make, reference, scope, where, guessed) if guessed else made, False

    def _guess(self, thing: Any, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """As `unknowns.guess`, with assumed fields also in what is half known."""
        guess, guessed = unknowns.guess(thing, arguments)
        for name, value in arguments.items():
            if id(value) in self._assumed:
                _, guess[name], more = self._assumed[id(value)]
                guessed.extend(more)
        return guess, guessed

    def _try(
        self, make: Any, reference: Reference, scope: str, where: str, guessed: Sequence[str] = ()
    ) -> Any:
        """Result of `make`; Unknown where it cannot decide, Refused where it does not accept.

        A refusal that names what was `guessed` does not count.
        """
        try:
            return make()
        except NotKnownError:
            pass
        except Exception as error:
            said = str(error) if isinstance(error, ValueError | OSError) else repr(error)
            # a library's error may be about the value used for the unknown
            about_guess = any(_names(said, name) for name in guessed) or (
                guessed and str(unknowns.ASSUMED_NUMBER) in said
            )
            if NOT_KNOWN not in said and stage_runner.is_users(error) and not about_guess:
                places = self._places(said, reference, scope)
                _, known = self._refusals.setdefault(said, (reference.text, {}))
                if places or not known:
                    known.setdefault(places or f"bound at {where}")
                return Refused()
        return Unknown()

    def _places(self, said: str, reference: Reference, scope: str) -> str:
        """Places of the bindings that a message names, or whose paths it names."""
        found: dict[str, bool] = {}  # -> whether the message has the value, too
        for name, text, where in self._bound_inside(reference.target, scope, set()):
            if _names(said, name) or ("/" in text and text.strip("'") in said):
                found[f"{name} = {text} at {where}"] = text in said
        exact = [place for place, has_value in found.items() if has_value]
        return ", ".join(exact or found)

    def _bound_inside(
        self, target: str, scope: str, seen: set[tuple[str, str]]
    ) -> Iterator[tuple[str, str, str]]:
        """(parameter, value, place) of all bindings that a call reaches."""
        if (target, scope) in seen:
            return
        seen.add((target, scope))
        for name, (value, where) in parameters.bound(self.config, target, scope).items():
            while isinstance(value, Macro) and value.name in self.config.macros:
                macro = self.config.macros[value.name]
                value, where, scope = macro.value, macro.where, value.name
            if isinstance(value, Reference):
                yield from self._bound_inside(value.target, value.scope or scope, seen)
            else:
                yield name, to_gin(value), where


def _defaults(thing: Any) -> dict[str, Any]:
    """What a call that passes nothing gets, of the parameters that may be left out."""
    found = code_checks.parameters(thing)
    return {name: one.default for name, one in found.items() if one.default is not one.empty}


def _names(said: str, parameter: str) -> bool:
    return re.search(rf"(?<![\w-]){parameter}(?![\w-])", said) is not None


def _configures(thing: Any) -> bool:
    """Whether something only makes a configuration: a dataclass, or a function that is annotated
    to return one, `...Config`, or that its module lists as read early."""
    if inspect.isclass(thing):
        return dataclasses.is_dataclass(thing)
    if thing.__name__ in getattr(sys.modules[thing.__module__], EARLY, ()):
        return True
    made = gin_types.annotations(thing).get("return")
    return inspect.isclass(made) and made.__name__.endswith("Config")


def _is_objective(thing: Any) -> bool:
    module = sys.modules.get(OBJECTIVE)  # imported, if anything that could be one is
    return module is not None and inspect.isclass(thing) and issubclass(thing, module.Objective)


def _without_arrays(factory: _Factory) -> Any:
    """Makes an objective of shapes alone."""
    from flax import nnx

    return nnx.eval_shape(lambda: factory(rngs=nnx.Rngs(0)))


def _without_devices(thing: Any, mesh_shape: Any = None, **others: Any) -> Any:
    """A partitioner of as many devices as its mesh asks for, and of one where it takes all."""
    import jax

    from t5x_style.distributed import partitioning

    shape = partitioning.MeshShape() if mesh_shape is None else mesh_shape
    data = 1 if shape.data == -1 else shape.data
    sizes = shape.resolve(data * shape.fsdp * shape.tensor)
    made = thing.__new__(thing)
    made.mesh = jax.sharding.AbstractMesh(sizes, partitioning.AXES)
    return made


def _check_batch(module: Any, mesh: Any, micro_batches: Any) -> None:
    from t5x_style.step import compiled_step

    for specs in module.batch_specs():
        compiled_step.check(module, specs, mesh, micro_batches)
