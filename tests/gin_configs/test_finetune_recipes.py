"""What the recipes of `kennel finetune` fix, and what their settings reach."""

import pytest

from tests import recipe_plans

MINED = "hard_negatives.MiningSettings"
SETTINGS = ["SKIP_TOP=10", "DEPTH=50", "MAX_OVERLAP=0.5", "ONLY_ANSWERS=True"]


@pytest.mark.parametrize(
    ("recipe", "stage", "settings"),
    [
        ("finetune", "development_hits", SETTINGS),
        ("finetune_m3", "development_hits", SETTINGS),
        ("finetune_reranker_dense", "dev_candidates", SETTINGS),
        ("finetune_reranker", "dev_candidates", SETTINGS[1:]),
    ],
)
def test_what_is_mined_for_the_training_changes_no_development_query(recipe, stage, settings):
    usual, changed = recipe_plans.of_recipe(recipe), recipe_plans.of_recipe(recipe, settings)
    assert changed["negatives"] != usual["negatives"]
    assert changed[stage] == usual[stage]


@pytest.mark.parametrize("recipe", ["finetune", "finetune_m3", "finetune_reranker"])
def test_the_page_is_written_before_the_export(recipe):
    stages = list(recipe_plans.of_recipe(recipe))
    assert stages.index("report") < stages.index("export")


@pytest.mark.parametrize("recipe", ["finetune", "finetune_m3", "finetune_reranker"])
def test_what_refusals_of_the_data_advise_reaches_the_collection(recipe):
    settings = ["LEAKS=drop", "KEEP_GIVEN=False", "POSITIVE_FROM=4.0", "COLUMNS={'query': 'q'}"]
    found = recipe_plans.of_recipe(recipe, settings)["collection"]["parameters"]
    values = {path.rpartition(".")[2]: value for path, value in found.items()}
    assert values["leaks"] == "'drop'" and values["keep_given"] == "False"
    assert values["positive_from"] == "4.0" and values["columns"] == "{'query': 'q'}"


@pytest.mark.parametrize("recipe", ["finetune", "finetune_reranker"])
def test_the_verdicts_metric_is_measured(recipe):
    settings = ["METRICS=['MRR@10', 'nDCG@20']", "VERDICT_METRIC=nDCG@20"]
    plans = recipe_plans.of_recipe(recipe, settings)
    for stage in ("evaluation", "verdict"):
        assert "nDCG@20" in str(plans[stage])
    assert "dev/MRR@10" in str(recipe_plans.of_recipe(recipe, ["CHOSEN_BY=dev/MRR@10"])["report"])
