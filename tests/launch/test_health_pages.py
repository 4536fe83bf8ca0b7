"""docs/healthy.md and docs/troubleshooting.md: commands run, messages exist, thresholds agree."""

import ast
import functools
import re
import shlex
import shutil

import pytest

from launch import cli
from t5x_style import gc, health, runs
from t5x_style.configuration.gin_reader import REPOSITORY
from t5x_style.reporting import health_checks, health_reference, health_time
from tests.kits import training_logs
from tests.kits.training_logs import healthy
from tests.launch import pages

PAGES = ("docs/healthy.md", "docs/troubleshooting.md")
SOURCES = ("t5x_style", "launch", "models", "input_pipelines")
GAP = "…"


@functools.cache
def messages():
    """All texts of the sources, f-strings with a gap for each value; and the Makefile."""
    found = [(REPOSITORY / "Makefile").read_text(encoding="utf-8")]
    for folder in SOURCES:
        for path in (REPOSITORY / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            said = [one for one in ast.walk(tree) if not isinstance(one, ast.Expr)]  # no docstrings
            for node in (child for one in said for child in ast.iter_child_nodes(one)):
                if isinstance(node, ast.JoinedStr):
                    parts = [getattr(part, "value", GAP) for part in node.values]
                    found.append("".join(x if isinstance(x, str) else GAP for x in parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return found


def quoted():
    """Each message of the first column of a table whose head is `message` or `what you see`."""
    head = ""
    for line in pages.text_of("docs/troubleshooting.md").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] in ("message", "what you see"):
            head = cells[0]
        elif line.startswith("| ") and head and "(JAX)" not in cells[0]:
            yield from re.findall(r"`([^`]+)`", cells[0])


def is_a_message(fragment):
    pattern = re.compile(".*?".join(re.escape(part) for part in fragment.split(GAP)), re.DOTALL)
    return any(pattern.search(text) for text in messages())


def test_the_search_for_messages_can_fail():
    assert is_a_message("malformed records, and max_bad_records=…")
    assert not is_a_message("malformed records, and max_good_records=…")
    assert not is_a_message("macro … is fine, but nothing refers to …")


def test_the_page_quotes_many_messages():
    assert len(list(quoted())) > 45


@pytest.mark.parametrize("fragment", list(quoted()))
def test_a_quoted_message_is_in_the_sources(fragment):
    assert len("".join(fragment.split(GAP)).strip()) > 8, "too short to be found"
    assert is_a_message(fragment)


def test_what_jax_says_is_marked_and_little():
    assert len(re.findall(r"\(JAX\)", pages.text_of("docs/troubleshooting.md"))) == 2


@pytest.fixture(name="place", scope="module")
def make_place(tmp_path_factory):
    """A folder with the runs that the pages name."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "runs/.store/versions").mkdir(parents=True)  # one for all runs, as a recipe has it
    for number, name in enumerate(("quickstart", "mine", "before", "seed1", "seed2", "seed3")):
        training_logs.training(folder / "runs" / name, healthy(number + 1), seed=number + 1)
    shutil.copy(health_reference.FOLDER / "quickstart.json", folder)
    return folder


@pytest.mark.parametrize("command", [line for page in PAGES for line in pages.commands(page)])
def test_a_command_of_the_pages_runs(command, place, monkeypatch, capsys):
    """`run` is checked in its words only: `--dry_run` of the main job is another test's."""
    monkeypatch.chdir(place)
    argv = shlex.split(command)
    assert argv[0] == "kennel"
    module, *rest = cli.python_arguments(argv[1:])[1:]
    if module == "launch.recipe":
        assert "--dry_run" in rest
        return
    program = {"t5x_style.health": health, "t5x_style.runs": runs, "t5x_style.gc": gc}[module]
    code = program.main(rest)
    output = capsys.readouterr()
    assert code == 0 or (module == "t5x_style.health" and code == 1), output.err
    assert output.out and not output.err


def test_commands_that_are_not_run_say_why():
    reasons = [reason for page in PAGES for reason in pages.reasons(page)]
    assert reasons and all(len(reason) > 5 for reason in reasons)


def test_the_table_of_checks_has_their_names_and_thresholds():
    rows = {}
    for line in pages.text_of("docs/healthy.md").splitlines():
        if found := re.match(r"\| `(\w+)` \|", line):
            rows[found[1]] = line
    numbers = {
        "finite": [],
        "loss": [health_checks.RISE, health_checks.CLEAR, health_checks.MIN_POINTS],
        "gradient": [health_checks.EXPLODED, health_checks.SPIKE],
        "update": ["10 %", "5 %"],
        "rate": ["0.1 %"],
        "development": [health_checks.CHANCE, "half"],
        "vectors": [0.99, health_checks.LEAST_RANK, 0.01],
        "goodput": ["25 %", "10 minutes"],
        "input": ["50 %", "10 %"],
        "padding": ["30 %"],
        "speed": ["half"],
        "records": ["1 %"],
        "reference": [health_reference.OUTSIDE, health_reference.NEAR],
    }
    assert list(rows) == list(numbers)
    for name, wanted in numbers.items():
        for number in wanted:
            text = number if isinstance(number, str) else f"{number:g}"
            assert re.search(rf"(?<![\d.]){re.escape(text)}(?![\d])", rows[name]), (name, text)
    assert (health_checks.LARGE_UPDATE, health_checks.SOME_UPDATE) == (0.1, 0.05)
    assert (health_checks.RATE_TOLERANCE, health_checks.HALVED) == (0.001, 0.5)
    assert (health_time.START_NOTE, health_time.START_SECONDS) == (0.25, 600)
    assert (health_time.WAIT_WRONG, health_time.WAIT_NOTE) == (0.5, 0.1)
    assert (health_time.PADDING_NOTE, health_time.SLOWED) == (0.3, 0.5)
    assert health_time.SKIPPED_WRONG == 0.01


def test_the_picture_is_small():
    assert 20_000 < (REPOSITORY / "docs/results/healthy.png").stat().st_size < 150_000
