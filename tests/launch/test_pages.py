"""README.md, docs/start_here.md and docs/change_one_thing.md: what they say to type works."""

import json
import re
import shlex
from pathlib import Path

import pytest

from launch import cli
from t5x_style import runs
from t5x_style.configuration import gin_checks, gin_reader
from t5x_style.workflow import recipe_planning, recipe_reader
from tests.kits import published_folders
from tests.launch import pages

PAGES = ("README.md", "docs/start_here.md", "docs/change_one_thing.md")
TABLE = re.compile(r"^\| .*\| `(\w+ [A-Z]+=[^`]+)` \|$", re.MULTILINE)
COMMANDS = [
    *(pytest.param(line, id=f"{page}-{line}") for page in PAGES for line in pages.commands(page)),
    *(f"kennel run {words}" for words in TABLE.findall(pages.text_of("README.md"))),
]


@pytest.fixture(scope="module", name="place")
def make_place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages call path/to/..."""
    place = tmp_path_factory.mktemp("pages")
    folder = place / "path/to/folder"
    (folder / "qrels").mkdir(parents=True)
    for name in ("corpus", "queries"):
        rows = [{"_id": f"{name[0]}{n}", "title": "", "text": f"a text {n}"} for n in range(9)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tc1\t1\n")
    for name in ("translations", "documents"):
        (folder.parent / name).mkdir()
    published_folders.published(place / "published").rename(folder.parent / "encoder")
    (place / "runs/.store/versions").mkdir(parents=True)
    return place


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_works(command, place, monkeypatch, capsys):
    """`run` is planned: all names, types and inputs of all stages. The others are run."""
    monkeypatch.chdir(place)
    program, *words = shlex.split(command)
    assert program == "kennel"
    module, *argv = cli.python_arguments(words)[1:]
    if module == "t5x_style.runs":
        assert runs.main(argv) == 0 and capsys.readouterr().out
        return
    assert module == "launch.recipe"
    flags = gin_checks.parse_flags([word for word in argv if word != "--dry_run"])
    recipe = recipe_reader.load(flags)
    pending = recipe_planning.all_pending(recipe)
    for stage in recipe.stages:
        config = recipe_planning.stage_flags(recipe, stage, flags, pending).read()
        gin_checks.check_names(config, (gin_reader.RUN, stage.job))
    assert len(recipe.stages) > 5


def test_the_pages_have_commands():
    assert len(TABLE.findall(pages.text_of("README.md"))) >= 9
    assert all(pages.commands(page) for page in PAGES[1:])


def test_commands_that_are_not_run_say_why():
    reasons = [reason for page in PAGES for reason in pages.reasons(page)]
    assert reasons and all(len(reason) > 20 for reason in reasons)


def test_targets_of_make_exist():
    makefile = pages.text_of("Makefile")
    for page in PAGES:
        for target in re.findall(r"^make (\w+)", pages.text_of(page), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
