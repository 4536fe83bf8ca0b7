"""Old names in gin files, on the command line and in recipes: understood, with a note."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gin import config as gin_config

from t5x_style.configuration import (
    code_checks,
    conventions,
    gin_checks,
    gin_reader,
    gin_text,
    parameters,
    rename_tables,
    renamed_files,
    renames,
    signatures,
)
from t5x_style.workflow import recipe_reader

HEAD = "from __gin__ import dynamic_registration\n"
NOW = """\
from shop.parts import shelf
LENGTH = 3
shelf.build.board = @shelf.Board()
shelf.Board.length = %LENGTH
"""
HOUSE = """\
class Board:
    def __init__(self, length=1, width=2):
        self.length, self.width = length, width

def build(board, model_dir=""):
    return board
"""
ROOT = "shop.parts.shelf.build"
WRITTEN = (
    f"{HEAD}from shop.parts import shelf\nLENGTH = 3\n"
    "shelf.build.board = @shelf.Board()\nshelf.Board.length = %LENGTH\n"
)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose module `shop.shelf` has become `shop.parts.shelf`, and more."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop/parts").mkdir(parents=True)
    for path, text in {"": "", "parts/": "", "parts/shelf.py": HOUSE, "parts/paint.py": ""}.items():
        (tmp_path / "shop" / (path if path.endswith(".py") else path + "__init__.py")).write_text(
            text
        )
    names = {
        "shop.shelf": "shop.plank",
        "shop.plank": "shop.parts.shelf",
        "shop.parts": "shop.parts.paint",
        "shop.parts.shelf.Plank": "shop.parts.shelf.Board",
    }
    monkeypatch.setattr(rename_tables, "NAMES", names)
    monkeypatch.setattr(rename_tables, "MACROS", {"LONG": "LENGTH"})
    monkeypatch.setattr(rename_tables, "PARAMETERS", {"shelf.Plank.length": "long"})
    monkeypatch.setattr(gin_reader, "FILES", {"old.gin": "new.gin"})
    monkeypatch.setattr(renames, "_noted", set())
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def read(text: str, *overrides: tuple[str, str]) -> gin_reader.Config:
    Path("a.gin").write_text(HEAD + text)
    return gin_reader.read(["a.gin"], overrides, allow=["shop"])


def semantic(text: str, *overrides: tuple[str, str]) -> dict[str, str]:
    return parameters.of_job(read(text, *overrides), ROOT, {}).semantic


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (NOW.replace("shop.parts", "shop"), "shop.shelf", "shop.parts.shelf"),
        (
            NOW.replace("shop.parts import shelf", "shop import plank as shelf"),
            "shop.plank",
            "shop.parts.shelf",
        ),
        (
            NOW.replace("Board", "Plank"),
            "shop.parts.shelf.Plank",
            "shop.parts.shelf.Board",
        ),
        (NOW.replace("LENGTH", "LONG"), "LONG", "LENGTH"),
        (NOW.replace("Board.length", "Board.long"), "shelf.Board.long", "shelf.Board.length"),
        (
            NOW.replace("from shop.parts import shelf", "import shop.shelf")
            .replace("shelf.B", "shop.shelf.B")
            .replace("shelf.build", "shop.shelf.build"),
            "shop.shelf",
            "shop.parts.shelf",
        ),
    ],
)
def test_old_names_mean_the_present_ones(
    shop: Path, capsys: pytest.CaptureFixture[str], text: str, old: str, new: str
) -> None:
    expected = semantic(NOW)
    assert capsys.readouterr().err == ""
    assert semantic(text) == expected
    said = capsys.readouterr().err
    assert f"{old} is called {new} now; the old name still works" in said
    assert "note: a.gin:" in said
    assert semantic(text) == expected and capsys.readouterr().err == ""  # said once


def test_fingerprints_hold_first_names(shop: Path) -> None:
    assert semantic(NOW) == {
        "board": "@shelf.Plank()",
        "board.long": "3",
        "board.width": "2",
    }


@pytest.mark.parametrize(
    ("name", "value"), [("LONG", "7"), ("shelf.Plank.long", "7"), ("plank.Board.length", "7")]
)
def test_old_names_on_the_command_line(
    shop: Path, capsys: pytest.CaptureFixture[str], name: str, value: str
) -> None:
    assert semantic(NOW, (name, value))["board.long"] == "7"
    assert "is called" in capsys.readouterr().err


def test_the_old_module_of_what_moved_to_another_is_known_on_the_command_line(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved = {"shop.carpenter.make": "shop.parts.shelf.build"}
    monkeypatch.setattr(rename_tables, "NAMES", rename_tables.NAMES | moved)
    assert semantic(NOW, ("carpenter.make.board", "7"))["board"] == "7"


@pytest.mark.parametrize(
    "text",
    [
        NOW.replace("shop.parts", "shop").replace("Board.length", "Plank.long"),
        NOW.replace("shop.parts import shelf", "shop import plank").replace("shelf.", "plank."),
    ],
)
def test_gin_gets_present_names(shop: Path, text: str) -> None:
    assert gin_text.text_of(read(text)) == WRITTEN


def test_gin_makes_what_old_names_describe(shop: Path) -> None:
    gin_config.clear_config()
    try:
        gin_config.parse_config(gin_text.text_of(read(NOW.replace("shop.parts", "shop"))))
        build = code_checks.locate(ROOT, "test")
        assert gin_checks.configured(build)().length == 3
    finally:
        gin_config.clear_config()


WRAPPED = """\
from shop.parts import shelf
shelf.build.board = @shelf.Board()
shelf.Board.width = @shelf.Plane()
shelf.Plane.of = @shelf.Saw()
shelf.Saw.of = 5
shelf.Plane.blade = 2
"""
TOOLS = """
class Saw:
    def __init__(self, of, teeth=None):
        self.of, self.teeth = of, teeth

class Plane:
    def __init__(self, of, blade=1):
        self.of, self.blade = of, blade
"""
PLY = """
class Ply:
    def __init__(self, plies, blade=3):
        self.plies, self.blade = plies, blade
"""


@pytest.fixture
def tools(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `Board` got as `plane` and `saw` wraps its width now."""
    (shop / "shop/parts/shelf.py").write_text(HOUSE + TOOLS)
    wrappers = {
        "shelf.Plank.plane": rename_tables.Wrapper("width", "shop.parts.shelf.Plane", "of"),
        "shelf.Plank.saw": rename_tables.Wrapper("width", "shop.parts.shelf.Saw", "of"),
    }
    monkeypatch.setattr(rename_tables, "PARAMETERS", {})
    monkeypatch.setattr(rename_tables, "WRAPPERS", wrappers)


def test_fingerprints_hold_what_a_wrapper_gets_where_it_was_first(tools: None) -> None:
    assert semantic(WRAPPED) == {
        "board": "@shelf.Plank()",
        "board.length": "1",
        "board.width": "5",
        "board.plane": "@shelf.Plane()",
        "board.plane.blade": "2",
        "board.saw": "@shelf.Saw()",
        "board.saw.teeth": "None",
    }
    assert semantic(NOW) == {
        "board": "@shelf.Plank()",
        "board.length": "3",
        "board.width": "2",
        "board.plane": "None",
        "board.saw": "None",
    }


def test_a_wrapper_and_what_it_wraps_may_have_parameters_of_one_name(
    tools: None, shop: Path
) -> None:
    (shop / "shop/parts/shelf.py").write_text(HOUSE + TOOLS + PLY)
    text = WRAPPED.replace("shelf.Saw()", "shelf.Ply()").replace("shelf.Saw.of", "shelf.Ply.plies")
    assert semantic(text) == {
        "board": "@shelf.Plank()",
        "board.length": "1",
        "board.width": "@shelf.Ply()",
        "board.width.blade": "3",
        "board.width.plies": "5",
        "board.plane": "@shelf.Plane()",
        "board.plane.blade": "2",
        "board.saw": "None",
    }


def test_fingerprints_hold_host_retrieval_as_when_it_was_an_argument_of_training() -> None:
    """The paths and values that a training had when retrieval did not wrap its pipeline."""
    files = [
        "runs/training/train",
        "models/tiny_joint",
        "objectives/realm",
        "objectives/mask_salient_span",
    ]
    files += ["data/pretraining/sentences", "runs/training/retrieve_on_host"]
    values = {"STORE": "s", "TOKENIZER": "t", "INDEX_VERSIONS": "v", "MODEL_DIR": "m"}
    values |= {"QUERIES": "4", "QUERY_LENGTH": "32", "PASSAGE_LENGTH": "48", "SEED": "1"}
    values |= {"LEARNING_RATE": "1e-4", "STEPS": "12", "WARMUP_STEPS": "2"}
    config = gin_reader.read([f"gin_configs/{name}.gin" for name in files], tuple(values.items()))
    conventions.add(config)
    inputs = {"STORE": "store-1", "TOKENIZER": "tokenizer-1"}
    found = parameters.of_job(config, "t5x_style.train.train", inputs)
    source = {
        path: text
        for path, text in found.semantic.items()
        if path.partition(".")[0] in ("pipeline", "retrieval", "replanning")
    }
    assert source == {
        "pipeline": "@sentences.SalientSentences()",
        "pipeline.corpus": "@corpus_table.StoreCorpus()",
        "pipeline.corpus.planned": "None",
        "pipeline.corpus.store": "input store-1",
        "pipeline.length": "32",
        "pipeline.max_span_tokens": "10",
        "pipeline.require_spans": "True",
        "pipeline.rows": "4",
        "pipeline.seed": "1",
        "pipeline.spans": "16",
        "pipeline.store": "input store-1",
        "pipeline.tokenizer": "input tokenizer-1",
        "replanning": "None",
        "retrieval": "@retriever.HostRetrieval()",
        "retrieval.ahead": "2",
        "retrieval.corpus": "@corpus_table.StoreCorpus()",
        "retrieval.corpus.planned": "None",
        "retrieval.corpus.store": "input store-1",
        "retrieval.exclude": "['row', 'duplicate']",
        "retrieval.hits": "7",
        "retrieval.length": "48",
        "retrieval.max_staleness_steps": "1000",
        "retrieval.when_stale": "'warn'",
    }
    assert found.operational["retrieval.folder"] == "'v'"


def test_a_parameter_that_became_a_wrapper_is_refused_with_what_to_write(tools: None) -> None:
    with pytest.raises(gin_reader.GinError) as error:
        read(NOW + "shelf.Board.saw = @shelf.Saw()\n")
    assert str(error.value) == (
        "a.gin:6: shelf.Board.saw is gone; write instead `from shop.parts import shelf`, "
        "`shelf.Board.width = @shelf.Saw()` and `shelf.Saw.of =` what shelf.Board.width was."
    )


def test_a_module_that_became_a_package_keeps_its_modules(shop: Path) -> None:
    assert renames.present("shop.parts.shelf.build") == "shop.parts.shelf.build"
    assert renames.present("shop.parts.build") == "shop.parts.paint.build"
    assert renames.present("shop.other.build") == "shop.other.build"


def test_old_gin_files_are_found(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("new.gin").write_text(HEAD + NOW)
    config = gin_reader.read(["old.gin"], (), allow=["shop"])
    assert [path.name for path in config.files] == ["new.gin"]
    assert "old.gin is called new.gin now" in capsys.readouterr().err
    Path("old.gin").write_text(HEAD + NOW)  # a local file of that name comes first
    config = gin_reader.read(["old.gin"], (), allow=["shop"])
    assert [path.name for path in config.files] == ["old.gin"]


def test_recipes_may_hold_old_macros(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rename_tables, "MACROS", {"WORDS": "VOCABULARY_SIZE"})
    Path("recipe.gin").write_text(
        f"{HEAD}from launch import recipe\n"
        "recipe.run.run_dir = 'run'\n"
        "words/recipe.Stage:\n"
        "  gin_files = ['gin_configs/runs/tokenizers/corpus.gin']\n"
        "  inputs = {'CORPUS': 'c'}\n  bindings = {'WORDS': 99, 'SPLIT_CASE': True}\n"
    )
    recipe = recipe_reader.load(gin_checks.parse_flags(["--gin_file=recipe.gin"]))
    assert recipe.stages[0].bindings["VOCABULARY_SIZE"] == 99
    assert "WORDS is called VOCABULARY_SIZE now" in capsys.readouterr().err


def test_the_table_names_things_that_exist() -> None:
    for old, new in rename_tables.NAMES.items():
        assert code_checks.locate(renames.present(new), old)
    for old, wrapper in rename_tables.WRAPPERS.items():
        assert wrapper.source in signatures.signature(wrapper.target).parameters, old
    for old in renamed_files.FILES:  # as a search path gives it, too
        assert gin_reader.find_file(
            old.removeprefix("gin_configs/"), gin_reader.search_folders([]), "here"
        )
    for file in renamed_files.FILES.values():
        assert (gin_reader.REPOSITORY / file).is_file()
    assert renamed_files.SETTINGS.keys() <= renamed_files.FILES.keys()
    assert not set(rename_tables.MACROS) & set(rename_tables.MACROS.values())


def test_gin_files_are_found_from_another_folder(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/corpus.jsonl").write_text(
        "".join(f'{{"_id": "{i}", "title": "", "text": "some words {i}"}}\n' for i in range(20))
    )
    command = [
        *(sys.executable, "-m", "t5x_style.stage"),
        "--gin_file=gin_configs/runs/tokenizers/corpus.gin",
        "--gin.CORPUS=corpus",
        "--gin.VOCABULARY_SIZE=60",
        "--gin.MODEL_DIR=out",
    ]
    env = os.environ | {"PYTHONPATH": str(gin_reader.REPOSITORY)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/tokenizer").is_dir()


def test_added_parameters_are_named_as_fingerprints_name_them() -> None:
    """By the first name of their module: under a present one, finished runs would not count."""
    present = {
        new.rpartition(".")[2]: old.rpartition(".")[2] for old, new in rename_tables.NAMES.items()
    }
    first = {old.rpartition(".")[2] for old in rename_tables.NAMES}
    wrong = [
        name
        for name in rename_tables.ADDED
        if (module := name.partition(".")[0]) in present and module not in first
    ]
    assert not wrong
