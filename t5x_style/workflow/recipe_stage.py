"""A recipe, its stages, and companions of these."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from t5x_style.workflow.links import DEFAULT_NAME
from t5x_style.workflow.recipe_values import Output, outputs_in
from t5x_style.workflow.store import Store


class RecipeError(ValueError):
    """A recipe that does not fit together; the message names the stage."""


@dataclass(frozen=True)
class Stage:
    """One stage of a recipe, its macros expanded; see `launch.recipe` for the gin form.

    Attributes:
      inputs: macro -> path or `Output`, or a list or dictionary of these.
      bindings: macro or parameter -> value.
      scaled: macro -> number that is multiplied by the recipe's budget.
      publish: file below the run's folder -> name of the output that is copied there.
      job: dotted path of what it runs.
      entry: module that runs the job, by `python -m`.
      where: file and line of its first binding.
    """

    name: str
    gin_files: tuple[str, ...]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    bindings: Mapping[str, Any] = field(default_factory=dict)
    scaled: Mapping[str, int] = field(default_factory=dict)
    publish: Mapping[str, str] = field(default_factory=dict)
    job: str = ""
    entry: str = ""
    where: str = ""

    def needs(self) -> list[Output]:
        """The outputs of other stages that this one reads."""
        return outputs_in(dict(self.inputs))


@dataclass(frozen=True)
class Companion(Stage):
    """A process that runs next to a stage, and ends with it; it has no version.

    Attributes:
      stage: name of the stage.
      watches: its macro that is the link to the stage's version.
      shares: a macro of both: the folder `Recipe.shared` in which they meet.
    """

    stage: str = ""
    watches: str = ""
    shares: str = ""


@dataclass(frozen=True)
class Recipe:
    """A checked recipe: every `Output` is one of an earlier stage.

    Attributes:
      stages: in an order in which they can run.
      companions: in the order of their stages; what they read is made before these.
      store: where versions are; by default `.store` next to the run's folder.
      limit: STORE_LIMIT, as the user wrote it; None for none.
      cpu_devices: as which a CPU counts at most, see `launch.children.virtual_devices`.
    """

    stages: tuple[Stage, ...]
    run_dir: Path
    budget: float
    publish: Mapping[str, Output]
    store: Store = field(default_factory=lambda: Store(Path(DEFAULT_NAME)))
    limit: Any = None
    companions: tuple[Companion, ...] = ()
    cpu_devices: int = 1

    def companions_of(self, stage: str) -> list[Companion]:
        """Those that run next to a stage."""
        return [one for one in self.companions if one.stage == stage]

    def link(self, name: str) -> Path:
        """The link to the current version of stage `name`."""
        return self.run_dir / name
