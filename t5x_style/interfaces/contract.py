"""Settings on which a trained model and every program that uses its vectors must agree.

A contract is saved with the weights. Encoding, indexing, searching, exporting and serving compare
it with what they are about to use, so that 'the loss is fine and the evaluation is garbage'
(another tokenizer, another pooling, a forgotten prefix) is an error instead of a bad table.
"""

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

FILE_NAME = "contract.json"
MCLS = "mcls"  # pooling: the mean of the [CLS] of a text that has several
# How titles are put into passages; stores say the same (`input_pipelines.store.layouts`).
TEXT = "text"
TITLE_AND_BODY = "title_and_body"


class ContractError(ValueError):
    """Two sides that must agree do not; the message lists every field that differs."""


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The facts about a tokenizer that a network needs; read from the tokenizer's folder."""

    size: int
    pad: int
    unk: int
    cls: int
    sep: int
    mask: int
    special_ids: tuple[int, ...]
    fingerprint: str

    def __post_init__(self) -> None:
        named = {n: getattr(self, n) for n in ("pad", "unk", "cls", "sep", "mask")}
        for name, token in [*named.items(), *(("special_ids", i) for i in self.special_ids)]:
            if not 0 <= token < self.size:
                raise ValueError(
                    f"vocabulary: {name} is {token}, but ids run from 0 to {self.size - 1}"
                )

    @classmethod
    def load(cls, tokenizer_folder: str) -> "Vocabulary":
        """Reads `vocabulary.json`, next to `tokenizer.json`."""
        path = Path(tokenizer_folder) / "vocabulary.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: not found. Expected the folder of a trained or imported tokenizer "
                "(stage train_tokenizer writes it)."
            )
        fields = json.loads(path.read_text(encoding="utf-8"))
        names = {field.name for field in dataclasses.fields(cls)}
        if set(fields) != names:
            raise ValueError(f"{path}: expected the fields {sorted(names)}, found {sorted(fields)}")
        return cls(**{**fields, "special_ids": tuple(fields["special_ids"])})


@dataclasses.dataclass(frozen=True)
class Combination:
    """Rule that combines the scores of several kinds of representations into one score.

    Attributes:
      kinds: of representations that take part.
      weights: kind -> weight of its scores, at least 0 and one above it; None: reciprocal ranks.
      candidates: that each index proposed for a query when this was chosen.

    Raises:
      ContractError: the weights are not of these kinds, or out of their range.
    """

    kinds: tuple[str, ...]
    weights: Mapping[str, float] | None
    candidates: int

    def __post_init__(self) -> None:
        if self.weights is None and self.kinds:
            return
        weights = dict(self.weights or {})
        fit = set(weights) == set(self.kinds) and all(0 <= w < math.inf for w in weights.values())
        if not fit or not any(weights.values()):
            raise ContractError(
                f"combination: expected a weight of at least 0 for each of {list(self.kinds)}, one "
                f"of them above 0, found {weights}"
            )


@dataclasses.dataclass(frozen=True)
class Contract:
    """Rule that turns text into a vector.

    Attributes:
      pooling: 'cls', 'mean', 'pooler', 'weighted_mean' or 'mcls'; 'splade' of weights of words,
        'colbert' of vectors of tokens alone.
      normalise: whether vectors have unit length.
      similarity: 'dot' or 'cosine'; of models without vectors 'score' for a re-ranker, 'class' for
        a classifier, 'span' for a reader.
      temperature: what scores are divided by in training; ranking does not depend on it.
      dimension: of a vector.
      query_length, passage_length: in tokens, specials included; longer texts are cut.
      query_prefix, passage_prefix: text put before every query or passage.
      passage_layout: 'text', a title, a space and a text; or 'title_and_body', [SEP] between them.
      vocabulary_size: the true size; tables may be padded beyond it.
      tokenizer_fingerprint: sha256 of the tokenizer, as in `Vocabulary`.
      token_vector_size: how many first dimensions of the vectors of tokens are kept, at unit length
        again; None: all, as in every training.
      trained_token_vector_sizes: that were trained as vectors, too (Matryoshka learning); no
        representation depends on them, so contracts that differ in them alone agree.
      combination: how several kinds are searched as one, where that was chosen on development
        data; no representation depends on it, so contracts that differ in it alone agree.
    """

    pooling: str
    normalise: bool
    similarity: str
    temperature: float
    dimension: int
    query_length: int
    passage_length: int
    query_prefix: str
    passage_prefix: str
    passage_layout: str
    vocabulary_size: int
    tokenizer_fingerprint: str
    token_vector_size: int | None = None
    trained_token_vector_sizes: tuple[int, ...] = dataclasses.field(default=(), compare=False)
    combination: Combination | None = dataclasses.field(default=None, compare=False)

    def facts(self) -> dict[str, Any]:
        """Its fields for JSON; those with a default are left out where they have it."""
        fields = dataclasses.asdict(self)
        for field in dataclasses.fields(self):
            if field.default is not dataclasses.MISSING and fields[field.name] == field.default:
                del fields[field.name]
        return fields

    def of_texts(self) -> dict[str, Any]:
        """The fields that representations depend on."""
        return dataclasses.replace(self, trained_token_vector_sizes=(), combination=None).facts()

    def save(self, folder: str | Path) -> None:
        path = Path(folder) / FILE_NAME
        path.write_text(json.dumps(self.facts(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> "Contract":
        """Reads the contract saved in `folder`.

        Raises:
          FileNotFoundError: there is none.
          ContractError: its fields are not those of this version.
        """
        path = Path(folder) / FILE_NAME
        if not path.is_file():
            raise FileNotFoundError(
                f"{path}: not found. Expected the folder of a trained model, of embeddings or "
                "of an index; each of these carries its contract."
            )
        fields = json.loads(path.read_text(encoding="utf-8"))
        known = dataclasses.fields(cls)
        names = {field.name for field in known if field.default is dataclasses.MISSING}
        if not names <= set(fields) <= {field.name for field in known}:
            raise ContractError(
                f"{path}: expected the fields {sorted(names)}, found {sorted(fields)}"
            )
        combination = _combination(fields.pop("combination", None), path)
        sizes = tuple(fields.pop("trained_token_vector_sizes", ()))
        return cls(**fields, trained_token_vector_sizes=sizes, combination=combination)

    def pooled(self, pooling: str) -> "Contract":
        """The contract of a trained model that is used with `pooling`.

        Several [CLS] need no training: a model that was trained with 'cls' may be used with 'mcls'.
        With any other pooling this is the contract of the training, which `require` then compares.
        """
        if (self.pooling, pooling) == ("cls", MCLS):
            return dataclasses.replace(self, pooling=pooling)
        return self

    def cut_to(self, size: int | None, where: str) -> "Contract":
        """The contract of a trained model whose vectors of tokens are cut to `size` dimensions.

        Args:
          size: as `token_vector_size`.
          where: names the model.

        Raises:
          ContractError: the model was not trained for this size.
        """
        trained = self.trained_token_vector_sizes
        if size != self.token_vector_size and size not in trained:
            raise ContractError(
                f"{where}: expected token_vector_size None, for all dimensions of the vectors of "
                f"tokens, or a size that the model was trained for, one of {[*trained]}, found "
                f"{size}. Train it with this size in the objective's `matryoshka` (docs/m3.md)."
            )
        return dataclasses.replace(self, token_vector_size=size)

    def require_whole(self) -> None:
        """Raises ContractError where vectors of tokens are cut: that is for a trained model."""
        if self.token_vector_size is not None:
            raise ContractError(
                "token_vector_size: a model is trained and initialised with all dimensions of its "
                f"vectors of tokens: expected None here, found {self.token_vector_size}. Set "
                "TOKEN_VECTOR_SIZE where texts are encoded and searched, and the objective's "
                "`matryoshka` here (docs/m3.md)."
            )

    def require_trainable(self) -> None:
        """Raises ContractError for what is for the use of a trained model alone."""
        self.require_whole()
        if self.pooling == MCLS:
            raise ContractError(
                f"pooling {MCLS!r} is for the use of a model that was trained with 'cls': expected "
                f"'cls' in a training, found {MCLS!r}. Set POOLING = 'cls' here, and {MCLS!r} "
                "where texts are encoded and searched (docs/m3.md)."
            )

    def combined(self, folder: str | Path, kinds: Collection[str]) -> "Contract":
        """Return this contract with the combination of the one in `folder`.

        Args:
          folder: that `evaluation.hybrid_weights.keep` wrote for this model.
          kinds: that are there: those of an index, or those that a model makes.

        Raises:
          ContractError: the folder's contract is of another model or has no combination, or that
            weighs a kind which is not there.
        """
        found = Contract.load(folder)
        found.require(self, f"what {folder} combines")
        if found.combination is None:
            raise ContractError(
                f"{Path(folder) / FILE_NAME}: expected the weights of several kinds (combination), "
                "found none. Name the folder that hybrid_weights.keep wrote "
                "(gin_configs/runs/evaluation/hybrid_weights.gin)."
            )
        if missing := [kind for kind in found.combination.kinds if kind not in kinds]:
            raise ContractError(
                f"{Path(folder) / FILE_NAME}: combines the kinds {list(found.combination.kinds)}, "
                f"but only {list(kinds)} are there: no {', '.join(missing)}. Encode, index and "
                "export all kinds that it combines, or evaluate a hybrid of those that are there."
            )
        return dataclasses.replace(self, combination=found.combination)

    def require(self, other: "Contract", where: str) -> None:
        """Raises ContractError unless `other` (found at `where`) says the same as this one."""
        differing = [
            f"  {field.name}: expected {getattr(self, field.name)!r}, "
            f"found {getattr(other, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.compare and getattr(self, field.name) != getattr(other, field.name)
        ]
        if differing:
            raise ContractError(
                f"{where} was made under another contract than the model in use:\n"
                + "\n".join(differing)
                + "\nUse the model that made it, or make it again with this model."
            )


def _combination(fields: Any, path: Path) -> Combination | None:
    """Combination read from a file.

    Raises:
      ContractError: it has other fields, or weights that do not fit.
    """
    if fields is None:
        return None
    names = {field.name for field in dataclasses.fields(Combination)}
    if not isinstance(fields, dict) or set(fields) != names:
        raise ContractError(f"{path}: combination: expected {sorted(names)}, found {fields!r}")
    try:
        return Combination(**{**fields, "kinds": tuple(fields["kinds"])})
    except (ContractError, TypeError) as error:
        raise ContractError(f"{path}: {error}") from error


def load_vocabulary(tokenizer_folder: str) -> Vocabulary:
    """`Vocabulary.load`, as a name that gin can bind."""
    return Vocabulary.load(tokenizer_folder)


def vocabulary_size(tokenizer_folder: str) -> int:
    """The true size, for an encoder's configuration."""
    return Vocabulary.load(tokenizer_folder).size


def special_ids(tokenizer_folder: str) -> tuple[int, ...]:
    """Tokens that are no text, such as [CLS] and [UNK]."""
    return Vocabulary.load(tokenizer_folder).special_ids
