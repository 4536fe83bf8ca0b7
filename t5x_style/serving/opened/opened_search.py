"""From the files of a version of a bundle to what searches its passages."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.index import Index
from t5x_style.interfaces.representation import DENSE, MULTI_VECTOR, Representation
from t5x_style.retrieval import analysis, hybrid, published_index, representation_files
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.retrieval.bm25 import Bm25Search
from t5x_style.retrieval.exact_index import ExactIndex
from t5x_style.retrieval.lexical.bm25_fusion import Bm25Fusion, Fusion
from t5x_style.retrieval.lexical.bm25_reranking import Bm25Reranking
from t5x_style.serving import bundle
from t5x_style.serving.opened.passage_search import PassageSearch
from t5x_style.serving.opened.passage_sources import Sources
from t5x_style.serving.opened.reranked_search import RerankedSearch
from t5x_style.serving.service import BM25


def open_search(
    version: Path, manifest: Mapping[str, Any], contract: Contract, passages: Passages
) -> PassageSearch | RerankedSearch:
    """What is searched of a version, whose files were compared with their hashes.

    Args:
      version: folder.
      manifest: its facts.
      contract: of its model.
      passages: of the version.

    Raises:
      ContractError: its parts do not belong together.
      FusionError: what it says of BM25 cannot be read.
    """
    sources = Sources([passage.source for passage in passages])
    fusion = _fusion(version, passages.ids)
    if isinstance(fusion, Bm25Reranking):
        return RerankedSearch(fusion, sources)
    folder = version / bundle.REPRESENTATIONS
    kinds, ids, checkpoint = manifest["kinds"], passages.ids, manifest["checkpoint"]
    held: dict[str, Representation] = {
        kind: representation_files.read(folder, kind) for kind in kinds
    }
    indexes: dict[str, Index] = {}
    published = version / bundle.INDEXES / DENSE
    for kind in kinds:
        if kind == DENSE and published.is_dir():
            indexes[kind] = published_index.load(published, fall_back_to_exact=True)
        elif kind != MULTI_VECTOR or len(kinds) == 1:
            few = len(ids) <= bundle.EXACT_BELOW
            indexes[kind] = ExactIndex(held[kind], ids, contract, checkpoint, kind, resident=few)
    combined = None
    candidates = bundle.CANDIDATES
    if contract.combination is not None:
        candidates = contract.combination.candidates
    if len(kinds) > 1:
        proposing = list(indexes.values())
        searched = hybrid.Hybrid(proposing, held, ids, contract, checkpoint, candidates)
        combined = _combined(searched, contract)
    return PassageSearch(held, indexes, combined, candidates, sources, fusion)


def _fusion(version: Path, ids: Sequence[str]) -> Bm25Fusion | Bm25Reranking | None:
    """With BM25 of the passages; None of a bundle without it."""
    fusion = Fusion.load(version)
    if fusion is None:
        return None
    analyzer = analysis.LanguageAnalyzer(fusion.language)
    words = Bm25Search.load(version / bundle.INDEXES / BM25, ids, analyzer)
    return Bm25Fusion(fusion, words) if fusion.reranked is None else Bm25Reranking(fusion, words)


def _combined(searched: hybrid.Hybrid, contract: Contract) -> hybrid.Combined:
    """With the contract's weights, or reciprocal ranks where it has none."""
    chosen = contract.combination
    if chosen is None:
        return hybrid.Combined(searched, None)
    return hybrid.Combined(searched, chosen.weights, tuple(chosen.kinds))
