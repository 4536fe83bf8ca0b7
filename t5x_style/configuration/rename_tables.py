"""The tables of `renames`: old names and the present ones, and what was added since."""

from collections.abc import Mapping
from dataclasses import dataclass

# Package -> modules that moved to it, by their old paths below the top-level package
_MOVED: Mapping[str, str] = {
    "t5x_style.interfaces": "contract metrics objective retrieval.index",
    "t5x_style.distributed": "collectives partitioning peers processes rendezvous runtime",
    "t5x_style.step": "inference optim step_program tables train_state train_step",
    "t5x_style.training": "hooks initialise longer_training metric_log progress trainer",
    "t5x_style.checkpoints": "checkpoint_folder checkpoint_items checkpointing integrity trained",
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
    "t5x_style.reporting": (
        "report_advice report_commands report_curves report_parts report_translations"
    ),
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

# Package -> modules that got another name in it, old>new
_RENAMED: Mapping[str, str] = {
    "t5x_style.distributed": "processes>launch_flags peers>peer_watch runtime>startup",
    "t5x_style.step": (
        "step_program>compiled_step optim>optimizers tables>static_tables "
        "inference>jitted_functions"
    ),
    "t5x_style.training": "metric_log>metric_writer initialise>warm_start",
    "t5x_style.checkpoints": (
        "checkpoint_items>state_layout checkpoint_folder>checkpoint_directory "
        "integrity>checksums trained>restored_model"
    ),
    "t5x_style.retrieval": (
        "exact>exact_index sharded_rows>sharded_top_k probes>recall_probes "
        "publish>versioned_folder passages>beir_collection documents>max_passage "
        "parts>resumable_parts reader>answer_reader"
    ),
    "t5x_style.mining": "mining>hard_negatives scoring>pair_scoring origin>provenance",
    "t5x_style.model_dependent_data": (
        "replanning>plan_refresh host_retrieval>host_query_encoder "
        "retriever>retrieval_batches refresher>index_builder index_versions>versioned_index "
        "version_choice>version_selector version_reader>version_prefetcher "
        "version_record>version_log"
    ),
    "t5x_style.evaluation": (
        "systems>retrieval_systems evaluator>retrieval_evaluator "
        "objective_evaluator>loss_evaluator qa>answer_metrics bench>evaluation_suite "
        "groups>query_groups"
    ),
    "t5x_style.multilingual": (
        "bitext>margin_scoring translation_sets>translation_retrieval "
        "parallel_questions>cross_lingual_qa sentence_systems>sentence_embedders "
        "sentence_similarity>similarity_correlation evidence>cross_lingual_neighbours"
    ),
    "t5x_style.workflow": "stage_main>stage_runner recipe_file>recipe_reader",
    "t5x_style.configuration": "gin_utils>gin_checks sources>python_sources",
    "t5x_style.reporting": "report_parts>report_tables",
    "input_pipelines.sources": (
        "sources>text_sources asked_passages>squad_questions parallel_questions>xquad "
        "similar_sentences>sts chunks>passage_splitter"
    ),
    "input_pipelines.gather": (
        "to_beir>write_beir held_out>dev_split corpus_queries>docstring_queries"
    ),
    "input_pipelines.tokenizers": "words>word_start_marks",
    "input_pipelines.store": "blocks>block_layout answer_forms>answer_token_forms",
    "input_pipelines.batches": (
        "plan>packing_plan packing>token_groups stream>prefetch pipeline>packed_text "
        "joint>query_passage_concat labelled_pairs>classifier_batches "
        "windows_to_answer>qa_windows questions>open_qa_batches reading>reader_inputs "
        "sentences>ict_realm_batches text_source>text_batches"
    ),
    "input_pipelines.pairs": (
        "pairs>retriever_batches pair_choice>pair_sampler pair_plan>pair_packing "
        "joint_pairs>reranker_batches"
    ),
    "input_pipelines.marge": (
        "document_chunks>chunk_layout sub_batches>document_grouping "
        "sub_batch_groups>sub_batch_tokens planned_batches>plan_batches "
        "given_evidence>oracle_evidence written_pairs>supervised_pairs "
        "writing>generation_requests"
    ),
    "models.networks": (
        "pooled>pooled_encoder projected>projected_encoder generation>decoding "
        "embedding>text_embedding"
    ),
    "models.objectives": "pretraining>text_objective",
    "models.corruption": (
        "corruption>masking sampling>generator_sampling evidence>evidence_layout"
    ),
    "models.losses": "negatives>negative_masks span_reading>span_scores",
}

# Full paths of what moved once more, and of classes, old -> new
_SINCE: Mapping[str, str] = {
    "input_pipelines.sources.docstrings": "input_pipelines.gather.docstrings",
    "input_pipelines.sources.near_duplicates": "input_pipelines.gather.near_duplicates",
    "input_pipelines.sources.language_sentences": "input_pipelines.gather.language_sentences",
    "input_pipelines.sources.text_sources.Chain": "input_pipelines.sources.mixtures.Chain",
    "input_pipelines.sources.text_sources.Mixture": "input_pipelines.sources.mixtures.Mixture",
    "input_pipelines.gather.dev_split.Part": "input_pipelines.gather.dev_split.HoldOutSplit",
    "input_pipelines.batches.text_batches.TextSources": (
        "input_pipelines.batches.text_batches.TextBatcher"
    ),
    "t5x_style.retrieval.scann_index.ScannSettings": "t5x_style.retrieval.scann_index.Scann",
    "t5x_style.mining.candidates.Dense": "t5x_style.mining.candidates.IndexSearch",
    "t5x_style.evaluation.retrieval_systems.Dense": (
        "t5x_style.evaluation.retrieval_systems.IndexSearch"
    ),
    "t5x_style.evaluation.retrieval_systems.exact_dense": (
        "t5x_style.evaluation.retrieval_systems.exact_search"
    ),
    "t5x_style.retrieval.scann_index.load": "t5x_style.retrieval.published_index.load",
    "t5x_style.search.Searcher": "t5x_style.serving.searcher.Searcher",
}

# Dotted path of a module, function or class -> the present one
NAMES: Mapping[str, str] = (
    {
        f"{package.partition('.')[0]}.{old}": f"{package}.{old.rpartition('.')[2]}"
        for package, modules in _MOVED.items()
        for old in modules.split()
    }
    | {
        f"{package}.{old}": f"{package}.{new}"
        for package, pairs in _RENAMED.items()
        for old, _, new in (pair.partition(">") for pair in pairs.split())
    }
    | dict(_SINCE)
)
# Macros of recipes that name gin files; in stages the old names are those of other things
RECIPE_FILES: Mapping[str, str] = {"BAG": "BAG_MODEL", "RETROMAE": "RETROMAE_OBJECTIVE"}
# "module.name.parameter" as in fingerprints, with the present parameter -> its first name
PARAMETERS: Mapping[str, str] = {
    "contrastive.ContrastiveConfig.exchange": "way",
    "extractive_qa.ExtractiveQA.max_answer_length": "longest",
    "filter_translations.QualityRule.min_score": "least",
    "filter_translations.QualityRule.block_size": "among",
    "filter_translations.filter_translations.translation_set": "of",
    "pseudo_queries.PseudoQueries.min_count": "least",
    "qa.Answering.retriever": "of",
    "sentence_systems.CharacterNgrams.min_length": "shortest",
    "sentence_systems.CharacterNgrams.max_length": "longest",
    "systems.Reranker.base": "of",
    "translation_sets.FindTranslations.translations": "of",
    "translation_sets.TranslationEvaluator.translations": "of",
    "build_index.build_index.index": "settings",
    "refresher.Refresher.index": "settings",
    "held_out.Part.base": "of",
    "held_out.Share.base": "of",
    "held_out.Share.min_queries": "least",
    "similar_sentences.SimilarSentences.pairs": "of",
    "similar_sentences.scores.pairs": "of",
    "question_sets.AskedSet.max_questions": "most",
    "vocabulary_report.vocabulary_report.max_sentences": "most",
    "answer_forms.find_forms.max_forms": "most",
    "answer_forms.find_forms.max_form_length": "longest",
    "questions.Questions.max_form_length": "longest",
    "windows_to_answer.WindowsToAnswer.questions": "of",
    "labelled_pairs.PairSource.max_pairs": "most",
    "writing.Choice.max_documents": "most",
    "writing.Choice.max_chunks": "longest",
    "document_chunks.Chunks.max_chunks": "most",
    "given_evidence.GivenEvidence.max_targets": "most",
}
# macro of gin files -> the present one
MACROS: Mapping[str, str] = {
    "STACKED": "LAYER_MAP",
    "QUARTER_STACKED": "QUARTER_LAYER_MAP",
    "HALF_STACKED": "HALF_LAYER_MAP",
    "MORE": "EXTRA_MACROS",
    "MOST_ASKED": "MAX_QUESTIONS",
    "DRAWN": "SAMPLE_SIZE",
    "LEAST": "MIN_SCORE",
    "BEGUN": "WARM_START",
    "MOST_CHUNKS": "MAX_CHUNKS",
    "MOST_QUERIES": "MAX_QUERIES",
    "MOST_ENTITY": "MAX_ENTITY_QUESTIONS",
    "LEAST_DOCUMENTS": "MIN_DOCUMENTS",
    "LEAST_SIMILARITY": "MIN_SIMILARITY",
    "DEVELOPMENT_MOST": "DEVELOPMENT_MAX",
    "TINY": "MODEL",
}
# "module.name.parameter" as in fingerprints -> the value that means what was done without it
ADDED: Mapping[str, str] = {
    "encode_corpus.encode_corpus.kinds": "['dense']",
    "initialise_model.initialise_model.fits": "[]",
    "systems.exact_dense.kind": "'dense'",
    "encoding.load_embeddings.kind": "'dense'",
    "exact.load.kind": "'dense'",
    "published_contract.max_length.override": "None",
    "tokenization.train_tokenizer.split_case": "False",
    "bag.BagConfig.token_vectors": "False",
    "bert.BertConfig.table_stddev": "None",
    "bert.BertConfig.position_stddev": "None",
    "bert.BertConfig.kernel_stddev": "None",
    "bert.BertConfig.attention_stddev": "None",
    "bert.BertConfig.mlp_stddev": "None",
    "bert.BertConfig.pair_activation": "None",
    "modernbert.ModernBertConfig.pair_pooling": "'cls'",
    "mine.mine.given": "None",
    "mine.mine.teacher": "None",
    "report.report.opening": "None",
    "export.export.verdict": "None",
    "verdict.verdict.long_passages": "None",
    "verdict.verdict.measured": "None",
    "verdict.verdict.systems": "None",
    "verdict.verdict.corpus": "None",
    "export.export.force": "False",
    "export.export.hybrid": "None",
    "export_hf.export.hybrid": "None",
    "export_hf.export.token_vector_size": "None",
    "finetuned_folder.finetuned_folder.kind": "'retriever'",
    "finetuned_folder.finetuned_folder.hybrid": "None",
    "finetuned_folder.finetuned_folder.interpolation": "None",
    "search.Searcher.fusion": "None",
    "text_search.TextSearch.hybrid": "None",
    "evaluate.evaluate.published": "None",
    "answered_passages.evaluate_answered.published": "None",
    "pair_rows.fitting_rows.chunks": "1",
    "hf_config.config_from_hf.attention_dropout": "None",
    "bi_encoder.BiEncoder.matryoshka": "[]",
    "m3.M3.matryoshka": "[]",
    "colbert.ColBERT.matryoshka": "[]",
    "m3.M3.token_vector_size": "None",
    "colbert.ColBERT.token_vector_size": "None",
    "pair_mixture.PairMixture.query_prefix": "None",
    "import_hf.HuggingFace.reranker": "False",
    "import_hf.HuggingFace.m3_heads": "False",
    "import_hf.HuggingFace.positions": "None",
    "hf_config.config_from_hf.positions": "None",
    "pipeline.EncodeSource.cls_every": "None",
    "evaluator.RetrievalEvaluator.kind": "'dense'",
    "systems.Bm25.analyzer": "None",
    "systems.Fusion.reranked": "None",
    "optim.fine_tuning_rate.factor": "1.0",
    "given_run.GivenRun.development": "None",
    "pair_steps.epoch_steps.of_thousands": "2.0",
    "beir.gold_ids.also": "[]",
    "pair_mixture.PairMixture.similar": "1",
    "embedding_shards.Storage.pool_factor": "1",
    "evaluate_short_vectors.evaluate_short_vectors.kind": "'dense'",
    "embedding_shards.Storage.token_dtype": "None",
    "encoding.load_embeddings.expected": "None",
    "hybrid.load.expected": "None",
    "hybrid_search.HybridPart.kinds": "['dense', 'sparse', 'multi_vector']",
    "narrative_qa.Stories.between_marks": "False",
    "systems.Bm25.language": "'en'",
    "candidates.Bm25.language": "'en'",
    "candidates.Dense.language": "'en'",
}


@dataclass(frozen=True)
class Wrapper:
    """Value that replaces an old parameter.

    Attributes:
      parameter: of the same function, to which the wrapper is given.
      target: present dotted path of the wrapper.
      source: parameter of the wrapper, for what `parameter` was before.
    """

    parameter: str
    target: str
    source: str


_DATA = "t5x_style.model_dependent_data"
# "module.name.parameter" as in fingerprints, of parameters that are gone; None without the wrapper.
# Of wrappers in each other the outer one comes first.
WRAPPERS: Mapping[str, Wrapper] = {
    "train.train.retrieval": Wrapper(
        "pipeline", f"{_DATA}.retrieval_batches.HostRetrieval", "source"
    ),
    "train.train.replanning": Wrapper("pipeline", f"{_DATA}.plan_refresh.Replanning", "source"),
}
