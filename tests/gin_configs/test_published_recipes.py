"""Recipes that start from a published encoder: each stage's gin files fit together, strictly."""

import pytest

from t5x_style.configuration import gin_checks
from t5x_style.workflow import recipe_planning, recipe_reader
from tests import recipe_plans
from tests.kits import published_folders as folders

RECIPES = ["untouched", "untouched_fusion", "untouched_squad"]
RECIPES += ["retromae_squad_published", "simlm_scifact_published"]
AS_PUBLISHED = {"model", "vectors", "no_pretraining", "mlm", "retriever_1_without"}
# Stages that train or use [CLS], since a pre-training trained it.
AFTER_CLS = {"pretrain_retromae", "retromae", "simlm", "retriever_1", "retriever_2", "distilled"}


def read(name: str, tmp_path) -> dict[str, gin_checks.Config]:
    """Stage -> its configuration."""
    argv = [f"--gin_file={folders.REPOSITORY}/gin_configs/recipes/{name}.gin"]
    argv += [f"--gin.RUN_DIR={tmp_path}/run", f"--gin.PUBLISHED={tmp_path}"]
    argv += [f"--gin.CORPUS={tmp_path}"] if name in ("untouched", "untouched_fusion") else []
    flags = gin_checks.parse_flags(argv)
    recipe = recipe_reader.load(flags)
    pending = recipe_planning.all_pending(recipe)
    found = {}
    for one in recipe.stages:
        config = recipe_planning.stage_flags(recipe, one, flags, pending).read()
        gin_checks.check_names(config, ("t5x_style.stage.run", one.job))
        gin_checks.check_code(config)
        gin_checks.check_job(config, one.job)
        found[one.name] = config
    return found


def bound(config: gin_checks.Config, target: str, parameter: str, scope: str = ""):
    binding = config.bindings.get((scope, target, parameter))
    return None if binding is None else config.expand(binding.value, binding.where)


@pytest.mark.parametrize("name", RECIPES)
def test_every_stage_takes_the_contract_of_the_folder(name, tmp_path):
    checked = "models.interop.published_contract.checked"
    for stage_name, config in read(name, tmp_path).items():
        objective = bound(config, "models.objectives.bi_encoder.BiEncoder", "embedding_config")
        pooling = bound(config, "models.networks.text_embedding.EmbeddingConfig", "pooling")
        if objective is not None:
            assert objective.target == checked, stage_name
            allowed = bound(config, checked, "allow_other_pooling")
            assert (pooling == "cls") == (allowed is True), stage_name
        if stage_name in AFTER_CLS:
            assert pooling == "cls", stage_name
        if objective is not None and stage_name in AS_PUBLISHED:
            assert pooling.target == "models.interop.published_contract.pooling", stage_name
        prefix = bound(config, "input_pipelines.store.prepare.prepare", "prefix")
        if prefix is not None:
            assert prefix.target.startswith("models.interop.published_contract."), stage_name


def test_evaluations_pool_each_model_as_it_was_trained(tmp_path):
    target = "models.networks.text_embedding.EmbeddingConfig"
    found = read("retromae_squad_published", tmp_path)
    for name in ("evaluation", "scifact_evaluation"):
        assert bound(found[name], target, "pooling", "retromae") == "cls"
        assert bound(found[name], target, "pooling").target.endswith("published_contract.pooling")


def test_a_search_puts_the_prompt_before_questions():
    files = ["runs/indexes/search_published", "models/from_hf", "objectives/published_bi_encoder"]
    argv = [f"--gin_file=gin_configs/{file}.gin" for file in files]
    names = ["MODEL_DIR", "CORPUS", "CHECKPOINT", "INDEX", "TOKENIZER", "PUBLISHED"]
    argv += [f"--gin.{name}=folder" for name in names] + folders.UNUSED
    config = gin_checks.parse_flags(argv).read()
    gin_checks.check_names(config, ("t5x_style.stage.run",))
    gin_checks.check_code(config)
    prefix = bound(config, "input_pipelines.tokenizers.question_tokens.QuestionEncoder", "prefix")
    assert prefix.target == "models.interop.published_contract.query_prefix"


@pytest.mark.parametrize(
    "name,cross",
    [("finetune_judged", {"judge", "judge_scores"}), ("finetune_reranker_dense", {"reranker"})],
)
def test_prompts_of_a_retriever_reach_no_cross_encoder(name, cross):
    prompts = "CONTRACT={'QUERY_PREFIX': 'query: ', 'PASSAGE_PREFIX': 'passage: '}"
    found = {
        (stage, parameter): value
        for stage, plan in recipe_plans.of_recipe(name, [prompts]).items()
        for parameter, value in plan["parameters"].items()
        if parameter.endswith(("query_prefix", "query_prefix.override"))
    }
    of_cross = {key: value for key, value in found.items() if key[0] in cross}
    assert {stage for stage, _ in of_cross} == cross and set(of_cross.values()) == {"''"}
    assert "'query: '" in found.values()  # of the retriever
