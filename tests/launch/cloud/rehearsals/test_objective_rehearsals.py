"""A preempted training of each objective leaves, bit for bit, what an undisturbed one leaves.

As test_rehearsal.py, with the shipped gin files on tiny models and texts. The undisturbed run reads
them, and writes, on a local disk.
"""

import dataclasses
import re

import pytest

from tests.kits.toys.remote_folder import put
from tests.launch.cloud.rehearsals import objective_inputs
from tests.launch.cloud.rehearsals.host_slice import HERE, Recipe, assert_equal

RECIPE = Recipe(
    (
        *(f"{HERE}/objectives.gin", f"{HERE}/accident.gin"),
        *("tests/multi_process/accidents.py", "tests/kits/toys/toy_objective.py"),
    )
)
BERT = {"LAYERS": 1, "WIDTH": 16, "POSITIONS": 64}
PACKED = {"ROWS": 4, "ROW_LENGTH": 48, "SEGMENTS": 4}
TEXTS = {"QUERY_LENGTH": 24, "PASSAGE_LENGTH": 40}
GROUPS = {"QUERIES": 4, "GROUP_SIZE": 2, "PASSAGES": 8, "TEMPERATURE": 0.05}
BLOCKS = {"QUERIES": 4, "PROJECTION": 8, "MAX_STALENESS_STEPS": 4}
SENTENCES = {"PAIRS": 4, "SENTENCE_LENGTH": 16, "TEMPERATURE": 0.05}
CHUNKS = {
    "CHUNK_LENGTH": 16,
    "REPLAN_EVERY": 4,
    "bert.BertConfig.hidden": 16,
    "seq2seq.DecoderConfig.mlp": 32,
}
PRE_TRAINED, FINE_TUNED = ("STORE",), ("STORE", "QUERY_STORE", "NEGATIVES")


@dataclasses.dataclass(frozen=True)
class Training:
    """A training by shipped gin files.

    Attributes:
      files: its model, its objective, its data.
      settings: macro or parameter -> value.
      inputs: macro -> what `objective_inputs` calls it.
    """

    files: tuple[str, ...]
    settings: dict[str, object]
    inputs: dict[str, str]


def training(files, inputs, *settings, **other):
    merged = {name: value for one in settings for name, value in one.items()}
    named = dict.fromkeys(("TOKENIZER", *inputs))
    return Training(files, merged, {name: name for name in named} | other)


def pretraining(*files):
    names = ("models/bert.gin", *files, "data/pretraining/packed.gin")
    return training(names, PRE_TRAINED, BERT, PACKED, TEXTS)


def fine_tuning(*files):
    names = ("objectives/bi_encoder.gin", "models/bert.gin", "data/pairs/pairs.gin", *files)
    return training(names, FINE_TUNED, BERT, TEXTS, GROUPS)


TRAININGS = {
    "mlm": pretraining("objectives/mlm.gin"),
    "retromae": pretraining("objectives/retromae.gin"),
    "simlm": pretraining("models/generator_tiny.gin", "objectives/simlm.gin"),
    "realm": training(
        (
            *("models/bert.gin", "objectives/realm.gin", "objectives/mask_salient_span.gin"),
            "data/pretraining/sentences.gin",
        ),
        (),
        *(BERT, TEXTS, BLOCKS),
        STORE="BLOCKS",
    ),
    "labse": training(
        ("objectives/labse.gin", "models/bert.gin", "data/translations/translation_pairs.gin"),
        ("TRANSLATIONS",),
        *(BERT, SENTENCES),
    ),
    "marge": training(
        ("models/marge_tiny.gin", "objectives/marge.gin", "data/documents/sub_batches.gin"),
        ("CHUNKS",),
        *(PACKED, CHUNKS),
    ),
    "retriever": fine_tuning(),
    "simlm_retriever": fine_tuning("objectives/simlm_contrastive.gin"),
}


@pytest.fixture(scope="module", name="data")
def write_data(tmp_path_factory):
    """The folder of all inputs, and what is where in it."""
    folder = tmp_path_factory.mktemp("data")
    return folder, objective_inputs.write(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_a_preempted_training_leaves_no_trace(name, new_slice, bucket, data):
    (folder, found), asked = data, TRAININGS[name]
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        put(f"data/{path.relative_to(folder)}", path.read_bytes())
    files = [*asked.files, f"{HERE}/accident.gin"]

    def start(run_dir, inputs):
        paths = {macro: f"{inputs}/{found[key]}" for macro, key in asked.inputs.items()}
        return new_slice(run_dir, RECIPE, FILES=files, INPUTS=paths, **asked.settings)

    disturbed = start("gs://bucket/runs/a", "gs://bucket/data")
    disturbed.preempted_at(7, first=1)  # after step 6 was to be saved: step 3 was saved before
    parameters = disturbed.finish()
    assert re.search("resumed at step [36];", disturbed.hosts[0].log()), disturbed.hosts[0].log()
    assert_equal(parameters, start("runs/b", folder).finish())
