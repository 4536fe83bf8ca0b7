"""Signatures read from source: equal to those of the imported code; markers; declarations."""

import ast
import dataclasses
import inspect
import textwrap

import pytest

from t5x_style.configuration import (
    code_checks,
    gin_checks,
    gin_reader,
    python_sources,
    renames,
    signatures,
)
from t5x_style.configuration.conventions import RECIPES
from t5x_style.configuration.gin_reader import Reference, leaves
from t5x_style.workflow import stages

ALL = sorted(gin_reader.REPOSITORY.glob("gin_configs/**/*.gin"))


def targets():
    """Everything that our gin files bind or refer to."""
    found = set()
    for path in ALL:
        config = gin_reader.read([str(path)])
        for binding in (*config.bindings.values(), *config.macros.values()):
            found.add(binding.target)
            found |= {x.target for x in leaves(binding.value) if isinstance(x, Reference)}
    return sorted(name for name in found if name and not name.startswith(RECIPES))


def real_parameters(thing):
    if not inspect.isclass(thing):
        return inspect.signature(thing).parameters
    if dataclasses.is_dataclass(thing):
        return inspect.signature(thing).parameters
    parameters = dict(inspect.signature(thing.__init__).parameters)  # nnx hides it in a metaclass
    parameters.pop("self")
    return parameters


@pytest.mark.parametrize("target", targets())
def test_what_is_read_is_what_is_there(target):
    found = signatures.signature(target).parameters
    real = real_parameters(code_checks.locate(target, "test"))
    assert list(found) == list(real)
    for name, parameter in real.items():
        assert (found[name].default is None) == (parameter.default is parameter.empty), name


def test_kinds_are_unique():
    """A fingerprint holds the last two names of a path: no two functions may share them."""
    kinds = [renames.kind(target) for target in targets()]
    assert len(kinds) == len(set(kinds))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes modules of a package `toyhouse`, found but never imported."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "toyhouse").mkdir()
    (tmp_path / "toyhouse" / "__init__.py").write_text("")

    def write(name, text):
        (tmp_path / "toyhouse" / f"{name}.py").write_text(textwrap.dedent(text))

    return write


def test_imports_aliases_and_inherited_fields_are_followed(package):
    package(
        "base",
        """
        import dataclasses
        raise RuntimeError("imported")

        @dataclasses.dataclass
        class Base:
            width: int
            rates: dict = dataclasses.field(default_factory=dict)
            hidden: int = dataclasses.field(default=0, init=False)
        """,
    )
    package(
        "deep",
        """
        from dataclasses import dataclass
        from typing import Annotated, ClassVar
        from . import base
        from toyhouse.base import Base as Renamed

        @dataclass(frozen=True)
        class Deep(base.Base):
            decides: ClassVar[tuple[str, ...]] = ("every.log",)
            keep: Annotated[int, "operational"] = 2
            every: Annotated[int, "operational unless metric"] = 3
            plain: Annotated[int, "metres"] = 4

        class Bare(Renamed):
            pass

        class Deeper(Deep):
            decides = ("every.evaluate",)

            def __init__(self):
                pass

        alias = Deep
        """,
    )
    door = "from toyhouse.deep import alias as Door\nfrom toyhouse.deep import Bare, Deeper\n"
    package("door", door)
    found = signatures.signature("toyhouse.door.Door").parameters
    assert list(found) == ["width", "rates", "keep", "every", "plain"]
    markers = {name: parameter.marker for name, parameter in found.items()}
    assert markers["keep"] == "operational" and markers["every"] == "operational unless metric"
    assert markers["plain"] == markers["width"] == ""
    assert list(signatures.signature("toyhouse.door.Bare").parameters) == ["width", "rates"]
    assert signatures.signature("toyhouse.door.Deeper").decides == ("every.evaluate", "every.log")
    assert signatures.signature("toyhouse.door.Bare").decides == ()
    assert signatures.signature("toyhouse.door.Missing").parameters == {}
    assert signatures.signature("nowhere.at.all").parameters == {}
    assert signatures.define("toyhouse.door.Missing") is None


def test_an_edited_source_of_ours_is_read_again_by_the_next_plan(package, monkeypatch):
    monkeypatch.setattr(python_sources, "OURS", (*python_sources.OURS, "toyhouse"))
    for default in (1, 22):
        package("door", f"def paint(coats={default}):\n    pass\n")
        signatures.forget()  # as `stages.plan` does first
        parameter = signatures.signature("toyhouse.door.paint").parameters["coats"]
        assert ast.unparse(parameter.default.node) == str(default)


def test_a_plan_reads_sources_again(monkeypatch):
    asked = []
    monkeypatch.setattr(signatures, "forget", lambda: asked.append(True))
    with pytest.raises(gin_reader.GinError):
        stages.plan(gin_checks.Flags(("no_such.gin",), ()))
    assert asked


@pytest.mark.parametrize("value", ["SAVES", "('every.log',) + MORE", "'every.log'", "(1,)", "7"])
def test_settings_that_decide_must_be_a_literal_tuple(package, value):
    package("door", f"class Base:\n    decides = {value}\n\nclass Door(Base):\n    pass\n")
    with pytest.raises(signatures.DeclarationError) as error:
        signatures.signature("toyhouse.door.Door")
    where, _, message = str(error.value).partition(": ")
    assert where.endswith("toyhouse/door.py:2")
    assert message == (
        "toyhouse.door.Base.decides must be a literal tuple of settings, such as "
        f'("cadence.save_every",), found {value}.'
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "toyhouse.job.f does not declare a job; expected JOBS = "),
        ("JOBS = {'g': {'name': 'g', 'version': 1}}", "does not declare a job"),
        ("JOBS = {'f': {'name': 'f'}}", "found {'name': 'f'}; expected JOBS"),
        ("JOBS = {'f': {'name': 'f', 'version': 0}}", "to raise when the same settings"),
        ("JOBS = {'f': {'name': 'f', 'version': 1, 'verison': 2}}", "found .*verison"),
        ("JOBS = {'f': make()}", "JOBS must be a literal"),
    ],
)
def test_jobs_must_be_declared(package, text, message):
    package("job", f"{text}\ndef f(model_dir: str): ...\n")
    with pytest.raises(signatures.DeclarationError, match=message):
        signatures.job("toyhouse.job.f")


def test_a_declaration(package):
    package("job", "JOBS = {'f': {'name': 'n', 'version': 3, 'length': ('a.b',)}}\ndef f(): ...\n")
    assert signatures.job("toyhouse.job.f") == signatures.Job("n", 3, ("a.b",))
    with pytest.raises(signatures.DeclarationError, match="its source was not found"):
        signatures.job("nowhere.f")
