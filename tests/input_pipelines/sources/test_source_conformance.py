"""What every text source promises (`text_sources.TextSource`), and what is made of any of them."""

import json
from pathlib import Path

import pytest

from input_pipelines.sources.ir_datasets_source import IrDocuments
from input_pipelines.sources.text_sources import BadRecords, Record, SourceError, TextSource
from input_pipelines.sources.tfds_source import Tfds
from input_pipelines.store import block_layout, layouts, prepare, text_parts
from input_pipelines.store.token_store import TokenStore
from input_pipelines.tokenizers import tokenization
from tests.input_pipelines.sources.source_cases import CASES, TEXTS
from tests.kits import tfds_kit

LAYOUTS: dict[str, layouts.Layout] = {
    "text": layouts.WHOLE_TEXTS,
    "title_and_body": block_layout.TitleAndBody(),
    "blocks": block_layout.Blocks(spans=None),
    "parts": text_parts.TextsWithParts(),
}


class Listed:
    """A source that is known to this file alone."""

    def __init__(self, *texts: str) -> None:
        self._texts = texts

    def records(self, bad: BadRecords):
        for number, text in enumerate(self._texts):
            yield Record(f"listed{number}", "", text, f"listed:{number}")


def read(source: TextSource, limit: int = 0) -> tuple[list[Record], BadRecords]:
    bad = BadRecords(limit)
    return list(source.records(bad)), bad


def train(folder: Path, source: TextSource, **changed: int) -> bytes:
    """Trains a tokenizer and returns its tokenizer.json."""
    folder.mkdir(exist_ok=True)
    settings = {"vocabulary_size": 200, "alphabet_size": 100, "min_frequency": 1, "sample": 0}
    tokenization.train_tokenizer(
        str(folder), source, lowercase=True, strip_accents=False, seed=0, max_bad_records=0,
        **settings | changed,
    )  # fmt: skip
    return (folder / "tokenizer/tokenizer.json").read_bytes()


def store(folder: Path, source: TextSource, tokenizer: str, layout: layouts.Layout) -> dict:
    prepare.prepare(
        str(folder), source, tokenizer, "docs", "all", "passage", 48, "", 100, 1, 0, layout
    )
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    train(folder, Listed(*TEXTS))
    return str(folder / "tokenizer")


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TextSource]:
    """The sources that are read through libraries."""
    import ir_datasets
    import tensorflow_datasets as tfds

    folder = tmp_path_factory.mktemp("datasets")
    rows = [{"name": f"n{i}", "text": text} for i, text in enumerate(TEXTS)]
    features = {"name": tfds.features.Text(), "text": tfds.features.Text()}
    version = tfds_kit.write(folder, "tiny", features, rows)
    path = folder / "docs.tsv"
    path.write_text("".join(f"d{i}\t{text}\n" for i, text in enumerate(TEXTS)), encoding="utf-8")
    if "conformance" not in ir_datasets.registry:
        made = ir_datasets.create_dataset(docs_tsv=str(path))
        ir_datasets.registry.register("conformance", made)
    return {
        "tfds": Tfds(str(version), "", "train", "name", "", "text"),
        "ir_datasets": IrDocuments("conformance"),
    }


def require_promises(source: TextSource) -> None:
    records, bad = read(source)
    assert records and not bad.counts
    assert read(source)[0] == records
    ids = [record.id for record in records]
    assert len(set(ids)) == len(ids) and all(name.split() == [name] for name in ids)
    texts = {record.title for record in records} | {record.text for record in records}
    assert set(TEXTS) <= texts


@pytest.mark.parametrize("name", CASES)
def test_order_ids_and_unicode(name: str, tmp_path: Path) -> None:
    source = CASES[name].write(tmp_path / "here")
    require_promises(source)
    elsewhere = CASES[name].write(tmp_path / "elsewhere")
    assert read(source)[0] == read(elsewhere)[0]


@pytest.mark.parametrize("name", ["tfds", "ir_datasets"])
def test_order_ids_and_unicode_of_datasets(name: str, datasets: dict[str, TextSource]) -> None:
    require_promises(datasets[name])
    ids = [record.id for record in read(datasets[name])[0]]
    assert len(ids) == len(set(ids)) > 1


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_record_is_counted_and_quoted(name: str, tmp_path: Path) -> None:
    whole = [record.text for record in read(CASES[name].write(tmp_path / "whole"))[0]]
    source = CASES[name].write(tmp_path / "broken", broken=True)
    records, bad = read(source, limit=1)
    assert [record.text for record in records] == whole
    assert bad.counts.total() == 1
    assert bad.examples[0].startswith(f"{CASES[name].place(tmp_path / 'broken')}: ")
    assert list(source.records(bad)) == records and bad.counts.total() == 1  # read again
    with pytest.raises(SourceError, match="max_bad_records=0"):
        read(source)


@pytest.mark.parametrize("name", CASES)
def test_an_empty_file_is_an_error(name: str, tokenizer: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError):  # some sources say so when they are made
        train(tmp_path / "tokenizer", CASES[name].write(tmp_path / "files", texts=()))
    with pytest.raises(SourceError):
        source = CASES[name].write(tmp_path / "again", texts=())
        store(tmp_path / "store", source, tokenizer, layouts.WHOLE_TEXTS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", [*CASES, "tfds", "ir_datasets", "listed"])
def test_every_layout_takes_every_source(
    name: str,
    layout: str,
    tokenizer: str,
    datasets: dict[str, TextSource],
    tmp_path: Path,
) -> None:
    if name in CASES:
        source = CASES[name].write(tmp_path / "files")
    else:
        source = datasets.get(name, Listed(*TEXTS))
    records, _ = read(source)
    report = store(tmp_path, source, tokenizer, LAYOUTS[layout])
    opened = TokenStore.open(str(tmp_path / "store"))
    assert report["count"] == len(opened) == len(records)
    ids = [f"{one.id}#0" if layout == "blocks" else one.id for one in records]
    assert list(opened.ids) == ids
    assert [opened.text(row).text for row in range(len(opened))] == [r.text for r in records]


@pytest.mark.parametrize(
    "name",
    ["lines", "beir_passages", "msmarco", "articles", "tfds", "ir_datasets", "listed"],
)
def test_the_same_texts_give_the_same_tokenizer(
    name: str, datasets: dict[str, TextSource], tmp_path: Path
) -> None:
    expected = train(tmp_path / "jsonl", CASES["jsonl"].write(tmp_path / "jsonl"))
    if name in CASES:
        source = CASES[name].write(tmp_path / name)
    else:
        source = datasets.get(name, Listed(*TEXTS))
    assert train(tmp_path / name, source) == expected


@pytest.mark.parametrize("name", CASES)
def test_tokenizers_are_trained_on_every_source(name: str, tmp_path: Path) -> None:
    source = CASES[name].write(tmp_path / "files")
    train(tmp_path, source)
    trained = tokenization.Tokenizer(str(tmp_path / "tokenizer"))
    unknown = trained.vocabulary["unk"]
    texts = [record.text for record in read(source)[0]]
    assert all(unknown not in one.tokens for one in trained.encode_batch(texts, 64))
