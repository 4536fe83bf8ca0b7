"""Systems to compare as a dictionary: what a stage has in their scopes, and what is refused."""

import pytest

from t5x_style.configuration import gin_checks, gin_reader, parameters
from t5x_style.configuration.gin_reader import RUN, GinError, to_gin
from t5x_style.workflow import stages

JOB = "t5x_style.evaluate.evaluate"
FILES = ["runs/evaluation/exact_search", "models/tiny", "objectives/bi_encoder"]
MACROS = {
    "MODEL_DIR": "here",
    "CORPUS": "corpus",
    "STORE": "passages",
    "QUERY_STORE": "queries",
    "TOKENIZER": "tokenizer",
    "QUERIES": 4,
    "PASSAGES": 8,
    "TEMPERATURE": 0.05,
    "QUERY_LENGTH": 32,
    "PASSAGE_LENGTH": 128,
}
BM25 = {"bm25": "bm25"}


def flags(systems, files=(), **more):
    values = MACROS | {"SYSTEMS": BM25 | systems} | more
    overrides = tuple((name, to_gin(value)) for name, value in values.items())
    return gin_checks.Flags(
        tuple(f"gin_configs/{file}.gin" for file in [*FILES, *files]), overrides
    )


def checked(systems, files=(), **more):
    """The configuration, and what of it each system gets."""
    config = flags(systems, files, **more).read()
    gin_checks.check_names(config, (RUN, JOB))
    inputs = {name: name for name in stages.inputs_of(config)}
    return config, parameters.of_job(config, JOB, inputs).semantic


def of_one(found, number):
    start = f"systems[{number}]."
    return {key.removeprefix(start): one for key, one in found.items() if key.startswith(start)}


def in_scope(config, scope):
    return {one.name for key, one in config.bindings.items() if key[0] == scope}


def test_a_path_is_a_model_and_an_input_of_the_stage():
    config, found = checked({"mine": "runs/mine", "my-other": "runs/other"})
    one, other = of_one(found, 1), of_one(found, 2)
    assert (one["name"], one["model.checkpoint"]) == ("'mine'", "input MINE")
    assert (other["name"], other["model.checkpoint"]) == ("'my-other'", "input MY_OTHER")
    same = {"name", "model.checkpoint"}
    assert {k: v for k, v in one.items() if k not in same} == {
        k: v for k, v in other.items() if k not in same
    }
    assert config.macros["MINE"].value == "runs/mine"
    assert in_scope(config, "mine") == {
        "mine/retrieval_systems.exact_search.name",
        "mine/retrieval_systems.exact_search.model",
        "mine/restored_model.load.checkpoint",
    }
    inputs = {"CORPUS", "STORE", "QUERY_STORE", "TOKENIZER", "MINE", "MY_OTHER"}
    assert set(stages.inputs_of(config)) == inputs


def test_a_macro_of_the_user_keeps_its_name():
    config, found = checked({"mine": gin_reader.Macro("FOLDER")}, FOLDER="a")
    assert of_one(found, 1)["model.checkpoint"] == "input FOLDER"
    assert "MINE" not in config.macros


def test_a_reference_is_a_system():
    bm25 = gin_reader.parse_value("@retrieval_systems.Bm25()")
    _, found = checked({"again": bm25, "mine": "a"})
    assert (found["systems[1]"], of_one(found, 1)["name"]) == (found["systems[0]"], "'again'")


def test_a_system_may_differ_in_a_macro_a_parameter_and_its_files():
    config, found = checked(
        {
            "plain": "a",
            "mean": {"CHECKPOINT": "b", "POOLING": "mean"},
            "dot": {"CHECKPOINT": "c", "text_embedding.EmbeddingConfig.similarity": "dot"},
            "bag": {"CHECKPOINT": "d", "gin_files": ["gin_configs/models/bag.gin"], "WIDTH": 7},
            "wide": {"CHECKPOINT": "e", "gin_files": ["gin_configs/models/bag.gin"]},
        },
        WIDTH=99,
    )
    embedding = "model.objective.embedding_config"
    assert [of_one(found, n)[f"{embedding}.pooling"] for n in range(1, 6)] == [
        "'cls'",
        "'mean'",
        "'cls'",
        "'weighted_mean'",
        "'weighted_mean'",
    ]
    similarities = [of_one(found, n)[f"{embedding}.similarity"] for n in (1, 2, 3)]
    assert similarities == ["'cosine'", "'cosine'", "'dot'"]
    assert of_one(found, 1)["model.objective.config"] == "@bert.BertConfig()"
    assert of_one(found, 4)["model.objective.config"] == "@bag.BagConfig()"
    # a macro of its files is one of the stage, unless the system sets it
    assert [of_one(found, n)["model.objective.config.hidden"] for n in (4, 5)] == ["7", "99"]
    # what is asked of one is asked of all
    assert len({of_one(found, n)["passages.segment_length"] for n in range(1, 6)}) == 1
    assert "mean/bert.BertConfig.hidden" not in in_scope(config, "mean")


def test_a_scope_of_the_files_still_holds_below_a_systems():
    _, found = checked({"a": {"CHECKPOINT": "a", "QUERY_ROW_LENGTH": 64}, "b": "b"})
    rows = [of_one(found, n)["model.objective.query.length"] for n in (1, 2)]
    assert rows == ["64", "32"]
    assert of_one(found, 1)["model.objective.query.rows"] == "4"
    assert of_one(found, 1)["model.objective.passage.length"] == "128"


def test_a_systems_store_is_an_input_of_its_own():
    _, found = checked({"a": {"CHECKPOINT": "a", "STORE": "others"}, "b": "b"})
    assert of_one(found, 1)["passages.store"] == "input A_STORE"
    assert of_one(found, 2)["passages.store"] == "input STORE"


def test_gin_gets_what_was_checked(tmp_path):
    """The text that gin parses says the same once more, as `config.gin` of a finished run does."""
    systems = {"mean": {"CHECKPOINT": "b", "POOLING": "mean"}}
    config, found = checked(systems)
    (tmp_path / "config.gin").write_text(gin_checks.gin_text.text_of(config))
    again = gin_checks.Flags((str(tmp_path / "config.gin"),), ()).read()
    gin_checks.check_names(again, (RUN, JOB))
    inputs = {name: name for name in stages.inputs_of(again)}
    assert parameters.of_job(again, JOB, inputs).semantic == found


def test_kinds_that_nobody_uses_ask_for_nothing():
    file = "gin_configs/runs/evaluation/fusion.gin"
    argv = [f"--gin_file={file}", "--gin.SYSTEMS={'bm25': 'bm25'}", "--gin.CORPUS=c"]
    config = gin_checks.parse_flags([*argv, "--gin.MODEL_DIR=m"]).read()
    gin_checks.check_names(config, (RUN, JOB))
    assert stages.inputs_of(config) == ["CORPUS"]
    set_in_vain = "--gin.retrieval_systems.Fusion.method='linear'"
    config = gin_checks.parse_flags([*argv, "--gin.MODEL_DIR=m", set_in_vain]).read()
    with pytest.raises(GinError, match="nothing in this run leads to retrieval_systems.Fusion"):
        gin_checks.check_names(config, (RUN, JOB))


@pytest.mark.parametrize(
    ("systems", "more", "message"),
    [
        (
            {"a": {"CHECKPOINT": "a", "PULING": "mean"}},
            {},
            "system 'a': nothing of it refers to %PULING; did you mean POOLING?",
        ),
        (
            {"a": {"checkpoint": "a"}},
            {},
            "system 'a': 'checkpoint' is no macro (in capital letters), no parameter "
            "(module.name.parameter) and none of kind, gin_files; did you mean CHECKPOINT?",
        ),
        (
            {"a": {"CHECKPOINT": "a", "text_embedding.EmbeddingConfig.poling": "mean"}},
            {},
            None,  # said with the code's names, by `check_code`
        ),
        (
            {"a": {"CHECKPOINT": "a", "optimizers.AdamW.decay": "cosine"}},
            {},
            "system 'a': nothing of it leads to optimizers.AdamW.decay",
        ),
        ({"a": {"POOLING": "mean"}}, {}, "system 'a': it lacks CHECKPOINT: write {'CHECKPOINT'"),
        ({"a": None}, {}, "system 'a': it lacks CHECKPOINT"),
        ({"a-b": "a", "a_b": "b"}, {}, "system 'a_b': 'a-b' is the same name; change one"),
        ({"A": "a", "a": "b"}, {}, "system 'a': 'A' is the same name; change one"),
        ({"a b": "a"}, {}, "system 'a b': its name must be letters, digits"),
        ({"corpus": "a"}, {}, "its CHECKPOINT would be macro CORPUS, which the stage has already"),
        (
            {"a": {"kind": "reranke", "CHECKPOINT": "a"}},
            {},
            "system 'a': no kind 'reranke'; known here: ",
        ),
        ({"mine": "a"}, {"BASELINE": "mime"}, "evaluate.evaluate.baseline: no system 'mime'; did"),
        (
            {"mine": "a"},
            {"COMPARED": [("mine", "bm52")]},
            "command line --gin.COMPARED: evaluate.evaluate.compared: no system 'bm52'; did you "
            "mean bm25?",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(systems, more, message):
    config = flags(systems, **more).read()
    if message is None:
        gin_checks.check_names(config, (RUN, JOB))
        with pytest.raises(GinError, match="has no parameter 'poling'; did you mean pooling"):
            gin_checks.check_code(config)
        return
    with pytest.raises(GinError) as error:
        gin_checks.check_names(config, (RUN, JOB))
    assert message in str(error.value)
    assert str(error.value).startswith("command line --gin.")


def test_everything_that_is_wrong_is_said_at_once():
    config = flags({"a": {"POOLING": "mean"}, "b": {"kind": "x"}}).read()
    with pytest.raises(GinError) as error:
        gin_checks.check_names(config, (RUN, JOB))
    assert len(error.value.args) == 2


def test_a_fusion_of_an_unknown_system_is_refused():
    argv = ["--gin_file=gin_configs/runs/evaluation/fusion.gin", "--gin.MODEL_DIR=m"]
    argv += ["--gin.SYSTEMS={'bm25': 'bm25', 'both': {'kind': 'fusion', 'FIRST': 'mine'}}"]
    config = gin_checks.parse_flags([*argv, "--gin.CORPUS=c"]).read()
    with pytest.raises(GinError, match="Fusion.first: no system 'mine'"):
        gin_checks.check_names(config, (RUN, JOB))


def test_a_name_that_a_dictionary_says_twice_is_refused(tmp_path):
    (tmp_path / "a.gin").write_text("SYSTEMS = {\n  'a': 'x',\n  'b': 'y',\n  'a': 'z',\n}\n")
    with pytest.raises(GinError, match=r"a\.gin:4: .*'a' is in this dictionary twice"):
        gin_reader.read([str(tmp_path / "a.gin")])
    with pytest.raises(GinError, match="twice"):
        gin_reader.read([], [("SYSTEMS", "{'a': 'x', 'a': 'z'}")])
    nested = gin_reader.read([], [("SYSTEMS", "{'a': {'K': 1}, 'b': {'K': 1}}")])
    assert nested.macros["SYSTEMS"].value == {"a": {"K": 1}, "b": {"K": 1}}


@pytest.mark.parametrize("name", ["evaluate_ablation", "evaluate_comparison"])
def test_a_file_that_is_gone_says_what_to_write(name):
    with pytest.raises(GinError, match="systems = .*exact_search.gin"):
        gin_reader.read([f"gin_configs/runs/{name}.gin"])
