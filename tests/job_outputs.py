"""Recorded outputs of jobs: hashes that show an edit that changes what a job writes.

    python -m tests.job_outputs                    compare with tests/golden/job_outputs.json
    python -m tests.job_outputs --write            record the outputs of new and of raised versions
    python -m tests.job_outputs --write --force    record all outputs

The results of a stage are identified by the name and version that its job declares in `JOBS`, by
its parameters and by its inputs, not by its code. An edit that changes outputs must therefore raise
the version: otherwise results from before the edit are reused.

To add a job: add it to `CASES`, with a function in job_inputs.py that makes its inputs. Jobs that
compute in floating point on a device are not here, because the last bits differ between CPUs; see
`NOT_RECORDED`.
"""

import argparse
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax

from input_pipelines.gather import (
    article_passages,
    documents,
    language_sentences,
    mkqa,
    python_docs,
    question_collection,
    sentence_passages,
    translations,
    write_beir,
)
from input_pipelines.labelled import labelled_collection
from input_pipelines.marge import chunk_passages
from input_pipelines.sources import triples
from input_pipelines.store import answer_token_forms, prepare
from input_pipelines.tokenizers import import_tokenizer, tokenization, vocabulary_report
from t5x_style import mine
from t5x_style.configuration import signatures
from t5x_style.evaluation import hybrid_weights
from t5x_style.mining import judged_negatives
from t5x_style.retrieval.lexical import bm25_fusion
from tests.input_pipelines.gather import (
    test_article_passages,
    test_mkqa,
    test_sentence_passages,
)
from tests.input_pipelines.labelled import layout_files
from tests.input_pipelines.marge import test_chunk_passages
from tests.kits import job_inputs
from tests.t5x_style.evaluation import test_hybrid_weights
from tests.t5x_style.mining import test_judged_negatives
from tests.t5x_style.retrieval.lexical import test_bm25_fusion

GOLDEN = Path(__file__).parent / "golden/job_outputs.json"
COMMAND = "python -m tests.job_outputs --write"


def _without(field: str) -> Callable[[bytes], bytes]:
    """Removes a field of a JSON file."""

    def normalise(content: bytes) -> bytes:
        value = json.loads(content)
        del value[field]
        return json.dumps(value, ensure_ascii=False).encode()

    return normalise


def _rounded(content: bytes) -> bytes:
    """Rounds numbers to four decimals."""
    return re.sub(rb"\d+\.\d+", lambda found: b"%.4f" % float(found[0]), content)


@functools.wraps(python_docs.make_corpus)
def _corpus_of_packages(**arguments: Any) -> dict[str, str]:
    """`make_corpus` without the documentation of Python itself, which differs between releases."""
    with (
        mock.patch.object(sys, "path", [os.getcwd(), *sys.path]),
        mock.patch.object(python_docs.docstrings, "topic_docs", return_value=[]),
        mock.patch.object(python_docs.docstrings, "compiled_docs", return_value=[]),
    ):
        return python_docs.make_corpus(**arguments)


@dataclasses.dataclass(frozen=True)
class Case:
    """One job and how it is run.

    Attributes:
      job: the function; its module declares it.
      runs: writes inputs to the current folder and returns the arguments of each run.
      normalised: path of an output -> removes from its bytes what differs between runs or machines.
    """

    job: Callable[..., dict[str, str]]
    runs: Callable[[], job_inputs.Runs]
    normalised: Mapping[str, Callable[[bytes], bytes]] = dataclasses.field(default_factory=dict)

    @property
    def module(self) -> str:
        """The file that declares the job."""
        return self.job.__module__.replace(".", "/") + ".py"

    @property
    def declaration(self) -> signatures.Job:
        """The job's name and version."""
        return signatures.job(f"{self.job.__module__}.{self.job.__name__}")


# The first is how long the run took; the second, versions of Python and packages. BM25's scores are
# float32, written with six decimals, of which the last may differ between CPUs.
SECONDS = {"report.json": _without("seconds")}
VERSIONS = {"corpus/report.json": _without("versions")}
SCORES = {"negatives.jsonl": _rounded}

CASES = {
    "answer_forms": Case(answer_token_forms.find_forms, job_inputs.answer_forms),
    "article_passages": Case(article_passages.gather, test_article_passages.job_runs),
    "block_collection": Case(write_beir.write_blocks, job_inputs.block_collection),
    "chunk_passages": Case(chunk_passages.write_chunks, test_chunk_passages.job_runs),
    "collection": Case(write_beir.write_collection, job_inputs.collection),
    "gather_documents": Case(documents.gather, job_inputs.gather_documents),
    "gather_questions": Case(question_collection.gather_questions, job_inputs.gather_questions),
    "gather_sentences": Case(language_sentences.gather_sentences, job_inputs.gather_sentences),
    "gather_translations": Case(translations.gather, job_inputs.gather_translations),
    "hybrid_weights": Case(hybrid_weights.keep, test_hybrid_weights.job_runs),
    "import_tokenizer": Case(import_tokenizer.import_tokenizer, job_inputs.import_tokenizer),
    "labelled_collection": Case(labelled_collection.labelled_collection, layout_files.job_runs),
    "mkqa": Case(mkqa.gather, test_mkqa.job_runs),
    "mine": Case(mine.mine, job_inputs.mine, SCORES),
    "prepare": Case(prepare.prepare, job_inputs.prepare_stores, SECONDS),
    "python_docs": Case(_corpus_of_packages, job_inputs.package_docs, VERSIONS),
    "question_collection": Case(
        question_collection.make_collection, job_inputs.question_collection
    ),
    "sentence_passages": Case(sentence_passages.gather, test_sentence_passages.job_runs),
    "search_fusion": Case(bm25_fusion.keep, test_bm25_fusion.job_runs),
    "train_tokenizer": Case(tokenization.train_tokenizer, job_inputs.train_tokenizer),
    "judged_negatives": Case(judged_negatives.judged_negatives, test_judged_negatives.runs),
    "triple_negatives": Case(triples.negatives_from_triples, job_inputs.triple_negatives),
    "vocabulary_report": Case(vocabulary_report.vocabulary_report, job_inputs.vocabulary_report),
}

_DEVICE = (
    "floating point on a device: the last bits differ between CPUs. Numbers are compared with "
    "tolerances, by test_parity.py and the tests of the job's module"
)
_HOST = "floating point of numerical libraries on the host, written in full: as on a device"
NOT_RECORDED = {  # declared name -> why
    "train": _DEVICE,
    "encode_corpus": _DEVICE,
    "interpolate": "mixed weights; test_interpolation.py compares all of them",
    "forgetting": _DEVICE,
    "evaluate_short_vectors": _DEVICE,
    "suspects": _DEVICE,
    "initialise_model": "a copy of weights; test_untouched.py compares the vectors",
    "build_index": _DEVICE,
    "search": _DEVICE,
    "score": _DEVICE,
    "generate": _DEVICE,
    "filter_translations": _DEVICE,
    "export": "a copy of trained weights and programs that the installed JAX compiles",
    "export_huggingface": "a copy of trained weights; test_export_hf.py compares all of them",
    "export_bag": "a copy of trained weights; test_bag.py compares its vectors",
    "finetuned_folder": "a copy of trained weights; test_finetuned_folder.py compares its vectors",
    "complete_splits": "a copy of its input; test_complete_splits.py reads what differs",
    "evaluate": _HOST,
    "verdict": _HOST,
    "evaluate_answers": _HOST,
    "evaluate_answered": _HOST,
    "evaluate_bitext": _HOST,
    "evaluate_generation": _HOST,
    "report": "how long stages took, and curves that the installed matplotlib draws",
    "report_translations": "as report",
}


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What a job wrote: its declared version, and path -> sha256 of each file."""

    version: int
    outputs: Mapping[str, str]


def run(case: Case, folder: Path) -> Outputs:
    """Runs a job in an empty folder and hashes every file that it writes."""
    hashes = {}
    with contextlib.chdir(folder):
        for name, arguments in case.runs().items():
            made = Path("out", name)
            made.mkdir(parents=True)
            case.job(**arguments, model_dir=str(made))
            for path in filter(Path.is_file, sorted(made.rglob("*"))):
                normalise = case.normalised.get(path.relative_to(made).as_posix(), bytes)
                content = normalise(path.read_bytes())
                hashes[path.relative_to("out").as_posix()] = hashlib.sha256(content).hexdigest()
    return Outputs(case.declaration.version, hashes)


def read(path: Path) -> dict[str, Outputs]:
    """The recorded outputs of each job."""
    recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: Outputs(**fields) for name, fields in recorded.items()}


def differences(found: Outputs, recorded: Outputs) -> list[str]:
    """One line for each file that differs, is missing or is new."""
    paths = sorted(found.outputs.keys() | recorded.outputs.keys())
    pairs = ((path, found.outputs.get(path), recorded.outputs.get(path)) for path in paths)
    return [
        f"{'new' if old is None else 'missing' if new is None else 'differs'}: {path}"
        for path, new, old in pairs
        if new != old
    ]


def unraised(found: Outputs, recorded: Outputs | None) -> bool:
    """Whether outputs changed and the version was not raised, or the version was lowered."""
    if recorded is None or found.version > recorded.version:
        return False
    return found.version < recorded.version or bool(differences(found, recorded))


def problem(name: str, case: Case, found: Outputs, recorded: Outputs | None) -> str:
    """What is wrong with a job's outputs and what to do about it; "" if nothing is."""
    if recorded is None:
        return f"{name}: no outputs are recorded. Run: {COMMAND}"
    if found.version > recorded.version:
        return (
            f"{name}: {case.module} declares version {found.version}, outputs are recorded of "
            f"version {recorded.version}. Run {COMMAND} to record the new outputs"
        )
    if not unraised(found, recorded):
        return ""
    changed = "\n".join(differences(found, recorded)) or "the same outputs"
    return (
        f"{name}: expected the outputs of version {recorded.version} in {GOLDEN.name}, found with "
        f"version {found.version}:\n{textwrap.indent(changed, '  ')}\n"
        f"Raise the version in JOBS of {case.module} to {recorded.version + 1} if the change is "
        f"meant, so that earlier results are not reused; then run: {COMMAND}\n"
        f"If only the inputs changed, which job_inputs.py makes, run: {COMMAND} --force"
    )


def removed(recorded: Iterable[str]) -> list[str]:
    """One line for each recorded job that there is no longer."""
    return [
        f"{name}: outputs are recorded, but CASES of tests/job_outputs.py has no such job. "
        f"Run {COMMAND} if it was removed or renamed"
        for name in sorted(set(recorded) - CASES.keys())
    ]


def record(found: Mapping[str, Outputs], path: Path, force: bool) -> None:
    """Writes outputs in place of all that were recorded before.

    Raises:
      ValueError: outputs of a job changed, its version was not raised, and not `force`.
    """
    recorded = read(path)
    refused = [name for name, one in found.items() if unraised(one, recorded.get(name))]
    if refused and not force:
        reasons = [problem(name, CASES[name], found[name], recorded[name]) for name in refused]
        raise ValueError("\n".join(["nothing was recorded", *reasons]))
    fields = {name: dataclasses.asdict(one) for name, one in found.items()}
    path.write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> str | None:
    """Compares or records all outputs; returns what is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.job_outputs")
    parser.add_argument("--write", action="store_true", help="record the outputs")
    parser.add_argument("--force", action="store_true", help="also of versions that are not raised")
    flags = parser.parse_args(arguments)
    found = {}
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = run(case, Path(folder))
    if flags.write:
        try:
            record(found, GOLDEN, flags.force)
        except ValueError as error:
            return str(error)
        return None
    recorded = read(GOLDEN)
    problems = [problem(name, CASES[name], one, recorded.get(name)) for name, one in found.items()]
    return "\n".join(filter(None, [*problems, *removed(recorded)])) or None


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    sys.exit(main())
