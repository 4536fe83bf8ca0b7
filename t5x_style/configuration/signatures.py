"""Parameters, defaults and jobs' declarations, read from source code without importing it.

A recipe of twenty stages is checked in a second because nothing is imported: importing the jobs
costs ten. `test_signatures.py` compares what is read here with `inspect.signature`.

A setting that does not change what a job writes is marked next to its field:

    log_every: Annotated[int, "operational"] = 50
    evaluate_every: Annotated[int, "operational unless development_metric"] = 500

where the word after `unless` is a parameter of the job: the setting decides results if that
parameter has a value. It decides them, too, where the job uses a class that lists it:

    decides: ClassVar[tuple[str, ...]] = ("cadence.save_every",)
"""

import ast
import functools
import re
from dataclasses import dataclass

from t5x_style.configuration import python_sources

DECIDES = "decides"  # the attribute in which a class lists settings that it makes decide results
JOBS = "JOBS"  # the constant in which a module declares its jobs
OPERATIONAL = "operational"


class DeclarationError(ValueError):
    """A job or class without a usable declaration; the message says what to write."""


@dataclass(frozen=True)
class Source:
    """A Python expression and the module whose names it uses."""

    node: ast.expr
    module: str


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function or class.

    Attributes:
      default: its expression; None if there is none.
      annotation: source text, or "".
      marker: `operational`, `operational unless NAME`, or "" where it is semantic.
    """

    default: Source | None
    annotation: str = ""
    marker: str = ""


@dataclass(frozen=True)
class Signature:
    """Parameters of a call.

    Attributes:
      parameters: by name, in order; none where the source was not found.
      decides: paths from the job, of operational settings that decide results with this class.
    """

    parameters: dict[str, Parameter]
    decides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """The declaration of a stage's job.

    Attributes:
      name: lower-case letters, digits and _; stays when code moves.
      version: raised when equal settings and inputs give other outputs.
      length: parameters that only make a run longer; see `continuation`.
      knows_size: the job computes how much it will write; see `space`.
      outputs: names of what it returns.
      program: `python -m` of its module runs it, and starts the devices as it needs them; without
        this `python -m t5x_style.stage` does.
      check: a function of its module that takes some of the job's parameters by name and raises
        ValueError for values that the job refuses; called before anything runs, and by the job.
    """

    name: str
    version: int
    length: tuple[str, ...] = ()
    knows_size: bool = False
    outputs: tuple[str, ...] = ()
    program: bool = False
    check: str = ""


def job(target: str) -> Job:
    """The declaration of the job at a dotted path.

    Raises:
      DeclarationError: its module has none for it, or one of another form.
    """
    module, _, function = target.rpartition(".")
    path = python_sources.path_of(module.split("."))
    expected = (
        f'{JOBS} = {{"{function}": {{"name": "{function}", "version": 1}}}} in '
        f"{path}: the name under which its results are kept, and a version to raise "
        "when the same settings give other outputs"
    )
    if path is None:
        raise DeclarationError(f"{target}: its source was not found; expected {expected}.")
    node = python_sources.module(module).constants.get(JOBS)
    try:
        found = {} if node is None else ast.literal_eval(node)
    except ValueError as error:
        raise DeclarationError(f"{path}: {JOBS} must be a literal: {error}.") from error
    if function not in found:
        raise DeclarationError(f"{target} does not declare a job; expected {expected}.")
    fields = dict(found[function])
    name, version = fields.pop("name", None), fields.pop("version", None)
    length, outputs = (tuple(fields.pop(field, ())) for field in ("length", "outputs"))
    knows_size, program = (bool(fields.pop(field, False)) for field in ("knows_size", "program"))
    check = fields.pop("check", "")
    named = isinstance(name, str) and re.fullmatch("[a-z][a-z0-9_]*", name)
    if (
        not named
        or not isinstance(version, int)
        or version < 1
        or fields
        or not isinstance(check, str)
    ):
        raise DeclarationError(f"{target}: found {found[function]!r}; expected {expected}.")
    return Job(name, version, length, knows_size, outputs, program, check)


def signature(target: str) -> Signature:
    """Parameters of the function or class at a dotted path.

    Raises:
      DeclarationError: a class lists settings that decide results in another form than a literal.
    """
    ours = target.partition(".")[0] in python_sources.OURS
    return _of_ours(target) if ours else _signature(target)


@functools.cache
def _of_ours(target: str) -> Signature:
    """A plan asks for the same ones again and again."""
    return _signature(target)


def forget() -> None:
    """From now on sources are read again: they may have changed."""
    _of_ours.cache_clear()


def _signature(target: str) -> Signature:
    found = define(target)
    if found is None:
        return Signature({})
    node, module = found
    if isinstance(node, ast.ClassDef):
        return _of_class(node, module)
    return Signature(_of_function(node, module))


Definition = tuple[ast.FunctionDef | ast.ClassDef, str]


def define(target: str, depth: int = 8) -> Definition | None:
    """The syntax tree of what a dotted path names, and its module; None if not found.

    Follows `from x import y` and `name = other`.
    """
    at = python_sources.split(target)
    if at is None or not at[1] or depth == 0:
        return None
    module, (name, *rest) = at
    node = python_sources.module(module).definitions.get(name)
    if node is not None:
        return _inside(node, rest, module)
    other = python_sources.resolve(name, module)
    return define(".".join([other, *rest]), depth - 1) if other else None


def _inside(
    node: ast.FunctionDef | ast.ClassDef, names: list[str], module: str
) -> Definition | None:
    """Targets of names inside a class."""
    for name in names:
        found = [one for one in node.body if isinstance(one, Defining) and one.name == name]
        if not found:
            return None
        node = found[0]
    return node, module


Defining = ast.FunctionDef | ast.ClassDef


def _of_function(node: ast.FunctionDef, module: str) -> dict[str, Parameter]:
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    missing = len(plain) - len(arguments.defaults)
    defaults = [None] * missing + list(arguments.defaults)
    pairs = list(zip(plain, defaults, strict=True))
    pairs += list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    return {
        argument.arg: _parameter(argument.annotation, default, module)
        for argument, default in pairs
        if argument.arg not in ("self", "cls")
    }


def _of_class(node: ast.ClassDef, module: str) -> Signature:
    """Of `__init__`, or of a dataclass's fields, its bases' included."""
    fields: dict[str, Parameter] = {}
    decides = _decides(node, module)
    for base in reversed(node.bases):
        target = python_sources.resolve(ast.unparse(base), module)
        found = define(target) if target else None
        if found is not None and isinstance(found[0], ast.ClassDef):
            inherited = _of_class(found[0], found[1])
            fields |= inherited.parameters
            decides += inherited.decides
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return Signature(_of_function(item, module), decides)
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        fields |= _fields(node, module)
    return Signature(fields, decides)


def _decides(node: ast.ClassDef, module: str) -> tuple[str, ...]:
    """Value of the class's own `DECIDES`; DeclarationError if that is no literal."""
    for item in node.body:
        if isinstance(item, ast.AnnAssign | ast.Assign) and item.value is not None:
            target = item.target if isinstance(item, ast.AnnAssign) else item.targets[0]
            if ast.unparse(target) == DECIDES:
                return _texts(item.value, f"{module}.{node.name}.{DECIDES}", module)
    return ()


def _texts(value: ast.expr, name: str, module: str) -> tuple[str, ...]:
    try:
        found = ast.literal_eval(value)
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, tuple | list) or not all(isinstance(one, str) for one in found):
        raise DeclarationError(
            f"{python_sources.path_of(module.split('.'))}:{value.lineno}: {name} must be a literal "
            f'tuple of settings, such as ("cadence.save_every",), found {ast.unparse(value)}.'
        )
    return tuple(found)


def _fields(node: ast.ClassDef, module: str) -> dict[str, Parameter]:
    """The fields of a dataclass that its constructor takes."""
    found = {}
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        default = item.value
        if "ClassVar" in ast.unparse(item.annotation):
            continue
        if isinstance(default, ast.Call) and ast.unparse(default.func).endswith("field"):
            options = {keyword.arg: keyword.value for keyword in default.keywords}
            if "init" in options and ast.unparse(options["init"]) == "False":
                continue
            factory = options.get("default_factory")
            made = ast.Call(factory, [], []) if factory is not None else None
            default = options.get("default", made)
        found[item.target.id] = _parameter(item.annotation, default, module)
    return found


def _parameter(annotation: ast.expr | None, default: ast.expr | None, module: str) -> Parameter:
    text = "" if annotation is None else ast.unparse(annotation)
    source = None if default is None else Source(default, module)
    return Parameter(source, text, "" if annotation is None else _marker(annotation))


def _marker(annotation: ast.expr) -> str:
    """The text `operational...` of `Annotated[type, text]`, or ""."""
    if not isinstance(annotation, ast.Subscript):
        return ""
    if ast.unparse(annotation.value).rpartition(".")[2] != "Annotated":
        return ""
    words = annotation.slice.elts[1:] if isinstance(annotation.slice, ast.Tuple) else []
    for word in words:
        if isinstance(word, ast.Constant) and str(word.value).startswith(OPERATIONAL):
            return str(word.value)
    return ""
