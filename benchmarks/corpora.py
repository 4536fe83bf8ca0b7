"""Token stores to measure on, made by the stages and gin files of the main job.

Real text: the documentation of this installation, and SQuAD's paragraphs where ../shared has them.
"""

import gzip
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SQUAD = ROOT.parent / "shared/data/squad/train-v1.1.jsonl.gz"


def run_stage(files: list[str], folder: Path, **macros: object) -> None:
    """Runs a stage of the main job, quietly."""
    command = [sys.executable, "-m", "t5x_style.stage", "--strict_code"]
    command += [f"--gin_file=gin_configs/{name}" for name in files]
    command += [f"--gin.{name}={value!r}" for name, value in macros.items()]
    command += [f"--gin.MODEL_DIR={str(folder)!r}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


def documentation(folder: Path) -> Path:
    """A BEIR folder of the documentation that this installation carries."""
    run_stage(["runs/collections/python_corpus.gin"], folder / "documentation")
    return folder / "documentation/corpus"


def squad(folder: Path) -> Path:
    """A folder with SQuAD's training paragraphs as corpus.jsonl; FileNotFoundError without them."""
    (folder / "squad").mkdir()
    with (
        gzip.open(SQUAD, "rt", encoding="utf-8") as paragraphs,
        open(folder / "squad/corpus.jsonl", "w", encoding="utf-8") as out,
    ):
        for number, line in enumerate(paragraphs):
            row = json.loads(line)
            record = {"_id": str(number), "title": row["title"], "text": row["context"]}
            out.write(json.dumps(record) + "\n")
    return folder / "squad"


def tokenized(corpus: Path, at: Path, length: int) -> tuple[Path, Path]:
    """(token store, tokenizer) of a folder's passages, cut at `length` tokens; made in `at`."""
    run_stage(["runs/tokenizers/corpus.gin"], at / "t", CORPUS=str(corpus))
    run_stage(
        ["runs/stores/texts.gin", "sources/beir_passages.gin"], at / "p", CORPUS=str(corpus),
        TOKENIZER=str(at / "t/tokenizer"), LENGTH=length,
    )  # fmt: skip
    return at / "p/store", at / "t/tokenizer"


def squad_tokenized(folder: Path, length: int) -> tuple[Path, Path]:
    """As `tokenized`, of SQuAD's training paragraphs."""
    return tokenized(squad(folder), folder / "stages", length)


def squad_pairs(folder: Path, query_length: int, passage_length: int) -> Path:
    """A folder with SQuAD's training paragraphs and a question for each, tokenized.

    Its `tokenizer`, `queries` and `passages` (stores), `pairs.jsonl` as `read_pairs` takes it. What
    is there already is used unchanged; each paragraph is there once, so that no batch repeats one.
    """
    test = SQUAD.with_name("dev-v1.1.jsonl.gz")
    run_stage(
        ["runs/collections/squad.gin"], folder / "squad", TRAIN_FILE=str(SQUAD), TEST_FILE=str(test)
    )
    corpus = folder / "squad/corpus"
    run_stage(["runs/tokenizers/corpus.gin"], folder / "tokenizer", CORPUS=str(corpus))
    tokenizer = str(folder / "tokenizer/tokenizer")
    for source, length in (
        ("data/texts/beir_queries.gin", query_length),
        ("sources/beir_passages.gin", passage_length),
    ):
        run_stage(
            ["runs/stores/texts.gin", source], folder / source.rpartition("_")[2][:-4],
            CORPUS=str(corpus), TOKENIZER=tokenizer, LENGTH=length,
        )  # fmt: skip
    question: dict[str, str] = {}
    for line in (corpus / "qrels/train.tsv").read_text("utf-8").splitlines()[1:]:
        query, paragraph, _ = line.split("\t")
        question.setdefault(paragraph, query)
    with open(folder / "pairs.jsonl", "w", encoding="utf-8") as out:
        for paragraph, query in question.items():
            pair = {"query_id": query, "positive_ids": [paragraph], "negative_ids": []}
            out.write(json.dumps(pair) + "\n")
    return folder
