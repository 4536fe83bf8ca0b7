"""Warnings: which starts have almost no gradient, which texts are equal, and what messages say."""

import builtins
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from input_pipelines.tokenizers import import_tokenizer, question_tokens
from models.interop import hf_config, import_hf
from models.losses import contrastive
from models.networks import bag, bert, text_embedding
from models.objectives import bi_encoder
from t5x_style.distributed import partitioning
from t5x_style.evaluation import embedding_report
from t5x_style.evaluation.embedding_diagnostics import LEAST_GAIN
from t5x_style.evaluation.embedding_report import Report, Vectors
from t5x_style.evaluation.embedding_sample import EmbeddingSample
from t5x_style.interfaces.contract import Vocabulary, load_vocabulary
from t5x_style.interfaces.objective import GroupShape
from t5x_style.step import jitted_functions
from tests.kits import tiny_models
from tests.models.interop import test_published_encoder
from tests.parity import parity_kit

QUERIES, GROUP, LENGTH = 16, 2, 100
VOCABULARY = Vocabulary(8192, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), "random")
COSINE = text_embedding.EmbeddingConfig("cls", True, "cosine", 0.05, LENGTH, LENGTH, "", "")
OLD = bert.BertConfig(8192, 128, 2, 2, 512, 128, initializer_range=0.02)
TINY_CLS = dataclasses.replace(  # gin_configs/models/tiny_cls.gin
    OLD, table_stddev=0.02, position_stddev=0.002, kernel_stddev=0.0884, attention_stddev=0.1768,
    mlp_stddev=0.02,
)  # fmt: skip
BAG = bag.BagConfig(8192, 256, (0, 1, 2, 3), 0.5)


@dataclasses.dataclass
class Fixed:
    """One batch, as a pipeline."""

    content: Mapping[str, Mapping[str, np.ndarray]]

    def specs(self) -> dict[str, dict[str, Any]]:
        return {
            group: {name: (array.shape, array.dtype) for name, array in features.items()}
            for group, features in self.content.items()
        }

    def batch(self, step: int, rows: np.ndarray | None = None) -> dict[str, dict[str, Any]]:
        """A row of the smallest group, `query`, has GROUP rows of the other."""
        assert step == 0
        rows = np.arange(QUERIES) if rows is None else rows
        places = {
            "query": rows,
            "passage": (rows[:, None] * GROUP + np.arange(GROUP)).reshape(-1),
        }
        return {
            group: {name: array[places[group]] for name, array in features.items()}
            for group, features in self.content.items()
        }


def numpy(group: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in group.items()}


def passages(group: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """GROUP passages for each query, the first of them relevant."""
    count = QUERIES * GROUP
    extra = {
        "example_id": np.arange(count, dtype=np.int32)[:, None] // GROUP,
        "document_id": np.arange(count, dtype=np.int32)[:, None],
        "relevance": (np.arange(count) % GROUP == 0).astype(np.int32)[:, None],
    }
    return numpy(group) | extra


def random_texts() -> Fixed:
    """Texts of 10 to 100 tokens, and of each relevant one a few as its query."""
    random = np.random.default_rng(0)
    texts = [
        random.integers(5, VOCABULARY.size, random.integers(8, LENGTH - 1)).tolist()
        for _ in range(QUERIES * GROUP)
    ]
    asked = [[(n, [2, *text[:6], 3])] for n, text in enumerate(texts[::GROUP])]
    shown = [[(n, [2, *text, 3])] for n, text in enumerate(texts)]
    return Fixed(
        {
            "query": numpy(tiny_models.group(asked, 8, 1)),
            "passage": passages(tiny_models.group(shown, LENGTH, 1)),
        }
    )


def measured(
    pipeline: Fixed,
    config: bert.BertConfig | bag.BagConfig,
    vectors: text_embedding.EmbeddingConfig,
    vocabulary: Vocabulary = VOCABULARY,
    published: Path | None = None,
) -> Report:
    """Of a fresh bi-encoder, or of a published encoder, before step 0."""
    shapes = [
        GroupShape(*pipeline.content[name]["tokens"].shape, 1) for name in ("query", "passage")
    ]
    module = bi_encoder.BiEncoder(
        config, vectors, vocabulary, *shapes, contrastive.ContrastiveConfig(), rngs=nnx.Rngs(0)
    )
    if published is not None:
        network = nnx.Dict(encoder=module.encoder)
        parity_kit.fill(network, import_hf.HuggingFace(str(published), config.vocab_size))
    partitioner = partitioning.Partitioner(devices=jax.devices()[:1])
    graph, params, variables = nnx.split(module, nnx.Param, ...)
    jitted = jitted_functions.jitted_functions(graph, module.functions())
    functions = jitted_functions.bound(jitted, params, variables)
    return EmbeddingSample(module, pipeline, partitioner).measure(functions, 0)


def test_the_old_configuration_warns() -> None:
    """[CLS] of two fresh layers of width 128: scores of all texts are the same."""
    found = measured(random_texts(), OLD, COSINE)
    assert found.figures["mean_cosine"] > 0.9995
    assert found.figures["possible_gain"] < 0.005
    (message,) = found.problems.values()
    for said in (
        "almost no gradient at step 0", "sqrt(2 ln 32)", "at least 0.01", "temperature 0.05",
        "mean cosine", "[CLS] in a shallow, randomly initialised", "Remedy: pooling 'mean';",
        "initialise_from", "gin_configs/models/tiny_cls.gin", "docs/contrastive.md",
    ):  # fmt: skip
        assert said in message, said


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        (OLD, "mean"),
        (TINY_CLS, "cls"),
        (BAG, "weighted_mean"),
        (dataclasses.replace(OLD, initializer_range=0.09), "cls"),
        # BERT-base is slow; in half of its depth and width [CLS] differs as well, though less.
        (dataclasses.replace(OLD, hidden=384, layers=6, heads=6, mlp=1536), "cls"),
        pytest.param(
            dataclasses.replace(OLD, hidden=768, layers=12, heads=12, mlp=3072), "cls",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_other_starts_are_silent(config: bert.BertConfig | bag.BagConfig, pooling: str) -> None:
    found = measured(random_texts(), config, dataclasses.replace(COSINE, pooling=pooling))
    assert found.problems == {}
    assert found.figures["possible_gain"] > 1.5 * LEAST_GAIN


def test_inner_products_are_measured_as_the_loss_compares_them() -> None:
    """Unnormalised vectors, and temperature 1: the same scores as lengths and temperature make."""
    dot = dataclasses.replace(COSINE, normalise=False, similarity="dot", temperature=1.0)
    found = measured(random_texts(), OLD, dataclasses.replace(dot, pooling="mean"))
    plain = measured(random_texts(), OLD, dataclasses.replace(COSINE, pooling="mean"))
    assert found.problems == {}
    assert found.figures["mean_cosine"] == pytest.approx(plain.figures["mean_cosine"], rel=1e-6)
    assert found.figures["score_std"] != pytest.approx(plain.figures["score_std"], rel=0.1)


def test_a_published_encoder_is_silent(tmp_path: Path) -> None:
    published = test_published_encoder.real()
    import_tokenizer.import_tokenizer(str(tmp_path), str(published))
    tokenizer = str(tmp_path / "tokenizer")
    docs = {str(value.__doc__).partition("\n\n")[0] for value in vars(builtins).values()}
    texts = sorted(docs, key=lambda text: (len(text) < 40, text))[: QUERIES * GROUP]
    encoder = question_tokens.QuestionEncoder(tokenizer, 64, "")
    pipeline = Fixed(
        {
            "query": numpy(encoder([text[:30] for text in texts[::GROUP]])),
            "passage": passages(encoder(texts)),
        }
    )
    pipeline.content["query"]["example_id"][:, 0] = np.arange(QUERIES)  # type: ignore[index]
    config = hf_config.config_from_hf(str(published), "float32", "none", 128)
    mean = dataclasses.replace(COSINE, pooling="mean", query_length=64, passage_length=64)
    found = measured(pipeline, config, mean, load_vocabulary(tokenizer), published)
    assert found.problems == {}
    assert found.figures["possible_gain"] > 1 and found.figures["mean_cosine"] < 0.5
    assert found.figures["alignment"] < 1.5


CONTRACT = COSINE.contract(4, VOCABULARY)


def vectors(count: int, seed: int = 0, texts: str | None = None, spread: float = 1.0) -> Vectors:
    """Random ones around a common direction; `texts` names each by a letter."""
    random = np.random.default_rng(seed)
    found = np.ones((count, 4)) + spread * random.normal(size=(count, 4))
    names = [bytes([n]) for n in range(count)] if texts is None else [t.encode() for t in texts]
    return Vectors(found.astype(np.float32), names, np.arange(count), np.ones(count, bool))


def report(candidates: int = 0, step: int = 0, **sides: Vectors) -> Report:
    return embedding_report.report(sides, CONTRACT, candidates, step)


def test_equal_texts_are_named_and_not_called_a_missing_gradient() -> None:
    equal = vectors(5, texts="aaaaa", spread=0.0)
    found = report(5, passage=equal, query=vectors(5, 1, "bcdef"))
    assert found.figures == {} and list(found.problems) == ["texts"]
    assert found.problems["texts"].startswith("all texts equal: the 5 passage texts of the first")
    assert "Remedy: remove the copies" in found.problems["texts"]
    both = report(5, query=equal, passage=equal)
    assert "the 5 query texts and the 5 passage texts" in both.problems["texts"]
    assert report(passage=vectors(1)) == Report({}, {})  # one text is no copy
    assert report(passage=vectors(1)).line() == "embeddings: no figures"


def test_copies_of_a_text_count_once() -> None:
    plain = vectors(4, texts="abcd")
    copied = Vectors(*(
        np.concatenate([part, part[:2]]) if isinstance(part, np.ndarray) else part + part[:2]
        for part in plain
    ))  # fmt: skip
    assert report(passage=copied) == report(passage=plain)
    two = report(2, query=vectors(2, 1, "xy"), passage=vectors(4, texts="abab"))
    assert "score_std" not in two.figures and two.problems == {}  # nothing left to compare with


def test_pairs_are_matched_by_example_and_relevance() -> None:
    queries, shown = vectors(3, 1, "xyz"), vectors(4, 2, "abcd")
    shown = shown._replace(ids=np.array([0, 0, 1, 7]), relevant=np.array([False, True, True, True]))
    found = report(4, query=queries, passage=shown).figures
    pairs = queries.vectors[:2], shown.vectors[[1, 2]]
    expected = np.square(
        pairs[0] / np.linalg.norm(pairs[0], axis=1, keepdims=True)
        - pairs[1] / np.linalg.norm(pairs[1], axis=1, keepdims=True)
    ).sum(1)  # fmt: skip
    assert found["alignment"] == pytest.approx(expected.mean(), rel=1e-5)
    # A query that is its own positive shows nothing.
    copies = shown._replace(texts=[b"a", b"x", b"y", b"d"])
    assert "alignment" not in report(4, query=queries, passage=copies).figures


def test_vectors_that_are_not_finite_have_no_figures() -> None:
    broken = vectors(3)
    broken.vectors[1, 2] = np.nan
    found = report(passage=broken)
    assert (
        found.figures == {}
        and "embed_passage: vectors hold NaN or Inf" in found.problems["vectors"]
    )


def test_causes_and_remedies_differ() -> None:
    equal = {"query": vectors(8, 1, spread=1e-4), "passage": vectors(8, 2, spread=1e-4)}
    later = report(8, step=300, **equal).problems["gradient"]
    assert "at step 300" in later and "became nearly equal" in later and "learning rate" in later
    pooled = dataclasses.replace(CONTRACT, pooling="mean")
    start = embedding_report.report(equal, pooled, 8, 0).problems["gradient"]
    assert "pooling 'mean'" not in start and "initialise_from" in start
    warm = dataclasses.replace(CONTRACT, temperature=200.0)
    wide = {"query": vectors(8, 1, spread=3.0), "passage": vectors(8, 2, spread=3.0)}
    large = embedding_report.report(wide, warm, 8, 0).problems["gradient"]
    assert "temperature is large" in large and "a lower temperature" in large
    # A loss that compares no texts has its gradient from elsewhere.
    assert report(0, **equal).problems == {}
    assert "possible_gain" not in report(0, **equal).figures
    assert jnp.isfinite(report(0, **equal).figures["score_std"])
