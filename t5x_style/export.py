"""Stage: a trained objective as a SavedModel for TensorFlow Serving, published once it is checked.

    model_dir/saved_model/1795240000/saved_model.pb, variables/, assets/, manifest.json

The version is the time of the export, seconds since 1970: it grows from one stage version to the
next, and a server never meets another model under a number it has seen.

`python -m t5x_style.export --bundle=RUN` makes a bundle of what a finished run searches with, for
`kennel serve`: in RUN/bundle, or where `--to` says. `--bundle=RUN --changes=FILE` publishes its
next version, with passages added, replaced or deleted (docs/serving.md); RUN may also be
the folder of the bundle. `--discard_changes` makes a bundle with such changes from its run again.
"""

import argparse
import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import jax

from t5x_style.checkpoints import restored_model
from t5x_style.configuration import command_flags, gin_checks
from t5x_style.distributed import startup
from t5x_style.distributed.partitioning import MeshShape, Partitioner
from t5x_style.interfaces.contract import FILE_NAME, Contract, Vocabulary
from t5x_style.interfaces.objective import EMBED
from t5x_style.interfaces.verdict_record import NOTICE, Verdict, withheld
from t5x_style.reporting import run_curves
from t5x_style.retrieval import versioned_folder
from t5x_style.serving import bundle as bundles
from t5x_style.serving import (
    bundle_update,
    bundling,
    saved_model,
    saved_model_check,
    searcher,
    warmup_requests,
)
from t5x_style.serving.saved_model import ExportError
from t5x_style.serving.text_signatures import text_check, text_signature
from t5x_style.step.train_state import MakeObjective
from t5x_style.workflow import links, remote_store, stage_runner

_PACKAGES = ("jax", "flax", "orbax-export", "tensorflow-cpu")

# The jobs of this module. Raise `version` when the same settings and inputs give other outputs.
JOBS = {
    "export": {
        "name": "export",
        "version": 4,
        "outputs": ["saved_model", "notice"],
        "program": True,
    }
}


class Tokenizer(Protocol):
    """A tokenizer's folder, verified when it was opened."""

    folder: str

    @property
    def fingerprint(self) -> str:
        """As in `Vocabulary`."""
        ...


def export(
    objective: MakeObjective,
    checkpoint: str,
    tokenizer: Tokenizer,
    serving_default: str,
    tolerance: float,
    publish_to: str | None,
    model_dir: str,
    step: int | None = None,
    verdict: str | None = None,
    force: bool = False,
    hybrid: str | None = None,
) -> dict[str, str]:
    """Writes saved_model/<version>/, once it gave the model's vectors.

    The model is loaded onto the host: TensorFlow here has no accelerator, and on one processor the
    two must agree.

    Args:
      objective: the factory that was trained, with the same configuration.
      checkpoint: folder of the training stage.
      tokenizer: that it was trained with; its files become assets.
      serving_default: the function that clients get who name none.
      tolerance: the largest absolute difference of a component of a vector, or of a score.
      publish_to: folder that a server watches, outside of model_dir; gets a copy of the version,
        next to those that are there. None: no copy.
      model_dir: stage folder.
      step: which checkpoint; as in `restored_model.restore`.
      verdict: file of the verdict on a fine-tuned encoder; one that is worse than before is not
        exported. None: there is no verdict.
      force: export it all the same.
      hybrid: folder of a contract that says how the model's kinds of representations are searched
        as one (`hybrid_weights.keep`); contract.json of the assets then says so. None: it does not.

    Returns:
      {"saved_model": the folder of versions}; {"notice": a page that says so} where there is none.

    Raises:
      VerdictError: the file of the verdict cannot be read.
      ExportError: the objective cannot be exported, or the SavedModel differs from the model.
      ContractError: objective, checkpoint and tokenizer do not belong together, or `hybrid`
        combines a kind that the model does not make.
    """
    if jax.process_count() > 1:
        raise ExportError(f"export runs in one process, found {jax.process_count()}")
    if verdict is not None and withheld(Verdict.load(verdict), force, "SavedModel", model_dir):
        return {"notice": NOTICE}
    host = Partitioner(MeshShape(1, 1, 1), devices=jax.local_devices(backend="cpu")[:1])
    model = restored_model.restore(objective, checkpoint, host, step)
    given = dataclasses.replace(model.contract, tokenizer_fingerprint=tokenizer.fingerprint)
    model.contract.require(given, f"the tokenizer in {tokenizer.folder}")
    if not any(one.kind == EMBED for one in model.functions.values()):
        raise ExportError(
            "nothing to export: expected an objective with functions of kind 'embed', found "
            f"{sorted(model.functions)}. A re-ranker is served from a bundle: kennel export "
            "--bundle=RUN"
        )
    max_lengths = saved_model.lengths(model)
    contract = model.contract
    if hybrid is not None:
        contract = contract.combined(hybrid, saved_model.kinds(model))
    if serving_default not in max_lengths:
        raise ExportError(
            f"serving_default: expected one of {sorted(max_lengths)}, found {serving_default!r}"
        )
    folder = Path(model_dir) / "saved_model"
    texts = text_signature.offered(Path(tokenizer.folder), contract, max_lengths)
    for name, reason in texts.left_out.items():
        print(f"export: no signature {name}: {reason}", file=sys.stderr)
    with new_version(folder) as made:
        _write(made, model, contract, tokenizer, serving_default, texts.signatures)
        found = saved_model_check.compare(made, model, Vocabulary.load(tokenizer.folder))
        found |= text_check.compare(made, texts.signatures, contract, Path(tokenizer.folder))
        worst = saved_model_check.require(found, tolerance)
        _write_manifest(made, max_lengths, serving_default, worst, texts)
    version = versions(folder)[-1]
    print(f"export: version {version}, differs by at most {worst:.2g}", file=sys.stderr)
    if publish_to is not None:
        copy_version(folder / str(version), Path(publish_to))
    return {"saved_model": "saved_model"}


def _write(
    folder: Path,
    model: restored_model.Restored,
    contract: Contract,
    tokenizer: Tokenizer,
    default: str,
    texts: Mapping[str, saved_model.TextSignature],
) -> None:
    """The SavedModel; contract.json and the tokenizer's files as assets; warm-up requests."""
    files = {path.name: path for path in sorted(Path(tokenizer.folder).iterdir()) if path.is_file()}
    with tempfile.TemporaryDirectory() as scratch:
        contract.save(scratch)
        files[FILE_NAME] = Path(scratch) / FILE_NAME
        saved_model.save(folder, saved_model.portable(model), default, files, texts)
    warmups = {name: one.warmups for name, one in texts.items()}
    warmup_requests.write(folder, default, saved_model.lengths(model), warmups)


def _write_manifest(
    folder: Path,
    max_lengths: dict[str, int],
    default: str,
    worst: float,
    texts: text_signature.Offered,
) -> None:
    longest = max_lengths | {
        name: max_lengths[one.function] for name, one in texts.signatures.items()
    }
    names = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    facts: dict[str, Any] = {
        "signatures": {name: {"longest": length} for name, length in longest.items()},
        "left_out": dict(texts.left_out),
        saved_model.DEFAULT: default,
        "platforms": saved_model.PLATFORMS,
        "largest_difference": worst,
        "packages": {name: metadata.version(name) for name in _PACKAGES},
    }
    versioned_folder.write_manifest(folder, facts, names)


def versions(folder: Path) -> list[int]:
    """The numbers of the versions in a model's folder, oldest first; strays are ignored."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit())


@contextmanager
def new_version(folder: Path) -> Iterator[Path]:
    """A folder to fill; on leaving without an error it becomes the newest version, at once.

    Until then its name begins with a dot, which servers do not look at. After an error it is gone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".export-", dir=folder))
    try:
        yield made
        made.chmod(0o755)  # a server may be another user
        number = max([int(time.time()), *(version + 1 for version in versions(folder))])
        _rename(made, folder / str(number))
    finally:
        shutil.rmtree(made, ignore_errors=True)


def copy_version(version: Path, folder: Path) -> None:
    """Copies a version into a folder that a server watches, where it appears complete or not.

    Raises:
      ExportError: the folder holds that version already.
      IndexDamaged: the copy is not what was written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=".export-", dir=folder))
    try:
        shutil.copytree(version, made, dirs_exist_ok=True)
        versioned_folder.read_manifest(made)
        _rename(made, folder / version.name)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _rename(made: Path, version: Path) -> None:
    """Never over a version: rename(2) refuses a folder that is not empty."""
    try:
        made.rename(version)
    except OSError as error:
        if not version.exists():
            raise
        raise ExportError(
            f"{version}: this version is there already, and none is overwritten. Export again: "
            "the next gets a later number"
        ) from error
    versioned_folder.sync(version.parent)


def bundle(options: argparse.Namespace, flags: gin_checks.Flags) -> int:
    """Makes a bundle of a finished run, or its next version; returns the exit code.

    Raises:
      SearchError: the run has no finished search.
      BundleError: what it searches with cannot be served; no bundle to change; changes that do not
        fit; or a bundle with changes would be made again, and nobody said to discard them.
    """
    if options.changes:
        folder = bundles.of_run(Path(options.bundle))
        done = bundle_update.update(folder, bundle_update.Changes.read(Path(options.changes)))
        print(
            f"{done.version}: {done.encoded} passages encoded, {done.deleted} deleted, "
            f"{done.unchanged} as they were"
        )
        return 0
    run = links.run_here(options.bundle)
    config = searcher.find_config(str(run))
    flags = dataclasses.replace(flags, files=(str(config), *flags.files))
    target = Path(options.to) if options.to else run / bundles.IN_RUN
    if not options.discard_changes:  # before what takes long
        bundles.require_unchanged(target)
    with remote_store.named_here(flags) as here:
        found = searcher.open_searcher(here)
        parts = found.model, found.index, found.tokenizer, found.passages
        origin = searcher.origin(str(run))
        curves = run_curves.of_run(run, config)
        target.mkdir(parents=True, exist_ok=True)  # now that nothing of the run is missing
        with bundles.changing(target):
            if not options.discard_changes:  # others may have changed it meanwhile
                bundles.require_unchanged(target)
            made = bundling.publish(
                *(target, run.name, *parts), origin=origin, curves=curves, fusion=found.fusion
            )
    print(f"{made}: {len(found.passages):,} passages; next: kennel serve {target}")
    return 0


def main(argv: Sequence[str]) -> int:
    """Makes a bundle, where `--bundle` asks for one; else runs the stage. Returns the exit code."""
    from t5x_style import stage

    if not any(word.startswith("--bundle") for word in argv):
        startup.start(together=False)
        stage.main("t5x_style.export.export")
        return 0
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    command_flags.add_bundle(parser)
    stage_argv, bundle_argv = command_flags.split_arguments(argv)
    options = parser.parse_args(bundle_argv)
    if options.changes and options.to:
        parser.error("--changes are made where the bundle is: leave out --to")
    if options.changes and options.discard_changes:
        parser.error("--discard_changes makes a bundle of a run: leave out --changes")
    startup.start(together=False)
    return stage_runner.guarded(lambda flags: bundle(options, flags), stage_argv)


if __name__ == "__main__":
    from t5x_style import export as this  # so that gin sees one module, not two

    sys.exit(this.main(sys.argv[1:]))
