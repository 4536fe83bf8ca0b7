"""An open version of a bundle: what answers requests."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np

from t5x_style.interfaces.contract import Contract
from t5x_style.interfaces.objective import FILL
from t5x_style.interfaces.representation import (
    DENSE,
    MULTI_VECTOR,
    PASSAGE,
    QUERY,
    SPARSE,
    Representation,
    function_name,
)
from t5x_style.retrieval import (
    similarity,
)
from t5x_style.retrieval.beir_collection import Passages
from t5x_style.serving import (
    batch_shapes,
    bundle,
    encoded_texts,
    programs,
    saved_model,
    text_tokens,
    token_batches,
    training_curves,
)
from t5x_style.serving.opened import bundle_reader, corpus_map, opened_search, passage_search
from t5x_style.serving.opened.bundle_reranker import BundleReranker
from t5x_style.serving.opened.passage_search import PassageSearch
from t5x_style.serving.opened.passage_sources import Sources
from t5x_style.serving.opened.reranked_search import RerankedSearch
from t5x_style.serving.service import (
    RERANKED,
    CorpusMap,
    Encoded,
    Evidence,
    Facts,
    Hit,
    Reader,
    RequestError,
    Reranker,
    SharedWord,
    Tokens,
    shown,
)
from t5x_style.serving.training_curves import Curves


class BundleService:
    """Implements `service.Service`.

    Attributes:
      programs: of the model.
      batches: what encodes texts.
    """

    def __init__(
        self,
        version: Path,
        observer: token_batches.Observer | None = None,
        before: "BundleService | None" = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Opens a version: compares its files with their hashes, and reads programs and indexes.

        Args:
          version: folder of a version.
          observer: see `TokenBatches`.
          before: an open version. Its programs, compiled and with their parameters, are used
            again where the files are the same: other passages then cost no compilation of the
            model and no second copy of it.
          stopped: asked when the files were compared, which takes long where they are large.

        Raises:
          Stopped: `stopped` said yes.
          BundleError, IndexDamaged: see `bundle.read_manifest`.
          ProgramError: its programs do not run here.
          ContractError: its parts do not belong together.
          FusionError: what it says of BM25 cannot be read.
          CurvesError: its curves are of another format.
        """
        manifest = bundle.read_manifest(version)
        _raise_if_stopped(stopped)
        self._contract = Contract.load(version)
        self._tokenizer = text_tokens.TextTokenizer(version / text_tokens.FOLDER, self._contract)
        self._passages = Passages(version)
        self._search = search = opened_search.open_search(
            version, manifest, self._contract, self._passages
        )
        # No method of this object: such a cycle would keep a closed version in memory.
        parts = search.passages, self._passages, search.sources
        self._map = corpus_map.LazyMap(functools.partial(_drawn_map, *parts))
        self._program_files = _program_files(manifest)
        same = before is not None and before._program_files == self._program_files
        self.programs: programs.Programs = (
            before.programs if before and same else programs.Programs(version / programs.FOLDER)
        )
        self._curves = training_curves.read(version)
        reranks = isinstance(search, RerankedSearch)
        known = bundle_reader.reads(self.programs), reranks, self._curves is not None
        # Its folder is its number: the manifest of a copy has another one.
        manifest["version"] = int(version.name)
        self._facts = _facts(manifest, self._contract, search, *known)
        # Last, as it starts threads: nobody could close a version that raises after it.
        lengths = _lengths(self.programs, self._contract)
        pad = self._tokenizer.vocabulary.pad
        self.batches = token_batches.TokenBatches(
            self.programs, lengths, pad, observer=observer, most_rows=_most_rows(self.programs)
        )
        self._reader = bundle_reader.of(self.programs, self._tokenizer, self.batches)
        self._reranker: BundleReranker | None = None
        if isinstance(search, RerankedSearch):
            self._reranker = BundleReranker(self._tokenizer, self.batches, self._passages, search)

    @property
    def facts(self) -> Facts:
        """See `Service`."""
        return self._facts

    @property
    def reader(self) -> Reader | None:
        """See `Service`."""
        return self._reader

    @property
    def reranker(self) -> Reranker | None:
        """See `Service`."""
        return self._reranker

    @property
    def batch_tokens(self) -> int:
        """See `Service`."""
        return self.batches.budget

    def warm_up(
        self,
        threads: int | None = None,
        meanwhile: bool = False,
        stopped: Callable[[], bool] = lambda: False,
    ) -> int:
        """Compiles all that requests need; returns how many programs. Before the first request.

        Args:
          threads, meanwhile: see `TokenBatches.warm_up`.
          stopped: asked before each program and each search.

        Raises:
          Stopped: `stopped` said yes.
        """
        count = self.batches.warm_up(threads, meanwhile, stopped)
        text = "warm up"
        kinds, query = self._facts.kinds, Encoded()
        if kinds:
            query = self.submit(QUERY, self.tokenize(QUERY, text), kinds).result()
        query = dataclasses.replace(query, text=text)
        for mode in self._facts.modes:
            if mode == RERANKED:  # of which `batches` has compiled all
                continue
            for k in passage_search.SIZES:
                _raise_if_stopped(stopped)
                self.search(query, mode, k)
        return count

    def tokenize(self, side: str, text: str) -> Tokens:
        """See `Service`."""
        (found,) = self._tokenizer(side, [text])
        return found

    def submit(self, side: str, tokens: Tokens, kinds: Sequence[str]) -> "Future[Encoded]":
        """See `Service`."""
        take = functools.partial(encoded_texts.encoded, kinds=tuple(kinds))
        return self.batches.submit(function_name(side), tokens, take)

    def search(self, query: Encoded, mode: str, k: int, source: str | None = None) -> list[Hit]:
        """See `Service`."""
        if k < 1:
            raise RequestError(f"k: expected at least 1, found {k}")
        found = self._search.search(query, mode, k, source)
        return passage_search.hits(found, self._passages)

    def needs(self, mode: str) -> tuple[str, ...]:
        """See `Service`."""
        return self._search.needs(mode)

    def evidence(self, question: Tokens, query: Encoded, passage_id: str) -> Evidence:
        """See `Service`."""
        if passage_id not in self._passages:
            raise RequestError(f"id: expected a passage of the bundle, found {shown(passage_id)}")
        row = self._passages.row(passage_id)
        passage = self._passages.passage(row)
        content = text_tokens.content(passage.title, passage.text)
        (tokens,) = self._tokenizer.passages([(passage.title, passage.text)])
        words = products = None
        if query.sparse is not None and SPARSE in self._search.passages:
            words = self._shared(query.sparse, self._search.passages[SPARSE], row)
        elif self._search.fusion is not None:
            words = _stems(self._search.fusion.words.parts(query.text, row))
        if query.multi_vector is not None and MULTI_VECTOR in self._search.passages:
            vectors = self._search.passages[MULTI_VECTOR][row : row + 1].arrays["vectors"]
            products = np.asarray(query.multi_vector @ np.asarray(vectors, np.float32).T)
        rows = _pieces_of(question, 0 if products is None else products.shape[0])
        columns = _pieces_of(tokens, 0 if products is None else products.shape[1])
        return Evidence(tokens, passage.title, content, words, products, rows, columns)

    def similarity(self, query: Encoded, passages: Sequence[Encoded]) -> list[float]:
        """See `Service`."""
        kind = DENSE if DENSE in self._facts.kinds else self._facts.kinds[0]
        asked = encoded_texts.as_representations([query])[kind]
        given = encoded_texts.as_representations(passages)[kind]
        return [float(score) for score in similarity.scores(kind, asked, given)[0]]

    def map(self) -> "Future[CorpusMap]":
        """See `Service`."""
        if DENSE not in self._search.passages:
            raise RequestError(
                f"a map is drawn of dense vectors: expected a bundle that stores them, found one "
                f"with {', '.join(self._search.passages) or 'no'} representations"
            )
        return self._map()

    def curves(self) -> Curves:
        """See `Service`."""
        if self._curves is None:
            raise RequestError(
                "the curves of trainings: expected a bundle that has them, found one without. "
                "Make it again of a finished run: kennel export --bundle=RUN"
            )
        return self._curves

    def waiting(self) -> int:
        """See `Service`."""
        return self.batches.waiting

    def to_compile(self) -> int:
        """See `Service`."""
        return self.batches.to_compile

    def close(self, wait: bool = True) -> None:
        """Ends its threads, see `TokenBatches.close`."""
        self.batches.close(wait)

    def _shared(
        self, query: tuple[np.ndarray, np.ndarray], passages: Representation, row: int
    ) -> list[SharedWord]:
        """Tokens of both, the largest product first."""
        given = passages[row : row + 1].arrays
        weights = dict(zip(given["tokens"].tolist(), given["weights"].tolist(), strict=True))
        ids, asked = query
        both = [
            (token, float(weight), float(weights[token]))
            for token, weight in zip(ids.tolist(), asked.tolist(), strict=True)
            if token in weights
        ]
        both.sort(key=lambda one: -one[1] * one[2])
        pieces = self._tokenizer.pieces([token for token, _, _ in both])
        return [
            SharedWord(piece, mine, theirs)
            for piece, (_, mine, theirs) in zip(pieces, both, strict=True)
        ]


def _stems(parts: Sequence[tuple[str, int, float]]) -> list[SharedWord]:
    """Parts of a score of BM25, the largest first."""
    words = [SharedWord(stem, float(count), part) for stem, count, part in parts]
    return sorted(words, key=lambda one: -one.query_weight * one.passage_weight)


def _raise_if_stopped(stopped: Callable[[], bool]) -> None:
    if stopped():
        raise token_batches.Stopped("a version was to be opened")


def _program_files(manifest: dict[str, Any]) -> dict[str, Any]:
    """Name -> size and hash, of the model's files."""
    files = manifest["files"]
    return {name: files[name] for name in files if name.startswith(f"{programs.FOLDER}/")}


def _lengths(model: programs.Programs, contract: Contract) -> dict[str, int]:
    """Program -> tokens of its longest text, of those that the model has."""
    sides = {QUERY: contract.query_length, PASSAGE: contract.passage_length}
    longest = {function_name(side): length for side, length in sides.items()}
    longest |= dict.fromkeys(saved_model.JOINT, sum(sides.values()))
    return {name: length for name, length in longest.items() if name in model.names}


def _most_rows(model: programs.Programs) -> dict[str, int]:
    """Program -> texts of a batch whose outputs are as large as they may be, at least 1."""
    if FILL not in model.names:
        return {}
    _, masks, words = model.output_shape(FILL, "log_probability")
    return {FILL: max(1, batch_shapes.OUTPUT_BYTES // (4 * masks * words))}


def _drawn_map(
    held: Mapping[str, Representation], passages: Passages, sources: Sources
) -> CorpusMap:
    return corpus_map.draw(held[DENSE], passages, sources)


def _pieces_of(tokens: Tokens, vectors: int) -> list[str]:
    """What the vectors of a text belong to: its tokens, of which heads leave out the first ones."""
    pieces = list(tokens.pieces)
    if vectors > len(pieces):  # of queries that are brought to one length
        return pieces + ["[MASK]"] * (vectors - len(pieces))
    return pieces[len(pieces) - vectors :]


def _facts(
    manifest: dict[str, Any],
    contract: Contract,
    search: PassageSearch | RerankedSearch,
    reads: str | None,
    reranks: bool,
    curves: bool,
) -> Facts:
    return Facts(
        name=str(manifest["name"]),
        version=int(manifest["version"]),
        kinds=tuple(manifest["kinds"]),
        modes=search.modes,
        dimension=contract.dimension,
        similarity=contract.similarity,
        query_length=contract.query_length,
        passage_length=contract.passage_length,
        passages=int(manifest["passages"]),
        sources=search.sources.listed,
        reads=reads,
        reranks=reranks,
        curves=curves,
        made=str(manifest["made"]),
        contract=contract.facts(),
    )
