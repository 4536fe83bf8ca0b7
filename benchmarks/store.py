"""The store: seconds to decide that a recipe is done, and disk use of many versions of a stage.

    python -m benchmarks.store                         # of a recipe of twenty stages
    python -m benchmarks.store --run=runs/quickstart   # disk use of that run, with more versions

The first writes the versions that `recipes/simlm.gin` would leave, without running its jobs, and
times the command that finds out that all are done. The second takes a finished run, makes further
versions of its fine-tuning (three steps each, with other learning rates), and prints what they
take. Moments of parameters that three steps did not reach are zeros, which checkpoints compress:
versions of full trainings are larger.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from absl import app, flags

from benchmarks import code_hash, corpora
from t5x_style.configuration import gin_checks
from t5x_style.workflow import links, making, recipe_planning, recipe_reader, stages
from t5x_style.workflow.recipe_problems import Problems
from t5x_style.workflow.space import in_words
from t5x_style.workflow.store import Store, bytes_of

_RUN = flags.DEFINE_string("run", "", "A finished run folder of quickstart.gin; makes versions.")
_STAGE = flags.DEFINE_string("stage", "retriever", "Of the run, a training: gets the versions.")
_VERSIONS = flags.DEFINE_integer("versions", 30, "Of that stage in the end.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timings; the median counts.")

RECIPE = "gin_configs/recipes/simlm.gin"


def pretend(recipe: recipe_reader.Recipe, command: gin_checks.Flags) -> None:
    """Makes a finished version of each stage, whose outputs are small files."""
    known = recipe_planning.Known()
    for item in recipe.stages:
        planned = recipe_planning.plan(recipe, item, command, known)
        lease = planned.store.leases.acquire(planned.id, lambda holder: None, lambda: None)
        folder = making.begin(planned, stages.decide(planned), lease)
        names = set(planned.job.outputs)
        names |= {one.name for other in recipe.stages for one in other.needs()}
        for name in names:
            (folder / name).write_text(name)
        making.finish(planned, folder, {name: name for name in names}, 1.0, lease)
        lease.release()
        known.done[item.name] = planned.store.read(folder)


def decide() -> None:
    """Prints the seconds until a recipe is known to be done."""
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "corpus"
        for name in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv"):
            (corpus / name).parent.mkdir(parents=True, exist_ok=True)
            (corpus / name).write_text("x" * 1_000_000)
        words = [f"--gin_file={RECIPE}", f"--gin.CORPUS={corpus}", f"--gin.RUN_DIR={scratch}/run"]
        command = gin_checks.parse_flags(words)
        recipe = recipe_reader.load(command)
        pretend(recipe, command)
        inside, outside = [], []
        for _ in range(_REPEATS.value):
            started = time.perf_counter()
            problems = Problems(command.read())
            known, _ = recipe_planning.look_up(recipe, command, problems)
            inside.append(time.perf_counter() - started)
            if len(known.done) != len(recipe.stages):
                raise SystemExit(f"expected all stages done, found {known.pending} pending")
            started = time.perf_counter()
            program = [sys.executable, "-m", "launch.recipe", *words, "--dry_run"]
            subprocess.run(program, cwd=corpora.ROOT, check=True, capture_output=True)
            outside.append(time.perf_counter() - started)
    print(f"{RECIPE}: {len(recipe.stages)} stages, all done")
    for name, times in (("the whole command, --dry_run", outside), ("of it, the decision", inside)):
        spread = f"{min(times):.2f} to {max(times):.2f}"
        print(f"  {name:<30}{statistics.median(times):7.2f} s  ({spread})")


def disk(run: Path) -> None:
    """Makes versions of a run's training, and prints what the store takes."""
    store = links.of_run(run)
    link = run / _STAGE.value
    first = store.read(link.resolve())
    if first.manifest is None:
        raise SystemExit(f"{link}: expected a finished training")
    before = bytes_of(store.versions)
    job, entry = first.manifest["job"]["name"], first.manifest["entry"].rpartition(".")[0]
    made = [first.id]
    for number in range(1, _VERSIONS.value):
        rate = 1e-4 * (1 + number)
        program = [sys.executable, "-m", entry, f"--gin_file={link}/config.gin"]
        program += [f"--gin.LEARNING_RATE={rate!r}", "--gin.STEPS=3", "--gin.WARMUP_STEPS=1"]
        program += [f"--gin.MODEL_DIR={run / '.versions' / str(number)}", "--strict_code"]
        program += [f"--gin.stage.run.store={store.root}"]
        done = subprocess.run(program, cwd=corpora.ROOT, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(program)} failed:\n{(done.stdout + done.stderr)[-3000:]}")
        made.append((run / ".versions" / str(number)).resolve().name)
        print(f"  {number + 1} versions", file=sys.stderr, flush=True)
    after = bytes_of(store.versions)
    sizes = [int((store.read(store.versions / one).manifest or {})["bytes"]) for one in made]
    dropped = sum(map(_optimizers, (store.versions / one for one in made)))
    print(f"{store.root}, {len(store.all())} versions; {link} has {len(made)} (job {job})")
    rows = {
        "the run, before": before,
        f"with {len(made)} versions": after,
        "a version, median": statistics.median(sizes),
        "if slimmed": after - dropped,
    }
    for name, size in rows.items():
        print(f"  {name:<24}{in_words(size):>12}")


def _optimizers(folder: Path) -> int:
    """Bytes of optimizer states in a version."""
    return sum(bytes_of(path) for path in Store(folder).root.glob("checkpoints/*/optimizer"))


def main(_: list[str]) -> None:
    """Prints one of the two tables."""
    if _RUN.value:
        disk(Path(_RUN.value))
    else:
        decide()


if __name__ == "__main__":
    code_hash.announce("store")
    app.run(main)
