"""The same labelled queries, written as each library writes them."""

import csv
import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from input_pipelines.labelled.division import SplitRules

Item = tuple[str, str, list[str]]  # query, positive, negatives

ITEMS: list[Item] = [
    ("who wrote it?", "She wrote it, they say.", ["It rained, \"all\" day", "No one knows."]),
    ("where is the sea?", "The sea is in the west.", ["The hills are\nin the east.", "It rained."]),
    ("wie groß?", "Größe: 東京タワー は 高い", ["a \N{SLIGHTLY SMILING FACE}", "No one knows."]),
    ("who said so?", "She wrote it, they say.", ["The sea is in the west.", "It rained."]),
]  # fmt: skip


def lines(path: Path, rows: Iterable[object]) -> Path:
    """JSON lines, gzipped where the name ends in .gz."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def table(path: Path, rows: Sequence[Mapping[str, object]], delimiter: str = ",") -> Path:
    """A file of the csv module, as pandas and `datasets` write one."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def parquet(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def dataset(folder: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """What `Dataset.save_to_disk` writes, in two shards."""
    folder.mkdir(parents=True)
    whole = pa.Table.from_pylist(list(rows))
    half = (len(rows) + 1) // 2
    names = [f"data-0000{number}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, (whole.slice(0, half), whole.slice(half)), strict=True):
        with (
            pa.OSFile(str(folder / name), "wb") as file,
            pa.ipc.new_stream(file, whole.schema) as out,
        ):
            out.write_table(part)
    state = {
        "_data_files": [{"filename": name} for name in names],
        "_fingerprint": "0123456789abcdef",
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": "train",
    }
    features = {name: {"dtype": "string", "_type": "Value"} for name in rows[0]}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))
    return folder


def dataset_dict(folder: Path, splits: Mapping[str, Sequence[Mapping[str, object]]]) -> Path:
    """What `DatasetDict.save_to_disk` writes."""
    for name, rows in splits.items():
        dataset(folder / name, rows)
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(splits)}))
    return folder


def tuples(items: Sequence[Item] = ITEMS) -> list[dict[str, object]]:
    """sentence-transformers' n-tuples."""
    return [
        {"anchor": q, "positive": p, **{f"negative_{i}": n for i, n in enumerate(ns, 1)}}
        for q, p, ns in items
    ]


def triplets(items: Sequence[Item] = ITEMS) -> list[dict[str, object]]:
    """A row for each negative."""
    return [{"anchor": q, "positive": p, "negative": n} for q, p, ns in items for n in ns]


def scored(items: Sequence[Item] = ITEMS) -> list[dict[str, object]]:
    """A row for each passage, with a label."""
    return [
        {"sentence1": q, "sentence2": text, "label": label}
        for q, p, ns in items
        for text, label in ((p, 1), *((n, 0) for n in ns))
    ]


def label_lists(items: Sequence[Item] = ITEMS) -> list[dict[str, object]]:
    return [{"query": q, "docs": [*ns, p], "labels": [0] * len(ns) + [1]} for q, p, ns in items]


def flag_embedding(items: Sequence[Item] = ITEMS) -> list[dict[str, object]]:
    return [{"query": q, "pos": [p], "neg": ns, "prompt": "Find:"} for q, p, ns in items]


def tevatron(items: Sequence[Item] = ITEMS) -> list[dict[str, object]]:
    ids: dict[str, str] = {}

    def passage(text: str) -> dict[str, str]:
        return {"docid": ids.setdefault(text, f"d{len(ids)}"), "title": "", "text": text}

    return [
        {
            "query_id": str(number),
            "query": q,
            "positive_passages": [passage(p)],
            "negative_passages": [passage(n) for n in ns],
        }
        for number, (q, p, ns) in enumerate(items)
    ]


def beir(folder: Path, items: Sequence[Item] = ITEMS, split: str = "train") -> Path:
    """A BEIR folder in which negatives are judged 0."""
    texts = dict.fromkeys(text for _, p, ns in items for text in (p, *ns))
    ids = {text: f"d{number}" for number, text in enumerate(texts)}
    lines(folder / "corpus.jsonl", [{"_id": i, "title": "", "text": t} for t, i in ids.items()])
    lines(
        folder / "queries.jsonl", [{"_id": f"q{i}", "text": q} for i, (q, *_) in enumerate(items)]
    )
    rows = [
        f"q{i}\t{ids[text]}\t{score}\n"
        for i, (_, p, ns) in enumerate(items)
        for text, score in ((p, 1), *((n, 0) for n in ns))
    ]
    (folder / "qrels").mkdir()
    (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    return folder


WRITERS: Mapping[str, Callable[[Path], Path]] = {
    "n-tuples csv": lambda at: table(at / "data.csv", tuples()),
    "n-tuples tsv": lambda at: table(at / "data.tsv", tuples(), "\t"),
    "n-tuples jsonl": lambda at: lines(at / "data.jsonl", tuples()),
    "n-tuples jsonl.gz": lambda at: lines(at / "data.jsonl.gz", tuples()),
    "n-tuples parquet": lambda at: parquet(at / "data.parquet", tuples()),
    "n-tuples datasets": lambda at: dataset(at / "saved", tuples()),
    "n-tuples folder": lambda at: table(at / "mine.csv", tuples()).parent,
    "triplets csv": lambda at: table(at / "data.csv", triplets()),
    "triplets datasets": lambda at: dataset(at / "saved", triplets()),
    "scored csv": lambda at: table(at / "data.csv", scored()),
    "scored parquet": lambda at: parquet(at / "data.parquet", scored()),
    "label lists": lambda at: parquet(at / "data.parquet", label_lists()),
    "FlagEmbedding": lambda at: lines(at / "data.jsonl", flag_embedding()),
    "Tevatron": lambda at: lines(at / "data.jsonl.gz", tevatron()),
    "BEIR": lambda at: beir(at / "folder"),
}


def job_runs() -> dict[str, dict[str, object]]:
    """Arguments of the runs whose outputs are recorded, see tests/job_outputs.py."""
    here = Path()
    corpus = [{"_id": "c1", "title": "Sea", "text": "The sea is in the west."}, {"text": "Alone."}]
    lines(here / "more.jsonl", corpus)
    given = {"columns": {}, "positive_from": None, "max_bad_records": 0, "corpus": None}
    halves = SplitRules(dev_share=0.25, test_share=0.25)
    taught = [{**row, "pos_scores": [2], "neg_scores": [1, 0]} for row in flag_embedding()]
    return {
        "csv": given | {"data": str(table(here / "a.csv", tuples())), "rules": halves},
        "corpus": given
        | {"data": str(lines(here / "a.jsonl", taught)), "corpus": "more.jsonl", "rules": halves},
        "beir": given
        | {
            "data": str(beir(here / "beir")),
            "rules": SplitRules(folds=2, fold=1, keep_given=False),
        },
    }
