"""Weights that an evaluation chose for a hybrid: kept in a contract, for search and export."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from t5x_style.interfaces.contract import Combination, Contract, ContractError
from t5x_style.retrieval.hybrid import Combined, Hybrid, HybridError

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {"keep": {"name": "hybrid_weights", "version": 1, "outputs": ["contract"]}}


def keep(checkpoint: str, metrics: str, system: str, model_dir: str) -> dict[str, str]:
    """Stage: writes the contract of a model with the weights that an evaluation chose.

    Args:
      checkpoint: folder of the model, for its contract.
      metrics: the metrics.json of an evaluation of it.
      system: of kind `hybrid` there.
      model_dir: gets contract.json.

    Raises:
      ContractError: the evaluation was of a model with another contract, or of vectors of tokens
        of a size that the model was not trained for.
      HybridError: see `chosen`.
    """
    facts = _facts(metrics, system)
    evaluated = facts["contract"]
    trained = Contract.load(checkpoint).pooled(evaluated["pooling"])
    contract = trained.cut_to(evaluated.get("token_vector_size"), checkpoint)
    if evaluated != contract.of_texts():
        raise ContractError(
            f"{metrics}: {system!r} was evaluated with a model of another contract than that in "
            f"{checkpoint}: expected {contract.of_texts()}, found {evaluated}. Name the "
            "model that was evaluated."
        )
    dataclasses.replace(contract, combination=chosen(metrics, system)).save(model_dir)
    return {"contract": "."}


def chosen(metrics: str, system: str) -> Combination:
    """The weights, or the ranked kinds, of a system of kind `hybrid`.

    Raises:
      HybridError: the evaluation has no such system, it is no hybrid, or its weights are not
        recorded.
    """
    facts = _facts(metrics, system)
    kinds, candidates = facts["kinds"], facts["candidates"]
    if facts["method"] == "reciprocal_rank":
        return Combination(tuple(kinds), None, candidates)
    if not facts.get("weights"):
        raise HybridError(f"{metrics}: {system!r} is weighted, but its weights are not recorded")
    return Combination(tuple(facts["weights"]), facts["weights"], candidates)


def _facts(metrics: str, system: str) -> dict[str, Any]:
    """Entry of metrics.json for a system of kind `hybrid`."""
    facts = json.loads(Path(metrics).read_text(encoding="utf-8"))["facts"]
    hybrids = [name for name, one in facts.items() if "candidates_by" in one]
    if system not in hybrids:
        raise HybridError(
            f"{metrics}: expected a system {system!r} that searches several kinds, found "
            f"{hybrids or 'none'}. Name one of these (HYBRID_SYSTEM), or evaluate one "
            "(gin_configs/runs/evaluation/hybrid.gin)"
        )
    found: dict[str, Any] = facts[system]
    return found


def of_contract(searched: Hybrid, contract: str) -> Combined:
    """The hybrid, combined as a contract says.

    Args:
      searched: indexes and passages.
      contract: folder that `keep` wrote.

    Raises:
      ContractError: see `Contract.combined`; a kind that is not indexed, for instance.
      HybridError: the weights were chosen with another number of candidates.
    """
    combination = searched.contract.combined(contract, searched.kinds).combination
    assert combination is not None
    return _combined(searched, combination, f"the weights in {contract}")


def combined(searched: Hybrid, metrics: str, system: str) -> Combined:
    """As `of_contract`, from an evaluation's metrics.json: how searches began that are older.

    Raises:
      HybridError: see `chosen`, or it was asked for another number of candidates.
    """
    return _combined(searched, chosen(metrics, system), f"{metrics}: {system!r}")


def _combined(searched: Hybrid, combination: Combination, where: str) -> Combined:
    if combination.candidates != searched.candidates:
        raise HybridError(
            f"{where}: evaluated with {combination.candidates} candidates of each index, found "
            f"{searched.candidates} here. Set CANDIDATES to the first"
        )
    return Combined(searched, combination.weights, combination.kinds)
