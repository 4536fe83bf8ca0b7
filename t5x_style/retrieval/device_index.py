"""An index that lives on the devices, inside the compiled train step.

Rows of the corpus are cut over all devices: their vectors, their tokens, and the step at which each
was embedded. A step searches with fresh query vectors (`search`), takes the tokens of what it found
(`tokens_at`), and embeds a few rows again, in turn, so that no row is older than
`max_staleness_steps` (`refresh`). Nothing of it leaves the devices.

Letters: N rows of the corpus, padded; L tokens a row; D vector size; B queries; K hits.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from t5x_style.interfaces.index import NO_ROW
from t5x_style.interfaces.objective import Group, Table, TableSource
from t5x_style.retrieval import sharded_top_k
from t5x_style.retrieval.sharded_top_k import NEVER

EXCLUSIONS = ("row", "page", "duplicate")
DTYPES = ("float32", "bfloat16")

Embed = Callable[[Group], jax.Array]  # a token group of R rows -> vectors [R, D]
MakeGroup = Callable[[jax.Array, jax.Array], Group]  # tokens [R, L] and lengths [R] -> their group
Judge = Callable[[jax.Array, jax.Array, Any], jax.Array]
Arrays = tuple[jax.Array, jax.Array, jax.Array]  # embeddings, row_steps, refused


class Corpus(Protocol):
    """The rows that an index is made of; read once, when a run starts or resumes.

    Attributes:
      rows: true N.
      length: L, the longest row.
      vocabulary_size: ids are below it.
      fingerprint: of the content.
    """

    rows: int
    length: int
    vocabulary_size: int
    fingerprint: str

    def tokens(self, start: int, end: int) -> np.ndarray:
        """[end - start, length] int32 tokens, padding after a row's end."""
        ...

    def column(self, name: str, start: int, end: int) -> np.ndarray:
        """[end - start] int32: 'length', 'page' or 'duplicate' (equal numbers belong together)."""
        ...


class IndexArray(nnx.Variable):
    """Part of an index that training changes: saved in checkpoints, no parameter."""


@dataclasses.dataclass(frozen=True)
class DeviceIndexConfig:
    """Settings of the stored corpus and its search.

    Attributes:
      dimension: D.
      max_staleness_steps: how many steps old a vector may be; decides how many rows a step embeds.
        None: vectors stay those of step 0.
      dtype: of the vectors.
      exclude: which rows a query never gets: its own ('row'), those of the same page, and those
        that are nearly the same text.
      multiple: N is padded to it; the devices have to divide it.
      chunk: rows of a device whose scores exist at a time: memory is B x chunk x 4 bytes.
      encode_rows: rows that a device embeds at a time, whether the index is filled or refreshed.
      recall_target: of the approximate search on TPUs; elsewhere it is exact.
    """

    dimension: int
    max_staleness_steps: int | None
    dtype: str = "bfloat16"
    exclude: tuple[str, ...] = ("row",)
    multiple: int = 1024
    chunk: int = 65_536
    encode_rows: int = 32
    recall_target: float = 0.95

    def __post_init__(self) -> None:
        at_least_one = ("dimension", "multiple", "chunk", "encode_rows")
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise ValueError(
                    f"DeviceIndexConfig.{name}: expected 1 or more, found {getattr(self, name)}"
                )
        if self.max_staleness_steps is not None and self.max_staleness_steps < 1:
            raise ValueError(
                "DeviceIndexConfig.max_staleness_steps: expected 1 or more, or None for never, "
                f"found {self.max_staleness_steps}"
            )
        if self.dtype not in DTYPES:
            raise ValueError(
                f"DeviceIndexConfig.dtype: expected one of {DTYPES}, found {self.dtype!r}"
            )
        if unknown := set(self.exclude) - set(EXCLUSIONS):
            raise ValueError(
                f"DeviceIndexConfig.exclude: expected names among {EXCLUSIONS}, found "
                f"{sorted(unknown)}"
            )
        if not 0 < self.recall_target <= 1:
            raise ValueError(
                "DeviceIndexConfig.recall_target: expected above 0 and at most 1, found "
                f"{self.recall_target}"
            )


class DeviceIndex(nnx.Module):
    """See the module's docstring. It is empty until `fill`.

    Args:
      corpus: what is indexed.
      config: see there.
    """

    def __init__(self, corpus: Corpus, config: DeviceIndexConfig) -> None:
        self.corpus, self.config = corpus, config
        self.padded = -(-corpus.rows // config.multiple) * config.multiple
        shape = (self.padded, config.dimension)
        self.embeddings = IndexArray(jnp.zeros(shape, config.dtype), out_sharding=("corpus", None))
        self.row_steps = _row_array(IndexArray, jnp.full(self.padded, NEVER, jnp.int32))
        self.now = IndexArray(jnp.zeros((), jnp.int32))
        self.refused = IndexArray(jnp.zeros((), jnp.int32))
        dtype = token_dtype(corpus.vocabulary_size)
        tokens = jnp.zeros((self.padded, corpus.length), dtype)
        self.tokens = Table(tokens, out_sharding=("corpus", None))
        zeros = jnp.zeros(self.padded, jnp.int32)
        self.lengths = _row_array(Table, zeros)
        self.page = _row_array(Table, zeros) if "page" in config.exclude else None
        self.duplicate = _row_array(Table, zeros) if "duplicate" in config.exclude else None

    def table_sources(self) -> dict[str, TableSource]:
        """Sources of the tables, by attribute; see `Objective.table_sources`."""
        corpus, dtype = self.corpus, token_dtype(self.corpus.vocabulary_size)

        def padded(read: Callable[[int, int], np.ndarray], fill: int, dtype: Any) -> TableSource:
            def rows(start: int, end: int) -> np.ndarray:
                found = read(min(start, corpus.rows), min(end, corpus.rows))
                missing = [(0, end - start - len(found)), *[(0, 0)] * (found.ndim - 1)]
                return np.pad(found.astype(np.dtype(dtype)), missing, constant_values=fill)

            return TableSource(corpus.fingerprint, rows)

        def column(name: str, fill: int) -> TableSource:
            return padded(lambda start, end: corpus.column(name, start, end), fill, np.int32)

        def tokens(start: int, end: int) -> np.ndarray:
            return _checked(corpus.tokens(start, end), corpus)

        sources = {"tokens": padded(tokens, 0, dtype), "lengths": column("length", 0)}
        if self.page is not None:
            sources["page"] = column("page", NO_ROW)
        if self.duplicate is not None:
            sources["duplicate"] = column("duplicate", NO_ROW)
        return sources

    # --- reading ----------------------------------------------------------------------------------

    def search(self, queries: jax.Array, k: int, source: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The rows with the largest inner products, best first.

        Args:
          queries: [B, D], cut over the data axes.
          k: how many.
          source: [B] int32, the row a query was taken from, which `config.exclude` is about;
            NO_ROW: from none.

        Returns:
          scores [B, k] float32 and rows [B, k] int32; -inf and NO_ROW where there are fewer. Rows
          that were never embedded, padded ones among them, are not found.
        """
        search = sharded_top_k.Search(k, self.config.chunk, self.config.recall_target)
        asked = (queries.astype(self.config.dtype), self._barred(source))
        return sharded_top_k.over_shares(search, asked, self._searched())

    def recall(
        self, queries: jax.Array, source: jax.Array, scores: jax.Array, rows: jax.Array
    ) -> jax.Array:
        """[] float32: how many of the rows that an exact search finds a search found.

        Args:
          queries, source: what was asked, see `search`.
          scores, rows: [B, k] each, what it gave.
        """
        k = rows.shape[1]
        better = sharded_top_k.over_shares(
            sharded_top_k.Overlooked(self.config.chunk),
            (queries.astype(self.config.dtype), (scores, rows), self._barred(source)),
            self._searched(),
        )
        there = rows != NO_ROW
        right = there & (jnp.arange(k) + better < k)
        found = jnp.sum(there, axis=1)
        # Where it found fewer than k, what is left over is better than nothing.
        left_over = jnp.where(there[:, -1], 0, jnp.minimum(better[:, -1], k - found))
        return jnp.sum(right) / jnp.maximum(jnp.sum(found + left_over), 1).astype(jnp.float32)

    def tokens_at(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tokens [B, K, L] and lengths [B, K], int32, of `rows` [B, K]; 0 where there is none."""
        flat = rows.reshape(-1)
        tokens = sharded_top_k.take(self.tokens[...], flat, 0)
        lengths = sharded_top_k.take(self.lengths[...], flat, 0)
        return tokens.reshape(*rows.shape, -1), lengths.reshape(rows.shape)

    def vectors_at(self, rows: jax.Array) -> jax.Array:
        """[B, K, D] float32: the vectors of `rows` [B, K]; 0 where there is none."""
        flat = sharded_top_k.take(self.embeddings[...], rows.reshape(-1), 0, jnp.float32)
        return flat.reshape(*rows.shape, -1)

    def judge(self, rows: jax.Array, about: Any, judge: Judge) -> jax.Array:
        """Apply `judge` to the tokens of rows, on the devices that hold them.

        Args:
          rows: [B, K] int32.
          about: a pytree of [B, ...], what the queries of the rows are judged by.
          judge: (tokens [B, k, L] int32, lengths [B, k], about) -> [B, k] bool, row by row.

        Returns:
          [B, K] bool; False where a row is NO_ROW.
        """
        judged = sharded_top_k.Judgement(judge, self.config.encode_rows)
        tables = (self.tokens[...], self.lengths[...])
        return sharded_top_k.over_shares(judged, (rows, about), tables)

    def age_at(self, rows: jax.Array) -> jax.Array:
        """[B, K] int32: steps since `rows` [B, K] were embedded."""
        steps = sharded_top_k.take(self.row_steps[...], rows.reshape(-1), NEVER)
        return self.now[...] - steps.reshape(rows.shape)

    def oldest(self) -> jax.Array:
        """[] int32: the largest age of a row that can be found."""
        steps = self.row_steps[...]
        return self.now[...] - jnp.min(jnp.where(steps == NEVER, self.now[...], steps))

    def _columns(self) -> dict[str, jax.Array]:
        """Columns other than row numbers that `config.exclude` compares rows by."""
        named = {"page": self.page, "duplicate": self.duplicate}
        return {name: array[...] for name, array in named.items() if array is not None}

    def _barred(self, source: jax.Array) -> dict[str, jax.Array]:
        """[B] int32 each: what the rows that a query never gets have in common with its own."""
        numbers = {"row": source} if "row" in self.config.exclude else {}
        taken = {
            name: sharded_top_k.take(column, source, NO_ROW)
            for name, column in self._columns().items()
        }
        return numbers | taken

    def _searched(self) -> tuple[jax.Array, jax.Array, dict[str, jax.Array]]:
        return self.embeddings[...], self.row_steps[...], self._columns()

    # --- writing ----------------------------------------------------------------------------------

    def _share(self) -> int:
        """Rows of each device."""
        return self.padded // sharded_top_k.shards()

    def rows_per_step(self) -> int:
        """Number of rows that each device embeds in a step, at most."""
        steps = self.config.max_staleness_steps
        return 0 if steps is None else -(-self._share() // steps)

    def round_ends(self, step: jax.Array) -> jax.Array:
        """[] bool: whether `refresh` of this step is the last of a round over all rows."""
        steps = self.config.max_staleness_steps
        return jnp.zeros((), jnp.bool_) if steps is None else step % steps == steps - 1

    def fill(self, embed: Embed, group: MakeGroup) -> None:
        """Embeds every row, as of step 0; for the start of a run.

        Args:
          embed: the token group of R rows -> [R, D].
          group: tokens [R, L] and lengths [R] -> their token group.
        """
        at_once = min(self.config.encode_rows, self._share())
        shards = sharded_top_k.shards()

        def turn(number: jax.Array, arrays: Arrays) -> Arrays:
            local = jnp.tile(number * at_once + jnp.arange(at_once), (shards, 1))
            return self._embedded(arrays, local, jnp.zeros((), jnp.int32), embed, group)

        turns = -(-self._share() // at_once)
        self._take_over(jax.lax.fori_loop(0, turns, turn, self._arrays()))

    def refresh(self, step: jax.Array, embed: Embed, group: MakeGroup) -> None:
        """Embeds the rows whose turn it is at this step; arguments as for `fill`.

        With a bound of T steps these are the rows n with n mod T = step mod T, on any mesh.
        """
        self.now[...] = step
        steps = self.config.max_staleness_steps
        if steps is None:
            return
        begins = jnp.arange(sharded_top_k.shards())[:, None] * self._share()
        first = (step - begins) % steps  # of each device, [shards, 1]
        turns = -(-self.rows_per_step() // self.config.encode_rows)
        at_once = -(-self.rows_per_step() // turns)

        def turn(number: jax.Array, arrays: Arrays) -> Arrays:
            local = first + steps * (number * at_once + jnp.arange(at_once))
            return self._embedded(arrays, local, step, embed, group)

        self._take_over(jax.lax.fori_loop(0, turns, turn, self._arrays()))

    def _arrays(self) -> Arrays:
        return self.embeddings[...], self.row_steps[...], self.refused[...]

    def _take_over(self, arrays: Arrays) -> None:
        self.embeddings[...], self.row_steps[...], self.refused[...] = arrays

    def _embedded(
        self, arrays: Arrays, local: jax.Array, step: jax.Array, embed: Embed, group: MakeGroup
    ) -> Arrays:
        """`arrays` with some rows embedded again.

        A vector that is not finite is not written: the row keeps the one it had, and is counted.

        Args:
          arrays: what `_arrays` gives.
          local: [shards, R] int32, rows of each device's share; those beyond its end do not count.
          step: what the rows are marked with.
          embed, group: see `fill`.
        """
        embeddings, row_steps, refused = arrays
        tokens = sharded_top_k.local_rows(self.tokens[...], local).astype(jnp.int32)
        lengths = sharded_top_k.local_rows(self.lengths[...], local)
        vectors = embed(group(tokens, lengths)).astype(self.config.dtype)  # [shards * R, D]
        begins = jnp.arange(len(local))[:, None] * self._share()
        real = (local < self._share()) & (begins + local < self.corpus.rows)
        good = real & jnp.all(jnp.isfinite(vectors), axis=1).reshape(local.shape)
        to = jnp.where(good, local, self._share())
        steps = jnp.full(local.size, step, jnp.int32)
        return (
            sharded_top_k.with_local_rows(embeddings, to, vectors),
            sharded_top_k.with_local_rows(row_steps, to, steps),
            refused + jnp.sum(real & ~good, dtype=jnp.int32),
        )


def token_dtype(vocabulary_size: int) -> Any:
    """The smallest type that holds every token id."""
    return jnp.uint16 if vocabulary_size <= 1 << 16 else jnp.int32


def require_rows(corpus: Corpus, k: int, where: str) -> None:
    """Raises ValueError unless the corpus has k rows in addition to the query's own."""
    if corpus.rows <= k:
        raise ValueError(
            f"{where}: expected a corpus of more than {k} rows, so that a query can get {k} that "
            f"are not its own, found {corpus.rows}. Retrieve fewer, or index more."
        )


def _row_array(kind: Any, values: jax.Array) -> nnx.Variable:
    variable: nnx.Variable = kind(values, out_sharding=("corpus",))
    return variable


def _checked(tokens: np.ndarray, corpus: Corpus) -> np.ndarray:
    """`tokens` if the vocabulary has all of them, which their table's type then holds."""
    if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < corpus.vocabulary_size:
        raise ValueError(
            f"corpus {corpus.fingerprint[:12]}: expected token ids from 0 to "
            f"{corpus.vocabulary_size - 1}, those of its vocabulary, found {int(tokens.min())} to "
            f"{int(tokens.max())}. The store was made with another tokenizer: prepare it again."
        )
    return tokens
