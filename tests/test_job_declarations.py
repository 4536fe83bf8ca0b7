"""Declarations of jobs, and marks of operational settings, read from source; no job is imported."""

import ast
import re

import pytest

from t5x_style.configuration import gin_reader
from tests.test_architecture import PACKAGES, REPOSITORY, sources

JOB = ("", gin_reader.RUN, "job")
NAME = re.compile(r"[a-z][a-z0-9_]*")
SAME_ON_PURPOSE = {"tests.kits.toys.toy_training.learn"}  # which sweeps take for a training
MARK = re.compile(r"operational( unless [A-Za-z_][A-Za-z0-9_]*)?")


def bound():
    """Dotted paths of the jobs of gin files and of `stage.main("...")`."""
    for file in sorted((REPOSITORY / "gin_configs").rglob("*.gin")):
        binding = gin_reader.read([str(file)]).bindings.get(JOB)
        if binding is not None:
            yield binding.value.target
    for path in sources(*PACKAGES, "tests"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "stage.main":
                yield node.args[0].value


def declared():
    """(dotted path, declaration) of every job."""
    for path in sources(*PACKAGES, "tests"):
        tree = ast.parse(path.read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        for node in tree.body:
            if not isinstance(node, ast.Assign) or ast.unparse(node.targets[0]) != "JOBS":
                continue
            if isinstance(node.value, ast.Dict):  # the reader of declarations has the name alone
                for function, declaration in ast.literal_eval(node.value).items():
                    assert function in functions, f"{path}: JOBS names {function}, not defined here"
                    module = ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
                    yield f"{module}.{function}", declaration


def test_every_job_has_a_declaration():
    jobs = set(bound())
    assert {
        "t5x_style.train.train",
        "models.interop.export_hf.export",
        "tests.kits.gin_toys.make",
    } <= jobs
    assert sorted(jobs - dict(declared()).keys()) == []


def test_names_are_unique_and_versions_positive():
    jobs = dict(declared())
    names = [job["name"] for target, job in jobs.items() if target not in SAME_ON_PURPOSE]
    assert len(set(names)) == len(names)
    for job in jobs.values():
        assert NAME.fullmatch(job["name"]) and type(job["version"]) is int and job["version"] >= 1


def marks():
    """(place, mark) of every `Annotated` of our packages; the mark is "" where none can be read.

    Those of launch/service are FastAPI's, of routes, which are no jobs.
    """
    for path in sources(*PACKAGES):
        if path.parent.name == "service":
            continue
        tree = ast.parse(path.read_text())
        whole = [n.annotation for n in ast.walk(tree) if isinstance(n, ast.arg | ast.AnnAssign)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("Annotated"):
                yield f"{path}:{node.lineno}", mark_of(node) if node in whole else ""


def mark_of(annotated):
    """The text of `Annotated[type, text]`."""
    words = annotated.slice.elts[1:]
    return words[0].value if len(words) == 1 and isinstance(words[0], ast.Constant) else ""


def test_annotated_marks_are_operational_or_operational_unless_a_name():
    found = dict(marks())
    assert found, "no parameter is marked: is the search wrong?"
    assert {place: mark for place, mark in found.items() if not MARK.fullmatch(mark)} == {}


@pytest.mark.parametrize("text", ["operatoinal", "operational unless", "operational  unless x", ""])
def test_a_typing_error_in_a_mark_is_found(text):
    assert MARK.fullmatch("operational") and MARK.fullmatch("operational unless metric")
    assert not MARK.fullmatch(text)
