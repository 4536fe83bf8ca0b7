"""How easy the code is to enter, in counts: files per folder, import cycles, protocols, and
how often shared code names one system, network, index or function.

    python -m benchmarks.code_layout
    python -m benchmarks.code_layout --root=OTHER_CHECKOUT

Nothing is imported. A cycle of folders is a set of folders of which each imports each other one,
directly or not. Prints one markdown table.
"""

import argparse
import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PACKAGES = ("t5x_style", "models", "input_pipelines", "launch")
# Shared code of the engine, by file name in any layout, and words of systems that it may not know.
LOOP = ("train", "trainer", "train_state", "train_step", "compiled_step", "longer_training")
SYSTEMS = ("retriev", "replan", "realm", "marge", "labse", "simlm")
FUNCTIONS = ("embed_query", "embed_passage")
Graph = Mapping[str, set[str]]


def modules(root: Path) -> dict[str, ast.Module]:
    """Dotted name -> syntax tree, of every file of ours but `__init__`."""
    paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    return {
        ".".join(path.relative_to(root).with_suffix("").parts): ast.parse(path.read_text())
        for path in paths
        if path.name != "__init__.py"
    }


def imports(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """Module -> the modules of ours that it imports."""
    return {name: set(_imported(tree, trees)) - {name} for name, tree in trees.items()}


def _imported(tree: ast.Module, known: Iterable[str]) -> Iterator[str]:
    known = set(known)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [f"{node.module}"]
        else:
            continue
        yield from (name for name in names if name in known)


def of_folders(graph: Graph) -> dict[str, set[str]]:
    """The same edges between folders."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, others in graph.items():
        found[folder(name)] |= {folder(other) for other in others} - {folder(name)}
    return found


def folder(name: str) -> str:
    return name.rpartition(".")[0]


def circles(graph: Graph) -> list[list[str]]:
    """Sets of nodes that reach each other."""
    reach = {node: _reached(graph, node) for node in graph}
    sets = {frozenset(other for other in reach[node] if node in reach[other]) for node in graph}
    return sorted(sorted(one) for one in sets if len(one) > 1)


def _reached(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found


def protocols(trees: Mapping[str, ast.Module]) -> Counter[str]:
    """Name -> how many protocols have it."""
    return Counter(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).partition("[")[0].endswith("Protocol") for base in node.bases)
    )


def lines_naming(tree: ast.Module, words: Iterable[str]) -> set[int]:
    """Lines of code, docstrings aside, with a name that contains one of the words."""
    found = set()
    for node in ast.walk(tree):
        names = [
            value
            for field in ("id", "attr", "arg", "name", "module")
            if isinstance(value := getattr(node, field, None), str)
        ]
        if any(word in name.lower() for name in names for word in words):
            found.add(getattr(node, "lineno", 0))
    return found


def strings(tree: ast.Module, values: Iterable[str]) -> int:
    """How often one of these texts is a constant of the code."""
    return sum(isinstance(node, ast.Constant) and node.value in values for node in ast.walk(tree))


def interface_rows(trees: Mapping[str, ast.Module], graph: Graph) -> Iterator[tuple[str, str]]:
    """What shared code names that it should not have to know."""
    engine = {name: tree for name, tree in trees.items() if name.startswith("t5x_style.")}
    lines = sum(
        len(lines_naming(tree, SYSTEMS))
        for name, tree in engine.items()
        if name.rpartition(".")[2] in LOOP
    )
    yield "lines of the loop and the step that name one system", str(lines)
    objectives = {
        name
        for name, tree in trees.items()
        if name.startswith("models.")
        and any(
            isinstance(node, ast.ClassDef)
            and any(ast.unparse(base) in ("Objective", "TextObjective") for base in node.bases)
            for node in ast.walk(tree)
        )
    }
    networks = {"models.bert", "models.networks.bert"}
    count = sum(bool(graph[name] & networks) for name in objectives)
    yield "files of objectives that import BERT's classes", str(count)
    count = sum(
        any(other.endswith(".scann_index") for other in others)
        for name, others in graph.items()
        if name in engine
    )
    yield "engine files that import ScaNN's index", str(count)
    count = sum(strings(tree, FUNCTIONS) for tree in engine.values())
    yield "constants `embed_query`, `embed_passage` in the engine", str(count)


def rows(root: Path) -> Iterator[tuple[str, str]]:
    """(what, count) of every line of the table."""
    trees = modules(root)
    graph = imports(trees)
    sizes = Counter(map(folder, trees))
    names = protocols(trees)
    for package in PACKAGES:
        inside = {name: n for name, n in sizes.items() if f"{name}.".startswith(f"{package}.")}
        yield f"`{package}`: files, folders", f"{sum(inside.values())}, {len(inside)}"
    name, size = sizes.most_common(1)[0]
    yield "most files in one folder", f"{size} (`{name}`)"
    yield "folders with more than 25 files", str(sum(n > 25 for n in sizes.values()))
    yield "circles of files", _sizes(circles(graph))
    yield "circles of folders", _sizes(circles(of_folders(graph)))
    yield "protocols", str(sum(names.values()))
    twice = [f"`{name}` {n}" for name, n in names.most_common() if n > 1]
    yield "names that several protocols have", ", ".join(twice) or "none"
    yield from interface_rows(trees, graph)


def _sizes(found: list[list[str]]) -> str:
    return f"{len(found)} (of {', '.join(str(len(one)) for one in found)})" if found else "0"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent)
    print("| what | count |\n|---|---|")
    for what, count in rows(options.parse_args().root):
        print(f"| {what} | {count} |")


if __name__ == "__main__":
    main()
