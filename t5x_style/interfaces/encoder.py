"""Interfaces of encoders: `ENCODER` in gin chooses the network, and no code names it.

Every encoder turns texts into vectors (`Encoder`). One that has a state for each token and layers
to look into (`TokenEncoder`) can also be pre-trained, read by heads, and lend its layers to
decoders. A configuration is a frozen dataclass that builds its network; how fresh parameters are
drawn is part of it.

Letters: B rows, L row length, S segments a row, D hidden width, E width of the word table.
"""

from typing import Any, NamedTuple, Protocol, TypeGuard

import jax
from flax import nnx

from t5x_style.interfaces.objective import Group


class Encoder(Protocol):
    """A network that turns texts into vectors."""

    @property
    def poolings(self) -> tuple[str, ...]:
        """Those that `pool` gives."""
        ...

    def pool(self, group: Group, pooling: str, key: jax.Array | None = None) -> jax.Array:
        """[B, S, D] float32: one vector per segment; of a free segment it means nothing.

        Args:
          group: a token group of B rows.
          pooling: one of `poolings`.
          key: for dropout; None turns it off.
        """
        ...


class TokenVectorEncoder(Encoder, Protocol):
    """An encoder that can compare texts token by token without a head for it."""

    def token_vectors(self, group: Group, side: str) -> dict[str, jax.Array]:
        """The multi_vector representation of `interfaces.representation`, whose score is a MaxSim.

        Args:
          group: a token group of B rows.
          side: 'query' or 'passage'.
        """
        ...


class EncoderConfig(Protocol):
    """Sizes and constants of an encoder; a frozen dataclass."""

    @property
    def vocab_size(self) -> int:
        """True number of tokens."""
        ...

    @property
    def padded_vocab(self) -> int:
        """Rows of the word table: `vocab_size` or more."""
        ...

    @property
    def hidden(self) -> int:
        """D"""
        ...

    @property
    def max_positions(self) -> int | None:
        """Tokens of the longest segment; None: any."""
        ...

    def build(self, rngs: nnx.Rngs) -> Encoder:
        """The network, with fresh parameters from stream `params`."""
        ...


class Layer(Protocol):
    """One transformer layer, or several with their parameters stacked on a leading axis."""

    def __call__(
        self, query: jax.Array, memory: jax.Array, view: Any, key: jax.Array | None = None
    ) -> jax.Array:
        """[B, Q, D] from `query` [B, Q, D], on which the residual is, and `memory` [B, K, D].

        Args:
          query, memory: in the compute dtype.
          view: from `view`.
          key: for dropout; None turns it off.
        """
        ...

    def segment_mask(self, segment_ids: jax.Array, key: jax.Array | None) -> Any:
        """Mask of tokens within their segments [B, L] (0 = padding), for `view`.

        Args:
          segment_ids: [B, L] int32.
          key: as the layer will be called with.
        """
        ...

    def view(self, visible: Any, positions: jax.Array) -> Any:
        """Arguments with which the layer is called.

        Args:
          visible: from `segment_mask`, or bool [B, L, L], or another form that attention knows.
          positions: [B, L] int32 of queries and memory, restarting at 0 in each segment.
        """
        ...


class TokenEncoder(Encoder, Protocol):
    """An encoder with a state for each token."""

    @property
    def config(self) -> "TokenEncoderConfig":
        """Configuration from which it was built."""
        ...

    @property
    def word_table(self) -> jax.Array:
        """[padded_vocab, E] float32, to which output layers are tied."""
        ...

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """Encodes rows of segments.

        Args:
          tokens: [B, L] int32.
          positions: [B, L] int32, restarting at 0 in each segment.
          segment_ids: [B, L] int32, 0 = padding.
          token_types: [B, L] int32; None means all 0.
          key: for dropout; None turns it off.

        Returns:
          [B, L, D] in the compute dtype. Values at padding are finite and meaningless.
        """
        ...

    def states_at(
        self,
        at: jax.Array,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
        depth: int | None = None,
    ) -> jax.Array:
        """[B, S, D]: the states of the tokens `at` [B, S] only.

        Args:
          at: [B, S] int32, which tokens of each row.
          tokens, positions, segment_ids, token_types, key: as when called; dropout draws other
            numbers.
          depth: after so many layers; None: after all.
        """
        ...

    def early_and_late(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segment_ids: jax.Array,
        early: int,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """The states after `early` layers (0: what the first reads) and after all, both [B, L, D].

        Where a norm follows the last layer, both have gone through it.

        Other arguments as when called; dropout draws other numbers.
        """
        ...

    def words(self, tokens: jax.Array) -> jax.Array:
        """[..., E] float32: the rows of the word table of `tokens` [...]."""
        ...

    def embed(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        token_types: jax.Array | None = None,
        key: jax.Array | None = None,
    ) -> jax.Array:
        """[B, L, D]: what the first layer reads; arguments as when called."""
        ...

    def embed_vectors(
        self, vectors: jax.Array, positions: jax.Array, key: jax.Array | None = None
    ) -> jax.Array:
        """[B, L, D]: `embed` with `vectors` [B, L, D] in place of words, and type 0.

        Raises:
          ValueError: the tables are narrower than the layers, so that nothing can be added.
        """
        ...

    def position_rows(self, positions: jax.Array) -> jax.Array:
        """[B, L, D]: what `embed` adds for positions alone; 0 where the layers know positions."""
        ...


class PairHead(NamedTuple):
    """The head of published re-rankers of a family, between the last layer and the classifier.

        norm(activation(W . dropout(state) + b))

    Attributes:
      pooling: the state is that of [CLS] ('cls'), or the mean over a pair's tokens ('mean').
      activation: 'tanh' or a name in `models.networks.layers.ACTIVATIONS`.
      norm: whether there is a norm.
      bias: whether the projection and the norm have biases.
      dropout: whether the state is dropped out in training; what the classifier reads always is.
    """

    pooling: str
    activation: str
    norm: bool
    bias: bool
    dropout: bool


class TokenEncoderConfig(EncoderConfig, Protocol):
    """Sizes of an encoder with a state for each token; heads and decoders are built from them."""

    @property
    def layers(self) -> int:
        """Depth."""
        ...

    @property
    def heads(self) -> int:
        """Of attention."""
        ...

    @property
    def table_width(self) -> int:
        """E; D in all but ELECTRA's layout."""
        ...

    @property
    def max_positions(self) -> int:
        """Tokens of the longest segment."""
        ...

    @property
    def type_vocab(self) -> int:
        """Number of token types; 1: it reads none."""
        ...

    @property
    def activation(self) -> str:
        """Of the MLM head."""
        ...

    @property
    def layer_norm_eps(self) -> float:
        """Added to the variance."""
        ...

    @property
    def dropout(self) -> float:
        """Rate of states, in training."""
        ...

    @property
    def attention_dropout(self) -> float:
        """Rate of attention's weights, in training."""
        ...

    @property
    def kernels(self) -> float:
        """Standard deviation of fresh kernels."""
        ...

    @property
    def initializer_range(self) -> float:
        """Standard deviation of fresh tables."""
        ...

    @property
    def head_biases(self) -> bool:
        """Whether the MLM head's projection and norm have biases."""
        ...

    @property
    def pair_head(self) -> PairHead:
        """Of a re-ranker over this encoder."""
        ...

    @property
    def dtype(self) -> str:
        """Compute dtype."""
        ...

    @property
    def remat(self) -> str:
        """Policy of recomputation in the backward pass."""
        ...

    @property
    def unroll(self) -> int:
        """Layers in one iteration of the loop over layers."""
        ...

    @property
    def block(self) -> Any:
        """A `models.networks.layers.BlockConfig` of its sizes, for decoders of another build."""
        ...

    def build(self, rngs: nnx.Rngs) -> TokenEncoder:
        """The network, with fresh parameters from stream `params`."""
        ...

    def layer(self, rngs: nnx.Rngs) -> Layer:
        """One fresh layer of the encoder's kind, for a decoder."""
        ...

    def stack(self, count: int, rngs: nnx.Rngs) -> Layer:
        """`count` fresh layers of the encoder's kind, stacked, see `stacks.run_stack`."""
        ...


def has_token_states(config: EncoderConfig) -> TypeGuard[TokenEncoderConfig]:
    """Whether the encoder has a state for each token, and layers to lend."""
    return hasattr(config, "stack")


def gives_token_vectors(encoder: Encoder) -> TypeGuard[TokenVectorEncoder]:
    """Whether the encoder was asked for vectors of tokens, which it gives without a head."""
    return bool(getattr(getattr(encoder, "config", None), "token_vectors", False))
