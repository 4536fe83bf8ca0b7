"""Companions of stages: they start with their stage, end with it, and fail aloud."""

import contextlib
import os
import signal
import subprocess
import types
from pathlib import Path

import pytest
from rich.console import Console

from launch import companions, recipe
from t5x_style.configuration import gin_checks
from t5x_style.configuration.gin_reader import GinError
from t5x_style.storage import errors
from t5x_style.workflow import making, recipe_planning, recipe_reader, stages
from t5x_style.workflow.recipe_stage import RecipeError
from tests.kits.recipe_kit import HEAD, MAKE
from tests.kits.recipe_kit import make_house as make_house  # a fixture
from tests.kits.toys import toy_companion
from tests.launch.test_recipe_runs import start

HEAR = HEAD + (
    "from t5x_style import stage\nfrom tests.kits.toys import toy_companion\n"
    "stage.run.job = @toy_companion.hear\nstage.run.inputs = [%SOURCE]\n"
    "toy_companion.hear:\n  folder = %MEET\n  source = %SOURCE\n"
)
RECIPE = (
    HEAD
    + """from launch import recipe
SAYS = 'size'
recipe.run.run_dir = 'runs'

first/recipe.Stage:
  gin_files = ['make.gin']
  bindings = {'WIDTH': 3}

heard/recipe.Stage:
  gin_files = ['hear.gin']
  inputs = {'SOURCE': %first.text}

"""
    + toy_companion.described("heard", "%first.text")
)


@pytest.fixture
def meeting(house):
    """`flags(recipe text, **macros)` of a recipe with a companion, in a separate folder."""
    Path("hear.gin").write_text(HEAR)
    Path("speak.gin").write_text(HEAD + toy_companion.SPEAK)
    Path("make.gin").write_text(MAKE)

    def flags(text=RECIPE, companions="here", **macros):
        found = house(text, **macros)
        return gin_checks.Flags(**vars(found) | {"companions": companions})

    flags()
    return flags


def finish(process):
    output, _ = process.communicate(timeout=90)
    return process.returncode, output


def test_a_companion_starts_and_ends_with_its_stage(meeting):
    code, output = finish(start())
    assert code == 0 and "all 2 stages done" in output, output
    said = Path("runs/heard/out.txt").read_text()
    assert said == f"{Path('runs/first/out.txt').read_text()} heard cpu"
    assert os.listdir("runs/voice") == ["pipe"], "where they met, under the companion's name"


def test_a_stage_that_is_done_starts_none(meeting):
    assert finish(start())[0] == 0
    Path("runs/voice/pipe").unlink()
    code, output = finish(start())
    assert code == 0 and output.count("skipped") == 2, output
    assert not os.path.exists("runs/voice/pipe")


@pytest.mark.parametrize(
    "says,code,said",
    [
        ("error", 1, "failed with exit code 1; correct what its message says"),
        pytest.param(
            "kill",
            137,
            "was killed by SIGKILL (out of memory?); the same command tries again",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_companion_that_fails_stops_its_stage_and_the_recipe(meeting, says, code, said):
    meeting(RECIPE.replace("'size'", repr(says)))
    found, output = finish(start())
    assert found == code, output
    assert f"error: companion voice of stage heard, now stopped, {said}" in output, output
    assert ("expected a voice, found none" in output) == (says == "error")
    assert not os.path.exists("runs/heard/stage.json")
    meeting()  # and the same command continues
    assert finish(start())[0] == 0


def test_a_killed_recipe_takes_both_along(meeting):
    """Its pipe ends when all three processes have closed it."""
    meeting(RECIPE.replace("'size'", "'end'"))
    process = start()
    output, _ = process.communicate(timeout=90)
    assert process.returncode == -signal.SIGKILL, output
    assert not os.path.exists("runs/heard/stage.json")


def test_a_stage_that_stops_ends_its_companion(meeting):
    meeting(RECIPE.replace("'size'", "'stop'"))
    code, output = finish(start())
    assert code == 143 and "stopped in stage heard" in output, output


def test_elsewhere_says_what_to_start_and_only_runs_that(meeting):
    trainer = start("--companions=elsewhere")
    helper = start("--companions=only", JAX_PLATFORMS="tpu")
    code, output = finish(trainer)
    assert code == 0 and "kennel run RECIPE ... --companions=only (voice)" in output, output
    assert Path("runs/heard/out.txt").read_text().endswith("tpu"), "it has the devices"
    code, output = finish(helper)
    assert code == 0 and "companion voice: stage heard is done" in output, output


def test_only_needs_a_companion_and_one_process(meeting, monkeypatch):
    text = RECIPE.partition("heard/")[0].replace("SAYS = 'size'\n", "")
    flags = meeting(text, companions="only")
    with pytest.raises(RecipeError, match="expected a recipe whose stages have companions"):
        recipe.run(flags)
    monkeypatch.setattr(recipe.pod, "read", lambda *_: object())
    monkeypatch.setattr(recipe.Children, "watch", lambda children: None)
    with pytest.raises(RecipeError, match="a companion runs on one host"):
        recipe.run(meeting(companions="only"))


def loaded(text):
    Path("recipe.gin").write_text(text)
    return recipe_reader.load(gin_checks.Flags(("recipe.gin",), (), allow=("tests",)))


def test_what_a_companion_is_called_with(meeting):
    flags = meeting(**{"voice/SAYS": "stop"})
    found = recipe_reader.load(flags)
    (voice,) = found.companions
    pending = recipe_planning.all_pending(found)
    values = dict(recipe_planning.companion_flags(found, voice, flags, pending).overrides)
    assert values == {
        "TEXTS": "'runs/first/<text>'", "SAYS": "'stop'", "MEET": "'runs/voice'",
        "STAGE": "'runs/heard'",
    }  # fmt: skip
    heard = recipe_planning.stage_flags(found, found.stages[1], flags, pending)
    assert dict(heard.overrides)["MEET"] == "'runs/voice'"
    elsewhere = recipe_reader.load(meeting(MEET="elsewhere"))
    assert {one.bindings["MEET"] for one in (*elsewhere.companions, elsewhere.stages[1])} == {
        "elsewhere"
    }


def test_a_dry_run_shows_it(meeting):
    flags = meeting()
    rows = recipe.survey(recipe_reader.load(flags), flags)
    assert [(row.name, row.status) for row in rows] == [
        ("first", "new"), ("heard", "new"), ("voice", "companion"),
    ]  # fmt: skip
    assert rows[-1].reason == "next to heard"
    flags = meeting(companions="only")
    rows = recipe.survey(recipe_reader.load(flags), flags)
    assert [(row.name, row.status) for row in rows] == [("voice", "companion")]


def test_where_they_meet_is_set_for_both(meeting):
    for name in ("voice/MEET", "heard/MEET", "heard/toy_companion.hear.folder"):
        with pytest.raises(RecipeError, match="MEET: expected one value .*without a stage's name"):
            recipe_reader.load(meeting(**{name: "'there'"}))
    both = {f"{name}/MEET": "'there'" for name in ("voice", "heard")}
    (voice,) = recipe_reader.load(meeting(**both)).companions
    assert voice.bindings["MEET"] == "there"


@pytest.mark.parametrize(
    "old,new,error,said",
    [
        ("stage = 'heard'", "stage = 'herd'", RecipeError, "no stage 'herd'.*heard"),
        ("voice/", "first/", RecipeError, "a stage has the same name"),
        ("@toy_companion.speak", "'speak'", GinError, "program must be a reference"),
        ("watches = 'STAGE'", "watches = 1", GinError, "watches must be a name, found 1"),
        ("stage = 'heard'", "stages = 'heard'", GinError, "no parameter 'stages'"),
        ("  inputs = {'TEXTS': %first", "  inputs = {'TEXTS': %heard", RecipeError, "before that"),
        ("voice/recipe.Companion", "voice/recipe.Stage", GinError, "no parameter 'stage'"),
    ],
)
def test_a_companion_that_does_not_fit_is_refused(meeting, old, new, error, said):
    assert old in RECIPE
    with pytest.raises(error, match=said):
        loaded(RECIPE.replace(old, new))


def test_names_and_types_of_a_companion_are_checked_before_a_stage_runs(meeting):
    flags = meeting(**{"voice/toy_companion.speak.says": "5"})
    with pytest.raises(RecipeError, match="speak.says must be str, found 5"):
        recipe.survey(recipe_reader.load(flags), flags)
    text = Path("speak.gin").read_text()
    Path("speak.gin").write_text(text + "SPOKEN = 1\n")
    with pytest.raises(RecipeError, match="macro SPOKEN is set, but nothing refers to"):
        recipe.survey(recipe_reader.load(meeting()), meeting())


def test_until_keeps_what_the_companion_of_a_stage_reads(meeting):
    flags = meeting(RECIPE.replace("'SOURCE': %first.text", "'SOURCE': 'make.gin'"))
    found = recipe_reader.load(gin_checks.Flags(**vars(flags) | {"until": "heard"}))
    assert [one.name for one in found.stages] == ["first", "heard"]
    found = recipe_reader.load(gin_checks.Flags(**vars(flags) | {"until": "first"}))
    assert found.companions == ()


def test_a_version_of_other_settings_has_not_begun(meeting):
    finish(start())
    flags = meeting(**{"first/WIDTH": "9"})
    found, known = recipe_reader.load(flags), recipe_planning.Known()
    planned = recipe_planning.plan(found, found.stages[0], flags, known)
    assert not companions.has_begun(planned), "its link leads to a version that is finished"


@contextlib.contextmanager
def first_stage_begun(flags):
    """The plan of a stage whose version this process makes inside."""
    found = recipe_reader.load(flags)
    planned = recipe_planning.plan(found, found.stages[0], flags, recipe_planning.Known())
    lease = planned.store.leases.acquire(planned.id, pytest.fail, lambda: None)
    try:
        making.begin(planned, stages.decide(planned), lease)
        yield planned
    finally:
        lease.release()


class StageProcess:
    """A stage that runs for three looks, or until it is terminated."""

    def __init__(self, pid):
        self.pid, self.looks, self.calls = pid, 0, []

    def wait(self, timeout=None):
        self.calls.append("wait")
        self.looks += 1
        if self.looks > 3 or timeout is None:
            return 0
        raise subprocess.TimeoutExpired("stage", timeout)

    def terminate(self):
        self.calls.append("terminate")


@pytest.fixture
def begun(monkeypatch):
    """The entries of companions that were started, which end at once."""
    found = []

    def started(entry, flags, variables):
        found.append(entry)
        return subprocess.Popen(["true"])

    monkeypatch.setattr(companions, "started", started)
    return found


VOICE = [(types.SimpleNamespace(name="voice", entry="voice"), None)]


def test_a_stage_that_waits_for_another_process_starts_no_companion(meeting, begun):
    with first_stage_begun(meeting()) as planned:
        assert companions.Alongside(planned, VOICE).wait(StageProcess(os.getppid())) == 0
        assert begun == [], "its version is made by this process"
        assert companions.Alongside(planned, VOICE).wait(StageProcess(os.getpid())) == 0
        assert begun == ["voice"]
    assert companions.Alongside(planned, VOICE).wait(StageProcess(os.getpid())) == 0
    assert begun == ["voice"], "nobody has the lease now"


def test_an_error_next_to_a_stage_lets_it_save(meeting, begun, monkeypatch):
    stage = StageProcess(os.getpid())
    monkeypatch.setattr(companions, "started", lambda *_: os.stat("/nowhere"))
    with first_stage_begun(meeting()) as planned, pytest.raises(FileNotFoundError):
        companions.Alongside(planned, VOICE).wait(stage)
    assert stage.calls == ["wait", "terminate", "wait"]


def test_an_outage_next_to_a_stage_is_survived(meeting, begun, monkeypatch, capsys):
    answers = iter([errors.Unreachable("away"), errors.Unreachable("away"), True])

    def is_made_by(*_):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(companions, "is_made_by", is_made_by)
    with first_stage_begun(meeting()) as planned:
        assert companions.Alongside(planned, VOICE).wait(StageProcess(0)) == 0
    assert begun == ["voice"] and capsys.readouterr().err.count("away") == 1


def test_only_reruns_nothing(meeting):
    flags = gin_checks.Flags(**vars(meeting(companions="only")) | {"rerun": ("heard",)})
    with pytest.raises(RecipeError, match="expected no --rerun, found --rerun=heard"):
        recipe_reader.load(flags)


class Stops:
    """Children that are asked to stop after some looks."""

    def __init__(self, looks):
        self.looks = looks

    @property
    def stopping(self):
        self.looks -= 1
        return self.looks < 0


def only(flags, console, monkeypatch, looks):
    monkeypatch.setattr(companions, "ASK_SECONDS", 0.0)
    found = recipe_reader.load(flags)
    assert companions.alone(found, flags, Stops(looks), console) is None


def test_only_says_again_what_it_waits_for(meeting, monkeypatch, capsys):
    monkeypatch.setattr(companions, "REMIND_SECONDS", 0.0)
    only(meeting(companions="only"), Console(soft_wrap=True), monkeypatch, looks=4)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1 and len(set(lines)) == 1
    assert lines[0] == (
        "companion voice: waits for stage first, made by a recipe with RUN_DIR=runs and the same "
        "settings"
    )


def test_only_survives_an_outage(meeting, monkeypatch, capsys):
    outage = iter([errors.Unreachable("away"), errors.Unreachable("away"), None])

    def refresh(*_):
        if error := next(outage, None):
            raise error

    monkeypatch.setattr(companions.remote_store, "refresh", refresh)
    only(meeting(companions="only"), Console(soft_wrap=True), monkeypatch, looks=8)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "companions: away; looking again" and "waits for" in lines[1]
    assert len(lines) == 2

    def forbidden(*_):
        raise errors.NoPermission("not yours")

    monkeypatch.setattr(companions.remote_store, "refresh", forbidden)
    with pytest.raises(errors.NoPermission):
        only(meeting(companions="only"), Console(), monkeypatch, looks=8)
