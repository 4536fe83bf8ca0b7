"""DiffCSE: SimCSE, and prediction from a text's vector which of its tokens were replaced.

Chuang et al. 2022, arXiv:2204.10298, with the facts of the official code. Each text is encoded
twice under other dropout. A head with batch normalisation follows in training alone, and SimCSE's
loss compares the heads' vectors. For each of both, a generator that is never trained fills masked
tokens of the text with samples. A discriminator reads the edited text, with the head's vector in
place of [CLS], and classifies each token as kept or replaced:

    loss = SimCSE's loss + weight x mean over tokens of the discriminator's cross-entropy

The better the vector describes the original, the easier this is. Generator and discriminator are
dropped afterwards. Facts and differences are in docs/simcse.md.

Letters: B rows, L row length, S segments a row, D hidden width.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from models.corruption import masking
from models.losses import contrastive, two_views
from models.networks import batch_norm_head, discriminator, electra, layers, text_embedding
from models.objectives.twice_encoded import TwiceEncoded
from t5x_style.interfaces.contract import Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig
from t5x_style.interfaces.metrics import MetricSum
from t5x_style.interfaces.objective import Batch, Group, GroupShape

EDITED = ("edited", "edited_again")  # features of a corrupted batch, one for each encoding


class DiffCSE(TwiceEncoded):
    """See the module's docstring.

    Args:
        config, embedding_config, vocabulary, text, contrastive_config: see `TwiceEncoded`.
        generator_config: sizes of the generator, which shares the vocabulary.
        chunk: positions whose logits exist at a time on a device, of the generator.
        mask_rate: share of a text's tokens that the generator fills; 0.3 in the paper.
        replaced_weight: of the discriminator's loss; 0.005 in the paper.
        encode_chunks: pieces in which a batch is encoded, and read by the discriminator.
        rngs: stream `params`.

    Raises:
        ValueError: as `TwiceEncoded`; a generator that does not fit; a batch of one text.
    """

    def __init__(
        self,
        config: TokenEncoderConfig,
        embedding_config: text_embedding.EmbeddingConfig,
        vocabulary: Vocabulary,
        text: GroupShape,
        contrastive_config: contrastive.ContrastiveConfig,
        generator_config: TokenEncoderConfig,
        chunk: int,
        mask_rate: float = 0.3,
        replaced_weight: float = 0.005,
        encode_chunks: int = 1,
        *,
        rngs: nnx.Rngs,
    ) -> None:
        super().__init__(
            config, embedding_config, vocabulary, text, contrastive_config, encode_chunks, rngs=rngs
        )
        electra.require_fit(generator_config, config, "DiffCSE")
        _require_diffcse(text, replaced_weight)
        self.mask = masking.WholeWordMask(mask_rate, (vocabulary.cls, vocabulary.sep))
        self.replaced_weight = replaced_weight
        # Named like the parameters of other pre-trainings, for runs/initialise/*.gin.
        self.head = batch_norm_head.BatchNormHead(config, rngs=rngs)
        self.decoder = discriminator.Discriminator(config, rngs=rngs)
        self.generator = electra.Generator(generator_config, chunk, rngs=rngs)

    @property
    def frozen_paths(self) -> tuple[str, ...]:
        """See `Objective`."""
        return ("^generator/",)

    def corrupt(self, batch: Batch, key: jax.Array) -> Batch:
        """Adds EDITED to the group `text`, both [B, L] int32; its `tokens` stay clean."""
        text = batch["text"]
        budget = self.mask.row_budget(text["tokens"].shape[1], text["example_id"].shape[1])
        added = {}
        for name, one in zip(EDITED, jax.random.split(key, len(EDITED)), strict=True):
            mask_key, sample_key = jax.random.split(one)
            selected = masking.whole_word_mask(text, self.mask, mask_key)
            tokens, labels = masking.mask_selected(text, selected, self.vocabulary)
            added[name] = self.generator.replace(text, tokens, labels, budget, sample_key)
        return {**batch, "text": {**text, **added}}

    def loss(self, batch: Batch, key: jax.Array) -> tuple[MetricSum, dict[str, MetricSum]]:
        """See the module's docstring, in nats: a text, and a token.

        Metrics: SimCSE's; `contrastive` and `replaced_loss`, the two parts before their weights;
        `replaced_share` of tokens; `replaced_accuracy` and `kept_accuracy`, the shares of replaced
        and of kept tokens that the discriminator finds.
        """
        text = batch["text"]
        one_key, other_key, *read_keys = layers.split_key(key, 4)
        raw = [self.vectors(batch, view) for view in (one_key, other_key)]
        valid = text["segment_valid"].reshape(-1)
        # One call for both: the official code normalises over both encodings of a batch.
        projected = self.head(jnp.concatenate(raw), jnp.tile(valid, 2))
        one, other = jnp.split(projected, 2)
        total, metrics = two_views.between_views(
            text_embedding.unit(one),
            text_embedding.unit(other),
            text,
            self.embedding_config.temperature,
            self.contrastive_config,
        )
        metrics["contrastive"] = total
        found: dict[str, MetricSum] = {}
        for view, name, read_key in zip((one, other), EDITED, read_keys, strict=True):
            vectors = view.reshape(*text["cls_at"].shape, -1)
            for metric, mean in self.detection(text, name, vectors, read_key).items():
                found[metric] = found[metric].merge(mean) if metric in found else mean
        return total + self.replaced_weight * found["replaced_loss"], metrics | found

    def detection(
        self, text: Group, edited: str, vectors: jax.Array, key: jax.Array | None
    ) -> dict[str, MetricSum]:
        """The discriminator's loss and metrics for one edited copy of the texts.

        Args:
            text: corrupted group.
            edited: one of EDITED.
            vectors: [B, S, D], of the texts.
            key: for dropout; None turns it off.
        """
        group = {name: array for name, array in text.items() if name not in EDITED}
        logits = text_embedding.in_chunks(
            _read, self.decoder, group | {"edited": text[edited], "vectors": vectors},
            self.encode_chunks, key,
        )  # fmt: skip
        real = text["segment_ids"] > 0
        replaced = (text[edited] != text["tokens"]) & real
        margin = jnp.where(replaced, 1, -1) * (logits[:, :, 1] - logits[:, :, 0])
        right = margin > 0
        return {
            "replaced_loss": MetricSum.of(jax.nn.softplus(-margin), real),
            "replaced_share": MetricSum.of(replaced, real),
            "replaced_accuracy": MetricSum.of(right, replaced),
            "kept_accuracy": MetricSum.of(right, real & ~replaced),
        }

    def embed(self, batch: Batch, key: jax.Array | None = None) -> jax.Array:
        """[B * S, D] float32 of unit length, through the head over this one encoding."""
        valid = batch["text"]["segment_valid"].reshape(-1)
        return text_embedding.unit(self.head(self.vectors(batch, key), valid))


def _read(network: discriminator.Discriminator, group: Group, key: jax.Array | None) -> jax.Array:
    return network(group["edited"], group["vectors"], group, key)


def _require_diffcse(text: GroupShape, replaced_weight: float) -> None:
    if text.rows * text.segments < 2:
        raise ValueError(
            f"DiffCSE.text: expected room for two texts or more, since others are a text's "
            f"negatives, found {text}"
        )
    if not replaced_weight > 0:
        raise ValueError(
            "DiffCSE.replaced_weight: expected a number above 0, found "
            f"{replaced_weight}. Without it, objectives/simcse.gin does the rest"
        )
