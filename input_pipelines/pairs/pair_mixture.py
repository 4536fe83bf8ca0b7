"""Choice and texts of the pairs of a step, of several kinds: a pure function of (seed, step).

Each kind orders its examples by `PairChoice`, with a separate seed; how a pair is cut is a hash of
(seed, kind, number of the draw). So a step needs no state, and every process computes the same one.
"""

import dataclasses
import functools
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import logging

from input_pipelines.batches import packing_plan, token_groups
from input_pipelines.batches.negatives import NO_SCORE
from input_pipelines.batches.packed_text import open_stores
from input_pipelines.pairs import pair_cuts, pair_prompts
from input_pipelines.pairs.equal_numbers import equal
from input_pipelines.pairs.pair_corpus import PairCorpus
from input_pipelines.pairs.pair_kinds import (
    Examples,
    LabelledPairs,
    PairKind,
    RandomCrops,
    ReadsFiles,
)
from input_pipelines.pairs.pair_packing import PROBE
from input_pipelines.pairs.pair_sampler import PairChoice
from input_pipelines.pairs.pair_shares import counts_of
from input_pipelines.store.store_writer import MANIFEST
from input_pipelines.store.token_store import Passages, TokenStore

VERSION = 1  # part of every fingerprint: raise it when the same arguments give other pairs
_KIND = 1 << 34  # streams of random numbers: the seed of a kind,
_CUT = 1 << 33  # + which one: how pairs are cut


class StepPairs(NamedTuple):
    """The B pairs of a step and their P passages.

    Attributes:
      queries: B texts.
      passages: P texts; those of a query are together, its positive first.
      owner: int64 [P], which of the B each passage came with.
      document: int64 [P], its row in the passage store.
      relevant: bool [P], whether it answers its query.
      teacher: float32 [P], the teacher's scores, -inf where there is none.
      example: int64 [B], which example of which kind: different for all pairs of a step.
      known: int64 [B, K], other passages of this step that answer a query; -1 where fewer.
    """

    queries: Passages
    passages: Passages
    owner: np.ndarray
    document: np.ndarray
    relevant: np.ndarray
    teacher: np.ndarray
    example: np.ndarray
    known: np.ndarray


@dataclasses.dataclass(frozen=True)
class PairMixture:
    """A mixture of kinds of pairs over one passage store; `open` makes the pairs.

    Attributes:
      passages: token store folder of the passages.
      kinds: name -> how pairs are made; those without a weight are not looked at.
      weights: name -> share of the pairs of a batch, any numbers of 0 or more.
      batch: B, pairs in a batch. Where there are fewer examples it shrinks, with a warning.
      group_size: G, passages of a labelled query: 1 positive and G - 1 negatives. Other pairs have
        one passage: any other that chance would add is a negative from the batch already.
      query_length, passage_length: tokens at which texts are cut, specials included.
      seed: decides order and cuts.
      tokenizer: a tokenizer's folder that the stores have to fit; None compares them only.
      teacher: whether labelled pairs bring a teacher's scores, of which their file has to have
        some. The name of a way to learn from them (TEACHER) is a yes, None a no.
      query_prefix: prompt of queries that are cut from passages; None: that of the store of
        labelled queries, none without it.
      similar: how many labelled queries of a batch belong together at most, since the answers of
        some are negatives of others; 1: chance alone says who meets.
    """

    passages: str
    kinds: Mapping[str, PairKind]
    weights: Mapping[str, float]
    batch: int
    group_size: int
    query_length: int
    passage_length: int
    seed: int
    tokenizer: str | None = None
    teacher: bool | str | None = False
    query_prefix: str | None = None
    similar: int = 1

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in ("batch", "group_size", "similar")}
        packing_plan.check_sizes("PairMixture", **sizes)
        for name in ("query_length", "passage_length"):
            if getattr(self, name) < 3:
                raise ValueError(
                    f"PairMixture.{name}: expected 3 tokens or more, [CLS], one and [SEP]; found "
                    f"{getattr(self, name)}"
                )
        _check_weights(self.kinds, self.weights)

    def __hash__(self) -> int:
        return hash(repr(self))

    @property
    def taught(self) -> bool:
        """Whether passages carry a teacher's scores."""
        return bool(self.teacher)

    def open(self) -> "OpenPairs":
        """The pairs; the same object again while the files are the same."""
        files = [os.path.join(self.passages, MANIFEST)]
        for kind in self.kinds.values():
            files += kind.files if isinstance(kind, ReadsFiles) else ()
        stamps = [os.stat(file).st_mtime_ns if os.path.exists(file) else 0 for file in files]
        return _opened(self, tuple(stamps))


@functools.lru_cache(maxsize=2)  # gin builds the pipeline and counts rows for the objective
def _opened(mixture: PairMixture, stamps: tuple[int, ...]) -> "OpenPairs":
    return OpenPairs(mixture)


@dataclasses.dataclass(frozen=True)
class _Part:
    """A kind that has a share in batches."""

    kind: PairKind
    examples: Examples
    choice: PairChoice
    seed: int
    offset: int  # of its example ids


class OpenPairs:
    """The pairs of a mixture.

    Attributes:
      mixture: what was asked for.
      corpus: the passages.
      sizes: name -> examples there are, of the kinds with a weight.
      counts: name -> pairs in each batch, of the kinds that have any.
      batch: their sum.
    """

    def __init__(self, mixture: PairMixture):
        """
        Raises:
          ValueError, StoreError, PairsError: not two examples of any kind, stores or a file that
            do not fit, or without what a kind needs.
        """
        self.mixture = mixture
        (store,) = open_stores([mixture.passages], mixture.tokenizer)
        wanted = {name: weight for name, weight in mixture.weights.items() if weight}
        cut = {name for name in wanted if not isinstance(mixture.kinds[name], LabelledPairs)}
        self._prompt, prompt = (
            _prompts(mixture, store) if cut else (pair_prompts.tokens_of("", None), 0)
        )
        self.corpus = PairCorpus(
            store, mixture.query_length, mixture.passage_length, prompt, len(self._prompt.tokens)
        )
        if prompt:
            _require_crops(store, {name: mixture.kinds[name] for name in sorted(cut)})
        found = {
            name: mixture.kinds[name].examples(self.corpus, mixture.group_size, mixture.taught)
            for name in wanted
        }
        self.sizes = {name: len(examples) for name, examples in found.items()}
        self.counts = counts_of(
            self.sizes,
            {name: examples.found for name, examples in found.items()},
            wanted,
            mixture.batch,
        )
        self.batch = sum(self.counts.values())
        self._parts = self._make_parts(found)
        self._check_negatives()
        self.corpus.warn_of_copies()
        listed = (f"{count} {name} of {len(found[name]):,}" for name, count in self.counts.items())
        logging.info("pairs of %s, in each batch: %s", store.folder, ", ".join(listed))

    @functools.cached_property
    def fingerprint(self) -> str:
        """sha256 hex of everything that decides the pairs of a step."""
        mixture = self.mixture
        parts: dict[str, Any] = {
            "version": VERSION,
            "store": self.corpus.store.fingerprint,
            "kinds": {name: part.examples.about for name, part in self._parts.items()},
            "counts": self.counts,
            "group_size": mixture.group_size,
            "lengths": [mixture.query_length, mixture.passage_length],
            "seed": mixture.seed,
            "teacher": mixture.taught,
        }
        if prompt := self._prompt.tokens.tolist():
            parts["query_prompt"] = prompt
        if mixture.similar > 1:
            parts["similar"] = mixture.similar
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def may_know(self) -> bool:
        """Whether a query may be answered by passages of a step that other pairs bring."""
        return any(part.examples.shared for part in self._parts.values())

    @functools.cached_property
    def probe(self) -> list[tuple[np.ndarray, np.ndarray, int]]:
        """Of the first steps: tokens of queries [B] and passages [P], and K of `known`."""
        found = []
        for number in range(PROBE):
            step = self.step(number)
            found.append((step.queries.lengths, step.passages.lengths, step.known.shape[1]))
        return found

    def other_negatives(self, path: str) -> np.ndarray:
        """Negatives of the labelled pairs in another file, for `step`; see `LabelledPairs`."""
        (name,) = self.labelled
        part = self._parts[name]
        assert isinstance(part.kind, LabelledPairs)
        return part.kind.other_negatives(self.corpus, part.examples, path)

    @property
    def labelled(self) -> list[str]:
        """Names of the kinds with queries and hard negatives of a file that batches have."""
        return [name for name, part in self._parts.items() if part.examples.queries is not None]

    def step(self, step: int, negatives: np.ndarray | None = None) -> StepPairs:
        """The pairs of a step.

        Args:
          step: 0 or more.
          negatives: of `other_negatives`, drawn from in place of the file's; which queries and
            positives are in the step does not depend on them.
        """
        cuts, chosen, documents, scores, examples = [], [], [], [], []
        for part in self._parts.values():
            picked, rows = part.choice.choose(step)
            if negatives is not None and part.examples.queries is not None:
                rows = part.choice.redrawn(step, picked, rows, negatives)
            number = step * len(picked)  # of the first draw of this step

            def uniform(stream: int, part: _Part = part, number: int = number) -> np.ndarray:
                numbers = packing_plan.hashed(part.seed, _CUT + stream, number, part.choice.batch)
                return (numbers >> np.uint64(11)) * 2.0**-53

            cut = part.kind.cut(self.corpus, part.examples, picked, rows, uniform)
            if part.examples.queries is None:  # cut from passages
                queries = pair_prompts.put_before(cut.queries, self._prompt)
                cut = dataclasses.replace(cut, queries=queries)
            cuts.append(cut)
            chosen.append(picked)
            documents.append(rows)
            examples.append(part.offset + picked)
            scores.append(self._scores(part.examples, picked, rows))
        sizes = np.concatenate([np.full(len(rows), rows.shape[1]) for rows in documents])
        document = np.concatenate([rows.reshape(-1) for rows in documents])
        first = np.cumsum(sizes) - sizes
        relevant = np.zeros(len(document), np.bool_)
        relevant[first] = True
        source = np.concatenate([cut.source for cut in cuts])
        return StepPairs(
            pair_cuts.joined([cut.queries for cut in cuts]),
            pair_cuts.joined([cut.passages for cut in cuts]),
            np.repeat(np.arange(len(sizes)), sizes),
            document,
            relevant,
            np.concatenate(scores),
            np.concatenate(examples),
            self._known(chosen, document, document[first], source),
        )

    def _make_parts(self, found: Mapping[str, Examples]) -> dict[str, _Part]:
        parts, offset = {}, 0
        for name, count in self.counts.items():
            examples = found[name]
            stream = _KIND + zlib.crc32(name.encode())
            seed = int(packing_plan.hashed(self.mixture.seed, stream, 0, 1)[0])
            choice = PairChoice(  # only `choose` is called, which asks for no query's length
                examples.pairs, np.zeros(0), self.corpus.texts.lengths, batch=count,
                group_size=examples.group_size, seed=seed,
                similar=1 if examples.queries is None else self.mixture.similar,
            )  # fmt: skip
            parts[name] = _Part(self.mixture.kinds[name], examples, choice, seed, offset)
            offset += len(examples)
        if offset > np.iinfo(np.int32).max:
            raise ValueError(f"pairs: expected fewer than 2^31 examples in all, found {offset:,}")
        return parts

    def _check_negatives(self) -> None:
        alone = all(part.examples.group_size == 1 for part in self._parts.values())
        if self.batch == 1 and alone:
            found = "; ".join(f"{n}: {part.examples.found}" for n, part in self._parts.items())
            raise ValueError(
                "pairs: a batch of one pair has no negative, and its loss would be 0: expected two "
                f"examples or more, and PairMixture.batch of 2 or more. Found {found}"
            )

    def _scores(self, examples: Examples, picked: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if examples.pairs.teacher is None:
            return np.full(rows.size, NO_SCORE, np.float32)
        return examples.pairs.teacher_scores(picked, rows).reshape(-1)

    def _known(
        self, chosen: list[np.ndarray], document: np.ndarray, positive: np.ndarray,
        source: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """Passages of the step that answer a query, its positive aside: int64 [B, K].

        These are the passages that a kind says (`Examples.answered`): other positives of a labelled
        query, passages with the title that is asked for. Where a query was cut from another passage
        than its positive (neighbours), they are also that passage, and for queries that this
        passage answers, the positive.
        """
        if not self.may_know:
            return np.full((len(positive), 0), token_groups.NONE)
        here = np.unique(document)  # [U]
        places, rows, first = [], [], 0
        for part, picked in zip(self._parts.values(), chosen, strict=True):
            if part.examples.answered is not None:
                place, row = part.examples.answered(picked, here)
                places.append(first + place)
                rows.append(row)
            first += len(picked)
        moved = np.flatnonzero((source != token_groups.NONE) & (source != positive))
        place, row = equal(source[moved], here)
        places.append(moved[place])
        rows.append(row)
        answer = np.searchsorted(here, positive)
        place, which = equal(positive, source[moved])
        places.append(place)
        rows.append(answer[moved[which]])
        keys = np.unique(np.concatenate(places) * len(here) + np.concatenate(rows))
        pair, column = np.divmod(keys, len(here))
        others = column != answer[pair]
        pair, column = pair[others], column[others]
        counts = np.bincount(pair, minlength=len(positive))
        known = np.full((len(positive), int(counts.max())), token_groups.NONE)
        known[pair, token_groups.within(counts)] = here[column]
        return known


def _check_weights(kinds: Mapping[str, PairKind], weights: Mapping[str, float]) -> None:
    unknown = sorted(weights.keys() - kinds.keys())
    if unknown:
        raise ValueError(
            f"PairMixture.weights: expected names of kinds, {sorted(kinds)}, found {unknown}"
        )
    wrong = {name: w for name, w in weights.items() if not 0 <= w < float("inf")}
    if wrong:
        raise ValueError(f"PairMixture.weights: expected numbers of 0 or more, found {wrong}")
    if not any(weights.values()):
        raise ValueError(
            "PairMixture.weights: expected a weight above 0, since batches have to be made of "
            f"something; found {dict(weights)}. Kinds: {sorted(kinds)}"
        )


def _prompts(mixture: PairMixture, store: TokenStore) -> tuple[Passages, int]:
    """The prompt of queries that are cut, and how many tokens that of the passages has."""
    prefix = mixture.query_prefix
    if prefix is None:
        stores = [
            kind.queries
            for kind in mixture.kinds.values()
            if isinstance(kind, LabelledPairs) and kind.queries
        ]
        found = open_stores([*stores, store], None)[0].manifest["prefix"] if stores else ""
        prefix = str(found)
    of_passages = pair_prompts.tokens_of(str(store.manifest["prefix"]), mixture.tokenizer)
    pair_prompts.require_stored(store, of_passages)
    return pair_prompts.tokens_of(prefix, mixture.tokenizer), len(of_passages.tokens)


def _require_crops(store: TokenStore, kinds: Mapping[str, PairKind]) -> None:
    """Raises ValueError for kinds that would take a prompt for a part of the text."""
    others = [name for name, kind in kinds.items() if not isinstance(kind, RandomCrops)]
    if others:
        raise ValueError(
            f"{store.folder} was prepared with the prefix {store.manifest['prefix']!r}: queries of "
            f"the kinds {', '.join(others)} would begin with it. Expected a store without a "
            "prefix, or crops and labelled pairs alone (WEIGHTS)"
        )
