"""Effective parameters: what a job would get from gin and defaults, found without running it."""

import textwrap

import pytest
from gin import config as gin_config

from t5x_style.configuration import gin_checks, gin_reader, parameters, rename_tables

HOUSE = """
    import dataclasses
    from typing import Annotated, ClassVar

    from toyhouse import sizes
    from toyhouse.sizes import LARGE

    WIDTH = 3
    SHIFTED = 1 << WIDTH
    BASE = sizes.LARGE[0]
    DEEP = BASE * 2

    @dataclasses.dataclass
    class Size:
        width: int = WIDTH
        rate: float = 1
        names: tuple = ("a", "b")
        table: dict = dataclasses.field(default_factory=dict)

    @dataclasses.dataclass
    class Every:
        log: Annotated[int, "operational"] = 5
        evaluate: Annotated[int, "operational unless metric"] = 6

    class Watching:
        decides: ClassVar[tuple[str, ...]] = ("every.log",)

    def make(width=2, size=Size(width=7)):
        return width, size

    def job(model_dir, size=None, sizes=(), every=None, metric=None, shift=SHIFTED, large=LARGE,
            factory=None, path=None, deep=DEEP + 1):
        return dict(size=size, sizes=sizes, factory=factory and factory())
"""
HEAD = "from __gin__ import dynamic_registration\nfrom toyhouse import house\n"


@pytest.fixture
def values(tmp_path, monkeypatch):
    """Returns `values(gin text, inputs)`: the effective parameters of toyhouse.house.job."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toyhouse").mkdir()
    (tmp_path / "toyhouse" / "__init__.py").write_text("")
    (tmp_path / "toyhouse" / "sizes.py").write_text("LARGE = [1, 2]\n")
    (tmp_path / "toyhouse" / "house.py").write_text(textwrap.dedent(HOUSE))

    def read(text="", inputs=None, overrides=()):
        (tmp_path / "a.gin").write_text(HEAD + textwrap.dedent(text))
        config = gin_reader.read(["a.gin"], overrides, allow=["toyhouse"])
        return parameters.of_job(config, "toyhouse.house.job", inputs or {})

    return read


def test_defaults_count_with_the_constants_they_use(values):
    assert values().semantic == {
        "size": "None", "sizes": "[]", "every": "None", "metric": "None", "shift": "1 << 3",
        "large": "[1, 2]", "factory": "None", "path": "None", "deep": "[1, 2][0] * 2 + 1",
    }  # fmt: skip


def test_objects_macros_and_numbers(values):
    plain = values("house.job.size = @house.Size()\nhouse.Size.width = 4\n").semantic
    assert plain["size"] == "@house.Size()" and plain["size.width"] == "4"
    assert plain["size.rate"] == "1.0" and plain["size.names"] == "['a', 'b']"
    assert plain["size.table"] == "{}"
    same = """
        N = 4
        SIZE = @house.Size()
        house.job.size = %SIZE
        house.Size.width = %N
        house.Size.rate = 1.0
        house.Size.names = ['a', 'b']
    """
    assert values(same).semantic == plain
    assert values("house.job.size = @house.Size()\n").semantic["size.width"] == "3"


def test_an_object_in_a_default_counts_with_its_own_defaults(values):
    found = values("house.job.factory = @house.make\n").semantic
    assert found["factory"] == "@house.make" and found["factory.size"] == "@house.Size()"
    assert found["factory.size.width"] == "7" and found["factory.size.names"] == "['a', 'b']"


def test_bindings_do_not_reach_an_object_that_a_default_makes(values):
    """Python makes it, not gin."""
    text = (
        "house.job.factory = @house.make\nhouse.job.size = @house.Size()\nhouse.Size.rate = 0.5\n"
    )
    found = values(text).semantic
    assert found["size.rate"] == "0.5" and found["factory.size.rate"] == "1.0"


def test_constants_of_constants_count(values, tmp_path):
    before = values().semantic
    assert before["deep"] == "[1, 2][0] * 2 + 1"
    (tmp_path / "toyhouse" / "sizes.py").write_text("LARGE = [3, 2]\n")
    assert values().semantic["deep"] == "[3, 2][0] * 2 + 1"


def test_inputs_stand_for_what_is_there(values):
    text = "SOURCE = 'x'\nMANY = {'a': 'y', 'b': 'z'}\n"
    text += "house.job:\n  path = %SOURCE\n  sizes = [%MANY]\n"
    found = values(text, {"SOURCE": "v1/out", "MANY": {"a": "v2", "b": "v3"}}).semantic
    assert found["path"] == "input v1/out"
    assert found["sizes[0]['a']"] == "input v2" and found["sizes[0]['b']"] == "input v3"


def test_operational_settings_that_a_class_in_use_decides_by_are_semantic(values):
    text = "house.job.every = @house.Every()\nhouse.job.size = @house.Watching()\n"
    found = values(text)
    assert found.semantic["every.log"] == "5" and found.operational == {"every.evaluate": "6"}
    assert "every.log" in values(text.replace("Watching", "Size")).operational


def test_operational_settings_are_apart(values):
    text = "house.job.every = @house.Every()\nhouse.Every.log = 50\n"
    found = values(text)
    assert found.operational == {"every.log": "50", "every.evaluate": "6"}
    selected = values(text + "house.job.metric = 'dev/MRR@10'\n")
    assert selected.operational == {"every.log": "50"}
    assert selected.semantic["every.evaluate"] == "6"


SCOPED = """
    SHARED = @house.Size()
    house.job.size = @one/house.Size()
    house.job.sizes = [@two/house.Size(), @two/inner/house.Size(), %SHARED]
    house.job.factory = @two/house.make
    house.Size.width = 10
    house.Size.rate = 0.5
    one/house.Size.width = 11
    two/house.Size.rate = 0.25
    two/inner/house.Size.width = 12
    house.make.size = @house.Size()
    SHARED/house.Size.rate = 0.75
"""


def test_scopes_are_gins_own(values, tmp_path):
    """What is read here is what gin passes: the objects that it builds have these fields."""
    found = values(SCOPED).semantic
    gin_config.clear_config()
    flags = gin_checks.Flags(("a.gin",), (), allow=("toyhouse",))
    try:
        gin_checks.parse(flags.read())
        from toyhouse import house

        made = gin_checks.configured(house.job)(model_dir="")
    finally:
        gin_config._set_config_is_locked(False)
        gin_config.clear_config()
    objects = {"size": made["size"], "factory.size": made["factory"][1]}
    objects |= {f"sizes[{n}]": one for n, one in enumerate(made["sizes"])}
    for path, built in objects.items():
        assert found[f"{path}.width"] == str(built.width), path
        assert found[f"{path}.rate"] == str(built.rate), path


def test_a_bare_function_may_be_called_outside_of_its_scope(values):
    text = """
        house.job.size = @one/house.make()
        house.make.size = @house.Size
        one/house.Size.width = 11
        house.Size.width = 10
    """
    found = values(text).semantic
    assert found["size.size.width"] == "11" and found["size.size.width (outside one)"] == "10"


def test_renames_and_added_parameters_keep_fingerprints(values, monkeypatch):
    before = values("house.job.size = @house.Size()\n").semantic
    monkeypatch.setattr(rename_tables, "NAMES", {"toyhouse.house.Extent": "toyhouse.house.Size"})
    monkeypatch.setattr(rename_tables, "PARAMETERS", {"house.Extent.width": "breadth"})
    monkeypatch.setattr(rename_tables, "ADDED", {"house.Extent.table": "{}"})
    after = values("house.job.size = @house.Size()\n").semantic
    assert after["size"] == "@house.Extent()" and after["size.breadth"] == before["size.width"]
    assert "size.table" not in after and "size.width" not in after
    assert (
        "size.table"
        in values("house.job.size = @house.Size()\nhouse.Size.table = {1: 2}\n").semantic
    )


def test_a_circle_of_references_is_an_error(values):
    text = "house.job.size = @house.Size()\nhouse.Size.table = @house.Size()\n"
    with pytest.raises(gin_reader.GinError, match="form a cycle, at @toyhouse.house.Size"):
        values(text)
