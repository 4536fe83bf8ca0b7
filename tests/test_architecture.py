"""Who may import whom, sizes of files and functions, and what no source may contain (with ast)."""

import ast
import functools
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("t5x_style", "models", "input_pipelines", "gin_configs", "launch")
OURS = (*PACKAGES, "benchmarks")
FILE_LINES, FUNCTION_LINES = 400, 80

# What models may import of the engine.
SEAM = (
    "t5x_style.objective",
    "t5x_style.contract",
    "t5x_style.partitioning",
    "t5x_style.collectives",
    "t5x_style.metrics",
    "t5x_style.retrieval.index",
    "t5x_style.retrieval.device_index",
    "t5x_style.retrieval.probes",
)
# What launchers may import of the engine: how stages are read and run.
STAGES = (
    "t5x_style.stage",
    "t5x_style.stage_main",
    "t5x_style.recipe_file",
    "t5x_style.gin_utils",
    "t5x_style.gin_reader",
    "t5x_style.fingerprints",
    "t5x_style.processes",
)
WORKFLOW = "t5x_style.workflow"
# Floors of the engine: a module imports its own floor and those below. Files that are on no list
# stand where the first file that needs them stands; add them when it matters.
ENGINE_FLOORS = (
    ("objective", "contract", "metrics", "partitioning", "collectives", "optim"),
    ("train_state", "retrieval", "evaluation"),
    ("train_step", "checkpointing"),
    ("hooks",),
    ("trainer",),
    ("train", "evaluate", "encode_corpus", "build_index", "mine", "score", "search", "export")
    + ("evaluate_bitext", "report", "report_translations", "generate", "evaluate_generation")
    + ("initialise_model",),
)
MODEL_FLOORS = (
    ("attention", "generation"),
    ("layers",),
    ("bag", "bert", "seq2seq", "electra", "heads", "pooled", "embedding", "losses")
    + ("corruption", "sampling"),
    ("pretraining", "projected", "evidence", "span_masks", "span_head"),
)
# Files in models that are no objectives.
NOT_OBJECTIVES = {
    *(name for floor in MODEL_FLOORS for name in floor),
    *(
        "import_hf",
        "export_hf",
        "export_bag",
        "hf_names",
        "hf_config",
        "sentence_modules",
        "model_cards",
    ),
    "published_contract",
    "__init__",
}


def sources(*folders):
    """Files of each folder; a folder without any would let every check pass."""
    found = {folder: sorted((REPOSITORY / folder).rglob("*.py")) for folder in folders}
    empty = [folder for folder, paths in found.items() if not paths]
    if empty:
        raise FileNotFoundError(f"no Python file in {empty} of {REPOSITORY}")
    return [path for paths in found.values() for path in paths]


def module_name(path):
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def known_modules():
    return {module_name(path) for path in sources(*OURS)}


def imports_of(tree, package=""):
    """Dotted names of our modules that a syntax tree imports, inside functions too."""
    names, known = set(), known_modules()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(filter(None, (package, base)))
            full = {f"{base}.{alias.name}" for alias in node.names}
            names |= {name if name in known else base for name in full}
    return {name for name in names if name.split(".")[0] in OURS}


@functools.cache
def our_imports(path):
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return imports_of(ast.parse(path.read_text()), package)


def floor_of(part, floors):
    found = [number for number, names in enumerate(floors) if part in names]
    return found[0] if found else None


def test_models_import_only_the_seam():
    problems = [
        f"{path}: {name}"
        for path in sources("models")
        for name in our_imports(path)
        if not name.startswith("models") and name not in SEAM
    ]
    assert problems == []


def test_input_pipelines_import_nothing_of_ours():
    problems = [
        f"{path}: {name}"
        for path in sources("input_pipelines")
        for name in our_imports(path)
        if not name.startswith("input_pipelines")
    ]
    assert problems == []


def test_input_pipelines_do_not_touch_jax():
    def heads(path):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield (node.module or "").split(".")[0]

    problems = [
        f"{path}: imports {head}"
        for path in sources("input_pipelines")
        for head in heads(path)
        if head in ("jax", "flax", "optax", "orbax")
    ]
    assert problems == []


def test_engine_imports_neither_models_nor_pipelines():
    problems = [
        f"{path}: {name}"
        for path in sources("t5x_style")
        for name in our_imports(path)
        if not name.startswith("t5x_style")
    ]
    assert problems == []


def test_launch_imports_only_stages():
    problems = [
        f"{path}: {name}"
        for path in sources("launch")
        if path.name != "serve.py"
        for name in our_imports(path)
        if not name.startswith(("launch", WORKFLOW)) and name not in (*STAGES, "t5x_style")
    ]
    assert problems == []


def test_workflow_imports_only_stages():
    """What decides whether a stage runs knows nothing of what stages do, and starts in a blink."""
    problems = [
        f"{path}: {name}"
        for path in sources("t5x_style/workflow")
        for name in our_imports(path)
        if not name.startswith(WORKFLOW) and name not in STAGES
    ]
    assert problems == []


def test_engine_floors():
    problems = []
    for path in sources("t5x_style"):
        own = floor_of(
            path.relative_to(REPOSITORY / "t5x_style").parts[0].removesuffix(".py"), ENGINE_FLOORS
        )
        for name in our_imports(path):
            other = floor_of((name.split(".") + [""])[1], ENGINE_FLOORS)
            if own is not None and other is not None and other > own:
                problems.append(f"{path}: {name} is on a higher floor")
    assert problems == []


def test_entry_points_do_not_import_each_other():
    entries = {f"t5x_style.{name}" for name in ENGINE_FLOORS[-1]}
    problems = [
        f"{path}: {name}"
        for path in sources("t5x_style")
        if module_name(path) in entries
        for name in (our_imports(path) & entries) - {module_name(path)}
    ]
    assert problems == []


def test_model_floors_and_objectives():
    problems = []
    for path in sources("models"):
        part = path.relative_to(REPOSITORY / "models").parts[0].removesuffix(".py")
        own = floor_of(part, MODEL_FLOORS)
        for name in our_imports(path):
            other_part = (name.split(".") + [""])[1]
            if not name.startswith("models.") or other_part == part:
                continue
            other = floor_of(other_part, MODEL_FLOORS)
            if other_part not in NOT_OBJECTIVES and part != "__init__":
                problems.append(f"{path}: imports {name}, which is an objective")
            elif own is not None and other is not None and other > own:
                problems.append(f"{path}: {name} is on a higher floor")
    assert problems == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_two_modules_import_each_other(package):
    """Pairs of files, and pairs of files with their own folder's __init__ left out."""
    found = {module_name(path): our_imports(path) - {package} for path in sources(package)}
    problems = [
        f"{one} and {other} import each other"
        for one, names in found.items()
        for other in names
        if one < other and one in found.get(other, ())
    ]
    assert problems == []


def test_no_drawers():
    problems = [
        f"{path}: no file is called {path.stem}"
        for path in sources(*PACKAGES, "tests", "benchmarks")
        if path.stem in ("utils", "util", "common", "helpers", "misc")
    ]
    assert problems == []


def test_sizes():
    problems = []
    for path in sources(*PACKAGES, "tests", "benchmarks"):
        text = path.read_text()
        lines = len(text.splitlines())
        if lines > FILE_LINES:
            problems.append(f"{path}: {lines} lines, at most {FILE_LINES}: make it a folder")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = node.end_lineno - node.lineno + 1
                if length > FUNCTION_LINES:
                    problems.append(f"{path}:{node.lineno}: {node.name} has {length} lines")
    assert problems == []


def test_commands_that_are_tested_define_different_flags():
    """absl's flags are one table in a process, and one process may run all tests."""
    imported = set().union(*map(our_imports, sources("tests")))
    defined = {}
    for path in sources("benchmarks"):
        if module_name(path) in imported:
            for flag in flags_of(ast.parse(path.read_text())):
                defined.setdefault(flag, []).append(path.name)
    assert defined, "no test imports a command"
    twice = {flag: paths for flag, paths in defined.items() if len(paths) > 1}
    assert twice == {}


def flags_of(tree):
    """Names that a file gives to `flags.DEFINE_...`."""
    return {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("flags.DEFINE_")
    }


def test_no_pickle_and_no_eval():
    forbidden_modules = {"pickle", "cloudpickle", "dill", "shelve", "joblib"}
    problems = []
    for path in sources(*PACKAGES, "benchmarks"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = set()
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names = {node.module or ""}
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = {node.func.id} & {"eval", "exec"}
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                names = {"pickle"} if ast.unparse(node.value) != "False" else set()
            for name in {n.split(".")[0] for n in names} & (forbidden_modules | {"eval", "exec"}):
                problems.append(f"{path}:{getattr(node, 'lineno', '?')}: {name}")
    assert problems == []


def test_every_raise_is_raised():
    """`ValueError(...)` as a statement is a forgotten `raise`."""
    problems = [
        f"{path}:{node.lineno}: {ast.unparse(node.value.func)} is built, but not raised"
        for path in sources(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).endswith(("Error", "Exception"))
    ]
    assert problems == []


def test_imports_are_found_in_every_form():
    """The checks above are only as good as this."""
    code = "import models.bert\ndef f():\n  from t5x_style import stage\n  from .x import y\n"
    assert imports_of(ast.parse(code), "models") == {"models.bert", "t5x_style.stage", "models.x"}
