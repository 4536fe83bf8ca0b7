"""Writes a fine-tuned model as the folder that it was published in, with a model card of the run.

model_dir/encoder/            opens in sentence-transformers and transformers, with our vectors
model_dir/cross_encoder/      the same of a re-ranker, with our scores
model_dir/*/README.md         its model card, filled
model_dir/multi_vector/       of M3, its vectors of tokens for sentence-transformers
model_dir/NOT_EXPORTED.md     in place of both, where it is worse than before (FORCE_EXPORT)
"""

import json
import re
from pathlib import Path

from models.interop import (
    collection_files,
    export_checks,
    export_hf,
    finetuned_card,
    front_matter,
    hf_config,
    kept_files,
    licences,
    published_folder,
)
from t5x_style.interfaces import verdict_record as verdict_lib
from t5x_style.interfaces.contract import Contract, Vocabulary
from t5x_style.interfaces.encoder import TokenEncoderConfig

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "finetuned_folder": {
        "name": "finetuned_folder",
        "version": 2,
        "outputs": ["encoder", "cross_encoder", "multi_vector", "card"],
        "check": "check",
    }
}
RERANKER = "reranker"
KINDS = ("retriever", RERANKER)
WRITTEN = "folder for sentence-transformers and transformers"  # for messages
# How a download of the Hub is stored: the name is that of a folder two above.
_DOWNLOADED = re.compile(r"models--(.+)")


def finetuned_folder(
    model_dir: str,
    checkpoint: str,
    weights: export_hf.Weights,
    config: TokenEncoderConfig,
    vocabulary: Vocabulary,
    tokenizer: str,
    published: str,
    verdict: str | None,
    corpus: str,
    report: str | None,
    command: str,
    licence: str | None,
    base_model: str | None,
    force: bool,
    kind: str = "retriever",
    hybrid: str | None = None,
    interpolation: str | None = None,
) -> dict[str, str]:
    """The job of a stage: writes the folder with its card, unless the model became worse.

    Args:
        model_dir: stage folder.
        checkpoint, weights, config, vocabulary, tokenizer: see `export_hf.export`.
        published: folder that the training started from; what it says besides its weights is kept.
        verdict, interpolation: see `_verdict`.
        corpus: the collection, in BEIR's layout, that the model was trained on.
        report: how labelled data became that collection; None where the user gave the collection.
        command: with which all this was made, for the card.
        licence: see `licences.chosen`.
        base_model: name of the published encoder, such as its id on the Hub; None: see `base_name`.
        force: write the folder of a model that is worse, too.
        kind: 'retriever' or 'reranker'.
        hybrid: of M3, folder of the contract that says how its kinds are searched as one, see
            `export_hf.export`.

    Returns:
        name -> path in model_dir: `encoder`, or `cross_encoder` of a re-ranker, and its `card`; of
        M3 `multi_vector`, too; of a model that is worse and not forced, `card` alone, a page that
        says so.

    Raises:
        LicenceError: see `licences.chosen`.
        ExportError: see `export_hf.export`; or the model is of the other kind.
        ContractError: `hybrid` is of another model, see `export_hf.export`.
        VerdictError: the file of the verdict cannot be read.
        KeptFilesError: see `kept_files.keep`.
    """
    check(published, licence, kind)
    found = _verdict(verdict, corpus, interpolation)
    if verdict_lib.withheld(found, force, WRITTEN, model_dir):
        return {"card": verdict_lib.NOTICE}
    contract = Contract.load(checkpoint)
    if export_checks.is_reranker(contract) != (kind == RERANKER):
        raise export_checks.ExportError(
            f"{checkpoint}: expected a fine-tuned {kind}, found similarity {contract.similarity!r}"
        )
    written = export_hf.export(
        model_dir, checkpoint, weights, config, vocabulary, tokenizer, hybrid=hybrid
    )
    name = "cross_encoder" if kind == RERANKER else "encoder"
    folder = Path(model_dir) / written[name]
    contract = contract if hybrid is None else Contract.load(folder)
    longest = export_hf.max_tokens(contract, config, Path(tokenizer))
    keep = kept_files.keep_for_reranker if kind == RERANKER else kept_files.keep
    keep(published, folder, longest)
    facts = finetuned_card.Facts(
        base=base_model or base_name(published),
        licence=licences.chosen(published, licence),
        published=front_matter.read(Path(published) / "README.md"),
        contract=contract,
        max_tokens=longest,
        verdict=found,
        files=collection_files.files(corpus),
        division=collection_files.division(report),
        command=command,
        token_vector_size=export_hf.size_of_token_vectors(weights.arrays()),
    )
    (folder / "README.md").write_text(finetuned_card.card(facts), encoding="utf-8")
    return {**written, "card": f"{written[name]}/README.md"}


def _verdict(verdict: str | None, corpus: str, interpolation: str | None) -> verdict_lib.Verdict:
    """The verdict on a model.

    Args:
        verdict: its file; None: the model was trained without queries; nothing was measured.
        corpus: see `finetuned_folder`.
        interpolation: without a verdict, report of the stage that mixed the weights with the
            original ones; None: it does not say, or they are the tuned ones alone.
    """
    if verdict is not None:
        return verdict_lib.Verdict.load(verdict)
    share = None
    if interpolation is not None:
        share = float(json.loads(Path(interpolation).read_text(encoding="utf-8"))["share"])
    return verdict_lib.unmeasured(Path(corpus).name, share)


def check(published: str, licence: str | None, kind: str) -> None:
    """Check arguments before anything runs.

    Raises:
        LicenceError: see `licences.chosen`.
        ValueError: another kind; or a re-ranker of an encoder that cannot be written as one.
        ExportError: the tokenizer joins pairs in another way than our re-ranker.
    """
    licences.chosen(published, licence)
    if kind not in KINDS:
        raise ValueError(f"finetuned_folder.kind: expected one of {KINDS}, found {kind!r}")
    if kind == RERANKER:
        file = Path(published) / published_folder.CONFIG
        fields = hf_config.read_fields(published)
        layout = hf_config.layout(fields, file)
        if layout.variant(fields) not in layout.pair_models:
            raise ValueError(
                f"{file}: expected an encoder of which transformers has re-rankers, found "
                f"{fields['model_type']!r}: the result could not be written for other libraries. "
                "Take another encoder"
            )
        tokenizer = Path(published) / "tokenizer.json"
        if tokenizer.is_file():  # from other files the tokenizer is made as its family's
            config = hf_config.config_from_hf(published, "float32", "none", vocab_multiple=1)
            export_checks.pair_separators(tokenizer, config.type_vocab)


def base_name(published: str) -> str:
    """The name of a published encoder, never a path.

    >>> base_name("/data/hub/models--intfloat--e5-small-v2/snapshots/ffb93f3")
    'intfloat/e5-small-v2'

    Args:
        published: its folder; in the cache of huggingface_hub the result is its id there, else the
            name of the folder. `_name_or_path` in config.json is not used: it often names another
            encoder, from which this one was trained.
    """
    folder = Path(published).absolute()
    for name in (one.name for one in (folder, *folder.parents)):
        if downloaded := _DOWNLOADED.fullmatch(name):
            return downloaded[1].replace("--", "/", 1)
    return folder.name.replace("`", "")
