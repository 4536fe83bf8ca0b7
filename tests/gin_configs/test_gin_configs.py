"""The configurations that are shipped: recipes fit together, and sources are read through gin."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from t5x_style.configuration import code_checks, gin_checks, gin_reader
from t5x_style.workflow import recipe_planning, recipe_reader

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["quickstart", "smoke", "beir"])
def test_recipes_fit_together(name, tmp_path):
    argv = [
        f"--gin_file={REPOSITORY}/gin_configs/recipes/{name}.gin",
        f"--gin.RUN_DIR={tmp_path}/run",
    ]
    if name == "beir":
        (tmp_path / "corpus").mkdir()
        argv.append(f"--gin.CORPUS={tmp_path}/corpus")
    recipe = recipe_reader.load(gin_checks.parse_flags(argv))
    names = [stage.name for stage in recipe.stages]
    assert {"bag_of_embeddings", "retriever", "evaluation", "search", "export"} <= set(names)
    assert ("corpus" in names) == (name != "beir")
    assert set(recipe.publish) == {"summary.json", "summary.md", "curves.png"}


def test_the_comparison_on_the_documentation_fits_together(tmp_path):
    argv = [
        f"--gin_file={REPOSITORY}/gin_configs/recipes/quickstart_comparison.gin",
        f"--gin.RUN_DIR={tmp_path}/run",
    ]
    names = {stage.name for stage in recipe_reader.load(gin_checks.parse_flags(argv)).stages}
    assert {"bag_of_embeddings", "no_pretraining", "mlm", "retromae", "evaluation"} <= names


@pytest.mark.parametrize(
    "name", ["retromae_squad", "retromae_squad_gpu", "retromae_squad_published"]
)
def test_the_comparison_on_squad_fits_together(name, tmp_path):
    argv = [
        f"--gin_file={REPOSITORY}/gin_configs/recipes/{name}.gin",
        f"--gin.RUN_DIR={tmp_path}/run",
    ]
    if name == "retromae_squad_published":
        argv.append(f"--gin.PUBLISHED={tmp_path}")
    recipe = recipe_reader.load(gin_checks.parse_flags(argv))
    names = [stage.name for stage in recipe.stages]
    assert names.index("squad") < names.index("passages") < names.index("no_pretraining")
    assert {"no_pretraining", "mlm", "retromae", "evaluation", "scifact_evaluation"} <= set(names)


@pytest.mark.parametrize(
    "name",
    [f"simlm_{corpus}{start}" for corpus in ("squad", "scifact") for start in ("", "_published")],
)
def test_simlms_pipeline_fits_together(name, tmp_path):
    argv = [f"--gin_file={REPOSITORY}/gin_configs/recipes/{name}.gin"]
    argv.append(f"--gin.RUN_DIR={tmp_path}/run")
    if name.endswith("published"):
        argv.append(f"--gin.PUBLISHED={tmp_path}")
    recipe = recipe_reader.load(gin_checks.parse_flags(argv))
    names = [stage.name for stage in recipe.stages]
    assert names.index("negatives_1") < names.index("retriever_2") < names.index("negatives_2")
    assert names[-5:] == ["scores", "distilled_without", "distilled", "evaluation", "report"]


@pytest.mark.parametrize(
    ("name", "last"),
    [
        *(("realm_text", "realm"), ("realm", "report"), ("simlm", "report")),
        *(("realm_squad", "report"), ("realm_wiki", "report"), ("realm_squad_published", "report")),
        *(("realm_ablation_published", "report"), ("labse_tiny", "report")),
        *(
            ("text", "export"),
            ("labse", "huggingface"),
            ("labse_stacked", "report"),
            ("labse_filtered", "report"),
            ("labse_gpu", "report"),
            ("labse_starts", "starts"),
            ("labse_starts_tests", "all_tests"),
            ("quickstart_comparison", "report"),
            ("squad_comparison", "report"),
        ),
        *(("marge", "report"), ("marge_tiny", "report"), ("marge_gpu", "report")),
    ],
)
def test_pipelines_for_a_folder_of_ones_own(name, last, tmp_path):
    argv = [f"--gin_file={REPOSITORY}/gin_configs/recipes/{name}.gin", f"--gin.RUN_DIR={tmp_path}"]
    if name.endswith("published"):
        (tmp_path / "config.json").write_text("{}")
        argv.append(f"--gin.PUBLISHED={tmp_path}")
    elif own := {"labse": "OPUS", "marge": "DOCUMENTS"}.get(name):
        argv.append(f"--gin.{own}={tmp_path}")
    elif name in ("text", "realm_text", "realm", "simlm"):
        argv.append(f"--gin.CORPUS={tmp_path}")
    flags = gin_checks.parse_flags(argv)
    recipe = recipe_reader.load(flags)
    assert last in [stage.name for stage in recipe.stages]
    pending = recipe_planning.all_pending(recipe)
    for stage in recipe.stages:
        assert recipe_planning.stage_flags(recipe, stage, flags, pending).read().bindings


REALM_VARIANTS = ["realm"]
REALM_VARIANTS += [f"realm_{one}" for one in ("random", "uniform", "stale", "never", "no_ict")]


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        (
            "simlm_ablation",
            ["none", "mlm", "autoencoder", "condenser", "enc_dec_mlm"]
            + [f"simlm_{rates}" for rates in ("15_30", "30_50", "40_60", "30_100")],
        ),
        *((name, REALM_VARIANTS) for name in ("realm_ablation", "realm_ablation_published")),
    ],
)
def test_the_ablations_evaluate_every_variant(name, variants, tmp_path):
    argv = [f"--gin_file={REPOSITORY}/gin_configs/recipes/{name}.gin", f"--gin.RUN_DIR={tmp_path}"]
    if name.endswith("published"):
        argv.append(f"--gin.PUBLISHED={tmp_path}")
    recipe = recipe_reader.load(gin_checks.parse_flags(argv))
    stages = {stage.name: stage for stage in recipe.stages}
    assert set(variants) <= stages.keys()
    assert {one.upper() for one in variants} <= stages["evaluation"].inputs.keys()
    lengths = {str(stages[one].scaled["STEPS"]) for one in variants}
    assert len(lengths) == 1, "all are trained for as many steps"


def test_labses_ablation_shows_every_variant_as_many_translations(tmp_path):
    file = f"--gin_file={REPOSITORY}/gin_configs/recipes/labse_ablation.gin"
    flags = gin_checks.parse_flags([file, f"--gin.RUN_DIR={tmp_path}"])
    recipe = recipe_reader.load(flags)
    stages = {stage.name: stage for stage in recipe.stages}
    variants = ["base", "margin_0", "margin_01", "no_mlm"]
    variants += ["pairs_small", "pairs_large", "one_device"]
    assert {one.upper() for one in variants} <= stages["ablation"].inputs.keys()
    shown = {stages[one].scaled["STEPS"] * stages[one].bindings["PAIRS"] for one in variants}
    assert len(shown) == 1
    pending = recipe_planning.all_pending(recipe)
    for stage in recipe.stages:
        assert recipe_planning.stage_flags(recipe, stage, flags, pending).read().bindings


@pytest.mark.parametrize(
    "name", [f"{model}_paper" for model in ("labse", "m3", "marge", "realm", "retromae", "simlm")]
)
def test_every_stage_at_the_papers_size_can_be_read(name):
    flags = gin_checks.parse_flags([f"--gin_file={REPOSITORY}/gin_configs/recipes/{name}.gin"])
    recipe = recipe_reader.load(flags)
    assert any(stage.entry == "t5x_style.train" for stage in recipe.stages)
    pending = recipe_planning.all_pending(recipe)
    for stage in recipe.stages:
        config = recipe_planning.stage_flags(recipe, stage, flags, pending).read()
        gin_checks.check_names(config, (gin_reader.RUN, stage.job))


def test_marge_at_the_papers_size_prefers_evidence_in_other_languages():
    argv = [f"--gin_file={REPOSITORY}/gin_configs/recipes/marge_paper.gin"]
    flags = gin_checks.parse_flags(argv)
    recipe = recipe_reader.load(flags)
    pending = recipe_planning.all_pending(recipe)
    trained = [stage for stage in recipe.stages if stage.entry == "t5x_style.train"]
    assert [stage.name for stage in trained] == ["few", "many", "wiki"]
    for stage in trained:
        config = recipe_planning.stage_flags(recipe, stage, flags, pending).read()
        weight = config.macros["OTHER_LANGUAGE"]
        assert config.expand(weight.value, weight.where) > 0


def test_simlm_at_the_papers_size_needs_only_the_published_files():
    argv = [f"--gin_file={REPOSITORY}/gin_configs/recipes/simlm_paper.gin"]
    recipe = recipe_reader.load(gin_checks.parse_flags(argv))
    made = {stage.name for stage in recipe.stages}
    assert {"simlm", "negatives_2", "reranker", "scores", "distilled"} <= made
    given = {
        path for stage in recipe.stages for path in stage.inputs.values() if isinstance(path, str)
    }
    assert {Path(path).name for path in given} == {
        *("collection.tsv", "queries.train.tsv", "qrels.train.tsv"),
        *("queries.dev.small.tsv", "qrels.dev.small.tsv"),
        *("bert-base-uncased", "electra-base-generator", "electra-base-discriminator"),
    }


@pytest.mark.parametrize(
    "name",
    [
        *("simlm_paper", "retromae_paper", "simlm_squad", "quickstart"),
        *("simlm_ablation", "realm_ablation", "realm_squad"),
    ],
)
def test_texts_fit_the_rows_that_they_are_encoded_in(name, tmp_path):
    """Of every stage: a row that is too short is an error only once the stage runs."""
    argv = [f"--gin_file={REPOSITORY}/gin_configs/recipes/{name}.gin"]
    flags = gin_checks.parse_flags([*argv, f"--gin.RUN_DIR={tmp_path}"])
    recipe = recipe_reader.load(flags)
    pending = recipe_planning.all_pending(recipe)
    compared = 0
    for stage in recipe.stages:
        config = recipe_planning.stage_flags(recipe, stage, flags, pending).read()
        sources: dict[str, dict[str, object]] = {}
        for (scope, target, parameter), binding in config.bindings.items():
            if target.endswith(("EncodeSource", "JointTexts")) or parameter in ("length", "rows"):
                value = config.expand(binding.value, binding.where)
                sources.setdefault(f"{scope}/{target}", {})[parameter] = value
        common = sources.get("/input_pipelines.batches.packed_text.EncodeSource", {})
        for key, own in sources.items():
            if key.endswith("EncodeSource") and {"segment_length"} <= {**common, **own}.keys():
                both = {**common, **own}
                assert both["segment_length"] <= both["length"], f"{stage.name}: {key}"
                compared += 1
    assert compared > 0


def test_the_vectors_of_wikipedia_fit_together(tmp_path):
    macros = {name: str(tmp_path / name) for name in ("CHECKPOINT", "TOKENIZER", "QUESTION_STORE")}
    recipe = recipe_reader.load(
        gin_checks.parse_flags(
            [
                f"--gin_file={REPOSITORY}/gin_configs/recipes/wiki_vectors.gin",
                *(f"--gin.{name}={path}" for name, path in macros.items()),
            ]
        )
    )
    assert [stage.name for stage in recipe.stages] == ["wikipedia", "passages", "questions"]


def prepare(source, corpus, tokenizer, folder, *more):
    """Runs the prepare stage as a user would; returns its report."""
    command = [
        sys.executable, "-m", "t5x_style.stage",
        "--gin_file=gin_configs/runs/stores/texts.gin", f"--gin_file=gin_configs/{source}.gin",
        f"--gin.CORPUS={corpus}", f"--gin.TOKENIZER={tokenizer}", f"--gin.MODEL_DIR={folder}",
        "--gin.LENGTH=16", "--gin.prepare.prepare.workers=1", *more,
    ]  # fmt: skip
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    return json.loads((folder / "report.json").read_text())


def test_jsonl_and_lines_are_prepared_through_gin(tmp_path):
    from input_pipelines.sources import beir
    from input_pipelines.tokenizers import tokenization

    corpus = tmp_path / "corpus.jsonl"
    records = [{"_id": f"p{i}", "title": "sorting", "text": f"sort {i} words"} for i in range(9)]
    corpus.write_text("".join(json.dumps(r) + "\n" for r in records))
    source = beir.BeirCorpus(str(tmp_path), 1000)
    tokenization.train_tokenizer(str(tmp_path), source, 200, 64, 1, True, True, 0, 0, 0)
    tokenizer = tmp_path / "tokenizer"
    jsonl = prepare("sources/jsonl", corpus, tokenizer, tmp_path / "a", "--gin.ID_FIELDS=['_id']")
    assert jsonl["count"] == 9 and not jsonl["bad_records"]
    lines = tmp_path / "lines.txt"
    lines.write_text("sort these words\n\nand these\n")
    assert prepare("data/texts/lines", lines, tokenizer, tmp_path / "b")["count"] == 2


@pytest.mark.parametrize("name", ["mlm", "retromae", "simlm", "condenser", "autoencoder"])
def test_fine_tuning_takes_the_encoder_of_any_pretraining(name):
    """Whatever else a checkpoint holds, runs/initialise/encoder.gin lets it stay."""
    import gin
    from flax import nnx

    from models.objectives import autoencoder, condenser, mlm, retromae, simlm
    from t5x_style.interfaces.objective import GroupShape
    from tests.kits import shipped_gin, tiny_models
    from tests.parity import parity_kit

    made = {
        "mlm": (mlm.Mlm, (0.15, 16)),
        "retromae": (retromae.RetroMAE, (0.3, 0.5, 16)),
        "simlm": (simlm.SimLM, (0.3, 0.5, 16, tiny_models.CONFIG)),
        "condenser": (condenser.Condenser, (0.15, 16, 1)),
        "autoencoder": (autoencoder.AutoEncoder, (0.15, 16)),
    }
    factory, settings = made[name]
    common = (tiny_models.CONFIG, tiny_models.EMBEDDING, tiny_models.VOCABULARY)
    shape = GroupShape(rows=8, length=16, segments=1)
    module = nnx.eval_shape(lambda: factory(*common, shape, *settings, rngs=nnx.Rngs(0)))
    with shipped_gin.parsed("runs/initialise/encoder.gin"):
        unused = gin.query_parameter("t5x_style.training.warm_start.Initialise.unused")
    rest = [p for p in parity_kit.parameters(module) if not p.startswith("encoder/")]
    assert rest and all(any(re.search(pattern, p) for pattern in unused) for p in rest)


@pytest.mark.parametrize("folder", ["data", "hardware", "models", "objectives", "runs", "sources"])
def test_every_file_names_what_the_code_has(folder):
    """Also those that no recipe includes. Values are checked with a whole configuration."""
    files = sorted((REPOSITORY / "gin_configs" / folder).glob("**/*.gin"))
    assert files
    for file in files:
        config = gin_reader.read([str(file)])
        for binding in config.bindings.values():
            if binding.target == recipe_reader.STAGE:  # a part of recipes
                assert binding.parameter in recipe_reader.STAGE_PARAMETERS, binding.where
                continue
            parameters = inspect.signature(
                code_checks.locate(binding.target, binding.where)
            ).parameters
            takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
            assert takes_any or binding.parameter in parameters, f"{binding.where}: {binding.name}"
        for binding in (*config.bindings.values(), *config.macros.values()):
            for leaf in gin_reader.leaves(binding.value):
                if isinstance(leaf, gin_reader.Reference) and not leaf.target.startswith("gin."):
                    code_checks.locate(leaf.target, binding.where)
