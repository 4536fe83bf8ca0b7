"""The layout of ModernBERT.

Queries, keys and values are one tensor, and so are the two factors of the feed-forward part. The
first layer has no norm before its attention. Canonical names are those of the published files,
with `bert.` in place of `model.`.
"""

import re
from collections.abc import Mapping
from typing import Any

from models.interop import published_layout
from models.interop.hf_names import AS_IS, LINEAR_IN, LINEAR_OUT, VOCAB, Entry, linear
from models.networks import modernbert

_BASE = re.compile(r"^(embeddings|layers|final_norm|pooler)\.")
_THETAS = {"full_attention": 160_000.0, "sliding_attention": 10_000.0}  # transformers' defaults
_OLD_THETAS = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}


def _layer(path: str, name: str, first_layer: int) -> list[Entry]:
    def entry(ours: str, theirs: str, layout: str, piece: int = 0, pieces: int = 1) -> Entry:
        return Entry(
            f"{path}/{ours}", f"{name}.{theirs}.weight", layout, piece, pieces, first_layer
        )

    projections = ("query", "key", "value")
    return [
        *(
            entry(f"attention/{ours}/kernel", "attn.Wqkv", LINEAR_IN, piece, 3)
            for piece, ours in enumerate(projections)
        ),
        entry("attention/out/kernel", "attn.Wo", LINEAR_OUT),
        entry("mlp_norm/scale", "mlp_norm", AS_IS),
        entry("mlp/wi/kernel", "mlp.Wi", LINEAR_IN, 0, 2),
        entry("mlp/gate/kernel", "mlp.Wi", LINEAR_IN, 1, 2),
        entry("mlp/wo/kernel", "mlp.Wo", LINEAR_OUT),
        *([entry("attention_norm/scale", "attn_norm", AS_IS)] if first_layer else []),
    ]


class ModernBertLayout(published_layout.PublishedLayout):
    """See the module's docstring."""

    config_type = modernbert.ModernBertConfig
    model_types = {"modernbert": "modernbert"}
    required = (
        "model_type",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    )
    numbers = (
        "norm_eps",
        "embedding_dropout",
        "mlp_dropout",
        "attention_dropout",
        "initializer_range",
        *_OLD_THETAS.values(),
    )
    table = (
        Entry("encoder/embeddings/word/embedding", "bert.embeddings.tok_embeddings.weight", VOCAB),
        Entry("encoder/embeddings/norm/scale", "bert.embeddings.norm.weight", AS_IS),
        *_layer("encoder/first", "bert.layers.0", 0),
        *_layer("encoder/layers", "bert.layers.{layer}", 1),
        Entry("encoder/final_norm/scale", "bert.final_norm.weight", AS_IS),
        Entry("head/dense/kernel", "head.dense.weight", LINEAR_IN),
        Entry("head/norm/scale", "head.norm.weight", AS_IS),
        Entry("head/bias", "decoder.bias", VOCAB),
        *linear("pooler/dense", "bert.pooler.dense", LINEAR_IN),
        Entry("pooler/norm/scale", "bert.pooler.norm.weight", AS_IS),
        *linear("classifier", "classifier", LINEAR_IN),
        *_layer("decoder", "c_head", 1),
    )
    may_stay = ("decoder.weight",)
    tied = (("decoder.weight", "bert.embeddings.tok_embeddings.weight"),)
    spellings = {"modernbert": (("model.", "bert."),)}
    base_models = {"modernbert": "ModernBertModel"}
    masked_lms = {"modernbert": "ModernBertForMaskedLM"}
    pair_models = {"modernbert": "ModernBertForSequenceClassification"}
    # As the MLM head is called in other files.
    pair_names = {
        "modernbert": (("head.dense.", "bert.pooler.dense."), ("head.norm.", "bert.pooler.norm."))
    }

    def inside(self, name: str) -> str:
        """See `PublishedLayout`."""
        return f"bert.{name}" if _BASE.match(name) else name

    def variant_of(self, config: modernbert.ModernBertConfig) -> str:
        """See `PublishedLayout`."""
        if config.activation not in published_layout.ACTIVATIONS:
            raise ValueError(
                f"ModernBertConfig.activation: transformers has no {config.activation!r}"
            )
        return "modernbert"

    def allowed(self, fields: Mapping[str, Any]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        """See `PublishedLayout`; other patterns of layers and scaled angles are refused."""
        for kind, found in (fields.get("rope_parameters") or {}).items():
            if kind in _THETAS:
                _require_plain_angles(kind, found)
        _require_one_activation(fields)
        listed = fields.get("layer_types")
        return (
            ("hidden_activation", tuple(published_layout.ACTIVATIONS)),
            ("layer_types", (_pattern(_whole_every(fields), len(listed)),) if listed else (None,)),
            ("num_hidden_layers", (len(listed),) if listed else (fields["num_hidden_layers"],)),
            ("embedding_dropout", (fields.get("mlp_dropout", 0.0),)),
            ("sliding_window", (None,)),
            ("norm_bias", (False,)),
            ("attention_bias", (False,)),
            ("mlp_bias", (False,)),
            ("classifier_bias", (False,)),
            ("classifier_pooling", ("cls", "mean")),
            ("decoder_bias", (True,)),
            ("rope_scaling", (None,)),
        )

    def whole_numbers(self, variant: str) -> tuple[str, ...]:
        """See `PublishedLayout`."""
        optional = ("local_attention", "global_attn_every_n_layers")
        return (*super().whole_numbers(variant), *optional)

    def config(
        self, fields: Mapping[str, Any], options: published_layout.Options
    ) -> modernbert.ModernBertConfig:
        """See `PublishedLayout`; the dropout of embeddings and feed-forward states is one here."""
        return modernbert.ModernBertConfig(
            vocab_size=options.tokens(fields),
            hidden=fields["hidden_size"],
            layers=fields["num_hidden_layers"],
            heads=fields["num_attention_heads"],
            mlp=fields["intermediate_size"],
            max_positions=fields["max_position_embeddings"],
            whole_every=_whole_every(fields),
            window=fields.get("local_attention", 128),
            whole_theta=_theta(fields, "full_attention"),
            window_theta=_theta(fields, "sliding_attention"),
            activation=published_layout.ACTIVATIONS[fields.get("hidden_activation", "gelu")],
            layer_norm_eps=fields.get("norm_eps", 1e-5),
            dropout=options.rate(fields.get("mlp_dropout", 0.0)),
            attention_dropout=options.rate(fields.get("attention_dropout", 0.0)),
            initializer_range=fields.get("initializer_range", 0.02),
            dtype=options.dtype,
            remat=options.remat,
            unroll=options.unroll,
            attention=options.attention,
            vocab_multiple=options.vocab_multiple,
            pair_pooling=fields.get("classifier_pooling", "cls"),
        )

    def fields(self, config: modernbert.ModernBertConfig, pad: int) -> dict[str, Any]:
        """See `PublishedLayout`; names that every release of transformers understands."""
        unknown = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
        return {
            "model_type": self.variant_of(config),
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "intermediate_size": config.mlp,
            "max_position_embeddings": config.max_positions,
            "global_attn_every_n_layers": config.whole_every,
            "local_attention": config.window,
            "global_rope_theta": config.whole_theta,
            "local_rope_theta": config.window_theta,
            "hidden_activation": config.activation,
            "classifier_activation": config.activation,
            "classifier_pooling": config.pair_pooling,
            "norm_eps": config.layer_norm_eps,
            "embedding_dropout": config.dropout,
            "mlp_dropout": config.dropout,
            "attention_dropout": config.attention_dropout,
            "initializer_range": config.initializer_range,
            "norm_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
            "classifier_bias": False,
            "decoder_bias": True,
            "tie_word_embeddings": True,
            "pad_token_id": pad,
            **dict.fromkeys(unknown),
        }

    def pair_fields(self, config: modernbert.ModernBertConfig) -> dict[str, Any]:
        """See `PublishedLayout`."""
        return {"classifier_dropout": config.dropout}


def _require_one_activation(fields: Mapping[str, Any]) -> None:
    """Raises ValueError unless the MLM head has the activation of the layers; default 'gelu'."""
    names = ("hidden_activation", "classifier_activation")
    inside, of_head = (fields.get(name, "gelu") for name in names)
    known = published_layout.ACTIVATIONS
    if known.get(inside, inside) != known.get(of_head, of_head):
        raise ValueError(
            f"config.json: expected classifier_activation (by default 'gelu') to be "
            f"hidden_activation, found {of_head!r} and {inside!r}."
        )


def _require_plain_angles(kind: str, found: Any) -> None:
    """Raises ValueError unless angles of a kind of layer are neither scaled nor odd."""
    found = {} if found is None else found
    theta = found.get("rope_theta", 1.0) if isinstance(found, dict) else None
    scaling = found.get("rope_type", found.get("type", "default")) if theta is not None else ""
    if scaling != "default" or not isinstance(theta, (int, float)):
        raise ValueError(
            f"config.json: expected rope_parameters with rope_type 'default' for {kind} and a "
            f"number as rope_theta, found {found!r}."
        )


def _whole_every(fields: Mapping[str, Any]) -> int:
    """One layer in this many has global attention, by the list of layers or by the field."""
    if not fields.get("layer_types"):
        return int(fields.get("global_attn_every_n_layers", 3))
    whole = [n for n, kind in enumerate(fields["layer_types"]) if kind == "full_attention"]
    return whole[1] if len(whole) > 1 else len(fields["layer_types"])


def _pattern(every: int, depth: int) -> list[str]:
    return ["sliding_attention" if number % every else "full_attention" for number in range(depth)]


def _theta(fields: Mapping[str, Any], kind: str) -> float:
    """Base of the angles: in the form of transformers 5, or in that of published files."""
    found = (fields.get("rope_parameters") or {}).get(kind) or {}
    return float(found.get("rope_theta", fields.get(_OLD_THETAS[kind], _THETAS[kind])))


LAYOUT = ModernBertLayout()
