"""Old names, which gin files, recipes and finished runs may hold, and the present ones.

After a rename, add the old name here with the present one. Then

- gin files and recipes that use the old name are understood, and a note says the present one;
- finished versions stay valid: a fingerprint holds the name that a thing had first. Modules are in
  it without their package (`module.name`), so a move to another package leaves it as it is.

After adding a parameter whose default means the old behaviour, add it to `ADDED` with that value:
while it has it, fingerprints leave it out.
"""

import sys
from collections.abc import Mapping

from t5x_style.configuration import sources

# Package -> modules that moved to it, by their old paths below the top-level package
_MOVED: Mapping[str, str] = {
    "t5x_style.interfaces": "contract metrics objective retrieval.index",
    "t5x_style.distributed": "collectives partitioning peers processes rendezvous runtime",
    "t5x_style.step": "inference optim step_program tables train_state train_step",
    "t5x_style.training": "hooks initialise longer_training metric_log progress trainer",
    "t5x_style.checkpoints": ("checkpoint_folder checkpoint_items checkpointing integrity trained"),
    "t5x_style.mining": (
        "retrieval.candidates retrieval.mining retrieval.origin retrieval.scoring"
    ),
    "t5x_style.model_dependent_data": (
        "host_retrieval replanning retrieval.index_versions retrieval.neighbours "
        "retrieval.refresher retrieval.retriever retrieval.version_choice "
        "retrieval.version_reader retrieval.version_record"
    ),
    "t5x_style.multilingual": (
        "evaluation.bitext evaluation.bitext_mining evaluation.evidence "
        "evaluation.language_groups evaluation.parallel_questions "
        "evaluation.sentence_similarity evaluation.sentence_systems "
        "evaluation.translation_sets"
    ),
    "t5x_style.configuration": (
        "gin_reader gin_text gin_types gin_utils workflow.parameters workflow.renames "
        "workflow.signatures workflow.sources"
    ),
    "t5x_style.reporting": "report_advice report_commands report_curves report_parts",
    "t5x_style.workflow": "fingerprints recipe_file stage_main",
    "t5x_style.serving": "saved_model saved_model_check",
    "input_pipelines.sources": (
        "answers asked_passages beir bitext bitext_tables bucc chunks cpu_only_tensorflow "
        "docstrings ir_datasets_source labelled_pair_files language_sentences languages "
        "msmarco near_duplicates parallel_questions places qed question_sets "
        "similar_sentences sources squad tfds_source triples wiki_dump"
    ),
    "input_pipelines.gather": (
        "answer_key complete_splits corpus_queries documents held_out python_docs "
        "query_families question_collection to_beir translated_documents translations"
    ),
    "input_pipelines.tokenizers": (
        "import_tokenizer question_tokens sentencepiece_model tokenization "
        "vocabulary_report wordpiece words"
    ),
    "input_pipelines.store": (
        "answer_forms blocks example_proto layouts mixing prepare salient_spans "
        "store_writer text_parts token_store worker_pool"
    ),
    "input_pipelines.batches": (
        "corpus_table epoch_plan joint labelled_pairs negatives packing pipeline plan "
        "question_windows questions reading sentences stream text_source translation_rows "
        "windows_to_answer"
    ),
    "input_pipelines.pairs": (
        "joint_pairs pair_choice pair_corpus pair_cuts pair_kinds pair_mixture pair_plan "
        "pair_rows pair_shares pair_steps pairs text_arrays training_pairs "
        "translation_pairs translation_sides"
    ),
    "input_pipelines.marge": (
        "document_chunks given_evidence planned_batches sub_batch_groups sub_batch_pipeline "
        "sub_batches writing written_pairs"
    ),
    "models.networks": (
        "attention bag bert electra embedding generation heads layers pooled projected "
        "seq2seq span_head"
    ),
    "models.corruption": "corruption evidence sampling span_masks",
    "models.objectives": (
        "autoencoder bi_encoder condenser cross_encoder extractive_qa ict labse marge mlm "
        "open_qa pair_classifier pretraining realm retromae simlm"
    ),
    "models.interop": (
        "export_bag export_hf hf_config hf_names import_hf model_cards published_contract "
        "sentence_modules"
    ),
}

# Dotted path of a module, function or class -> the present one
NAMES: Mapping[str, str] = {
    f"{package.partition('.')[0]}.{old}": f"{package}.{old.rpartition('.')[2]}"
    for package, modules in _MOVED.items()
    for old in modules.split()
}
# "module.name.parameter" as in fingerprints, with the present parameter -> its first name
PARAMETERS: Mapping[str, str] = {}
# macro of gin files -> the present one
MACROS: Mapping[str, str] = {}
# path of a gin file -> the present one
FILES: Mapping[str, str] = {}
# "module.name.parameter" as in fingerprints -> the value that means what was done without it
ADDED: Mapping[str, str] = {
    "tokenization.train_tokenizer.split_case": "False",
    "bert.BertConfig.table_stddev": "None",
    "bert.BertConfig.position_stddev": "None",
    "bert.BertConfig.kernel_stddev": "None",
    "bert.BertConfig.attention_stddev": "None",
    "bert.BertConfig.mlp_stddev": "None",
}

_noted: set[str] = set()
_inverse: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})


def present(path: str) -> str:
    """The present dotted path of what an old or present one names.

    A module may have become a package of the same name, so a path into a module that exists is
    never an old one.
    """
    parts = path.split(".")
    for depth in range(len(parts), 0, -1):
        prefix = ".".join(parts[:depth])
        if prefix in NAMES:
            return present(".".join([NAMES[prefix], *parts[depth:]]))
        file = sources.path_of(parts[:depth])
        if file is not None and file.name != "__init__.py":
            return path
    return path


def first(path: str) -> str:
    """The dotted path that something had first, given its present one."""
    parts = path.split(".")
    for depth in range(len(parts), 0, -1):
        old = _inverted().get(".".join(parts[:depth]))
        if old is not None:
            return first(".".join([old, *parts[depth:]]))
    return path


def _inverted() -> Mapping[str, str]:
    """Present path -> the one before; kept for as long as the table is the same."""
    global _inverse
    if _inverse[0] is not NAMES:
        _inverse = (NAMES, {new: old for old, new in NAMES.items()})
    return _inverse[1]


def kind(target: str) -> str:
    """The name of a function or class in fingerprints: the last two parts of its first path.

    >>> kind("t5x_style.retrieval.exact.load")
    'exact.load'
    """
    return ".".join(first(target).split(".")[-2:])


def parameter(target: str, name: str) -> str:
    """The present name of a parameter of `target`."""
    prefix = f"{kind(target)}."
    for full, old in PARAMETERS.items():
        if full.startswith(prefix) and old == name:
            return full.removeprefix(prefix)
    return name


def aliases(paths: Mapping[str, str]) -> dict[str, str]:
    """Old symbols of modules, for names that are written where nothing is imported.

    Args:
      paths: symbol -> present path of a module.

    Returns:
      The last part of each old path of these modules -> that old path.
    """
    known = set(paths.values())
    return {old.rpartition(".")[2]: old for old in NAMES if present(old) in known}


def macro(name: str, where: str) -> str:
    """The present name of a macro; says so if it is another one."""
    found = MACROS.get(name, name)
    if found != name:
        note(where, name, found)
    return found


def entry(module: str, where: str) -> str:
    """The present path of a module that a recipe runs; says so if it is another one."""
    found = present(module)
    if found != module:
        note(where, module, found)
    return found


def note(where: str, old: str, new: str) -> None:
    """Says once in a process, on stderr, that a name has changed."""
    text = f"note: {where}: {old} is called {new} now; the old name still works"
    if text not in _noted:
        _noted.add(text)
        print(text, file=sys.stderr, flush=True)
