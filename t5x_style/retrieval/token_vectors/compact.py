"""Storage of the token vectors of a corpus: all or fewer of them, unchanged or as int8."""

from collections.abc import Mapping, Sequence
from typing import Any

from t5x_style.interfaces.representation import (
    MULTI_VECTOR,
    PASSAGE,
    Entries,
    RepresentationError,
)
from t5x_style.retrieval.token_vectors import int8, pooling

DTYPES = (None, int8.NAME)  # None: as other vectors
_PLAIN: Mapping[str, Any] = {"pool_factor": 1, "token_dtype": None}


def facts(pool_factor: int, token_dtype: str | None) -> dict[str, Any]:
    """Settings of stored vectors, for manifests; {} as the model gives them.

    Raises:
      ValueError: a factor below 1, or no such dtype.
    """
    if pool_factor < 1:
        raise ValueError(f"Storage.pool_factor: expected at least 1, found {pool_factor}")
    if token_dtype not in DTYPES:
        raise ValueError(f"Storage.token_dtype: expected one of {[*DTYPES]}, found {token_dtype!r}")
    found = {"pool_factor": pool_factor, "token_dtype": token_dtype}
    return {} if found == _PLAIN else found


def require_fit(asked: Mapping[str, Any], side: str, kinds: Sequence[str]) -> None:
    """Raises RepresentationError if vectors are to be compact where they cannot be.

    Args:
      asked: `facts`.
      side: of what is encoded; the vectors of queries are used unchanged.
      kinds: of representations that are written.
    """
    if asked and (side != PASSAGE or MULTI_VECTOR not in kinds):
        raise RepresentationError(
            "Storage.pool_factor and Storage.token_dtype are for the vectors of passages' tokens: "
            f"expected passages, and {MULTI_VECTOR!r} among the kinds, found a {side} and "
            f"{[*kinds]} with {dict(asked)}"
        )


def compact(texts: Entries, asked: Mapping[str, Any]) -> Entries:
    """Several vectors of N texts in the stored form, in memory; pooled before rounding."""
    found = pooling.pooled(texts, asked.get("pool_factor", 1))
    if not is_int8(asked):
        return found
    return Entries(found.offsets, {"vectors": int8.quantised(found.arrays["vectors"])})


def is_int8(asked: Mapping[str, Any]) -> bool:
    """Whether vectors have one byte a number."""
    return bool(asked.get("token_dtype") == int8.NAME)


def stored(
    where: str, manifest: Mapping[str, Any], expected: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`facts` of what was written.

    Args:
      where: it is, for messages.
      manifest: its facts under 'tokens', or none.
      expected: facts that it must have, some or all; None: any.

    Raises:
      RepresentationError: it has others, or some that are not known here.
    """
    found = {**_PLAIN, **manifest.get("tokens", {})}
    if found.keys() != _PLAIN.keys() or found["token_dtype"] not in DTYPES:
        raise RepresentationError(
            f"{where}: expected vectors of tokens kept with {[*_PLAIN]}, of token_dtype one of "
            f"{[*DTYPES]}, found {found}. Check out the code that made them."
        )
    asked = expected or {}
    if wrong := {name: value for name, value in asked.items() if found.get(name) != value}:
        raise RepresentationError(
            f"{where}: expected vectors of tokens kept with {wrong}, found {found}. Run "
            "encode_corpus with embedding_shards.Storage so, or expect what is there."
        )
    return found
