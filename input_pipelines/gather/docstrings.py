"""Reads documentation that a Python installation carries, without importing what it documents.

Four places: sources of installed packages and of the standard library (parsed with `ast`),
numpy's `add_newdoc` calls (docstrings of its compiled functions), the docstrings of compiled
modules of the standard library (these are imported: they are small), and the language's reference
topics (`pydoc_data.topics`).
"""

import ast
import dataclasses
import importlib
import importlib.util
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator

SKIPPED_FOLDERS = frozenset(
    "tests test testing __pycache__ site-packages dist-packages idlelib lib2to3 ensurepip "
    "turtledemo _vendor vendor vendored vendored_packages third_party examples "
    "external externals".split()
)
COMPILED_MODULES = (
    "array binascii builtins bz2 cmath collections datetime decimal errno fcntl functools gc "
    "hashlib io itertools marshal math mmap operator os pickle pwd pyexpat random re resource "
    "select signal socket ssl string struct sys syslog time unicodedata weakref zlib"
).split()


@dataclasses.dataclass(frozen=True)
class Doc:
    """One docstring or topic section.

    name: dotted name or heading. module: dotted module it belongs to. source: file relative to the
    installation folder, with its line. topic: a section of the reference, which has no summary.
    """

    name: str
    module: str
    text: str
    source: str
    topic: bool = False


class MissingPackageError(ValueError):
    """A package that the corpus was asked to be made from is not installed."""


def package_root(package: str) -> str:
    """The folder (or file) of an installed package, found without importing it.

    Raises:
      MissingPackageError: naming the package.
    """
    if package == "stdlib":
        return sysconfig.get_paths()["stdlib"]
    spec = importlib.util.find_spec(package) if "." not in package else None
    if spec is None or not (spec.submodule_search_locations or spec.origin):
        raise MissingPackageError(
            f"package {package!r} is not installed, or is not a top-level name; expected 'stdlib' "
            "or a package that `pip list` shows. Install it or take it out of make_corpus.packages"
        )
    if spec.submodule_search_locations:
        return next(iter(spec.submodule_search_locations))
    return str(spec.origin)


def python_files(root: str) -> Iterator[str]:
    """Source files under a package's folder, sorted, tests and vendored copies left out."""
    if os.path.isfile(root):
        yield root
        return
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(
            f for f in folders if f not in SKIPPED_FOLDERS and not f.startswith(("config-", "."))
        )
        for file in sorted(files):
            test = file.startswith("test_") or file.endswith(("_test.py", "_tests.py"))
            if file.endswith(".py") and not test and file != "conftest.py":
                yield os.path.join(folder, file)


def package_docs(package: str) -> Iterator[Doc]:
    """Public docstrings of an installed package or of "stdlib", in file and line order."""
    root = package_root(package)
    base = root if package == "stdlib" else os.path.dirname(root)
    for path in python_files(root):
        relative = os.path.relpath(path, base).replace(os.sep, "/")
        module = relative.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        with open(path, "rb") as f:
            source = f.read()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # other people's invalid escapes
                tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue  # templates and files for other Python versions
        shown = relative if package != "stdlib" else f"python/{relative}"
        yield from _walk(tree, module, module, shown)
        if b"add_newdoc(" in source:
            yield from _newdocs(tree, shown)


def _walk(node: ast.AST, name: str, module: str, source: str) -> Iterator[Doc]:
    """Docstrings of a module or class and of what is defined in it, not inside functions."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text:
            yield Doc(name, module, text, f"{source}:{getattr(node, 'lineno', 1)}")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not child.name.startswith("_"):
                yield from _walk(child, f"{name}.{child.name}", module, source)
        elif isinstance(child, ast.If | ast.Try | ast.With | ast.ExceptHandler):
            yield from _walk(child, name, module, source)


def _newdocs(tree: ast.Module, source: str) -> Iterator[Doc]:
    """Docstrings given by `add_newdoc(place, name, doc or (method, doc))`, numpy's way."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "add_newdoc"):
            continue
        try:
            place, name, doc = (ast.literal_eval(a) for a in node.args[:3])
        except ValueError:
            continue  # built by an expression
        if isinstance(doc, tuple):
            name, doc = f"{name}.{doc[0]}", doc[1]
        if isinstance(place, str) and isinstance(doc, str):
            public = place.removesuffix("._core.multiarray").removesuffix("._core.umath")
            text = inspect.cleandoc(doc)
            yield Doc(f"{public}.{name}", public, text, f"{source}:{node.lineno}")


def compiled_docs() -> Iterator[Doc]:
    """Docstrings of the compiled parts of the standard library: functions, classes, methods."""
    for module_name in COMPILED_MODULES:
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue  # not on this platform
        for name in sorted(vars(module)):
            value = getattr(module, name)
            if name.startswith("_") or getattr(value, "__module__", "") is None:
                continue
            yield from _compiled(value, f"{module_name}.{name}", module_name)


def _compiled(value: object, name: str, module: str) -> Iterator[Doc]:
    text = getattr(value, "__doc__", None)
    if inspect.isbuiltin(value) or inspect.ismethoddescriptor(value):
        if text:
            yield Doc(name, module, inspect.cleandoc(text), f"{module} (compiled)")
    elif inspect.isclass(value):
        if isinstance(text, str):
            yield Doc(name, module, inspect.cleandoc(text), f"{module} (compiled)")
        for attribute in sorted(vars(value)):
            if not attribute.startswith("_"):
                yield from _compiled(vars(value)[attribute], f"{name}.{attribute}", module)


_UNDERLINE = re.compile(r"([*=\-~^\"])\1{2,}")


def topic_docs() -> Iterator[Doc]:
    """The language's reference topics, one Doc a section, titled "topic heading: section"."""
    from pydoc_data import topics

    for topic in sorted(topics.topics):
        heading, place = topic, f"pydoc_data/topics.py#{topic}"
        for number, (section, body) in enumerate(sections(topics.topics[topic])):
            heading = section if number == 0 and section else heading
            title = f"{heading}: {section}" if section and section != heading else heading
            if body.strip():
                yield Doc(title, f"topics.{topic}", body, place, topic=True)


def sections(text: str) -> list[tuple[str, str]]:
    """Splits reStructuredText at underlined headings: (heading or "", body)."""
    lines = text.splitlines()
    out: list[tuple[str, list[str]]] = [("", [])]
    for i, line in enumerate(lines):
        following = lines[i + 1] if i + 1 < len(lines) else ""
        if line.strip() and _UNDERLINE.fullmatch(following) and len(following) >= len(line.strip()):
            out.append((line.strip(), []))
        elif not (_UNDERLINE.fullmatch(line) and out[-1][0] and not out[-1][1]):
            out[-1][1].append(line)
    return [(head, "\n".join(body)) for head, body in out if head or "".join(body).strip()]
