"""From what answers questions of a finished run to a bundle."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from t5x_style.checkpoints.restored_model import Trained
from t5x_style.interfaces.contract import MCLS, Combination, Contract
from t5x_style.interfaces.objective import GENERATE, SCORE
from t5x_style.interfaces.representation import PASSAGE, Representation, function_name
from t5x_style.retrieval import hybrid
from t5x_style.retrieval.beir_collection import Passage, Passages
from t5x_style.retrieval.exact_index import ExactIndex
from t5x_style.retrieval.lexical.bm25_fusion import Fusion
from t5x_style.retrieval.scann_index import ScannIndex
from t5x_style.serving import (
    bundle,
    encoded_texts,
    programs,
    saved_model,
    text_tokens,
    token_batches,
)
from t5x_style.serving.bundle import BundleError, Content
from t5x_style.serving.programs import Programs
from t5x_style.serving.training_curves import Curves


def publish(
    folder: Path,
    name: str,
    model: Trained,
    index: hybrid.Searched | None,
    tokenizer: str,
    passages: Passages,
    keep: int = 2,
    origin: str = "",
    curves: Curves | None = None,
    fusion: Fusion | None = None,
) -> Path:
    """Writes the next version of a bundle; representations that exist are copied.

    Args:
      folder: of the bundle.
      name: of the run.
      model: on one process's devices.
      index: that is searched; None: BM25's hits are put in order by the model, a re-ranker.
      tokenizer: folder.
      passages: of the index.
      keep: see `bundle.publish`.
      origin, curves, fusion: see `bundle.Content`.

    Returns:
      the version's folder.

    Raises:
      BundleError: a model that cannot be served, or a search that is none of the two kinds.
      ExportError: see `saved_model.portable`.
    """
    contract = _combined(model.contract, index)
    if model.restored is None:
        raise BundleError("expected a model that was restored from a checkpoint, found another")
    if contract.pooling == MCLS:
        raise BundleError("pooling 'mcls' puts further [CLS] into a text, which is not served yet")
    _require_search(model, index, fusion)
    with TemporaryDirectory() as scratch:
        made = Path(scratch)
        # Programs take tokens alone: one that writes texts, which takes languages, too, is none.
        portable = saved_model.portable(model.restored, [GENERATE], in_tensorflow=False)
        programs.write(made, portable)
        ids = passages.ids if index is None else index.ids
        found = [passages.passage(passages.row(one)) for one in ids]
        held = _at_hand(index)
        kinds = () if index is None else hybrid.asked_kinds(index)
        if missing := [kind for kind in kinds if kind not in held]:
            encoded = encode(made, Path(tokenizer), contract, found, missing)
            held = {kind: (held | encoded)[kind] for kind in kinds}
        facts = model.fingerprint, origin, curves
        content = Content(
            *(name, contract, made, Path(tokenizer), found, held, *facts), fusion=fusion
        )
        return bundle.publish(folder, content, keep)


def _require_search(model: Trained, index: hybrid.Searched | None, fusion: Fusion | None) -> None:
    """Raises BundleError unless model, index and fusion are one of the searches that are served."""
    kinds = {one.kind for one in model.functions.values()}
    by_reranker = fusion is not None and fusion.reranked is not None
    if by_reranker != (index is None) or (by_reranker and SCORE not in kinds):
        raise BundleError(
            "expected an index, or a re-ranker and how its scores count next to BM25's, found "
            f"{'no index' if index is None else 'an index'}, {fusion} and a model that offers "
            f"{sorted(model.functions)}"
        )
    if fusion is not None and kinds & set(saved_model.READING):
        raise BundleError(
            "expected a search without BM25, since this model also reads passages and needs the "
            "scores that it gives them, found one with BM25. Set FUSION_SYSTEM=None"
        )


def encode(
    programs_folder: Path,
    tokenizer: Path,
    contract: Contract,
    passages: Sequence[Passage],
    kinds: Sequence[str],
) -> dict[str, Representation]:
    """What passages become, by kind, computed by the programs of a bundle.

    Args:
      programs_folder: of `programs.write`.
      tokenizer: folder.
      contract: of the model.
      passages: N, at least one.
      kinds: of representations.

    Raises:
      BundleError: the model does not embed passages, or not as all of the kinds.
    """
    name = function_name(PASSAGE)
    model, texts = Programs(programs_folder), text_tokens.TextTokenizer(tokenizer, contract)
    if name not in model.names:
        raise BundleError(f"expected a model that embeds passages, found {list(model.names)}")
    lengths = {name: contract.passage_length}
    batches = token_batches.TokenBatches(model, lengths, texts.vocabulary.pad, most_waiting=1 << 62)
    try:
        tokens = texts.passages([(one.title, one.text) for one in passages])
        # Texts of like length next to each other, so that batches have little padding
        order = np.argsort([-len(one.ids) for one in tokens], kind="stable")
        take = functools.partial(encoded_texts.encoded, kinds=kinds)
        futures = {int(row): batches.submit(name, tokens[row], take) for row in order}
        found = [futures[row].result() for row in range(len(tokens))]
    except KeyError as error:
        raise BundleError(f"expected a model with the kinds {list(kinds)}: no {error}") from error
    finally:
        batches.close()
    return encoded_texts.as_representations(found)


def _at_hand(index: hybrid.Searched | None) -> dict[str, Representation]:
    """Kind -> representation of the index's passages, of those that it holds as they were."""
    if isinstance(index, hybrid.Combined):
        return dict(index.searched.passages)
    if isinstance(index, ExactIndex | ScannIndex):
        return {index.kind: index.passages}
    return {}


def _combined(contract: Contract, index: hybrid.Searched | None) -> Contract:
    """The contract with how the index combines its kinds."""
    if not isinstance(index, hybrid.Combined):
        return contract
    weights: Mapping[str, float] | None = index.weights
    kinds = tuple(weights) if weights is not None else index.ranked
    chosen = Combination(kinds, weights, index.searched.candidates)
    return dataclasses.replace(contract, combination=chosen)
