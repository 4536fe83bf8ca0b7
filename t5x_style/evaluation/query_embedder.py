"""The representations of a collection's queries, from token stores or made of their texts."""

import functools
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from t5x_style.interfaces.representation import QUERY, Representations, joined
from t5x_style.interfaces.text_encoder import TextEncoder
from t5x_style.interfaces.texts import EncodeSource


class MakeSource(Protocol):
    """Turns texts that are in no token store into a source that can be embedded."""

    def __call__(
        self, ids: Sequence[str], texts: Sequence[str], length: int, prefix: str
    ) -> EncodeSource:
        """The source.

        Args:
          ids: one for each text.
          texts: without prefix; a passage is its title, a space and its body.
          length: tokens at which texts are cut.
          prefix: text that is put before each.
        """
        ...


class QueryEmbedder:
    """Embeds the queries of sources once, in one pass for all kinds, and others when asked."""

    def __init__(
        self,
        name: str,
        model: TextEncoder,
        sources: Sequence[EncodeSource],
        kinds: Sequence[str],
        texts: MakeSource | None = None,
    ):
        """Args:
        name: of the system that asks, for messages.
        model: embeds the queries.
        sources: that together hold the queries of every split that is asked for.
        kinds: of representations.
        texts: makes sources of queries that `sources` do not hold, such as pseudo-queries.
        """
        self._name, self._model, self._sources = name, model, sources
        self._kinds, self._texts = kinds, texts

    def embed(self, wanted: Mapping[str, str], split: str) -> Representations:
        """Kind -> representations of queries, given id -> text.

        Raises:
          ValueError: a query is in none of the sources, and no others can be made.
        """
        place, known = self._known
        missing = [query for query in wanted if query not in place]
        if missing:
            if self._texts is None:
                raise ValueError(
                    f"{self._name}: {len(missing)} queries of split {split!r} are in none of the "
                    f"query sources, the first is {missing[0]!r}; add the store of that split, or "
                    "bind the parameter texts of the system"
                )
            contract = self._model.contract
            source = self._texts(
                missing,
                [wanted[query] for query in missing],
                contract.query_length,
                contract.query_prefix,
            )
            more = self._model.represent(QUERY, source, self._kinds)
            first = len(next(iter(known.values())))
            place = {**place, **{query: first + n for n, query in enumerate(missing)}}
            known = {kind: joined(kind, [known[kind], more[kind]]) for kind in self._kinds}
        at = np.array([place[query] for query in wanted], np.int64)
        return {kind: one[at] for kind, one in known.items()}

    @functools.cached_property
    def _known(self) -> tuple[Mapping[str, int], Representations]:
        """Query -> its row, and the representations of all sources' queries.

        Of a query that several sources hold, the last one counts.
        """
        ids = [query for source in self._sources for query in source.ids]
        parts = [self._model.represent(QUERY, source, self._kinds) for source in self._sources]
        known = {kind: joined(kind, [part[kind] for part in parts]) for kind in self._kinds}
        return {query: place for place, query in enumerate(ids)}, known
