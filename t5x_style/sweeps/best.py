"""`best.gin`: the recipe with the winner's bindings, which runs as any recipe."""

from pathlib import Path

from t5x_style.configuration.gin_reader import to_gin
from t5x_style.storage import places
from t5x_style.sweeps.planning import Planner
from t5x_style.sweeps.trials import Trial

FILE = "best.gin"


def command(folder: Path) -> str:
    """The command that runs `best.gin`, in the sweep's store: its run is next to the sweep.

    Args:
      folder: of the sweep.
    """
    there, url = places.shown(folder), places.remote(folder)
    fetch = f"gcloud storage cp {url}/{FILE} . && " if url else ""
    return f"{fetch}kennel run {FILE if url else folder / FILE} RUN_DIR={there}-best"


def text(planner: Planner, trial: Trial) -> str:
    """A recipe file that makes what a trial made, and the stages after it.

    Args:
      planner: of the sweep.
      trial: the winner, with the seed that is repeated.
    """
    sweep = planner.sweep
    lines = [
        f"# The best configuration of {sweep.title} by {sweep.stage}/{sweep.metric}.",
        f"include '{sweep.recipe}'",
        "",
        *(f"{name} = {value}" for name, value in sweep.settings),
        *(f"{name} = {to_gin(value)}" for name, value in planner.bindings(trial).items()),
    ]
    return "\n".join(lines) + "\n"
