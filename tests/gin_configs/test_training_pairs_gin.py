"""data/pairs/training_pairs.gin: pipeline and objective get the same rows, of any collection."""

import json
from collections.abc import Iterator
from pathlib import Path

import gin
import pytest

from input_pipelines.pairs.training_pairs import TrainingPairs
from t5x_style.configuration import gin_checks
from t5x_style.interfaces.objective import GroupShape
from tests.kits.pair_stores import some_texts, write_texts
from tests.kits.tiny_stores import FINGERPRINT

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = ("runs/training/train", "models/tiny", "objectives/bi_encoder")


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    gin.clear_config()
    yield
    gin.clear_config()


def built(
    folder: Path, passages: int, *more: str, data: str = "training_pairs", **changed: object
) -> tuple[TrainingPairs, list[GroupShape], int]:
    """The pipeline, the objective's shapes and its known positives, as gin makes them."""
    (folder / "vocabulary.json").write_text(json.dumps({"fingerprint": FINGERPRINT}))
    store = write_texts(folder / "store", some_texts(passages))
    macros = {
        "STORE": store, "TOKENIZER": folder, "QUERIES": 16, "QUERY_LENGTH": 12,
        "PASSAGE_LENGTH": 24, "SEED": 1, "MODEL_DIR": folder / "out", "STEPS": 2,
        "WARMUP_STEPS": 1, "LEARNING_RATE": 0.1, "TEMPERATURE": 0.1, **changed,
    }  # fmt: skip
    flags = gin_checks.parse_flags(
        [
            f"--gin_file={REPOSITORY}/gin_configs/{name}.gin"
            for name in (*FILES, f"data/pairs/{data}")
        ]
        + [f"--gin.{name}={value}" for name, value in macros.items()]
        + list(more)
    )
    config = flags.read()
    gin_checks.check_names(config, ("t5x_style.stage.run", "t5x_style.train.train"))
    gin_checks.parse(config)
    shapes = []
    for side in ("query", "passage"):
        with gin.config_scope(side):
            shapes.append(gin_checks.configured(GroupShape)())
    known = gin.query_parameter("models.objectives.bi_encoder.BiEncoder.known_positives")
    assert str(known) == "%KNOWN_POSITIVES"
    pipeline = gin_checks.configured(TrainingPairs)()
    return pipeline, shapes, pipeline.known_positives


@pytest.mark.parametrize("passages", [3, 60])
def test_rows_are_the_same_on_both_sides(tmp_path: Path, passages: int) -> None:
    pipeline, shapes, known = built(tmp_path, passages)
    assert pipeline.pairs.counts == {"crops": min(16, passages)} and known == 0
    for shape, rows in zip(shapes, (pipeline.query_rows, pipeline.passage_rows), strict=True):
        assert (shape.rows, shape.length, shape.segments) == (rows.rows, 24, rows.segments)
        assert rows.rows <= 16
    assert pipeline.batch(0)["query"]["segment_valid"].sum() == min(16, passages)


def test_a_mixture_is_set_by_one_macro(tmp_path: Path) -> None:
    weights = "{'two_crops': 1, 'sentences': 2, 'titles': 1, 'neighbours': 4}"
    pipeline, _, known = built(tmp_path, 60, f"--gin.WEIGHTS={weights}", "--gin.ROW_MULTIPLE=2")
    expected = {"two_crops": 2, "sentences": 4, "titles": 2, "neighbours": 8}
    assert pipeline.pairs.counts == expected and known >= 2
    assert pipeline.query_rows.rows % 2 == pipeline.passage_rows.rows % 2 == 0
    assert "known" in pipeline.batch(0)["query"]


def test_pairs_of_articles_are_two_more_kinds(tmp_path: Path) -> None:
    names = [text.name for text in some_texts(60)]
    lines = [
        {"_id": name, "article": name.partition("#")[0], "section": 0, "links": [f"d{row % 29}"]}
        for row, name in enumerate(names)
    ]
    links = tmp_path / "links.jsonl"
    links.write_text("".join(json.dumps(line) + "\n" for line in lines))
    weights = "{'body_first': 1, 'wiki_links': 1, 'sentences': 2}"
    made = [f"--gin.WEIGHTS={weights}", f"--gin.LINKS={links}"]
    pipeline, _, known = built(tmp_path, 60, *made, data="article_pairs")
    assert pipeline.pairs.counts == {"body_first": 4, "wiki_links": 4, "sentences": 8}
    assert known and "known" in pipeline.batch(0)["query"]
