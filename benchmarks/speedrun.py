"""The record of the main job: quickstart.gin for three seeds, from text to an evaluated index.

    python -m benchmarks.speedrun [--seeds=1,2,3] [--folder=runs/speedrun]

Each seed runs in a new store, so that nothing is reused. Prints development and test
figures of each system, mean and range, and the wall clock of each run; ends with exit code 1 if one
took longer than the rules of docs/results/speedrun.md allow. Nothing else should run meanwhile.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from absl import app, flags

from benchmarks import code_hash

_SEEDS = flags.DEFINE_list("seeds", ["1", "2", "3"], "Of parameters and of the order of pairs.")
_FOLDER = flags.DEFINE_string("folder", "runs/speedrun", "Keeps the summary of each seed.")

LIMIT = 600.0  # seconds of wall clock
SYSTEMS = ("bm25", "bag_of_embeddings", "retriever", "late_interaction", "fusion")
RECIPE = "gin_configs/recipes/quickstart.gin"


def run(seed: str, folder: Path) -> dict[str, Any]:
    """summary.json of one seed, with `wall_clock` in seconds.

    Raises:
      CalledProcessError: the recipe failed.
    """
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "launch.recipe", f"--gin_file={RECIPE}"]
        command += [f"--gin.RUN_DIR='{place}/run'", f"--gin.SEED={seed}"]
        started = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - started
        found: dict[str, Any] = json.loads((Path(place) / "run/summary.json").read_text("utf-8"))
    found["wall_clock"] = round(seconds, 1)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed_{seed}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def table(found: list[dict[str, Any]]) -> list[str]:
    """Lines of Markdown: mean and range over seeds, of development and of test queries."""
    metrics = list(next(iter(found[0]["metrics"].values())))
    lines = [
        "| queries | system | " + " | ".join(metrics) + " |",
        "|---" * (len(metrics) + 2) + "|",
    ]
    sets = {
        "development": [one["development"]["dev"]["systems"] for one in found],
        "test": [one["metrics"] for one in found],
    }
    for name, each in sets.items():
        for system in SYSTEMS:
            if all(system in one for one in each):
                cells = [_cell([one[system][metric] for one in each]) for metric in metrics]
                lines.append(f"| {name} | {system} | " + " | ".join(cells) + " |")
    return lines


def _cell(values: list[float]) -> str:
    mean = sum(values) / len(values)
    if max(values) == min(values):
        return f"{mean:.4f}"
    return f"{mean:.4f} ({min(values):.3f} to {max(values):.3f})"


def main(argv: list[str]) -> None:
    """Runs all seeds."""
    del argv
    code_hash.announce("speedrun")
    found = [run(seed, Path(_FOLDER.value)) for seed in _SEEDS.value]
    print("\n".join(table(found)))
    seconds = [one["wall_clock"] for one in found]
    print(f"wall clock: {', '.join(f'{one:.0f}' for one in seconds)} s; the limit is {LIMIT:.0f} s")
    if max(seconds) > LIMIT:
        sys.exit(1)


if __name__ == "__main__":
    app.run(main)
