"""Bundles: all that a server needs of a model, in one folder, without gin and without pickle.

    bundle/CURRENT                       the number of the version that is served
    bundle/changing.lock                 while somebody makes the next version
    bundle/versions/7/manifest.json      facts, and sizes and sha256 of the files below
                      contract.json      with the weights of the kinds, where they were chosen
                      card.md
                      curves.json        `serving.training_curves`, where trainings are known
                      programs/          `serving.programs`
                      tokenizer/         tokenizer.json, vocabulary.json
                      corpus.jsonl       the passages, in the order of their rows
                      representations/   of the passages, by kind (`retrieval.representation_files`)
                      indexes/dense/     of many passages, a published ScaNN index, if it runs and
                                         finds enough; every vector is compared without it
                      indexes/bm25/      and fusion.json, where an evaluation chose how BM25's
                                         scores are added (`retrieval.lexical.bm25_fusion`); all
                                         that a re-ranker has, which needs no representations

A version appears whole or not at all (`retrieval.versioned_folder`). Opening one compares every
file with its hash, refuses files without one, and takes nothing from outside of its folder.
"""

import collections
import contextlib
import dataclasses
import datetime
import json
import shutil
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.index import IndexDamaged, UnsupportedMachine
from t5x_style.interfaces.representation import DENSE, KINDS, Representation
from t5x_style.retrieval import published_index, representation_files, versioned_folder
from t5x_style.retrieval.beir_collection import Passage
from t5x_style.retrieval.encoding import Embeddings
from t5x_style.retrieval.lexical import bm25_fusion
from t5x_style.retrieval.lexical.bm25_fusion import Fusion
from t5x_style.retrieval.scann_index import Scann
from t5x_style.serving import programs, saved_model, text_tokens, training_curves
from t5x_style.serving.service import BM25
from t5x_style.serving.training_curves import Curves
from t5x_style.storage import file_locks

FORMAT = 1
IN_RUN = "bundle"  # name of the folder in that of a run
CORPUS, CARD, REPRESENTATIONS, INDEXES = "corpus.jsonl", "card.md", "representations", "indexes"
EXACT_BELOW = 200_000  # passages that are compared one by one; an index for more of them
MINIMUM_RECALL = 0.9  # of that index, against exact search; one that finds less is not used
CANDIDATES = 200  # that each index proposes, where no contract says how many
_LOCK = "changing.lock"
_TOKENIZER = ("tokenizer.json", "vocabulary.json", "tokenizer_config.json", "vocab.txt")
_PACKAGES = ("jax", "jaxlib", "tokenizers", "numpy")


class BundleError(ValueError):
    """A folder that is no bundle, or one that this code does not open."""


@dataclasses.dataclass(frozen=True)
class Content:
    """What a version is written from.

    Attributes:
      name: of the run.
      contract: of the model.
      programs: folder that `programs.write` or an older version wrote.
      tokenizer: folder.
      passages: N, in the order of their rows.
      representations: kind -> of the N passages.
      checkpoint: fingerprint of the one that the programs were made of.
      origin: says what the bundle was made of; versions that follow keep it. '' where unknown.
      curves: of the trainings; versions that follow keep them. None where unknown.
      changes: how many updates of its passages it has since it was made of a run.
      fusion: how BM25's scores are added to those of the model; None: there is no BM25. Of a
        re-ranker of BM25's hits, there need be no representations.
    """

    name: str
    contract: Contract
    programs: Path
    tokenizer: Path
    passages: Sequence[Passage]
    representations: Mapping[str, Representation]
    checkpoint: str
    origin: str = ""
    curves: Curves | None = None
    changes: int = 0
    fusion: Fusion | None = None


def publish(
    folder: Path,
    content: Content,
    keep: int = 2,
    exact_below: int = EXACT_BELOW,
    after: int | None = None,
) -> Path:
    """Writes a version, which becomes the current one at once.

    Args:
      folder: of the bundle; made where missing.
      content: see there.
      keep: versions that stay on disk, this one included; a server may still read the one before.
      exact_below: up to so many passages every vector is compared.
      after: see `versioned_folder.new_version`.

    Returns:
      the version's folder.

    Raises:
      BundleError: passages and representations do not fit each other, or an id occurs twice.
      PublishError: no room, no permission to write, or `after` is not the current version; what
        was published before stays.
    """
    ids = [passage.id for passage in content.passages]
    _require_fit(ids, content.representations, content.fusion)
    facts = {
        "format": FORMAT,
        "name": content.name,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kinds": list(content.representations),
        "passages": len(ids),
        "checkpoint": content.checkpoint,
        "origin": content.origin,
        "changes": content.changes,
        "platforms": list(saved_model.PLATFORMS),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
    }
    with versioned_folder.new_version(folder, facts, keep, after) as made:
        content.contract.save(made)
        shutil.copytree(content.programs, made / programs.FOLDER)
        _copy_tokenizer(content.tokenizer, made / text_tokens.FOLDER)
        _write_corpus(made / CORPUS, content.passages)
        (made / REPRESENTATIONS).mkdir()
        for kind, representation in content.representations.items():
            representation_files.write(made / REPRESENTATIONS, kind, representation)
        if DENSE in content.representations and len(ids) > exact_below:
            _publish_index(made / INDEXES / DENSE, content, ids, exact_below)
        if content.fusion is not None:
            content.fusion.save(made)
            texts = (passage.content for passage in content.passages)
            bm25_fusion.over(texts, ids, content.fusion).words.save(made / INDEXES / BM25)
        training_curves.write(made, content.curves)
        (made / CARD).write_text(_card(facts, content.contract), encoding="utf-8")
    return versioned_folder.current(folder)


def _publish_index(folder: Path, content: Content, ids: list[str], exact_below: int) -> None:
    """ScaNN of the dense vectors; a message and no index where it cannot be had."""
    vectors = content.representations[DENSE]
    embeddings = Embeddings(vectors, ids, content.contract, content.checkpoint)
    index = Scann(brute_force_below=exact_below, leaves=0, searched_share=0.3, reorder=200)
    try:
        published_index.publish(folder, embeddings, index, 1, MINIMUM_RECALL)
        return
    except UnsupportedMachine:
        why = "ScaNN does not run on this machine"
    except published_index.RecallError as error:
        why = f"ScaNN finds {error.recall:.3f} of the exact top 10, less than {MINIMUM_RECALL}"
    print(
        f"bundle: no index of its {len(ids):,} dense vectors, so that each search compares all of "
        f"them: {why}",
        file=sys.stderr,
        flush=True,
    )


def read_manifest(version: Path) -> dict[str, Any]:
    """The facts of a version, after every file in it was compared with its size and hash.

    Raises:
      BundleError: it is no bundle, of a newer format, names files outside of its folder, or holds
        links or files that are not listed.
      IndexDamaged: a file is missing, cut short or changed.
    """
    manifest = versioned_folder.read_manifest_alone(version)
    if "format" not in manifest or "kinds" not in manifest:
        raise BundleError(
            f"{version}: expected the manifest of a bundle, found one with {sorted(manifest)[:8]}. "
            "Make a bundle of a finished run: kennel export --bundle=RUN"
        )
    if manifest["format"] != FORMAT:
        raise BundleError(
            f"{version}: expected a bundle of format {FORMAT}, found {manifest['format']!r}. Open "
            "it with the version of Kennel that made it, or make it again with this one."
        )
    for name in manifest["files"]:
        _require_inside(version, name)
    _require_listed(version, manifest["files"])
    versioned_folder.read_manifest(version)
    unknown = [kind for kind in manifest["kinds"] if kind not in KINDS]
    # Of a re-ranker of BM25's hits there is no kind
    if unknown or not (manifest["kinds"] or (version / bm25_fusion.FILE).is_file()):
        raise BundleError(f"{version}: expected kinds among {list(KINDS)}, found {unknown}")
    return manifest


def _require_inside(version: Path, name: str) -> None:
    """Raises BundleError for a name that climbs out of the folder."""
    parts = Path(name).parts
    if Path(name).is_absolute() or ".." in parts or not parts:
        raise BundleError(f"{version}: expected names of files inside of it, found {name!r}")


def _require_listed(version: Path, listed: Container[str]) -> None:
    """Raises BundleError for a link, and a file without a hash, which readers might take."""
    for path in [version, *sorted(version.rglob("*"))]:
        if path.is_symlink():
            raise BundleError(
                f"{path}: expected a file or a folder, found a link. A bundle has none: copy what "
                "it leads to, or make the bundle again."
            )
        name = str(path.relative_to(version))
        if not path.is_dir() and name != versioned_folder.MANIFEST and name not in listed:
            raise BundleError(
                f"{path}: expected files that {versioned_folder.MANIFEST} lists, found one that it "
                "does not. Delete it, or make the bundle again."
            )


def _require_fit(
    ids: Sequence[str], representations: Mapping[str, Representation], fusion: Fusion | None
) -> None:
    """Raises BundleError, see `publish`."""
    counts = {kind: len(one) for kind, one in representations.items()}
    by_words = fusion is not None and fusion.reranked is not None
    if not ids or not (counts or by_words) or set(counts.values()) - {len(ids)}:
        raise BundleError(
            f"expected representations of {len(ids)} passages, at least one, found {counts}"
        )
    if len(set(ids)) < len(ids):
        twice = collections.Counter(ids).most_common(1)[0][0]
        raise BundleError(f"expected each passage once, found the id {twice!r} twice")


def _copy_tokenizer(source: Path, target: Path) -> None:
    """The files of a tokenizer, and nothing else that lies in its folder."""
    target.mkdir()
    for name in _TOKENIZER:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _write_corpus(path: Path, passages: Iterable[Passage]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for one in passages:
            record = {"_id": one.id, "title": one.title, "text": one.text, "source": one.source}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


def _card(facts: Mapping[str, Any], contract: Contract) -> str:
    """What a reader of the folder wants to know first."""
    kinds = facts["kinds"]
    what = "retriever over" if kinds else "re-ranker of BM25's hits among"
    of_kinds = [f"- Kinds of representations: {', '.join(kinds)}."]
    of_vectors = [
        f"- Vectors have {contract.dimension} numbers, pooling '{contract.pooling}', similarity "
        f"'{contract.similarity}'."
    ]
    lines = [
        f"# {facts['name']}",
        "",
        f"A {what} {facts['passages']:,} passages, made {facts['made']} by Kennel.",
        "",
        *(of_kinds if kinds else []),
        f"- A question is cut at {contract.query_length} tokens, a passage at "
        f"{contract.passage_length}; prefixes {contract.query_prefix!r} and "
        f"{contract.passage_prefix!r}.",
        *(of_vectors if kinds else []),
        f"- Checkpoint {facts['checkpoint'] or 'not recorded'}; programs for "
        f"{', '.join(facts['platforms'])}.",
        "",
        "    kennel serve FOLDER",
        "",
    ]
    return "\n".join(lines)


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[None]:
    """The right to make the next version, from reading the present one on; waits for it.

    Raises:
      OSError: the folder is not there, or cannot be written.
    """
    with file_locks.locked(folder / _LOCK, lambda: _waiting(folder)):
        yield


def _waiting(folder: Path) -> None:
    print(f"{folder}: another process makes its next version; waiting for it", file=sys.stderr)


def origin(folder: Path) -> str:
    """What the current version was made of; '' where that is unknown, or there is no bundle.

    Raises:
      IndexDamaged: there is one, whose facts cannot be read.
    """
    return str(_facts_of(folder).get("origin", ""))


def changes(folder: Path) -> int:
    """How many updates of its passages a bundle has since it was made of a run; 0 without a bundle.

    1 of one that does not say, as they did before, and is not the first version.

    Raises:
      IndexDamaged: there is one, whose facts cannot be read: nobody knows what it has.
    """
    facts = _facts_of(folder)
    return int(facts.get("changes", facts.get("version", 1) > 1))


def describe_changes(folder: Path) -> str:
    """What a user is shown of a bundle with `changes`, without a full stop; errors as of that."""
    if "changes" not in _facts_of(folder):
        return (
            f"{folder}: its passages may have been changed since it was made of the run (it was "
            "made before Kennel recorded that), and a bundle that is made of the run would not "
            "have the changes"
        )
    count = changes(folder)
    return (
        f"{folder}: its passages were changed since it was made of the run, in {count} "
        f"update{'s' * (count > 1)} (--changes), and a bundle that is made of the run would not "
        "have them"
    )


def require_unchanged(folder: Path) -> None:
    """Raises BundleError if a bundle has updates, which making it of its run would lose.

    Raises:
      IndexDamaged: as of `changes`.
    """
    if changes(folder):
        raise BundleError(
            f"{describe_changes(folder)}. Make it in another folder with --to=FOLDER, or give up "
            "the changes with --discard_changes."
        )


def of_run(folder: Path) -> Path:
    """The folder of a bundle: the folder itself, or that in a run's folder.

    Raises:
      BundleError: it is neither a bundle nor the folder of a run that has one.
    """
    for one in (folder, folder / IN_RUN):
        if (one / versioned_folder.CURRENT).is_file():
            return one
    raise BundleError(
        f"{folder}: expected the folder of a bundle, or of a run that has one, found neither. Make "
        f"a bundle of a finished run: kennel export --bundle=RUN"
    )


def _facts_of(folder: Path) -> dict[str, Any]:
    """The manifest of the current version; {} where there is no bundle.

    Raises:
      IndexDamaged: the current version is not known, or is damaged.
    """
    there = versioned_folder.published(folder)
    if not there and not (folder / versioned_folder.CURRENT).exists():
        return {}
    try:
        manifest = versioned_folder.read_manifest_alone(versioned_folder.current(folder))
    except (FileNotFoundError, IndexDamaged) as error:
        raise IndexDamaged(
            f"{folder}: expected a bundle, found a damaged one, of which nobody knows whether its "
            f"passages were changed ({error}) Its complete versions are {there}: put one of them "
            f"into {versioned_folder.CURRENT}, copy the bundle again, or make it again of its run, "
            "without changes: kennel export --bundle=RUN --discard_changes"
        ) from error
    return manifest if "format" in manifest and "kinds" in manifest else {}
