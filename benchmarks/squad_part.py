"""A part of a folder of `benchmarks.squad_pairs`, for studies that have to end within the hour.

    python -m benchmarks.squad_part --whole=runs/squad_2000 --folder=runs/squad_small

Draws questions of each split, and keeps the paragraphs that answer these or any test question.
"""

import json
import random
from pathlib import Path

from absl import app, flags

_WHOLE = flags.DEFINE_string("whole", None, "Folder of squad_pairs.", required=True)
_FOLDER = flags.DEFINE_string("folder", None, "Where to; must not exist.", required=True)
_QUESTIONS = {
    split: flags.DEFINE_integer(split, count, f"Questions of split {split}.", lower_bound=1)
    for split, count in (("train", 1500), ("dev", 250), ("test", 2000))
}
SEED = 0  # of the draw


def judged(folder: Path, split: str) -> list[list[str]]:
    """[query, passage, score] of each judgement, in the order of the file."""
    lines = (folder / f"qrels/{split}.tsv").read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines[1:]]


def rows(file: Path) -> dict[str, dict[str, str]]:
    """Id -> row, in the order of the file."""
    with file.open(encoding="utf-8") as lines:
        return {row["_id"]: row for row in map(json.loads, lines)}


def main(_: list[str]) -> None:
    """Writes the folder."""
    whole, out = Path(_WHOLE.value), Path(_FOLDER.value)
    (out / "qrels").mkdir(parents=True)
    draw = random.Random(SEED)
    drawn = {}
    for split, count in _QUESTIONS.items():
        known = judged(whole, split)
        drawn[split] = draw.sample(known, min(count.value, len(known)))
        lines = ["query-id\tcorpus-id\tscore", *map("\t".join, drawn[split])]
        (out / f"qrels/{split}.tsv").write_text("\n".join([*lines, ""]), encoding="utf-8")
    kept = {passage for lines in drawn.values() for _, passage, _ in lines}
    kept |= {passage for _, passage, _ in judged(whole, "test")}
    texts = rows(whole / "queries.jsonl")
    asked = [texts[query] for lines in drawn.values() for query, _, _ in lines]
    passages = [row for name, row in rows(whole / "corpus.jsonl").items() if name in kept]
    for name, found in (("queries", asked), ("corpus", passages)):
        with open(out / f"{name}.jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in found)
        print(f"{name}: {len(found):,}")


if __name__ == "__main__":
    app.run(main)
