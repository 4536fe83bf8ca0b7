"""Strict gin: what is refused, with file, line and the closest name; nothing runs before that."""

import subprocess
import sys

import pytest

from t5x_style.configuration import code_checks, gin_checks, gin_reader, gin_text, gin_types
from t5x_style.configuration.gin_reader import GinError, Macro
from t5x_style.workflow import stages

HEAD = "from __gin__ import dynamic_registration\nfrom tests.kits import gin_toys\n"
ROOT = "tests.kits.gin_toys.build"
GOOD = HEAD + "WIDTH = 3\ngin_toys.build.size = @gin_toys.Size()\ngin_toys.Size.width = %WIDTH\n"

INPUTS = {
    "corpus": ["CORPUS"],
    "vocabulary": ["SENTENCE_FOLDER"],
    "languages": ["DOCUMENTS", "LANGUAGES"],
}


@pytest.fixture
def read(tmp_path, monkeypatch):
    """Writes the texts to a.gin, b.gin, ... and reads them with overrides."""
    monkeypatch.chdir(tmp_path)

    def read(*texts, **overrides):
        names = [f"{letter}.gin" for letter in "abc"[: len(texts)]]
        for name, text in zip(names, texts, strict=True):
            (tmp_path / name).write_text(text)
        pairs = [(name.replace("__", "."), value) for name, value in overrides.items()]
        return gin_reader.read(names, pairs, allow=["tests"])

    return read


def check(config):
    gin_checks.check_names(config, [ROOT])
    gin_checks.check_code(config)


def test_good_configuration_passes(read):
    config = read(GOOD)
    check(config)
    assert config.bindings["", "tests.kits.gin_toys.Size", "width"].where == "a.gin:5"
    assert config.expand(Macro("WIDTH"), "") == 3


def test_later_files_and_the_command_line_win(read):
    config = read(GOOD, "WIDTH = 4\n")
    assert config.expand(Macro("WIDTH"), "") == 4
    config = read(GOOD, "WIDTH = 4\n", WIDTH="5", gin_toys__Size__rate="1e-4")
    check(config)
    assert config.expand(Macro("WIDTH"), "") == 5
    assert config.bindings["", "tests.kits.gin_toys.Size", "rate"].value == 1e-4


@pytest.fixture
def flags(tmp_path, monkeypatch):
    """Flags of a.gin and, with a second text, of b.gin, and of overrides."""
    monkeypatch.chdir(tmp_path)

    def flags(text, second="", **overrides):
        (tmp_path / "a.gin").write_text(text)
        (tmp_path / "b.gin").write_text(second)
        pairs = tuple((name.replace("__", "."), value) for name, value in overrides.items())
        return gin_checks.Flags(("a.gin", "b.gin"), pairs, allow=("tests",))

    return flags


TWICE = GOOD.replace("WIDTH = 3", "WIDTH = %THREE\nTHREE = 3")


@pytest.mark.parametrize("text", [GOOD, TWICE])
def test_a_macro_of_a_file_goes_with_the_binding_that_used_it(flags, text):
    by_hand = flags(text, gin_toys__Size__width="4").read()
    by_file = flags(text, HEAD + "gin_toys.Size.width = 4\n").read()
    for config in (by_hand, by_file):
        check(config)
        assert not config.macros
    assert flags(gin_text.text_of(by_hand)).read().bindings.keys() == by_hand.bindings.keys()


def test_a_macro_that_something_else_uses_stays(flags):
    used = GOOD + "gin_toys.Size.rate = %WIDTH\n"
    config = flags(used, gin_toys__Size__width="4").read()
    assert config.expand(Macro("WIDTH"), "") == 3


def test_a_macro_of_the_command_line_must_have_a_use(flags):
    config = flags(GOOD, WIDTH="5", gin_toys__Size__width="4").read()
    with pytest.raises(GinError) as error:
        check(config)
    assert str(error.value) == (
        "command line --gin.WIDTH: macro WIDTH is set, but nothing refers to %WIDTH: "
        "gin_toys.Size.width at a.gin:5 was overridden"
    )


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("corpus", "alphabet_size", "999"),
        ("vocabulary", "split_case", "True"),
        ("languages", "split_case", "True"),
    ],
)
def test_parameters_of_tokenizers_can_be_bound_past_their_macros(file, name, value):
    words = [f"--gin_file=gin_configs/runs/tokenizers/{file}.gin"]
    words += [f"--gin.{macro}=m" for macro in ("MODEL_DIR", *INPUTS[file])]
    words += [f"--gin.tokenization.train_tokenizer.{name}={value}"]
    config = gin_checks.parse_flags(words).read()
    gin_checks.check_names(config, (gin_reader.RUN, stages.job_of(config)))
    gin_checks.check_code(config)


def test_a_source_of_a_tokenizer_can_be_wrapped(tmp_path):
    (tmp_path / "chunks.gin").write_text(
        "from __gin__ import dynamic_registration\n"
        "from input_pipelines.sources import beir\n"
        "from input_pipelines.sources import passage_splitter\n"
        "from input_pipelines.tokenizers import tokenization\n"
        "tokenization.train_tokenizer.source = @passage_splitter.Chunked()\n"
        "passage_splitter.Chunked:\n  source = @beir.BeirCorpus()\n  words = 9\n  min_words = 1\n"
    )
    words = [
        "--gin_file=gin_configs/runs/tokenizers/corpus.gin",
        f"--gin_file={tmp_path}/chunks.gin",
    ]
    config = gin_checks.parse_flags([*words, "--gin.MODEL_DIR=m", "--gin.CORPUS=c"]).read()
    gin_checks.check_names(config, (gin_reader.RUN, stages.job_of(config)))
    gin_checks.check_code(config)


def test_includes_are_followed(read, tmp_path):
    (tmp_path / "base.gin").write_text(GOOD)
    check(read("include 'base.gin'\nWIDTH = 7\n"))


def test_the_line_of_dynamic_registration_may_be_left_out(read):
    check(read(GOOD.replace("from __gin__ import dynamic_registration\n", "")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + "import os\n", r"a.gin:3: a gin file may not import 'os'.*--gin_allow=os"),
        (GOOD + "WIDTH = 4\n", "a.gin:6: WIDTH is already bound at a.gin:3"),
        (GOOD + "gin_toys.Size.width = 4\n", "a.gin:6: gin_toys.Size.width is already bound"),
        (GOOD + "gin_toys.Size.width 4\n", "a.gin:6: not gin"),
        (GOOD + "X = [1, 2\n", "a.gin:.*: not gin"),
        ("include 'a.gin'\n", "a.gin:1: 'a.gin' includes itself"),
        ("include 'none.gin'\n", "a.gin:1: no gin file 'none.gin'"),
    ],
)
def test_reading_refuses(read, text, message):
    with pytest.raises(GinError, match=message):
        read(text)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gin_toys.Size.rate = %RTAE\nRATE = 1.0", "a.gin:6: %RTAE has no value.*mean RATE"),
        ("gin_toys.Size.rate = %MODEL_DIR", "pass --gin.MODEL_DIR=VALUE$"),
        ("WIDHT = 4", "a.gin:6: macro WIDHT is set, but nothing.*mean WIDTH"),
        ("A = %B\nB = %A\ngin_toys.Size.rate = %A", "cycle: %A -> %B -> %A"),
        ("gin_toy.Size.rate = 1.0", "a.gin:6: 'gin_toy' in .* nor imported.*mean gin_toys"),
        ("gin_toys.build.make = @gin_toy.make", "a.gin:6: 'gin_toy' in .* nor imported"),
        ("other/gin_toys.Size.rate = 1.0", "a.gin:6: other/gin_toys.Size.rate is bound, but"),
        ("gin_toys.make.size = None", "a.gin:6: gin_toys.make.size is bound, but nothing"),
        ("X/gin.macro.value = 1", "a.gin:6: write NAME = value"),
        ("RATE = %gin.REQUIRED\ngin_toys.Size.rate = %RATE", "RATE has no value.*--gin.RATE="),
        ("gin_toys.Size.rate = %gin.REQUIRED", "--gin.gin_toys.Size.rate="),
    ],
)
def test_names_are_checked(read, line, message):
    with pytest.raises(GinError, match=message):
        gin_checks.check_names(read(GOOD + line + "\n"), [ROOT])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("gin_toys.build.make = @gin_toys.mkae", "a.gin:6: .*has no 'mkae'.*mean make"),
        ("gin_toys.Size.raet = 1.0", "a.gin:6: gin_toys.Size has no parameter 'raet'.*mean rate"),
        ("gin_toys.Size.rate = '1e-4'", "a.gin:6: gin_toys.Size.rate must be float, found '1e-4'"),
        ("gin_toys.Size.rate = True", "must be float, found True"),
        ("gin_toys.Size.kind = 'smal'", "not one of .*mean small"),
        ("gin_toys.build.words = ['a']", "must be tuple.*found .*a list"),
        ("gin_toys.build.words = ('a', 1)", "1 inside is a int"),
        ("gin_toys.build.table = {'a': 'b'}", "a dict"),
        ("gin_toys.build.pair = (1, 'a', 2)", "3 elements instead of 2"),
        ("gin_toys.build.make = 'gin_toys.make'", "a str"),
        ("gin_toys.build.flag = 1", "must be bool, found 1"),
        ("gin_toys.build.items = [@x/gin_toys.build]\nx/gin_toys.build.size = None", "None"),
    ],
)
def test_code_is_checked(read, line, message):
    with pytest.raises(GinError, match=message):
        check(read(GOOD + line + "\n"))


def test_a_called_reference_must_be_complete_and_of_the_right_class(read):
    text = HEAD + "gin_toys.build.size = @gin_toys.Size()\n"
    with pytest.raises(GinError, match=r"@gin_toys.Size\(\) needs 'width'.*gin_toys.Size.width"):
        check(read(text))
    hint = gin_types.annotations(code_checks.locate(ROOT, ""))["size"]
    wrong = gin_reader.Reference("gin_toys.Named", "", "tests.kits.gin_toys.Named", True)
    problem = gin_types.mismatch(wrong, hint, lambda r: code_checks.locate(r.target, ""))
    assert problem == "@...() gives Named"


def test_good_values_of_every_kind(read):
    lines = """
gin_toys.Size.rate = 1
gin_toys.build:
  words = ('a', 'b')
  table = {'a': 1, 'b': None}
  make = @gin_toys.make
  pair = (2, 'b')
  items = [@gin_toys.Size(), @gin_toys.Size()]
  flag = True
"""
    config = read(GOOD + lines + "gin_toys.make.model_dir = 'x'\n")
    gin_checks.check_names(config, [ROOT])
    assert list(code_checks.problems(config)) == []


def test_scopes_reach_what_gin_would_reach(read):
    text = HEAD + (
        "gin_toys.build.size = @big/gin_toys.Size()\nbig/gin_toys.Size.width = 9\n"
        "gin_toys.Size.rate = 0.5\n"
    )
    check(read(text))


def test_missing_modules_are_named():
    with pytest.raises(GinError, match="here: no module 'nonexistent'"):
        code_checks.locate("nonexistent.thing", "here")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-4", 1e-4),
        ("runs/mine", "runs/mine"),
        ("/x", "/x"),
        ("'q'", "q"),
        ("2024-01-01", "2024-01-01"),
        ("v5e:8x8", "v5e:8x8"),
        ("None", None),
        ("(1, 2)", (1, 2)),
        ("%FOO", Macro("FOO")),
        ("", ""),
    ],
)
def test_bare_strings_on_the_command_line(text, value):
    assert gin_reader.override_value(text, None, "") == value


def test_half_a_value_is_no_string():
    with pytest.raises(GinError, match=r"command line: '\[1,' is not a gin value"):
        gin_reader.override_value("[1,", None, "command line")


def test_flags_round_trip():
    argv = [
        "--gin_file=a",
        "--gin_file=b",
        "--gin.X=a=b",
        "--gin_search_paths=.,q",
        "--gin_allow=t",
    ]
    flags = gin_checks.parse_flags(argv)
    assert flags.files == ("a", "b") and flags.overrides == (("X", "a=b"),)
    assert gin_checks.parse_flags(flags.arguments()) == flags
    with pytest.raises(GinError, match="write --gin.X=VALUE"):
        gin_checks.parse_flags(["--gin.X"])


def test_values_are_written_as_they_are_read():
    for text in ("{'a': [1, (2,), %B], 'c': @s/x.y()}", "()", "[None, -1.5, 'it\\'s']"):
        value = gin_reader.parse_value(text)
        assert gin_reader.parse_value(gin_reader.to_gin(value)) == value


def test_reading_imports_no_jax():
    code = (
        "import sys; from t5x_style import stage; import launch.recipe; "
        "sys.exit(bool({'jax', 'tensorflow', 'flax'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=gin_reader.REPOSITORY).returncode == 0
