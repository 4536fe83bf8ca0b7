"""Plain package names have a price; the guards that pay it (docs: the README's section on use)."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("t5x_style", "models", "input_pipelines", "gin_configs", "launch")


def setup_keywords():
    """Keyword arguments of the call of setup() in setup.py, as syntax trees."""
    tree = ast.parse((REPOSITORY / "setup.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (setup,) = [call for call in calls if ast.unparse(call.func) == "setup"]
    return {keyword.arg: keyword.value for keyword in setup.keywords}


def test_packages_are_ours_from_any_folder(tmp_path):
    code = f"import importlib.util as u\nfor n in {PACKAGES!r}: print(u.find_spec(n).origin)"
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", code]
    found = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    expected = [str(REPOSITORY / name / "__init__.py") for name in PACKAGES]
    assert found.stdout.split("\n")[:-1] == expected


def test_editable_install_is_a_static_path():
    assert ast.literal_eval(setup_keywords()["package_dir"]) == {"": "."}


def test_find_packages_names_our_packages():
    call = setup_keywords()["packages"]
    (include,) = [keyword.value for keyword in call.keywords if keyword.arg == "include"]
    assert ast.literal_eval(include) == [f"{name}*" for name in PACKAGES]


def test_pytest_imports_from_the_checkout():
    options = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    pytest_options = options["tool"]["pytest"]["ini_options"]
    assert pytest_options["pythonpath"] == ["."]
    assert "--import-mode=importlib" in pytest_options["addopts"]
    assert not list((REPOSITORY / "tests").rglob("__init__.py"))


def test_names_of_test_files_are_unique():
    names = [path.name for path in (REPOSITORY / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_readme_says_how_it_is_run():
    text = (REPOSITORY / "README.md").read_text()
    assert "checkout" in text and "python -m" in text


def test_gin_files_travel_with_the_package():
    assert "**/*.gin" in ast.literal_eval(setup_keywords()["package_data"])["gin_configs"]
