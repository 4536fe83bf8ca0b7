"""The layout of BERT and its relatives: RoBERTa, ELECTRA, RetroMAE, REALM.

Canonical names are BERT's, prefix `bert.`, norms called `LayerNorm.weight/bias`.  RoBERTa counts
positions from its pad id: the first token of a text is at pad id + 1, so that its position table
has as many rows before the first that is used. ELECTRA's tables may be narrower than its layers.
REALM's files have other names and a projection after the encoder.
"""

import re
from collections.abc import Mapping
from typing import Any

from models.interop import published_layout
from models.interop.hf_names import AS_IS, LINEAR_IN, LINEAR_OUT, VOCAB, Entry, linear, norm
from models.networks import bert

M3_HEADS = ("sparse_linear", "colbert_linear")  # as FlagEmbedding names them
_OWN_FIELD = {"roberta": "pad_token_id", "electra": "embedding_size"}  # by variant
_ROBERTA_PAD = 1  # transformers' default, where config.json does not say
_WITHOUT_PREFIX = re.compile(r"^(embeddings|embeddings_project|encoder|pooler)\.")


def _layer(path: str, name: str) -> list[Entry]:
    projections = [
        linear(f"{path}/attention/{p}", f"{name}.attention.self.{p}", LINEAR_IN)
        for p in ("query", "key", "value")
    ]
    return [
        *(entry for pair in projections for entry in pair),
        *linear(f"{path}/attention/out", f"{name}.attention.output.dense", LINEAR_OUT),
        *norm(f"{path}/attention_norm", f"{name}.attention.output.LayerNorm"),
        *linear(f"{path}/mlp/wi", f"{name}.intermediate.dense", LINEAR_IN),
        *linear(f"{path}/mlp/wo", f"{name}.output.dense", LINEAR_OUT),
        *norm(f"{path}/mlp_norm", f"{name}.output.LayerNorm"),
    ]


def _table(path: str, name: str, layout: str) -> Entry:
    return Entry(
        f"encoder/embeddings/{path}/embedding", f"bert.embeddings.{name}_embeddings.weight", layout
    )


_TABLE: tuple[Entry, ...] = (
    _table("word", "word", VOCAB),
    _table("position", "position", AS_IS),
    _table("type", "token_type", AS_IS),
    *norm("encoder/embeddings/norm", "bert.embeddings.LayerNorm"),
    *linear("encoder/embeddings/project", "bert.embeddings_project", LINEAR_IN),
    *_layer("encoder/layers", "bert.encoder.layer.{layer}"),
    *linear("head/dense", "cls.predictions.transform.dense", LINEAR_IN),
    *norm("head/norm", "cls.predictions.transform.LayerNorm"),
    Entry("head/bias", "cls.predictions.bias", VOCAB),
    *linear("pooler/dense", "bert.pooler.dense", LINEAR_IN),
    *linear("classifier", "classifier", LINEAR_IN),
    *linear("next_sentence", "cls.seq_relationship", LINEAR_IN),
    *_layer("decoder", "c_head"),
    *linear("project", "project", LINEAR_IN),
    *norm("norm", "project_norm"),
    *linear("sparse/dense", M3_HEADS[0], LINEAR_IN),
    *linear("multi_vector/dense", M3_HEADS[1], LINEAR_IN),
)

# Tensors that may be left in a file: copies of tied parameters, buffers, and the discriminator that
# ELECTRA leaves on its encoder, which retrieval has no use for.
_MAY_STAY = (
    "bert.embeddings.position_ids",
    "bert.embeddings.token_type_ids",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
    "decoder_embeddings.*",
    "discriminator_predictions.*",
)


# (copy, original) of tied tensors, which old files hold twice; `decoder_embeddings` is the name by
# which the official RetroMAE hands the encoder's embeddings to its decoder.
_TIED = (
    ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    *(
        (f"decoder_embeddings.{name}", f"bert.embeddings.{name}")
        for name in (
            "word_embeddings.weight",
            "position_embeddings.weight",
            "token_type_embeddings.weight",
            "LayerNorm.weight",
            "LayerNorm.bias",
        )
    ),
)

# Family -> (their beginning of a name, the canonical one); the first that fits is taken.
_SPELLINGS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "bert": (),
    "roberta": (
        ("roberta.", "bert."),
        ("lm_head.dense.", "cls.predictions.transform.dense."),
        ("lm_head.layer_norm.", "cls.predictions.transform.LayerNorm."),
        ("lm_head.decoder.", "cls.predictions.decoder."),
        ("lm_head.bias", "cls.predictions.bias"),
    ),
    "electra": (
        ("electra.", "bert."),
        ("generator_predictions.dense.", "cls.predictions.transform.dense."),
        ("generator_predictions.LayerNorm.", "cls.predictions.transform.LayerNorm."),
        ("generator_lm_head.weight", "cls.predictions.decoder.weight"),
        ("generator_lm_head.bias", "cls.predictions.bias"),
    ),
    "realm": (
        ("realm.", "bert."),
        ("cls.dense.", "project."),
        ("cls.LayerNorm.", "project_norm."),
    ),
}


# In re-rankers of RoBERTa and ELECTRA the head holds what is the pooler of BERT's.
_PAIR_HEAD = (("classifier.dense.", "bert.pooler.dense."), ("classifier.out_proj.", "classifier."))


class BertLayout(published_layout.PublishedLayout):
    """See the module's docstring."""

    config_type = bert.BertConfig
    model_types = {
        "bert": "bert",
        "roberta": "roberta",
        "xlm-roberta": "roberta",
        "camembert": "roberta",
        "electra": "electra",
        "realm": "realm",
    }
    required = (
        "model_type",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
        "type_vocab_size",
        "hidden_act",
    )
    numbers = (
        "layer_norm_eps",
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "initializer_range",
    )
    table = _TABLE
    may_stay = _MAY_STAY
    tied = _TIED
    spellings = _SPELLINGS
    base_models = {"bert": "BertModel", "roberta": "RobertaModel", "electra": "ElectraModel"}
    masked_lms = {
        "bert": "BertForMaskedLM",
        "roberta": "RobertaForMaskedLM",
        "electra": "ElectraForMaskedLM",
    }
    with_pooler = ("bert", "roberta")
    pair_models = {
        "bert": "BertForSequenceClassification",
        "roberta": "RobertaForSequenceClassification",
        "electra": "ElectraForSequenceClassification",
    }
    pair_names = {"roberta": _PAIR_HEAD, "electra": _PAIR_HEAD}

    def inside(self, name: str) -> str:
        """See `PublishedLayout`: `bert.` added, old norms renamed."""
        for theirs, ours in (pair for pairs in _SPELLINGS.values() for pair in pairs):
            if name.startswith(theirs):
                name = ours + name.removeprefix(theirs)
                break
        if _WITHOUT_PREFIX.match(name):
            name = "bert." + name
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)

    def config(
        self, fields: Mapping[str, Any], options: published_layout.Options
    ) -> bert.BertConfig:
        """See `PublishedLayout`."""
        offset = self.position_offset(fields)
        electra = self.variant(fields) == "electra"
        width = fields.get("embedding_size") if electra else None
        return bert.BertConfig(
            vocab_size=options.tokens(fields),
            hidden=fields["hidden_size"],
            layers=fields["num_hidden_layers"],
            heads=fields["num_attention_heads"],
            mlp=fields["intermediate_size"],
            max_positions=fields["max_position_embeddings"] - offset,
            type_vocab=fields["type_vocab_size"],
            activation=published_layout.ACTIVATIONS[fields["hidden_act"]],
            layer_norm_eps=fields.get("layer_norm_eps", 1e-12),
            dropout=options.rate(fields.get("hidden_dropout_prob", 0.1)),
            attention_dropout=options.rate(fields.get("attention_probs_dropout_prob", 0.1)),
            initializer_range=fields.get("initializer_range", 0.02),
            dtype=options.dtype,
            remat=options.remat,
            unroll=options.unroll,
            attention=options.attention,
            vocab_multiple=options.vocab_multiple,
            position_offset=offset,
            embedding_size=None if width == fields["hidden_size"] else width,
            # None is the default of the family, but of an ELECTRA whose tables are wide.
            pair_activation="gelu" if electra and width == fields["hidden_size"] else None,
        )

    def position_offset(self, fields: Mapping[str, Any]) -> int:
        """See `PublishedLayout`."""
        roberta = self.variant(fields) == "roberta"
        return int(fields.get("pad_token_id", _ROBERTA_PAD)) + 1 if roberta else 0

    def allowed(self, fields: Mapping[str, Any]) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        """See `PublishedLayout`."""
        # The MLM heads of RoBERTa and ELECTRA have a gelu, whatever the layers have.
        plain = self.variant(fields) in ("bert", "realm")
        return (
            ("hidden_act", tuple(published_layout.ACTIVATIONS) if plain else ("gelu",)),
            ("position_embedding_type", ("absolute",)),
            ("is_decoder", (False,)),
            ("add_cross_attention", (False,)),
        )

    def whole_numbers(self, variant: str) -> tuple[str, ...]:
        """See `PublishedLayout`."""
        names = (*self.required, *filter(None, [_OWN_FIELD.get(variant)]))
        return tuple(name for name in names if name not in ("model_type", "hidden_act"))

    def variant_of(self, config: bert.BertConfig) -> str:
        """See `PublishedLayout`; none has narrow tables and an offset, or lacks a gelu there."""
        roberta, electra = config.position_offset > 0, config.embedding_size is not None
        if roberta and electra:
            raise ValueError(
                "BertConfig: Hugging Face has no layout with both position_offset (RoBERTa) and "
                f"embedding_size (ELECTRA), found {config.position_offset} and "
                f"{config.embedding_size}."
            )
        if (roberta or electra) and config.activation != "gelu":
            raise ValueError(
                "BertConfig.activation: RoBERTa's and ELECTRA's layouts have 'gelu' in their MLM "
                f"head, found {config.activation!r}."
            )
        return "roberta" if roberta else "electra" if electra else "bert"

    def pair_variant_of(self, config: bert.BertConfig) -> str:
        """See `PublishedLayout`; ELECTRA's has a gelu, also where its tables are wide."""
        variant, activation = self.variant_of(config), config.pair_head.activation
        if variant == "bert" and activation == "gelu":
            return "electra"
        if (variant == "electra") != (activation == "gelu"):
            raise ValueError(
                f"BertConfig.pair_activation: the head of a re-ranker in the layout of {variant} "
                f"has {'gelu' if variant == 'electra' else 'tanh'!r}, found {activation!r}."
            )
        return variant

    def pair_fields(self, config: bert.BertConfig) -> dict[str, Any]:
        """See `PublishedLayout`."""
        if self.pair_variant_of(config) != "electra":
            return {}
        return {"model_type": "electra", "embedding_size": config.table_width}

    def fields(self, config: bert.BertConfig, pad: int) -> dict[str, Any]:
        """See `PublishedLayout`; transformers would compute other positions with another pad."""
        if config.position_offset not in (0, pad + 1):
            raise ValueError(
                "RoBERTa's first position is its pad id + 1: expected BertConfig.position_offset "
                f"{pad + 1} for the tokenizer's pad id {pad}, found {config.position_offset}."
            )
        kind = self.variant_of(config)
        fields = {
            "model_type": kind,
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden,
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.heads,
            "intermediate_size": config.mlp,
            "max_position_embeddings": config.max_positions + config.position_offset,
            "type_vocab_size": config.type_vocab,
            "hidden_act": config.activation,
            "layer_norm_eps": config.layer_norm_eps,
            "hidden_dropout_prob": config.dropout,
            "attention_probs_dropout_prob": config.attention_dropout,
            "initializer_range": config.initializer_range,
            "position_embedding_type": "absolute",
            "tie_word_embeddings": True,
            "pad_token_id": pad,
        }
        return fields | ({"embedding_size": config.embedding_size} if kind == "electra" else {})


LAYOUT = BertLayout()
