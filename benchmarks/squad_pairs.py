"""A folder of SQuAD to fine-tune on: so many pairs, all paragraphs, the official test questions.

    python -m benchmarks.squad_pairs --pairs=7000 --folder=runs/squad_7000
    kennel finetune --model=path/to/encoder --data=runs/squad_7000 --run_dir=runs/finetune_7000

The folder is in BEIR's layout: 20,963 paragraphs, the first `--pairs` training questions in random
order, `--dev` development questions of other articles, and all 10,570 questions of the official
development set for the test. Fewer pairs are a part of more. Reads ../shared/data/squad.
"""

import json
import random
import tempfile
from pathlib import Path

from absl import app, flags

from benchmarks import corpora
from t5x_style.retrieval import beir_collection

_PAIRS = flags.DEFINE_integer("pairs", 7000, "Training questions.", lower_bound=1)
_DEV = flags.DEFINE_integer("dev", 500, "Development questions.", lower_bound=1)
_FOLDER = flags.DEFINE_string("folder", None, "Where to; must not exist.", required=True)
SEED = 0  # of the order of questions


def chosen(folder: Path, split: str, most: int | None) -> dict[str, dict[str, int]]:
    """Judgements of the first `most` questions of a split in a random order; None: of all."""
    queries = beir_collection.read_queries(str(folder))
    passages = beir_collection.Passages(str(folder))
    qrels = beir_collection.read_qrels(str(folder), split, queries, passages)
    names = sorted(qrels)
    random.Random(SEED).shuffle(names)
    return {name: dict(qrels[name]) for name in names[:most]}


def main(_: list[str]) -> None:
    """Writes the folder."""
    out = Path(_FOLDER.value)
    (out / "qrels").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        corpora.run_stage(
            ["runs/collections/squad.gin"], Path(scratch) / "squad", TRAIN_FILE=str(corpora.SQUAD),
            TEST_FILE=str(corpora.SQUAD.with_name("dev-v1.1.jsonl.gz")),
        )  # fmt: skip
        made = Path(scratch) / "squad/corpus"
        texts = beir_collection.read_queries(str(made))
        asked = []
        for split, most in (("train", _PAIRS.value), ("dev", _DEV.value), ("test", None)):
            qrels = chosen(made, split, most)
            asked += qrels
            lines = [f"{q}\t{p}\t{score}" for q in qrels for p, score in qrels[q].items()]
            text = "\n".join(["query-id\tcorpus-id\tscore", *lines, ""])
            (out / f"qrels/{split}.tsv").write_text(text, encoding="utf-8")
            print(f"{split}: {len(qrels):,} questions")
        with open(out / "queries.jsonl", "w", encoding="utf-8") as file:
            for name in asked:
                file.write(json.dumps({"_id": name, "text": texts[name]}) + "\n")
        (out / "corpus.jsonl").write_bytes((made / "corpus.jsonl").read_bytes())


if __name__ == "__main__":
    app.run(main)
