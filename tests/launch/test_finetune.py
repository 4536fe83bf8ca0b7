"""`kennel finetune`: a recipe for what the data is."""

import ast
import shlex
from argparse import Namespace

import pytest

from input_pipelines.labelled import table_files
from launch import cli, finetune
from t5x_style.configuration import gin_checks
from t5x_style.workflow import recipe_reader

HERE = "--gin_file=gin_configs/recipes/"


def test_the_data_decides_the_recipe(tmp_path):
    text, judged = tmp_path / "text", tmp_path / "judged"
    for folder in (text, judged):
        folder.mkdir()
        (folder / "corpus.jsonl.gz").touch()
    (judged / "queries.jsonl").touch()
    for data, recipe in (
        (text, "finetune_text"), (judged, "finetune"), (tmp_path / "pairs.csv", "finetune"),
    ):  # fmt: skip
        named = f"kennel finetune --model=m --data={data.name} EPOCHS=2"
        found = finetune.arguments([f"--data={data}", "--model=m", "--gin.EPOCHS=2", "--dry_run"])
        assert found == [
            f"{HERE}{recipe}.gin", "--gin.PUBLISHED='m'", f"--gin.CORPUS='{data}'",
            "--gin.RUN_DIR='runs/finetune'",
            f"--gin.COMMAND={named!r}", "--gin.EPOCHS=2", "--dry_run",
        ]  # fmt: skip


@pytest.mark.parametrize(
    "labels",
    ["train.json", "train.ndjson", "data/train-00000.parquet", "dataset_dict.json", "state.json",
     "train.csv.gz", "TRAIN.CSV", "qrels/test.tsv", "queries.jsonl"],
)  # fmt: skip
def test_labels_of_any_layout_next_to_the_corpus_are_used(tmp_path, labels):
    (tmp_path / "corpus.jsonl").touch()
    (tmp_path / "README.md").touch()
    given = [f"--data={tmp_path}", "--model=m"]
    assert finetune.arguments(given)[0] == f"{HERE}finetune_text.gin"
    (tmp_path / labels).parent.mkdir(exist_ok=True)
    (tmp_path / labels).touch()
    assert finetune.arguments(given)[0] == f"{HERE}finetune.gin"


def test_a_file_of_passages_is_no_labelled_data(tmp_path, capsys):
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"_id": "1", "text": "a passage"}\n')
    with pytest.raises(SystemExit):
        finetune.arguments([f"--data={file}", "--model=m"])
    assert f"or the folder of this file, {tmp_path}" in " ".join(capsys.readouterr().err.split())
    file.write_text('{"query": "a query", "text": "a passage"}\n')  # labels, whatever its name is
    assert finetune.arguments([f"--data={file}", "--model=m"])[0] == f"{HERE}finetune.gin"


def test_what_is_read_as_rows_is_what_the_data_are_searched_for():
    assert set(finetune._ROW_ENDINGS) == set(table_files.ENDINGS)


def test_a_reranker_has_a_recipe_and_needs_queries(tmp_path, capsys):
    data = tmp_path / "pairs.csv"
    found = finetune.arguments([f"--data={data}", "--model=m", "--kind=reranker", "--gin.EPOCHS=2"])
    named = "kennel finetune --model=m --data=pairs.csv --kind=reranker EPOCHS=2"
    assert found[0] == f"{HERE}finetune_reranker.gin" and f"--gin.COMMAND={named!r}" in found
    (tmp_path / "text").mkdir()
    (tmp_path / "text/corpus.jsonl").touch()
    over = finetune.arguments([f"--data={data}", "--model=m", "--kind=reranker", "--retriever=a/r"])
    assert over[0] == f"{HERE}finetune_reranker_dense.gin" and "--gin.RETRIEVER='a/r'" in over
    named = "kennel finetune --model=m --data=pairs.csv --kind=reranker --retriever=r"
    assert f"--gin.COMMAND={named!r}" in over
    with pytest.raises(SystemExit):
        finetune.arguments([f"--data={data}", "--model=m", "--retriever=a/r"])
    assert "--retriever is for --kind=reranker, found --kind=retriever" in capsys.readouterr().err
    for given in (["--kind=reranker"], ["--kind=other"]):
        with pytest.raises(SystemExit):
            finetune.arguments([f"--data={tmp_path}/text", "--model=m", *given])
    said = capsys.readouterr().err
    assert "holds passages alone: expected queries" in said and "invalid choice: 'other'" in said


def test_three_representations_have_a_recipe_and_need_queries(tmp_path, capsys):
    data = tmp_path / "pairs.csv"
    found = finetune.arguments([f"--data={data}", "--model=m", "--kind=m3", "--gin.EPOCHS=2"])
    named = "kennel finetune --model=m --data=pairs.csv --kind=m3 EPOCHS=2"
    assert found[0] == f"{HERE}finetune_m3.gin" and f"--gin.COMMAND={named!r}" in found
    (tmp_path / "text").mkdir()
    (tmp_path / "text/corpus.jsonl").touch()
    for given, message in (
        ([f"--data={tmp_path}/text"], "answer them, in a layout of docs/training_data.md; --kind"),
        ([f"--data={data}", "--matryoshka=64"], "--matryoshka is for --kind=retriever, found"),
        ([f"--data={data}", "--judge=j"], "--judge is for --kind=retriever, found --kind=m3"),
    ):
        with pytest.raises(SystemExit):
            finetune.arguments(["--model=m", "--kind=m3", *given])
        assert message in capsys.readouterr().err


def test_shorter_vectors_have_a_recipe_and_need_queries(tmp_path, capsys):
    data = f"--data={tmp_path}/pairs.csv"
    argv = [data, "--model=m", "--matryoshka=128,64", "--gin.EPOCHS=2"]
    found = finetune.arguments(argv)
    named = "kennel finetune --model=m --data=pairs.csv --matryoshka=128,64 EPOCHS=2"
    assert found[0] == f"{HERE}finetune_matryoshka.gin" and f"--gin.COMMAND={named!r}" in found
    assert "--gin.MATRYOSHKA=[128, 64]" in found
    assert "--gin.MATRYOSHKA=[128, 64]" in finetune.arguments(
        finetune.fold([*argv, "--folds=2"], 1)
    )
    (tmp_path / "text").mkdir()
    (tmp_path / "text/corpus.jsonl").touch()
    for given, message in (
        ([data, "--matryoshka=128,"], "expected numbers of dimensions, as 256,128,64"),
        ([data, "--matryoshka=0"], "expected numbers of dimensions"),
        ([data, "--matryoshka=64", "--kind=reranker"], "--matryoshka is for --kind=retriever"),
        ([f"--data={tmp_path}/text", "--matryoshka=64"], "text holds passages alone"),
        ([data, "--matryoshka=64", "--folds=2"], "--matryoshka and --folds cannot be combined"),
    ):
        with pytest.raises(SystemExit):
            finetune.arguments(["--model=m", *given])
        assert message in capsys.readouterr().err


def test_a_judge_has_a_recipe(tmp_path, capsys):
    argv = [f"--data={tmp_path}/pairs.csv", "--model=m", "--judge=a/judge"]
    found = finetune.arguments(argv)
    named = "kennel finetune --model=m --data=pairs.csv --judge=judge"
    assert found[0] == f"{HERE}finetune_judged.gin" and f"--gin.COMMAND={named!r}" in found
    assert "--gin.JUDGE='a/judge'" in found
    for given, message in (
        (
            ["--matryoshka=8"],
            "--judge and --matryoshka cannot be combined",
        ),
        (["--kind=reranker"], "--judge is for --kind=retriever, found --kind=reranker"),
    ):
        with pytest.raises(SystemExit):
            finetune.arguments([*argv, *given])
        assert message in capsys.readouterr().err


def test_words_become_settings_of_the_recipe():
    line = "finetune --model=m --data=d.csv --run_dir=r EPOCHS=2 --dry_run"
    module, *flags = cli.python_arguments(shlex.split(line))[1:]
    assert module == "launch.finetune"
    assert flags == ["--model=m", "--data=d.csv", "--run_dir=r", "--gin.EPOCHS=2", "--dry_run"]


def test_the_command_of_the_card_names_no_private_folder(tmp_path):
    settings = {
        "OTHER_COLLECTIONS=['/home/somebody/cacm', 'other/cisi']": "['cacm', 'other/cisi']",
        "STORE=~/private/store/": "STORE=store",
        "MODEL='models/from_hf.gin'": "MODEL='models/from_hf.gin'",
        "A='gs://bucket/folder/file'": "gs://bucket/folder/file",
    }
    given = [f"--gin.{one}" for one in settings]
    found = finetune.arguments(["--model=/home/m", f"--data={tmp_path}/d.csv", *given])
    (command,) = [one for one in found if one.startswith("--gin.COMMAND=")]
    words = shlex.split(ast.literal_eval(command.removeprefix("--gin.COMMAND=")))[-len(settings) :]
    assert all(part in word for part, word in zip(settings.values(), words, strict=True))
    assert "somebody" not in command and "private" not in command and str(tmp_path) not in command


@pytest.mark.parametrize("missing", ["--model=m", "--data=d"])
def test_a_missing_flag_is_named(missing):
    given = [flag for flag in ("--model=m", "--data=d") if flag != missing]
    with pytest.raises(cli.UsageError, match=missing.partition("=")[0]):
        cli.python_arguments(["finetune", *given])


@pytest.mark.parametrize("name", ["2024", "%A", "a b's", "~/x"])
def test_a_path_is_a_path_whatever_it_looks_like(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    argv = finetune.arguments([f"--model={folder}", f"--data={folder}", f"--run_dir={folder}/run"])
    recipe = recipe_reader.load(gin_checks.parse_flags(argv))
    assert str(recipe.run_dir) == f"{folder}/run"


def test_folds_are_runs_of_their_own(tmp_path, monkeypatch):
    data, run = tmp_path / "pairs.csv", f"{tmp_path}/run"
    begun: list[str] = []
    monkeypatch.setattr(finetune.recipe, "run", lambda flags: begun.append(str(flags)) or 0)
    argv = [f"--data={data}", "--model=m", f"--run_dir={run}", "--folds=3", "--gin.EPOCHS=2"]
    assert finetune.run([*argv, "--dry_run"]) == 0
    assert len(begun) == 3
    for number in range(3):
        flags = finetune.arguments(finetune.fold(argv, number))
        recipe = recipe_reader.load(gin_checks.parse_flags(flags))
        assert str(recipe.run_dir) == f"{run}/folds/fold_{number}"
        assert str(recipe.store.root) == f"{tmp_path}/.store"  # as of a run without folds
        assert {"--gin.division.SplitRules.folds=3", "--until=verdict"} < set(flags)
    monkeypatch.setattr(finetune.recipe, "run", lambda flags: 7)
    assert finetune.run(argv) == 7


def test_repeats_divide_otherwise_and_train_with_another_seed(tmp_path, monkeypatch):
    begun: list[str] = []
    monkeypatch.setattr(finetune.recipe, "run", lambda flags: begun.append(str(flags)) or 0)
    run = f"{tmp_path}/run"
    argv = [f"--data={tmp_path}/p.csv", "--model=m", f"--run_dir={run}", "--folds=2"]
    assert finetune.run([*argv, "--repeats=3", "--dry_run"]) == 0
    assert len(begun) == 6
    for given, seed in (([], 1), (["--gin.SEED=5"], 5)):
        assert finetune.fold([*argv, *given, "--repeats=3"], 1) == finetune.fold([*argv, *given], 1)
        flags = finetune.fold([*argv, *given, "--repeats=3"], 1, 2)
        assert f"--run_dir={run}/folds/repeat_2/fold_1" in flags
        assert [flag for flag in flags if "seed" in flag.lower()] == [
            f"--gin.SEED={seed + 2}",
            "--gin.division.SplitRules.seed=2",
        ]


@pytest.mark.parametrize("last,code", [("done", 1), ("continues", 0)])
def test_a_fold_that_is_stopped_is_the_last(tmp_path, monkeypatch, capfd, last, code):
    """`recipe.run` answers 0 where it was asked to stop, too."""
    begun = []
    monkeypatch.setattr(finetune.recipe, "run", lambda flags: begun.append(flags) or 0)
    decisions = {"vectors": Namespace(status="done"), "verdict": Namespace(status=last)}
    monkeypatch.setattr(finetune.recipe_planning, "look_up", lambda *_: ({}, decisions))
    argv = [f"--data={tmp_path}/p.csv", "--model=m", f"--run_dir={tmp_path}/run", "--folds=2"]
    assert finetune.run(argv) == code
    said = capfd.readouterr()
    if last == "done":  # these runs have left nothing to judge
        assert len(begun) == 2 and "fold_0: expected a run with its verdict" in said.err
    else:
        assert len(begun) == 1 and "stopped in fold 0 of 2" in said.out


@pytest.mark.parametrize(
    "given,message",
    [
        (["--folds=1"], "expected 2 or more, found 1"),
        (["--folds=two"], "invalid int value"),
        (["--repeats=2"], "--repeats=2 and --folds=0"),
        (["--folds=2", "--repeats=0"], "expected 1 or more"),
        (["--folds=2", "--repeats=2", "--gin.SEED=1.0"], "expected a whole number, found 1.0"),
        (
            ["--folds=2", "--repeats=2", "--gin.division.SplitRules.seed=1"],
            "--repeats sets division.SplitRules.seed",
        ),
        (["--folds=2", "--until=negatives"], "--folds sets --until"),
        (["--folds=2", "--gin.division.SplitRules.fold=1"], "--folds sets division.SplitRules"),
        (["--folds=2", "--run_dir=gs://bucket/run"], "expected --run_dir on this machine"),
    ],
)
def test_folds_that_cannot_be_are_refused(given, message, capsys):
    with pytest.raises(SystemExit):
        finetune.run(["--data=pairs.csv", "--model=m", *given])
    assert message in capsys.readouterr().err
