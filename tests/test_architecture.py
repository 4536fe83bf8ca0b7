"""Who may import whom, sizes of files and functions, and what no source may contain (with ast)."""

import ast
import collections
import functools
import re
from pathlib import Path

import pytest

from benchmarks import code_layout

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("t5x_style", "models", "input_pipelines", "gin_configs", "launch")
OURS = (*PACKAGES, "benchmarks")
FILE_LINES, FUNCTION_LINES, FOLDER_FILES = 400, 80, 26  # 25 and __init__

# Packages in layers: a file imports its own package and those before it in the list. "" holds the
# files of the top folder itself; a file that no layer names fails the test.
LAYERS = {
    "t5x_style": (
        *("interfaces", "accelerators", "storage", "leases", "distributed", "configuration"),
        *("step", "retrieval", "mining", "model_dependent_data", "checkpoints", "evaluation"),
        *(
            "multilingual",
            "workflow",
            "companions",
            "goodput",
            "serving",
            "training",
            "fine_tuning",
            "sweeps",
            "reporting",
            "",
            "preflight",
        ),
    ),
    "models": ("losses", "corruption", "networks", "interop", "objectives"),
    "input_pipelines": (
        "sources",
        "tokenizers",
        "store",
        "batches",
        "pairs",
        "gather",
        "labelled",
        "marge",
    ),
    "launch": ("cloud", "clusters", "service", ""),
}
# Floors of files within a package, in the same way; a file that is on no list may import all.
FLOORS = {
    "models.networks": (
        ("blocked_attention",),
        ("attention", "decoding"),
        ("layers",),
        ("bag", "bert", "seq2seq", "electra", "heads", "pooled_encoder", "text_embedding"),
        ("projected_encoder", "span_head"),
    ),
    "models.corruption": (("masking", "generator_sampling"), ("evidence_layout", "span_masks")),
    "t5x_style.step": (("optimizers",), ("train_state",), ("train_step",)),
    "t5x_style.training": (("hooks",), ("trainer",)),
}
# What each top package may import of the others.
ALLOWED = {
    "t5x_style": (),
    "models": (
        "t5x_style.interfaces",
        "t5x_style.distributed",
        "t5x_style.retrieval.device_index",  # these two run inside a step
        "t5x_style.retrieval.recall_probes",
    ),
    "input_pipelines": (),
    "launch": (
        "t5x_style.configuration",
        "t5x_style.workflow",
        "t5x_style.goodput",
        "t5x_style.sweeps",
        "t5x_style.accelerators",
        "t5x_style.storage",
        "t5x_style.leases",
        "t5x_style.distributed.launch_flags",
        "t5x_style.distributed.pod",
        "t5x_style.interfaces.representation",
        "t5x_style.serving",
    ),
}
# What decides whether a stage runs knows nothing of what stages do, and starts in a blink.
WITHOUT_JAX = (
    "t5x_style.goodput",
    "t5x_style.accelerators",
    "t5x_style.configuration",
    "t5x_style.leases",
    "t5x_style.storage",
    "t5x_style.workflow",
    "t5x_style.distributed.launch_flags",
    "t5x_style.distributed.pod",
)
# How a stage joins the other processes, imported when there are some.
JOINS = {
    ("t5x_style.workflow.stage_runner", "t5x_style.distributed.startup"),
    ("t5x_style.workflow.stage_runner", "t5x_style.distributed.peer_watch"),
    ("t5x_style.workflow.stage_runner", "t5x_style.distributed.agreement"),
}
OBJECTIVE_BASES = {  # abstract classes, which are no objectives
    f"models.objectives.{name}" for name in ("text_objective", "condensed_text", "twice_encoded")
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


def package_of(path):
    """(top package, package below it or "") of a file."""
    parts = path.relative_to(REPOSITORY).parts
    return parts[0], parts[1] if len(parts) > 2 else ""


def inside(name, packages):
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("top", LAYERS)
def test_every_file_is_in_a_layer(top):
    problems = [
        f"{path}: {package_of(path)[1] or 'the top folder'} is no layer of {top}"
        for path in sources(top)
        if package_of(path)[1] not in LAYERS[top] and path.parent != REPOSITORY / top
    ]
    problems += [
        f"{path}: no file lies in {top} itself"
        for path in sources(top)
        if path.parent == REPOSITORY / top and "" not in LAYERS[top] and path.name != "__init__.py"
    ]
    assert problems == []


@pytest.mark.parametrize("top", LAYERS)
def test_files_import_their_own_layer_and_lower_ones(top):
    layers = LAYERS[top]
    problems = []
    for path in sources(top):
        own = package_of(path)[1]
        for name in our_imports(path):
            if name.split(".")[0] == top:
                file = REPOSITORY.joinpath(*name.split("."))
                other = package_of(file.with_suffix(".py"))[1] if name != top else own
                if other in layers and layers.index(other) > layers.index(own):
                    problems.append(f"{path}: {name} is in a higher layer")
            elif not inside(name, ALLOWED[top]):
                problems.append(f"{path}: {top} may not import {name}")
    assert problems == []


@pytest.mark.parametrize("package", FLOORS)
def test_files_import_their_own_floor_and_lower_ones(package):
    numbers = {
        f"{package}.{name}": number
        for number, names in enumerate(FLOORS[package])
        for name in names
    }
    files = {module_name(path): path for path in sources(package.replace(".", "/"))}
    assert set(numbers) <= set(files)
    problems = [
        f"{files[name]}: {other} is in a higher layer"
        for name, number in numbers.items()
        for other in our_imports(files[name])
        if numbers.get(other, number) > number
    ]
    assert problems == []


def test_no_circles():
    trees = code_layout.modules(REPOSITORY)
    graph = code_layout.imports(trees)
    assert code_layout.circles(graph) == []
    assert code_layout.circles(code_layout.of_folders(graph)) == []


def test_circles_are_found():
    assert code_layout.circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]


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


def test_what_plans_stages_imports_no_more_than_it_needs():
    problems = [
        f"{path}: {name}"
        for path in sources("t5x_style")
        if inside(module_name(path), WITHOUT_JAX)
        for name in our_imports(path)
        if name.startswith("t5x_style.")
        and not inside(name, WITHOUT_JAX)
        and (module_name(path), name) not in JOINS
    ]
    assert problems == []


def test_entry_points_do_not_import_each_other():
    """But `stage`, with which they end, and `train`, which preflight compiles."""
    problems = [
        f"{path}: {name}"
        for path in (REPOSITORY / "t5x_style").glob("*.py")
        for name in our_imports(path)
        if name.count(".") == 1
        and (REPOSITORY / (name.replace(".", "/") + ".py")).is_file()
        and name not in ("t5x_style.stage", module_name(path))
    ]
    assert problems == []


def test_the_loop_and_the_step_know_no_kind_of_model_dependent_source():
    """Such a source is chosen in gin, and joined by `interfaces.batch_source`."""
    paths = [REPOSITORY / "t5x_style/train.py", *sources("t5x_style/training", "t5x_style/step")]
    word = re.compile(r"\bretrieval\b|replan|model_dependent_data", re.IGNORECASE)
    problems = [
        f"{path}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if word.search(line)
    ]
    assert problems == []


def test_objectives_do_not_import_each_other():
    problems = [
        f"{path}: {name}"
        for path in sources("models/objectives")
        for name in our_imports(path)
        if name.startswith("models.objectives") and name not in OBJECTIVE_BASES
    ]
    assert problems == []


def test_folders_hold_at_most_25_files():
    sizes = collections.Counter(path.parent for path in sources(*PACKAGES, "tests"))
    assert {str(folder): size for folder, size in sizes.items() if size > FOLDER_FILES} == {}


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
    # Reads tensors of PyTorch's files, and refuses what names anything else; see its tests.
    restricted = REPOSITORY / "models/interop/torch_pickle.py"
    problems = []
    for path in sources(*PACKAGES, "benchmarks"):
        if path == restricted:
            continue
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
    code = (
        "import models.networks.bert\ndef f():\n  from t5x_style import stage\n  from .x import y\n"
    )
    assert imports_of(ast.parse(code), "models") == {
        "models.networks.bert",
        "t5x_style.stage",
        "models.x",
    }
