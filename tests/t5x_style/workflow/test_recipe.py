"""Recipes: references, order, what a change re-runs, stopping anywhere and continuing."""

import os

import pytest

from launch import children, recipe
from t5x_style.configuration import gin_checks, gin_reader, renames
from t5x_style.workflow import (
    fingerprints,
    recipe_checks,
    recipe_planning,
    recipe_problems,
    recipe_reader,
    recipe_values,
    stages,
)
from t5x_style.workflow.recipe_reader import RecipeError
from t5x_style.workflow.store import StoreError
from tests.kits import store_kit
from tests.kits.recipe_kit import COUNT, HEAD, MAKE, RECIPE, make_house  # noqa: F401  a fixture


@pytest.fixture(autouse=True)
def without_imports(monkeypatch):
    """What recipes say of types and ranges is in test_recipe_checks.py."""
    monkeypatch.setattr(recipe_checks, "problems_of", lambda commands: ())


def survey(flags):
    rows = recipe.survey(recipe_reader.load(flags), flags)
    return {row.name: (row.status, row.reason) for row in rows}


def pretend_all_done(flags):
    """Makes the versions that three finished stages would leave, without running them."""
    loaded, known = recipe_reader.load(flags), recipe_planning.Known()
    for item, name in zip(loaded.stages, ("text", "steps", "text"), strict=True):
        planned = recipe_planning.plan(loaded, item, flags, known)
        known.done[item.name] = store_kit.finished(planned, {"file": ""}, {name: "file"})
    return loaded, known


def test_dry_run_of_a_new_recipe(house, capsys):
    assert recipe.run(gin_checks.Flags(**vars(house()) | {"dry_run": True})) == 0
    output = capsys.readouterr().out
    assert output.count("never ran") == 2 and "after first" in output
    assert "store: .store" in output and not os.path.exists("runs")


def test_a_change_makes_exactly_what_depends_on_it(house):
    pretend_all_done(house())
    assert {status for status, _ in survey(house()).values()} == {"done"}
    found = survey(house(WIDTH="4"))
    assert found["first"] == ("changed", "size.width 3 -> 4")
    assert found["second"] == ("new", "after first")
    assert found["third"][0] == "done"
    found = survey(house(BUDGET="0.1"))
    assert [found[name][0] for name in found] == ["done", "changed", "done"]
    assert found["second"][1] == "steps 4 -> 1"


def test_runs_share_versions(house):
    pretend_all_done(house())
    other = house(RECIPE.replace("run_dir = 'runs'", "run_dir = 'others'"))
    assert {status for status, _ in survey(other).values()} == {"done"}
    apart = gin_checks.Flags(**vars(house()) | {"overrides": (("STORE", "elsewhere"),)})
    with pytest.raises(StoreError, match=r"points to .*, outside of the store elsewhere"):
        survey(apart)
    assert not os.path.exists("elsewhere")


def shared(macros):
    """RECIPE with these macros for all stages, and none of the stages' own bindings."""
    text = RECIPE.replace("WIDTH = 3\n", "").replace("STOP_AT = -1\n", "")
    text = text.replace("  bindings = {'WIDTH': %WIDTH}\n", "")
    text = text.replace("  bindings = {'STOP_AT': %STOP_AT}\n", "")
    return text.replace("recipe.run.publish", f"recipe.run.macros = {macros}\nrecipe.run.publish")


def test_macros_of_the_recipe_reach_the_stages_that_refer_to_them(house):
    flags = house(shared("[{'WIDTH': 3, 'STOP_AT': 7}, {'STOP_AT': -1}]"))
    loaded, known = pretend_all_done(flags)
    own = recipe_planning.stage_flags(loaded, loaded.stages[1], flags, known).overrides
    assert ("STOP_AT", "-1") in own and "WIDTH" not in dict(own)
    found = survey(house(shared("[{'WIDTH': 4, 'STOP_AT': -1}]")))
    assert [status for status, _ in found.values()] == ["changed", "new", "done"]
    assert found["first"][1] == "size.width 3 -> 4"


def test_a_stage_may_take_several_dictionaries_and_the_last_wins(house):
    pretend_all_done(house())
    shared_inputs = "SHARED = {'SOURCE': %first.text}\nrecipe.run.run_dir"
    text = RECIPE.replace("recipe.run.run_dir", shared_inputs, 1)
    text = text.replace("{'SOURCE': %first.text}\n  bind", "[%SHARED]\n  bind")
    text = text.replace("{'STOP_AT': %STOP_AT}", "[{'STOP_AT': 7}, {'STOP_AT': %STOP_AT}]")
    assert {status for status, _ in survey(house(text)).values()} == {"done"}
    with pytest.raises(ValueError, match="second/recipe.Stage.inputs must be dict, found 'x'"):
        recipe_reader.load(house(text.replace("[%SHARED]", "[%SHARED, 'x']")))


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
    assert found["second"][0] == "changed" and "folder input given sha256" in found["second"][1]
    assert found["first"][0] == found["third"][0] == "done"


def test_a_stages_own_bindings_win(house):
    flags = house(
        RECIPE.replace(
            "recipe.run.publish", "recipe.run.macros = [{'STEPS': 9}]\nrecipe.run.publish"
        )
    )
    with pytest.raises(gin_reader.GinError, match="'STEPS': no stage refers to %STEPS without"):
        recipe_reader.load(flags)


def test_a_macro_of_the_recipe_reaches_the_stages_that_refer_to_it(house):
    text = RECIPE.replace("  bindings = {'WIDTH': %WIDTH}\n", "")
    loaded, _ = pretend_all_done(house(text.replace("  bindings = {'STOP_AT': %STOP_AT}\n", "")))
    assert [item.bindings for item in loaded.stages] == [
        {"WIDTH": 3},
        {"STOP_AT": -1},
        {"gin_toys.Size.width": 5},
    ]
    assert {status for status, _ in survey(house()).values()} == {"done"}  # as if bound
    found = survey(house(text, WIDTH="4"))
    assert found["first"] == ("changed", "size.width 3 -> 4")


def test_a_macro_that_no_recipe_names_is_set_on_the_command_line(house, tmp_path):
    """And files' own macros that lead to it: %WIDTH is %HALF here."""
    (tmp_path / "make.gin").write_text(MAKE + "WIDTH = %HALF\nHALF = 3\n")
    text = RECIPE.replace("WIDTH = 3\n", "").replace("  bindings = {'WIDTH': %WIDTH}\n", "")
    assert dict(recipe_reader.load(house(text, HALF="7")).stages[0].bindings) == {"HALF": 7}
    # What a given macro would have led to is not asked for.
    both = house(text, HALF="7", WIDTH="8")
    with pytest.raises(gin_reader.GinError, match="macro HALF is set, but nothing refers to"):
        recipe_reader.load(both)


def test_an_output_is_an_input_wherever_it_is_written(house):
    """A macro of the recipe may be an output; the gin files say that it is a path."""
    text = RECIPE.replace("  inputs = {'SOURCE': %first.text}\n", "")
    given = text.replace("WIDTH = 3\n", "WIDTH = 3\nSOURCE = %first.text\n")
    assert str(recipe_reader.load(house(given)).stages[1].inputs["SOURCE"]) == "%first.text"
    by_run = text.replace(
        "recipe.run.publish", "recipe.run.inputs = {'SOURCE': %first.text}\nrecipe.run.publish"
    )
    pretend_all_done(house(by_run))
    assert {status for status, _ in survey(house()).values()} == {"done"}
    path = text.replace("WIDTH = 3\n", "WIDTH = 3\nSOURCE = 'recipe.gin'\n")
    assert recipe_reader.load(house(path)).stages[1].inputs == {"SOURCE": "recipe.gin"}


def test_stages_run_in_the_order_of_their_references(house):
    """Whatever the order in which they are described; a program that a job declares runs it."""
    first, second, third = (RECIPE.index(f"{name}/recipe") for name in ("first", "second", "third"))
    turned = RECIPE[:first] + RECIPE[third:] + "\n" + RECIPE[second:third] + RECIPE[first:second]
    loaded = recipe_reader.load(house(turned))
    assert [item.name for item in loaded.stages] == ["third", "first", "second"]
    assert [item.entry for item in loaded.stages] == ["t5x_style.stage"] * 3
    assert loaded.stages[1].job == "tests.kits.gin_toys.make"


def test_what_older_recipes_set_has_a_note(house, capsys, monkeypatch):
    monkeypatch.setattr(renames, "_noted", set())
    old = RECIPE.replace("recipe.run.publish", "recipe.run.stages = []\nrecipe.run.publish")
    old = old.replace("  gin_files = ['make.gin']", "  entry = 'x'\n  gin_files = ['make.gin']")
    assert len(recipe_reader.load(house(old)).stages) == 3
    said = capsys.readouterr().err
    assert "recipe.gin:8: recipe.run.stages has no effect any more: stages run in the order" in said
    assert "recipe.Stage.entry has no effect any more: a job declares the program" in said


@pytest.mark.parametrize(
    ("macros", "message"),
    [
        ("[{'WIDHT': 3, 'STOP_AT': 1}]", "no stage refers to %WIDHT .*did you mean WIDTH"),
        ("[{'WIDTH': %third.txet, 'STOP_AT': 1}]", "third has no output 'txet'"),
        ("[3]", "recipe.run.macros must be dict"),
    ],
)
def test_macros_that_reach_nobody(house, macros, message):
    with pytest.raises(ValueError, match=message):
        recipe_reader.load(house(shared(macros)))


def test_the_recipe_declares_the_inputs_it_names(house, tmp_path):
    (tmp_path / "count.gin").write_text(COUNT.replace("stage.run.inputs = [%SOURCE]\n", ""))
    pretend_all_done(house())
    assert survey(house(WIDTH="4"))["second"] == ("new", "after first")
    loaded, problems = recipe_reader.load(house()), recipe_problems.Problems(house().read_all())
    known = recipe_planning.look_up(loaded, house(), problems)[0]
    problems.refuse()
    planned = recipe_planning.plan(loaded, loaded.stages[1], house(), known)
    assert planned.inputs.versions == (known.done["first"].id,)


def test_changed_code_is_reported_and_counts_where_asked(house, monkeypatch, capsys):
    pretend_all_done(house())
    real = fingerprints.of_code

    def changed(roots, config, allow=()):
        parts = real(roots, config, allow)
        return parts | {"tests.kits.gin_toys": "other"} if "count" in str(roots) else parts

    monkeypatch.setattr(fingerprints, "of_code", changed)
    assert {status for status, _ in survey(house()).values()} == {"done"}
    assert recipe.execute(recipe_reader.load(house()), house()) == 0
    output = capsys.readouterr().out
    assert output.count("code has changed since it was made (tests.kits.gin_toys)") == 1
    found = survey(gin_checks.Flags(**vars(house()) | {"strict_code": True}))
    assert [found[name][0] for name in found] == ["done", "code", "done"]
    assert found["second"][1] == "made by other code: tests.kits.gin_toys"


def test_rerun_names_a_stage(house):
    flags = gin_checks.Flags(**vars(house()) | {"rerun": ("second",)})
    loaded, known = pretend_all_done(house())
    found = survey(flags)
    assert [found[name][0] for name in found] == ["done", "rerun", "done"]
    words = recipe_planning.stage_flags(loaded, loaded.stages[1], flags, known).arguments()
    assert "--rerun=second" in words
    words = recipe_planning.stage_flags(loaded, loaded.stages[0], flags, known).arguments()
    assert "--rerun=second" not in words
    wrong = gin_checks.Flags(**vars(house()) | {"rerun": ("secnod",), "dry_run": True})
    with pytest.raises(RecipeError, match="no such stage; did you mean second"):
        recipe.run(wrong)


def test_settings_of_the_store_reach_the_stages(house):
    flags = house(STORE="'deep/store'", STORE_LIMIT="'2GB'")
    loaded = recipe_reader.load(flags)
    own = dict(
        recipe_planning.stage_flags(
            loaded, loaded.stages[0], flags, recipe_planning.all_pending(loaded)
        ).overrides
    )
    assert own["stage.run.store"] == "'deep/store'" and own["stage.run.store_limit"] == "'2GB'"
    with pytest.raises(ValueError, match="STORE_LIMIT: expected a size such as '200GB'"):
        recipe_reader.load(house(STORE_LIMIT="'much'"))


def test_budget_scales_whole_numbers(house):
    flags = house(BUDGET="0.3")
    loaded = recipe_reader.load(flags)
    known = recipe_planning.all_pending(loaded)
    own = recipe_planning.stage_flags(loaded, loaded.stages[1], flags, known)
    assert dict(own.overrides)["STEPS"] == "2"
    assert dict(own.overrides)["SOURCE"] == repr(os.path.join("runs", "first", "<text>"))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%first.text", "%frist.text", "Stage second .*no stage 'frist'; did you mean first"),
        ("%first.text", "%first.txet", "stage first has no output 'txet'; did you mean text"),
        ("%first.text", "%second.steps", "wait for each other: second reads second"),
        ("%second.steps", "%second.setps", "published: .*did you mean steps"),
        ("%second.steps", "'x'", "publish: 'x' must be a %stage.output"),
        ("{'STOP_AT': %STOP_AT}", "{'STOP_AT': %STOP_AT, 'X': %first.text}", "under inputs"),
        (
            "  gin_files = ['make_alone.gin']\n",
            "",
            "stage third lacks third/recipe.Stage.kind or .gin_files",
        ),
        ("  gin_files = ['make_alone.gin']", "  gin_files = 'x'", "must be list or tuple, found"),
        ("  gin_files = ['make_alone.gin']", "  kind = 'x'", "Stage.kind: no kind 'x'"),
        ("  gin_files = ['make_alone.gin']", "  gin_files = ['count.gin']", "%SOURCE has no value"),
        ("scaled = {'STEPS': 4}", "scaled = {'STEPS': 4.5}", "must be int, found 4.5"),
        ("scaled = {'STEPS': 4}", "scaled = {'STEPS': -4}", "must be 0 or more, found -4"),
        ("BUDGET = 1.0", "BUDGET = -1", "must be above 0, found -1"),
        ("BUDGET = 1.0", "BUDGET = 1e999", "must be above 0, found inf"),
        ("scaled =", "scald =", "recipe.Stage has no parameter 'scald'; did you mean scaled"),
        ("recipe.run.run_dir = 'runs'\n", "", "No folder to write to: pass --gin.RUN_DIR=PATH"),
        ("recipe.run.budget = %BUDGET", "recipe.run.budget = 0", "must be above 0, found 0"),
        ("BUDGET = 1.0", "BUDGET = 0", "must be above 0, found 0"),
        (
            "recipe.run.budget = %BUDGET",
            "recipe.run.budget = %BUDGET\nrecipe.run.budgte = 1",
            "recipe.run has no parameter 'budgte'; did you mean budget",
        ),
        (
            "'WIDTH': %WIDTH",
            "'WIDTH': %WIDTH, 'ROW': @recipe.Row()}\nrecipe.Row.name = {'name': 'x'",
            "a recipe binds recipe.run, recipe.Stage, recipe.Companion and recipe.Kind",
        ),
        ("'SOURCE': %first", "'SUORCE': %first", "%SOURCE has no value"),
        ("'WIDTH': %WIDTH", "'WIDHT': %WIDTH", "WIDHT"),
    ],
)
def test_what_does_not_fit_is_refused(house, old, new, message):
    assert old in RECIPE
    with pytest.raises((RecipeError, gin_reader.GinError, stages.StageError), match=message):
        survey(house(RECIPE.replace(old, new)))


def test_an_output_that_the_job_did_not_return(house):
    loaded, known = pretend_all_done(house())
    with pytest.raises(RecipeError, match="stage second returned no output 'lines'"):
        recipe_planning.output_path(loaded, recipe_values.Output("second", "lines"), known)


def test_a_stage_has_its_memory_in_huge_pages_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    assert children._environment()["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=1")
    assert children._environment()["GLIBC_TUNABLES"] == "glibc.malloc.check=1"


@pytest.mark.parametrize(
    ("most", "cores", "given", "expected"),
    [
        (1, 8, None, None),
        (4, 1, None, None),
        (4, 2, None, "--xla_force_host_platform_device_count=2"),
        (4, 8, None, "--xla_force_host_platform_device_count=4"),
        (6, 7, "--xla_x=1", "--xla_x=1 --xla_force_host_platform_device_count=4"),
        (4, 8, "--xla_force_host_platform_device_count=1", None),
    ],
)
def test_a_cpu_counts_as_several_devices(monkeypatch, most, cores, given, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    if given:
        monkeypatch.setenv("XLA_FLAGS", given)
    found = children.virtual_devices(most)
    assert found == ({} if expected is None else {"XLA_FLAGS": expected})


def test_a_recipe_says_as_how_many_devices_a_cpu_counts(house):
    assert recipe_reader.load(house()).cpu_devices == 1
    assert recipe_reader.load(house("CPU_DEVICES = 4\n" + RECIPE)).cpu_devices == 4
    for value in ("0", "'two'"):
        with pytest.raises(gin_reader.GinError, match="CPU_DEVICES"):
            recipe_reader.load(house(f"CPU_DEVICES = {value}\n" + RECIPE))


def test_code_that_changes_while_its_stage_runs(house, monkeypatch, capfd):
    flags = gin_checks.Flags(**vars(house()) | {"strict_code": True})
    loaded, real = recipe_reader.load(flags), fingerprints.of_code
    item, known = loaded.stages[0], recipe_planning.Known()
    planned = recipe_planning.plan(loaded, item, flags, known)

    class Children(recipe.Children):
        edited = False

        def call(self, entry, own, wait):
            if self.edited:
                store_kit.finished(planned, {"out.txt": ""}, {"text": "out.txt"})
                parts = {"tests.kits.gin_toys": "other"}
                monkeypatch.setattr(fingerprints, "of_code", lambda *a: real(*a) | parts)
            return 0

    child = Children()
    # nobody asked the recipe
    assert recipe._run(child, loaded, item, flags, planned, known) == 143
    assert "stopped in stage first" in capfd.readouterr().out
    child.edited = True
    assert recipe._run(child, loaded, item, flags, planned, known) == 1
    assert "while stage first ran, what it is made from changed (code tests.kits.gin_toys)" in (
        capfd.readouterr().out
    )


@pytest.mark.parametrize(("code", "expected"), [(-6, 134), (-9, 137), (3, 1), (134, 1)])
def test_a_killed_stage_is_distinguished_from_one_that_failed(house, code, expected):
    """What restarts a run must know whether the same command may succeed."""
    flags = house()
    loaded, known = recipe_reader.load(flags), recipe_planning.Known()
    item = loaded.stages[0]
    planned = recipe_planning.plan(loaded, item, flags, known)

    class Children(recipe.Children):
        def call(self, entry, flags, wait):
            return code

    assert recipe._run(Children(), loaded, item, flags, planned, known) == expected


def test_how_a_process_ended():
    assert recipe._ending(3) == "failed with exit code 3"
    assert recipe._ending(-9) == "was killed by SIGKILL (out of memory?)"
    assert recipe._ending(-15) == "was killed by SIGTERM"
