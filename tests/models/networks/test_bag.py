"""The bag of embeddings: its vectors, its place in the bi-encoder, its export."""

import collections
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from input_pipelines.tokenizers import tokenization, wordpiece
from models.interop import export_bag
from models.losses import contrastive
from models.networks import bag, text_embedding
from models.objectives import bi_encoder
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.objective import GroupShape, check_batch
from t5x_style.interfaces.representation import DENSE, MULTI_VECTOR, PASSAGE, QUERY, SEGMENTS, SIDES
from tests.kits import tiny_models

CONFIG = bag.BagConfig(
    vocab_size=50, hidden=8, special_ids=tiny_models.VOCABULARY.special_ids, vocab_multiple=32
)
EMBEDDING = dataclasses.replace(
    tiny_models.EMBEDDING,
    pooling="weighted_mean",
    normalise=True,
    similarity="cosine",
    temperature=0.1,
    passage_length=1000,  # no text is too long for a bag
)


def encoder(seed: int = 0) -> bag.BagEncoder:
    made = CONFIG.build(nnx.Rngs(seed))
    weights = jax.random.normal(jax.random.key(seed + 1), made.token_weight.shape)
    made.token_weight[...] = weights
    return made


def by_hand(made: bag.BagEncoder, tokens: list[int]) -> np.ndarray:
    """The formula of the module's docstring, in float64."""
    table = np.asarray(made.word.embedding[...], np.float64)
    weight = np.logaddexp(0, np.asarray(made.token_weight[...], np.float64))
    counts = collections.Counter(t for t in tokens if t not in CONFIG.special_ids)
    power = made.config.repetition_exponent
    rows = (n**power * weight[t] * table[t] for t, n in counts.items())
    return sum(rows, np.zeros(CONFIG.hidden))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.sampled_from([0.0, 0.5, 1.0]))
def test_a_vector_is_the_weighted_sum_of_its_tokens_however_rows_are_packed(
    seed: int, most: int, power: float
) -> None:
    made, parts = encoder(), tiny_models.segments(6, seed=seed)
    parts = [(i, [2, *(5 + t % 4 for t in tokens[1:-1]), 3]) for i, tokens in parts]  # repetitions
    made.config = dataclasses.replace(CONFIG, repetition_exponent=power)
    rows = [parts[i : i + most] for i in range(0, len(parts), most)]
    group = tiny_models.group(rows, length=27, most=most)

    vectors = made(group["tokens"], group["segment_ids"], most)

    for row, texts in enumerate(rows):
        for place, (_, tokens) in enumerate(texts):
            np.testing.assert_allclose(vectors[row, place], by_hand(made, tokens), atol=1e-5)
        assert not np.any(np.asarray(vectors[row, len(texts) :]))


def max_sim_by_hand(made: bag.BagEncoder, query: list[int], passage: list[int]) -> float:
    """The second formula of the module's docstring, in float64."""
    table = np.asarray(made.word.embedding[...], np.float64)
    weight = np.logaddexp(0, np.asarray(made.token_weight[...], np.float64))
    lengths, power = np.linalg.norm(table, axis=1), made.config.repetition_exponent
    counts, others = (
        collections.Counter(t for t in text if t not in CONFIG.special_ids)
        for text in (query, passage)
    )
    sizes = {t: n**power * weight[t] * lengths[t] for t, n in counts.items()}
    best = {t: max(table[t] @ table[u] / lengths[t] / lengths[u] for u in others) for t in counts}
    return sum(size * best[t] for t, size in sizes.items()) / sum(sizes.values())


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.sampled_from([0.0, 0.5, 1.0]))
def test_texts_are_compared_token_by_token_however_rows_are_packed(
    seed: int, most: int, power: float
) -> None:
    made, parts = encoder(), tiny_models.segments(6, seed=seed)
    made.config = dataclasses.replace(CONFIG, repetition_exponent=power)
    parts = [(i, [2, *(5 + t % 7 for t in tokens[1:-1]), 3]) for i, tokens in parts]  # repetitions
    group = tiny_models.group(
        [parts[i : i + most] for i in range(0, len(parts), most)], length=27, most=most
    )
    texts = {side: entries(made.token_vectors(group, side), most) for side in SIDES}
    for query, (_, asked) in zip(texts[QUERY], parts, strict=False):
        for passage, (_, given_) in zip(texts[PASSAGE], parts, strict=False):
            score = (query @ passage.T).max(axis=1).sum()
            assert score == pytest.approx(max_sim_by_hand(made, asked, given_), abs=1e-5)
    for passage, (_, tokens) in zip(texts[PASSAGE], parts, strict=False):
        assert len(passage) == len(set(tokens) - set(CONFIG.special_ids))  # each token once
        np.testing.assert_allclose(np.linalg.norm(passage, axis=1), 1.0, atol=1e-5)


def entries(found: dict[str, jax.Array], most: int) -> list[np.ndarray]:
    """[tokens, D] of each text, row by row."""
    return [
        np.asarray(vectors)[np.asarray(numbers) == text + 1]
        for numbers, vectors in zip(found[SEGMENTS], found["vectors"], strict=True)
        for text in range(most)
    ]


def test_a_text_of_special_tokens_alone_has_no_vectors_of_tokens() -> None:
    group = tiny_models.group([[(0, [2, 1, 3])]], length=6, most=1)
    for side in SIDES:
        found = encoder().token_vectors(group, side)
        assert not np.any(found[SEGMENTS]) and not np.any(found["vectors"])


def test_the_bi_encoder_offers_them_where_they_are_asked_for() -> None:
    plain, asked = objective(), objective(dataclasses.replace(CONFIG, token_vectors=True))
    for name, function in plain.functions().items():
        assert function.representations == (DENSE,)
        also = asked.functions()[name]
        assert also.representations == (DENSE, MULTI_VECTOR) and also.side == function.side
        group = batch()[also.side]
        made = also(group, kinds=(DENSE, MULTI_VECTOR))
        np.testing.assert_array_equal(made[DENSE], function(group, kinds=(DENSE,))[DENSE])
        alone = also(group, kinds=(MULTI_VECTOR,))
        assert alone.keys() == {MULTI_VECTOR}
        np.testing.assert_array_equal(alone[MULTI_VECTOR]["vectors"], made[MULTI_VECTOR]["vectors"])


def test_every_token_counts_alike_before_the_first_step() -> None:
    made = CONFIG.build(nnx.Rngs(0))
    np.testing.assert_allclose(made.weights(jnp.arange(5, 50)), 1.0, atol=1e-6)
    np.testing.assert_array_equal(made.weights(jnp.array(CONFIG.special_ids)), 0.0)


def test_rows_of_a_fresh_table_have_about_unit_length() -> None:
    made = dataclasses.replace(CONFIG, hidden=256).build(nnx.Rngs(0))
    lengths = np.linalg.norm(made.word.embedding[...], axis=1)
    assert abs(lengths.mean() - 1) < 0.02


def test_a_text_of_special_tokens_alone_has_no_direction_and_a_finite_gradient() -> None:
    made = encoder()
    group = tiny_models.group([[(0, [2, 1, 3])]], length=6, most=1)

    def total(module: bag.BagEncoder) -> jax.Array:
        return text_embedding.embed(module, group, EMBEDDING).sum()

    value, gradient = nnx.value_and_grad(total)(made)

    assert value == 0.0
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))


QUERIES = GroupShape(rows=4, length=12, segments=1)
PASSAGES = GroupShape(rows=8, length=12, segments=1)


def objective(config: bag.BagConfig = CONFIG) -> bi_encoder.BiEncoder:
    return bi_encoder.BiEncoder(
        config,
        EMBEDDING,
        tiny_models.VOCABULARY,
        QUERIES,
        PASSAGES,
        contrastive.ContrastiveConfig(both_directions=True),
        rngs=nnx.Rngs(0),
    )


def batch() -> dict[str, dict[str, jax.Array]]:
    queries = tiny_models.segments(4, seed=1, longest=8)
    found = tiny_models.segments(8, seed=2, longest=8)
    passages = [(100 + i // 2, tokens) for i, (_, tokens) in enumerate(found)]
    group = tiny_models.group([[one] for one in passages], length=12, most=1)
    group["relevance"] = jnp.array([[1], [0]] * 4, jnp.int32)
    group["document_id"] = jnp.arange(8, dtype=jnp.int32)[:, None]
    query = tiny_models.group([[one] for one in queries], length=12, most=1)
    return {"query": query, "passage": group}


def test_the_bi_encoder_trains_a_bag() -> None:
    module, data = objective(), batch()
    check_batch(module.batch_specs()[0], data, "the test")
    assert module.contract().pooling == "weighted_mean"
    assert module.contract().dimension == CONFIG.hidden

    @nnx.jit
    def step(module: bi_encoder.BiEncoder) -> jax.Array:
        def loss(module: bi_encoder.BiEncoder) -> jax.Array:
            return module.loss(data, jax.random.key(0))[0].value()

        value, gradient = nnx.value_and_grad(loss)(module)
        params = nnx.state(module, nnx.Param)
        nnx.update(module, jax.tree.map(lambda p, g: p - 0.5 * g, params, gradient))
        return value

    losses = [float(step(module)) for _ in range(30)]
    assert losses[-1] < 0.2 * losses[0]


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("hidden", 0, "BagConfig.hidden: expected at least 1, found 0"),
        ("repetition_exponent", 1.5, "BagConfig.repetition_exponent: expected a number from 0"),
        ("table_stddev", 0.0, "BagConfig.table_stddev: expected a number above 0"),
        ("special_ids", (0, 50), r"BagConfig.special_ids: expected ids from 0 to 49, found \[50\]"),
    ],
)
def test_sizes_out_of_range_are_refused(field: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(CONFIG, **{field: value})


def test_a_bag_has_no_other_pooling() -> None:
    group = tiny_models.group([tiny_models.segments(2)], length=20, most=2)
    with pytest.raises(ValueError, match="BagEncoder does not give 'mean'"):
        text_embedding.embed(encoder(), group, dataclasses.replace(EMBEDDING, pooling="mean"))


FINGERPRINT = "made-for-the-test"


def trained(folder: Path, tokenizer: str) -> tuple[bag.BagEncoder, text_embedding.EmbeddingConfig]:
    """A bag for this tokenizer, whose contract is in the folder."""
    vocabulary = Vocabulary.load(tokenizer)
    config = bag.BagConfig(vocabulary.size, 8, vocabulary.special_ids, vocab_multiple=32)
    how = dataclasses.replace(EMBEDDING, query_length=8, passage_length=8)
    folder.mkdir()
    how.contract(8, vocabulary).save(folder)
    made = config.build(nnx.Rngs(3))
    made.token_weight[...] = jax.random.normal(jax.random.key(4), made.token_weight.shape)
    return made, how


@dataclasses.dataclass(frozen=True)
class Arrays:
    module: bag.BagEncoder

    def arrays(self) -> dict[str, np.ndarray]:
        return {
            "encoder/word/embedding": np.asarray(self.module.word.embedding[...]),
            "encoder/token_weight": np.asarray(self.module.token_weight[...]),
        }


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    names = [*wordpiece.BERT_SPECIALS, "the", "fox", "##es", "run", "far", "away"]
    made = wordpiece.from_vocabulary({name: i for i, name in enumerate(names)}, True, True)
    folder = tmp_path_factory.mktemp("tokenizer")
    specials = dict(zip(tokenization.ROLES, wordpiece.BERT_SPECIALS, strict=True))
    tokenization.write_folder(str(folder), made, specials, {})
    return str(folder)


TEXTS = [
    "the foxes run far away",
    "Far away!",  # "!" is unknown
    "run " * 20,  # cut at 8 tokens
    "the fox [SEP] run",
]


def test_sentence_transformers_gives_the_same_vectors(tmp_path: Path, tokenizer: str) -> None:
    sentence_transformers = pytest.importorskip(
        "sentence_transformers", reason="needs the extra: make interop"
    )
    made, how = trained(tmp_path / "model", tokenizer)
    export_bag.export(
        str(tmp_path),
        str(tmp_path / "model"),
        Arrays(made),
        made.config,
        Vocabulary.load(tokenizer),
        tokenizer,
    )
    encoded = tokenization.Tokenizer(tokenizer).encode_batch(TEXTS, 8)
    rows = [[(i, one.tokens.tolist())] for i, one in enumerate(encoded)]
    ours = text_embedding.embed(made, tiny_models.group(rows, length=8, most=1), how)[:, 0]

    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "encoder")).encode(TEXTS)

    np.testing.assert_allclose(theirs, ours, atol=1e-6)


def test_an_export_names_what_does_not_fit(tmp_path: Path, tokenizer: str) -> None:
    made, how = trained(tmp_path / "model", tokenizer)
    vocabulary = Vocabulary.load(tokenizer)

    def export(arrays: Arrays, vocabulary: Vocabulary) -> None:
        folder = str(tmp_path / "model")
        export_bag.export(str(tmp_path), folder, arrays, made.config, vocabulary, tokenizer)

    with pytest.raises(export_bag.ExportError, match="expected the parameters of a bag"):
        export(Arrays(CONFIG.build(nnx.Rngs(0))), vocabulary)
    with pytest.raises(export_bag.ExportError, match="repeated tokens count less"):
        made.config = dataclasses.replace(made.config, repetition_exponent=0.5)
        export(Arrays(made), vocabulary)
    made.config = dataclasses.replace(made.config, repetition_exponent=1.0)
    with pytest.raises(export_bag.ExportError, match="trained with tokenizer"):
        export(Arrays(made), dataclasses.replace(vocabulary, fingerprint=FINGERPRINT))
    dataclasses.replace(how, normalise=False).contract(8, vocabulary).save(tmp_path / "model")
    with pytest.raises(export_bag.ExportError, match="do not have unit length"):
        export(Arrays(made), vocabulary)
    assert not (tmp_path / "encoder").exists()
