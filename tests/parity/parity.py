"""Compares our objectives with the numbers of the official code.

    python -m tests.parity PATH... [--gin.NAME=VALUE ...]

Each PATH is a golden case folder, `<system>/<case>`; the system is the parent folder's name, or
else follows from `architecture` in config.json. Prints one line per quantity with its largest
error and its tolerance. Exit status 0 only if every quantity of every case is within tolerance; 1
if one is not; 2 if a folder cannot be run: unknown system, missing files, nothing in it.
"""

import importlib
from pathlib import Path
from types import ModuleType

import jax

from tests.parity import parity_kit

CASES = Path(__file__).parent / "cases"
SYSTEMS = tuple(sorted(file.stem for file in CASES.glob("*.py")))


def system_of(case: parity_kit.Case) -> ModuleType:
    """The module of `tests/parity/cases` for this case.

    Raises:
        CaseError: no module is named after the parent folder or knows the architecture.
    """
    name = case.folder.resolve().parent.name
    if name in SYSTEMS:
        return importlib.import_module(f"tests.parity.cases.{name}")
    architecture = case.config.get("architecture")
    for candidate in SYSTEMS:
        module = importlib.import_module(f"tests.parity.cases.{candidate}")
        if architecture in module.ARCHITECTURES:
            return module
    raise parity_kit.CaseError(
        f"{case.folder}: expected a system among {list(SYSTEMS)}, found folder {name!r} and "
        f"architecture {architecture!r}. Add tests/parity/cases/{name}.py to support it."
    )


def run(folder: Path, overrides: list[str]) -> list[parity_kit.Quantity]:
    """All quantities of one case.

    Args:
        folder: the case.
        overrides: gin bindings that win over the case's own.

    Raises:
        CaseError: the folder cannot be run.
    """
    if not folder.is_dir():
        raise parity_kit.CaseError(f"{folder}: expected a golden case folder, found none.")
    case = parity_kit.Case.read(folder)
    with jax.default_matmul_precision("highest"):
        quantities = system_of(case).quantities(case, overrides)
    if not quantities:
        raise parity_kit.CaseError(f"{folder}: nothing was compared.")
    return quantities


def report(folder: Path, overrides: list[str]) -> int:
    """Runs and prints one case; returns its exit status."""
    print(f"{folder}", flush=True)
    try:
        quantities = run(folder, overrides)
    except (ValueError, OSError) as error:
        print(f"  ERROR {error}", flush=True)
        return 2
    except KeyError as error:
        print(f"  ERROR expected {error} in the case's files, found no such entry.", flush=True)
        return 2
    for quantity in quantities:
        verdict = "ok  " if quantity.passed else "FAIL"
        print(
            f"  {verdict} {quantity.name:<75} error {quantity.error:.2e} "
            f"tolerance {quantity.tolerance:.2e} {quantity.note}"
        )
    failed = sum(not quantity.passed for quantity in quantities)
    print(f"  {len(quantities) - failed} of {len(quantities)} within tolerance", flush=True)
    return 1 if failed else 0


def main(arguments: list[str]) -> int:
    """See the module's docstring."""
    overrides = [a.removeprefix("--gin.") for a in arguments if a.startswith("--gin.")]
    folders = [Path(a) for a in arguments if not a.startswith("--gin.")]
    if not folders or any(str(folder).startswith("-") for folder in folders):
        print(__doc__)
        return 2
    return max(report(folder, overrides) for folder in folders)
