"""Resolve the part of a training's configuration that decides its step, without touching data.

gin fills it as it fills `t5x_style.train.train`, with the same checks of names and types. Two
things differ: the mesh is made of a topology's devices, and a vocabulary of a stated size replaces
a tokenizer that does not exist yet.
"""

import copy
import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from gin import config as gin_config

from t5x_style import train
from t5x_style.configuration import code_checks, gin_checks, gin_types
from t5x_style.configuration.gin_reader import FOLDER_MACRO, RUN, Config, Reference, to_gin
from t5x_style.distributed.partitioning import Partitioner
from t5x_style.interfaces.batch_source import ModelDependentSource
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.step.optimizers import AdamW
from t5x_style.step.train_state import MakeObjective
from t5x_style.workflow import stages

JOB = "t5x_style.train.train"
_CONTRACT = "t5x_style.interfaces.contract"
_FOLDER_PARAMETER = "tokenizer_folder"
_SPECIAL = ("pad", "unk", "cls", "sep", "mask")


class MissingError(ValueError):
    """The configuration refers to something that must exist, or be stated, and is neither."""


@dataclasses.dataclass(frozen=True)
class Training:
    """The parameters of `train.train` on which the step depends.

    Attributes:
      corrupted: whether `train.train.pipeline` gives batches that are corrupted already.
    """

    objective: MakeObjective
    optimizer: AdamW
    partitioner: Partitioner
    seed: int
    micro_batches: int = 1
    corrupted: bool = False


@dataclasses.dataclass(frozen=True)
class VocabularySize:
    """A stated number of tokens, and who states it."""

    size: int
    source: str


def resolve(
    flags: gin_checks.Flags, topology: str, vocabulary: VocabularySize | None
) -> tuple[Training, list[str]]:
    """Checks and resolves the configuration of a training stage.

    Args:
      flags: gin files and overrides of `t5x_style.train`; MODEL_DIR may be absent.
      topology: name of the slice.
      vocabulary: taken where a tokenizer's folder does not exist.

    Returns:
      the training, and in words what had to be assumed.

    Raises:
      GinError: as `t5x_style.train` would.
      MissingError: a tokenizer does not exist and no size is stated, or the other way round.
    """
    config = flags.read()
    if FOLDER_MACRO not in config.macros:  # nothing is written
        overrides = (*flags.overrides, (FOLDER_MACRO, "preflight"))
        flags = dataclasses.replace(flags, overrides=overrides)
        config = flags.read()
    job = stages.job_of(config, JOB)
    gin_checks.check_names(config, (RUN, job))
    gin_checks.check_code(config)
    gin_checks.check_job(config, job)
    lines, assumed = _stand_ins(config, vocabulary)
    gin_config.clear_config()
    gin_checks.parse(config, job, "\n".join([*_devices(topology), *lines]) + "\n")
    bound = gin_config.get_bindings(train.train, resolve_references=False)
    # A copy of one binding makes gin build what it refers to, and nothing else: no store is opened.
    names = [field.name for field in dataclasses.fields(Training) if field.name in bound]
    parameters = {name: copy.deepcopy(bound[name]) for name in names}
    corrupted, more = _corrupts(config, job)
    return Training(**parameters, corrupted=corrupted), [*assumed, *more]


def _corrupts(config: Config, job: str) -> tuple[bool, list[str]]:
    """Whether the training's source corrupts its batches, and what that assumes.

    Its class is asked, for the source is not built; of a function, the class that it returns.
    """
    binding = config.bindings["", job, "pipeline"]
    source = config.expand(binding.value, binding.where)
    if not isinstance(source, Reference):
        return False, []
    made = code_checks.locate(source.target, binding.where)
    if not isinstance(made, type):
        made = gin_types.annotations(made).get("return")
    if not isinstance(made, type) or made in (Any, object, ModelDependentSource):
        text = f"the step corrupts its batches: @{source.text}() does not annotate what it returns"
        return False, [f"{text} with a class of sources"]
    return issubclass(made, ModelDependentSource) and made.corrupts, []


def _devices(topology: str) -> list[str]:
    """gin text that gives every mesh the devices of a slice."""
    return [
        "from __gin__ import dynamic_registration",
        "import t5x_style.interfaces.contract",
        "import t5x_style.distributed.partitioning",
        "import t5x_style.preflight.topology",
        f"t5x_style.preflight.topology.devices.name = {topology!r}",
        "t5x_style.distributed.partitioning.Partitioner.devices = "
        "@t5x_style.preflight.topology.devices()",
    ]


def _stand_ins(config: Config, vocabulary: VocabularySize | None) -> tuple[list[str], list[str]]:
    """gin text that replaces tokenizers' folders that do not exist, and what that assumes."""
    missing = missing_tokenizers(config)
    if not missing:
        return [], []
    if vocabulary is None:
        folder = next(iter(missing.values()))
        raise MissingError(
            f"{folder}: no tokenizer there yet, and the size of its vocabulary decides the word "
            "table. Run the stage that makes it, or state the size: --vocabulary_size=30522"
        )
    folder = _write_vocabulary(vocabulary.size)
    lines = [f"{key} = {to_gin(folder)}" for key in missing]
    text = (
        f"a vocabulary of {vocabulary.size:,} tokens, from {vocabulary.source}: no tokenizer at "
        + ", ".join(sorted(set(missing.values())))
    )
    return lines, [text]


def missing_tokenizers(config: Config) -> dict[str, str]:
    """gin name -> folder, of every tokenizer that the configuration reads and that is not there."""
    found = {}
    for (scope, target, parameter), binding in config.bindings.items():
        if target.startswith(f"{_CONTRACT}.") and parameter == _FOLDER_PARAMETER:
            folder: Any = config.expand(binding.value, binding.where)
            if not (Path(folder) / "vocabulary.json").is_file():
                found[f"{scope}/{target}.{parameter}".lstrip("/")] = folder
    return found


def _write_vocabulary(size: int) -> str:
    """A folder with the `vocabulary.json` of a tokenizer of that size; lives until the exit."""
    special = {name: number for number, name in enumerate(_SPECIAL)}
    vocabulary = Vocabulary(
        size=size, special_ids=tuple(special.values()), fingerprint="assumed", **special
    )
    folder = tempfile.mkdtemp(prefix="preflight")
    text = json.dumps(dataclasses.asdict(vocabulary))
    (Path(folder) / "vocabulary.json").write_text(text, encoding="utf-8")
    return folder
