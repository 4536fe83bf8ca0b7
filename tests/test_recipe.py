"""Recipes: references, order, what a change re-runs, stopping anywhere and continuing."""

import json
import os
import signal
import subprocess
import sys

import pytest

from launch import recipe
from t5x_style import fingerprints, gin_reader, gin_utils, recipe_file, stage
from t5x_style.recipe_file import RecipeError

HEAD = "from __gin__ import dynamic_registration\n"
MAKE = HEAD + (
    "from t5x_style import stage\nfrom tests import gin_toys\n"
    "stage.run.job = @gin_toys.make\ngin_toys.make.size = @gin_toys.Size()\n"
    "gin_toys.Size.width = %WIDTH\n"
)
COUNT = HEAD + (
    "from t5x_style import stage\nfrom tests import gin_toys\n"
    "stage.run.job = @gin_toys.count\nstage.run.inputs = [%SOURCE]\n"
    "gin_toys.count:\n  source = %SOURCE\n  steps = %STEPS\n  stop_at = %STOP_AT\n"
)
RECIPE = (
    HEAD
    + """from launch import recipe
WIDTH = 3
BUDGET = 1.0
STOP_AT = -1
recipe.run.run_dir = 'runs'
recipe.run.budget = %BUDGET
recipe.run.stages = [
    @first/recipe.Stage(),
    @second/recipe.Stage(),
    @third/recipe.Stage(),
]
recipe.run.publish = {'summary.txt': %second.steps}

first/recipe.Stage:
  entry = 't5x_style.stage'
  gin_files = ['make.gin']
  bindings = {'WIDTH': %WIDTH}

second/recipe.Stage:
  entry = 't5x_style.stage'
  gin_files = ['count.gin']
  inputs = {'SOURCE': %first.text}
  bindings = {'STOP_AT': %STOP_AT}
  scaled = {'STEPS': 4}

third/recipe.Stage:
  entry = 'tests.gin_toys'
  gin_files = ['make_alone.gin']
  bindings = {'gin_toys.Size.width': 5}
"""
)


@pytest.fixture
def house(tmp_path, monkeypatch):
    """A folder with a recipe and its stages' gin files; returns `flags(recipe text, **macros)`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "make.gin").write_text(MAKE)
    (tmp_path / "count.gin").write_text(COUNT)
    alone = "from tests import gin_toys\ngin_toys.make.size = @gin_toys.Size()\n"
    (tmp_path / "make_alone.gin").write_text(HEAD + alone)

    def flags(text=RECIPE, **macros):
        (tmp_path / "recipe.gin").write_text(text)
        return gin_utils.Flags(("recipe.gin",), tuple(macros.items()), allow=("tests",))

    return flags


def survey(flags):
    rows = recipe.survey(recipe_file.load(flags), flags)
    return {row.name: (row.status, row.reason) for row in rows}


def pretend_all_done(flags):
    """Writes the records that three finished stages would leave, without running them."""
    loaded = recipe_file.load(flags)
    for item, name in zip(loaded.stages, ("text", "steps", "text"), strict=True):
        planned = recipe_file.plan(loaded, item, flags, {})
        planned.folder.mkdir(parents=True, exist_ok=True)
        (planned.folder / "file").write_text("")
        stage.finish(planned, {name: "file"}, 1.0)


def test_dry_run_of_a_new_recipe(house, capsys):
    assert recipe.run(gin_utils.Flags(**vars(house()) | {"dry_run": True})) == 0
    assert capsys.readouterr().out.count("never ran") == 3
    assert not os.path.exists("runs")


def test_a_change_reruns_exactly_what_depends_on_it(house):
    pretend_all_done(house())
    assert {status for status, _ in survey(house()).values()} == {"done"}
    found = survey(house(WIDTH="4"))
    assert found["first"] == ("changed", "bindings: tests.gin_toys.Size.width")
    assert found["second"] == ("changed", "inputs: SOURCE")
    assert found["third"][0] == "done"
    found = survey(house(BUDGET="0.1"))
    assert [found[name][0] for name in found] == ["done", "changed", "done"]
    assert found["second"][1] == "bindings: tests.gin_toys.count.steps"


def shared(macros):
    """RECIPE with these macros for all stages, and none of the stages' own bindings."""
    text = RECIPE.replace("WIDTH = 3\n", "").replace("STOP_AT = -1\n", "")
    text = text.replace("  bindings = {'WIDTH': %WIDTH}\n", "")
    text = text.replace("  bindings = {'STOP_AT': %STOP_AT}\n", "")
    return text.replace("recipe.run.publish", f"recipe.run.macros = {macros}\nrecipe.run.publish")


def test_macros_of_the_recipe_reach_the_stages_that_refer_to_them(house):
    flags = house(shared("[{'WIDTH': 3, 'STOP_AT': 7}, {'STOP_AT': -1}]"))
    pretend_all_done(flags)
    loaded = recipe_file.load(flags)
    own = recipe_file.stage_flags(loaded, loaded.stages[1], flags, {}).overrides
    assert ("STOP_AT", "-1") in own and "WIDTH" not in dict(own)
    found = survey(house(shared("[{'WIDTH': 4, 'STOP_AT': -1}]")))
    assert [status for status, _ in found.values()] == ["changed", "changed", "done"]
    assert found["first"][1] == "bindings: tests.gin_toys.Size.width"


def test_a_stage_may_take_several_dictionaries_and_the_last_wins(house):
    pretend_all_done(house())
    shared_inputs = "SHARED = {'SOURCE': %first.text}\nrecipe.run.run_dir"
    text = RECIPE.replace("recipe.run.run_dir", shared_inputs, 1)
    text = text.replace("{'SOURCE': %first.text}\n  bind", "[%SHARED]\n  bind")
    text = text.replace("{'STOP_AT': %STOP_AT}", "[{'STOP_AT': 7}, {'STOP_AT': %STOP_AT}]")
    assert {status for status, _ in survey(house(text)).values()} == {"done"}
    with pytest.raises(ValueError, match="second/recipe.Stage.inputs must be dict, found 'x'"):
        recipe_file.load(house(text.replace("[%SHARED]", "[%SHARED, 'x']")))


def test_shared_inputs_are_declared(house, tmp_path):
    (tmp_path / "count.gin").write_text(
        COUNT.replace("  stop_at = %STOP_AT\n", "  folder = %FOLDER\n")
    )
    (tmp_path / "given").write_text("one")
    text = shared("[{'WIDTH': 3}]").replace(
        "recipe.run.publish",
        f"recipe.run.inputs = {{'FOLDER': '{tmp_path}/given'}}\nrecipe.run.publish",
    )
    pretend_all_done(house(text))
    (tmp_path / "given").write_text("other")
    found = survey(house(text))
    assert found["second"] == ("changed", "inputs: FOLDER")
    assert found["first"][0] == found["third"][0] == "done"


def test_a_stages_own_bindings_win(house):
    flags = house(
        RECIPE.replace(
            "recipe.run.publish", "recipe.run.macros = [{'STEPS': 9}]\nrecipe.run.publish"
        )
    )
    with pytest.raises(RecipeError, match="'STEPS': no stage refers to %STEPS without"):
        recipe_file.load(flags)


@pytest.mark.parametrize(
    ("macros", "message"),
    [
        ("[{'WIDHT': 3, 'STOP_AT': 1}]", "no stage refers to %WIDHT .*did you mean WIDTH"),
        ("[{'WIDTH': %first.text, 'STOP_AT': 1}]", "put the output of a stage under the inputs"),
        ("[3]", "recipe.run.macros must be dict"),
    ],
)
def test_macros_that_reach_nobody(house, macros, message):
    with pytest.raises(ValueError, match=message):
        recipe_file.load(house(shared(macros)))


def test_the_recipe_declares_the_inputs_it_names(house, tmp_path):
    (tmp_path / "count.gin").write_text(COUNT.replace("stage.run.inputs = [%SOURCE]\n", ""))
    pretend_all_done(house())
    assert survey(house(WIDTH="4"))["second"] == ("changed", "inputs: SOURCE")


def test_changed_code_is_named(house, monkeypatch):
    pretend_all_done(house())
    real = fingerprints.of_code

    def changed(roots, config, allow=()):
        parts = real(roots, config, allow)
        return parts | {"tests.gin_toys": "other"} if "count" in str(roots) else parts

    monkeypatch.setattr(fingerprints, "of_code", changed)
    found = survey(house())
    assert [found[name][0] for name in found] == ["done", "changed", "done"]
    assert found["second"][1] == "code: tests.gin_toys"


def test_budget_scales_whole_numbers(house):
    flags = house(BUDGET="0.3")
    loaded = recipe_file.load(flags)
    own = recipe_file.stage_flags(loaded, loaded.stages[1], flags, {"first": "f"})
    assert dict(own.overrides)["STEPS"] == "2"
    assert dict(own.overrides)["SOURCE"] == repr(os.path.join("runs", "first", "<text>"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%first.text", "%frist.text", "Stage second .*no stage 'frist'; did you mean first"),
        ("%first.text", "%first.txet", "stage first has no output 'txet'; did you mean text"),
        ("%first.text", "%third.text", "does not run before it"),
        ("%first.text", "%second.steps", "does not run before it"),
        ("%second.steps", "%second.setps", "publish: .*did you mean steps"),
        ("%second.steps", "'x'", "publish: 'x' must be a %stage.output"),
        ("{'STOP_AT': %STOP_AT}", "{'STOP_AT': %STOP_AT, 'X': %first.text}", "under inputs"),
        ("    @third/recipe.Stage(),\n", "", "third/recipe.Stage.entry is bound, but nothing"),
        ("@third/recipe.Stage(),", "@third/recipe.Stage(), @first/recipe.Stage(),", "twice"),
        ("@third/recipe.Stage(),", "@third/recipe.Stage,", "must be @name/recipe.Stage"),
        ("  entry = 'tests.gin_toys'\n", "", "Stage third lacks third/recipe.Stage.entry"),
        ("entry = 'tests.gin_toys'", "entry = 3", "third/recipe.Stage.entry must be str, found 3"),
        ("scaled = {'STEPS': 4}", "scaled = {'STEPS': 4.5}", "must be int, found 4.5"),
        ("scaled =", "scald =", "recipe.Stage has no parameter 'scald'; did you mean scaled"),
        ("recipe.run.run_dir = 'runs'\n", "", "lacks `recipe.run.run_dir"),
        ("recipe.run.budget = %BUDGET", "recipe.run.budget = 0", "macro BUDGET is set"),
        ("BUDGET = 1.0", "BUDGET = 0", "must be above 0, found 0"),
        (
            "@third/recipe.Stage(),",
            "@third/recipe.Row(),",
            "third/recipe.Stage.entry is bound, but",
        ),
        (
            "recipe.run.budget = %BUDGET",
            "recipe.run.budget = %BUDGET\nrecipe.run.stagse = @recipe.Row()\nrecipe.Row.name = 'x'",
            "recipe.run has no parameter 'stagse'; did you mean stages",
        ),
        (
            "'WIDTH': %WIDTH",
            "'WIDTH': %WIDTH, 'ROW': @recipe.Row()}\nrecipe.Row.name = {'name': 'x'",
            "a recipe binds recipe.run and recipe.Stage only",
        ),
        ("'tests.gin_toys'", "'tests.gin_tyos'", "No module 'tests.gin_tyos'"),
        ("'SOURCE': %first", "'SUORCE': %first", "%SOURCE has no value"),
        ("'WIDTH': %WIDTH", "'WIDHT': %WIDTH", "%WIDTH has no value"),
        ("@third/recipe.Stage(),\n]", "@third/recipe.Stage(),\n]\nrecipe.Row.name = 'x'", "bound"),
    ],
)
def test_what_does_not_fit_is_refused(house, old, new, message):
    assert old in RECIPE
    with pytest.raises((RecipeError, gin_reader.GinError, stage.StageError), match=message):
        survey(house(RECIPE.replace(old, new)))


def test_an_output_that_the_job_did_not_return(house):
    flags = house()
    pretend_all_done(flags)
    with pytest.raises(RecipeError, match="stage second returned no output 'lines'"):
        loaded = recipe_file.load(flags)
        recipe_file.output_path(loaded, recipe_file.Output("second", "lines"), {})


def test_a_stage_has_its_memory_in_huge_pages_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert recipe._environment()["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    assert recipe._environment()["GLIBC_TUNABLES"] == "glibc.malloc.check=1"


def start(**environment):
    """Starts the recipe as a user does, in a process of its own."""
    command = [sys.executable, "-m", "launch.recipe", "--gin_file=recipe.gin", "--gin_allow=tests"]
    env = os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)} | environment
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_runs_stops_and_continues_inside_a_stage(house):
    """SIGTERM to the recipe reaches the stage; the same command continues it, and then skips."""
    house(RECIPE.replace("STOP_AT = -1", "STOP_AT = 1"))
    process = start(TOY_STOPS_PARENT="1")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "stopped in stage second" in output
    assert not os.path.exists("runs/second/stage.json") and not os.path.exists("runs/third")

    process = start()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "all 3 stages done" in output, output
    with open("runs/summary.txt") as file:
        lines = [line.split() for line in file]
    assert [step for step, _ in lines] == ["0", "1", "2", "3"]
    assert len({process_id for _, process_id in lines}) == 2
    with open("runs/second/stage.json") as second, open("runs/first/stage.json") as first:
        assert json.load(second)["inputs"] == {"SOURCE": json.load(first)["fingerprint"]}

    process = start()
    output, _ = process.communicate(timeout=60)
    assert output.count("skipped") == 3


def test_a_stage_stopped_by_a_signal_of_its_own_leaves_the_recipe_undone(house):
    house(RECIPE.replace("STOP_AT = -1", "STOP_AT = 1"))
    process = start()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143 and "stopped in stage second" in output, output
    process = start()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "all 3 stages done" in output, output


def test_a_killed_recipe_takes_its_stage_along(house):
    house(RECIPE.replace("STOP_AT = -1", "STOP_AT = 1"))
    process = start(TOY_STOPS_PARENT="1", TOY_SIGNAL="KILL")
    process.communicate(timeout=60)  # returns when the stage, too, has closed the pipe
    assert process.returncode == -signal.SIGKILL
    assert not os.path.exists("runs/second/stage.json")


def test_a_failing_stage_ends_the_recipe(house, capfd):
    flags = house(RECIPE.replace("'gin_toys.Size.width': 5", "'gin_toys.Size.width': 'x'"))
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        assert recipe.run(flags) == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    output = capfd.readouterr()
    assert "stage third failed with exit code 1; the same command tries again" in output.out
    assert "gin_toys.Size.width must be int, found 'x'" in output.err


def test_code_that_changes_while_its_stage_runs(house, monkeypatch, capfd):
    flags = house()
    loaded, real = recipe_file.load(flags), fingerprints.of_code
    item = loaded.stages[0]
    planned = recipe_file.plan(loaded, item, flags, {})

    class Children(recipe.Children):
        edited = False

        def call(self, entry, own):
            if self.edited:
                planned.folder.mkdir(parents=True)
                (planned.folder / "out.txt").write_text("")
                stage.finish(planned, {"text": "out.txt"}, 1.0)
                parts = {"tests.gin_toys": "other"}
                monkeypatch.setattr(fingerprints, "of_code", lambda *a: real(*a) | parts)
            return 0

    children = Children()
    assert recipe._run(children, loaded, item, flags, planned) == 143  # nobody asked the recipe
    assert "stopped in stage first" in capfd.readouterr().out
    children.edited = True
    assert recipe._run(children, loaded, item, flags, planned) == 1
    assert "while stage first ran, what it is made from changed (code: tests.gin_toys)" in (
        capfd.readouterr().out
    )


def test_how_a_process_ended():
    assert recipe._ending(3) == "failed with exit code 3"
    assert recipe._ending(-9) == "was killed by SIGKILL (out of memory?)"
    assert recipe._ending(-15) == "was killed by SIGTERM"
