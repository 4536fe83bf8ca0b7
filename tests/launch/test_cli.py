"""The command line: words become flags of the parts, wrong ones a line that says what to write."""

import ast
import json
import re
import shlex
import subprocess
import sys
from importlib import metadata

import pytest

from launch import cli, commands, words
from launch.commands import COMMANDS, UsageError
from t5x_style import gc, runs
from t5x_style.configuration import gin_checks
from t5x_style.configuration.gin_reader import REPOSITORY, Macro, override_value
from t5x_style.workflow import collection, links

BEIR = "--gin_file=gin_configs/recipes/beir.gin"
HEAVY = {"jax", "jaxlib", "flax", "tensorflow", "numpy", "scipy", "rich", "absl", "gin"}


def printed(capsys, *argv):
    """The exit code, and what was printed, of a command line that runs no part."""
    with pytest.raises(SystemExit) as ended:
        cli.python_arguments(argv)
    return ended.value.code, capsys.readouterr()


def refused(*argv):
    """The message of a command line that is refused."""
    with pytest.raises(UsageError) as refusal:
        cli.python_arguments(argv)
    message = str(refusal.value)
    assert "\n" not in message
    return message


def kennel(*argv):
    command = [sys.executable, "-m", "launch.cli", *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=REPOSITORY)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("run beir CORPUS=a/b", ["launch.recipe", BEIR, "--gin.CORPUS=a/b"]),
        (
            "run beir A=1 --gin.B=2 --dry_run C=3",
            ["launch.recipe", BEIR, "--gin.A=1", "--gin.B=2", "--dry_run", "--gin.C=3"],
        ),
        (
            "run --rerun report --strict_code beir",
            ["launch.recipe", BEIR, "--rerun", "report", "--strict_code"],
        ),
        (
            "run mine/my.gin --gin_file more.gin --gin_allow=mine",
            [
                "launch.recipe",
                "--gin_file=mine/my.gin",
                "--gin_file",
                "more.gin",
                "--gin_allow=mine",
            ],
        ),
        ("run beir.gin", ["launch.recipe", BEIR]),
        ("run --gin_file=a.gin --gin.X=1", ["launch.recipe", "--gin_file=a.gin", "--gin.X=1"]),
        (
            "run beir prepare/prepare.prepare.max_bad_records=1",
            ["launch.recipe", BEIR, "--gin.prepare/prepare.prepare.max_bad_records=1"],
        ),
        (
            "sweep rates CORPUS=a/b --dry_run sweep.run.workers=2",
            [
                "launch.sweep",
                "--gin_file=gin_configs/sweeps/rates.gin",
                "--gin.CORPUS=a/b",
                "--dry_run",
                "--gin.sweep.run.workers=2",
            ],
        ),
        ("sweep mine/my.gin --report", ["launch.sweep", "--gin_file=mine/my.gin", "--report"]),
        (
            "preflight beir --topology v5e:8x8 QUERIES=32",
            ["t5x_style.preflight", BEIR, "--topology", "v5e:8x8", "--gin.QUERIES=32"],
        ),
        ("search --run=runs/a -k 3 a=b", ["t5x_style.search", "--run=runs/a", "-k", "3", "a=b"]),
        ("evaluate --gin_file=a X=1", ["t5x_style.evaluate", "--gin_file=a", "--gin.X=1"]),
        ("export --gin_file=a X=1", ["t5x_style.export", "--gin_file=a", "--gin.X=1"]),
        (
            "health runs/a --reference=runs/b",
            ["t5x_style.health", "runs/a", "--reference=runs/b"],
        ),
        (
            "tpu up beir STEPS=3 --slice=v5e:2x4 --spot",
            ["launch.tpu_vm", "up", BEIR, "--gin.STEPS=3", "--slice=v5e:2x4", "--spot"],
        ),
        ("tpu delete --name=mine", ["launch.tpu_vm", "delete", "--name=mine"]),
        (
            "gke beir STEPS=3 --slice=v5e:4x4 --image=a --print",
            ["launch.gke", BEIR, "--gin.STEPS=3", "--slice=v5e:4x4", "--image=a", "--print"],
        ),
        ("runs list runs/a", ["t5x_style.runs", "list", "runs/a"]),
        ("gc --delete --days 3", ["t5x_style.gc", "--delete", "--days", "3"]),
        ("completion bash", ["launch.completion", "bash"]),
    ],
)
def test_words_become_the_flags_of_the_part(argv, expected):
    assert cli.python_arguments(argv.split()) == ["-m", *expected]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-1", -1), ("1e-4", 1e-4), ("True", True), ("None", None), ("[1, 2]", [1, 2]),
        ("{'a': 1}", {"a": 1}), ("%SEED", Macro("SEED")), ("'3'", "3"), ('"3"', "3"), ("''", ""),
        ("a/b", "a/b"), ("/abs/path", "/abs/path"), ("gs://bucket/a", "gs://bucket/a"),
        ("two words", "two words"), ("true", "true"), ("2024-01-01", "2024-01-01"), ("007", "007"),
        ("v5e:8x8", "v5e:8x8"), ("it's", "it's"), ("a=b", "a=b"), ("1,2", "1,2"), ("3 x", "3 x"),
    ],
)  # fmt: skip
def test_a_value_is_gin_or_else_text(text, value):
    """The rule of docs/cli.md; `--gin.NAME=VALUE` has it, too."""
    *_, flag = cli.python_arguments(["run", "beir", f"NAME={text}"])
    ((name, given),) = gin_checks.parse_flags([flag]).overrides
    assert (name, override_value(given, None, "")) == ("NAME", value)


@pytest.mark.parametrize("text", ["[1, 2", "(a) b", "'a", "%", "{a: 1}"])
def test_text_that_begins_like_a_gin_value_is_refused(text):
    *_, flag = cli.python_arguments(["run", "beir", f"NAME={text}"])
    ((_, given),) = gin_checks.parse_flags([flag]).overrides
    with pytest.raises(gin_checks.GinError, match="is not a gin value"):
        override_value(given, None, "")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("rn quickstart", "no command 'rn'; did you mean run or runs?"),
        ("serach", "no command 'serach'; did you mean search?"),
        ("help", "did you mean --help or health?"),
        ("zzz", "no command 'zzz'; kennel --help lists all"),
        ("quickstart", "did you mean kennel run quickstart?"),
        ("--dry_run run", "the command comes first"),
        ("--hlp", "did you mean --help?"),
        ("run", "name a recipe: `kennel run quickstart`"),
        ("run --dry_run", "name a recipe"),
        ("run quickstrat", "no recipe 'quickstrat'; did you mean quickstart?"),
        ("run zzz", "no recipe 'zzz'; `kennel run --help` lists all"),
        ("run gin_configs", "gin_configs is a folder; expected a recipe's name"),
        ("run gin_configs/recipes/", "is a folder"),
        ("run gin_configs/recipes/beirr", "did you mean gin_configs/recipes/beir.gin"),
        ("run STEPS=3 beir", "STEPS=3 comes before the recipe: kennel run RECIPE STEPS=3"),
        ("run beir CORPUS", "CORPUS has no value: write CORPUS=VALUE, with no space"),
        ("run beir CORPUS=", "CORPUS= has no value"),
        ("run beir CORPUS= a", "CORPUS= has no value"),
        ("run beir CORPUS = a", "CORPUS has no value"),
        ("run beir =a", "'=a' is no setting: write NAME=VALUE, with no space"),
        ("run beir text", "'text' is no setting NAME=VALUE; further gin files are --gin_file"),
        ("run beir --dry-run", "unknown flag --dry-run; did you mean --dry_run"),
        ("run beir --strict", "unknown flag --strict"),
        ("run beir --STEPS=3", "settings have no dashes: STEPS=3"),
        ("run beir --rerun", "expected one argument"),
        ("search --anser x", "unknown flag --anser; did you mean --answer?"),
        ("search -k many x", "invalid int value: 'many'"),
        ("search --dry_run", "unknown flag --dry_run"),
        ("preflight beir", "required: --topology"),
        ("health", "required: RUN_DIR"),
        ("health runs/a --refrence=b", "unknown flag --refrence; did you mean --reference?"),
        (
            "tpu",
            "name a verb of kennel tpu: create, run, status, logs, ssh, fetch, stop, delete, up;",
        ),
        ("tpu crate", "no verb 'crate'; did you mean create?"),
        ("tpu up", "name a recipe: `kennel tpu up quickstart`"),
        ("tpu up quickstrat", "no recipe 'quickstrat'; did you mean quickstart?"),
        ("tpu run STEPS=3 beir", "STEPS=3 comes before the recipe: kennel tpu run RECIPE STEPS=3"),
        ("tpu delete mine", "'mine' is one word too many"),
        ("tpu create --slcie=v5e:2x4", "unknown flag --slcie; did you mean --slice"),
        ("gke quickstrat", "no recipe 'quickstrat'; did you mean quickstart?"),
        ("gke", "name a recipe: `kennel gke quickstart`"),
        ("gke beir --slice=v5e:4x4", "--print --apply is required"),
        ("gke beir --slcie=v5e:4x4", "required: --slice"),
        ("tpu create --spot --reserved", "not allowed with argument"),
        ("runs lst", "no action 'lst'; did you mean list?"),
        ("runs runs/quickstart", "no action 'runs/quickstart'; expected list, pin"),
        ("gc --del", "unknown flag --del; did you mean --delete"),
        ("gc everything", "'everything' is one word too many"),
        ("evaluate text", "'text' is no setting NAME=VALUE"),
        ("completion tcsh", "no shell 'tcsh'; expected bash, zsh, fish"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(argv, message, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    assert message in refused(*argv.split())


def test_the_most_similar_is_suggested_first():
    known = [f"a{number}" for number in range(20)] + ["zebra", "zebras"]
    assert commands.did_you_mean("zebrs", known) == "; did you mean zebras or zebra?"


def test_a_file_of_the_user_wins_with_its_suffix_only(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beir.gin").touch()
    (tmp_path / "text").mkdir()
    assert words.find_recipe("beir") == "gin_configs/recipes/beir.gin"
    assert words.find_recipe("beir.gin") == "beir.gin"
    assert words.find_recipe("text") == "gin_configs/recipes/text.gin"
    assert "did you mean beir.gin" in refused("run", "beir.gim")


def test_no_command_prints_the_commands_and_is_an_error(capsys):
    code, output = printed(capsys)
    assert code == 2 and output.out == "" and "kennel run quickstart" in output.err


def test_help_lists_every_command_and_recipe(capsys):
    code, output = printed(capsys, "--help")
    assert code == 0 and all(f"  {name} " in output.out for name in COMMANDS)
    code, output = printed(capsys, "run", "beir", "--help")
    assert code == 0 and words.RULE in output.out and "  quickstart  " in output.out
    code, output = printed(capsys, "runs", "--help")
    assert code == 0 and "kennel runs pin" in output.out and "python -m" not in output.out


def test_version(capsys):
    code, output = printed(capsys, "--version")
    assert code == 0 and output.out == f"kennel {metadata.version('kennel')}\n"


@pytest.mark.parametrize(
    "argv", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
)
def test_help_imports_nothing_heavy(argv):
    code = (
        "import json, sys\nfrom launch import cli\n"
        f"try: cli.python_arguments({argv!r})\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    modules = json.loads(done.stdout.splitlines()[-1])
    assert HEAVY.isdisjoint(name.split(".")[0] for name in modules)
    assert len(modules) < 250


def test_every_command_is_a_module_with_a_main():
    for command in COMMANDS.values():
        path = REPOSITORY / command.module.replace(".", "/")
        file = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
        assert '__name__ == "__main__"' in file.read_text(), command.module


def test_the_flags_say_what_the_parts_take_as_default(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, output = printed(capsys, "gc", "--help")
    assert f"default: {links.DEFAULT_STORE}" in output.out
    assert re.search(rf"stays; {collection.DAYS:g}$", output.out, re.MULTILINE)
    assert gc.main([]) == runs.main([]) == 1
    assert capsys.readouterr().err.count(f"error: {links.DEFAULT_STORE}: expected a store") == 2


def test_the_console_script_is_this_command():
    tree = ast.parse((REPOSITORY / "setup.py").read_text())
    (scripts,) = [
        keyword.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setup"
        for keyword in node.keywords
        if keyword.arg == "entry_points"
    ]
    assert ast.literal_eval(scripts) == {"console_scripts": ["kennel = launch.cli:main"]}
    assert callable(cli.main)


def test_the_part_decides_output_and_exit_code(tmp_path):
    """As a user starts it: a dry run, errors of a part and of the command line itself."""
    done = kennel("run", "quickstart", f"RUN_DIR={tmp_path / 'run'}", "--dry_run")
    assert done.returncode == 0 and "what would run (nothing was)" in done.stdout, done.stderr
    done = kennel("gc", f"--store={tmp_path / 'none'}")
    assert done.returncode == 1 and "expected a store" in done.stderr
    done = kennel("run", "beir", f"RUN_DIR={tmp_path}", "CORPUS=[1, 2", "--dry_run")
    assert done.returncode == 1 and "--gin.CORPUS: '[1, 2' is not a gin value" in done.stderr
    done = kennel("rn")
    assert done.returncode == 2 and done.stderr == (
        "error: no command 'rn'; did you mean run or runs?\n"
    )


def documented():
    """Every command in a block of README and docs, as words, with its page."""
    for page in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))):
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^ *(?:\.venv/bin/)?kennel (.*)$", text, re.MULTILINE):
            yield pytest.param(shlex.split(line.partition("|")[0], comments=True), id=page.stem)


@pytest.mark.parametrize("argv", documented())
def test_commands_of_the_pages_are_accepted(argv, monkeypatch):
    """Their words and flags; recipes by name have to exist."""
    monkeypatch.chdir(REPOSITORY)
    module, *flags = cli.python_arguments(argv)[1:]
    assert module == COMMANDS[argv[0]].module
    for flag in flags:
        if flag.startswith("--gin_file=gin_configs/"):
            assert (REPOSITORY / flag.removeprefix("--gin_file=")).is_file()


def test_the_page_lists_every_command():
    page = (REPOSITORY / "docs/cli.md").read_text(encoding="utf-8")
    for command in COMMANDS.values():
        assert re.search(rf"^\| `kennel {command.name}\b.*`python -m {command.module}` \|$",
                         page, re.MULTILINE)  # fmt: skip
