"""Documents that were cut into blocks, found by their best block.

Block n of a document has the id "document#n". Where documents are judged, one is as relevant as its
most relevant block (MaxP: Dai and Callan 2019, arXiv:1905.09217).
"""

from collections.abc import Callable, Sequence

import numpy as np

from t5x_style.interfaces.index import NO_ROW

Search = Callable[[int], tuple[np.ndarray, np.ndarray]]  # k -> scores and rows [Q, k], best first


def document_of(block: str) -> str:
    """The id of a block's document."""
    return block.rpartition("#")[0]


class Documents:
    """The documents of some blocks.

    Attributes:
      ids: of the documents, in the order of their first blocks.
      most_blocks: of one document.
    """

    def __init__(self, blocks: Sequence[str]) -> None:
        """blocks: their ids, by row.

        Raises:
          ValueError: an id that is none of a block.
        """
        names = [document_of(block) for block in blocks]
        if "" in names:
            raise ValueError(
                f"expected ids of blocks, 'document#number', found {blocks[names.index('')]!r}; "
                "make the store with runs/stores/blocks.gin, or leave of_blocks out"
            )
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        self.ids = list(numbers)
        self._of = np.array([numbers[name] for name in names], np.int64)  # block -> document
        self.most_blocks = int(np.bincount(self._of).max())

    def best(
        self, scores: np.ndarray, rows: np.ndarray, depth: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The documents of the best blocks, each once.

        Args:
          scores, rows: [Q, k], blocks, best first, as `Index.search` returns them. With a k of
            `depth` times `most_blocks` no document is missed.
          depth: how many documents at most.

        Returns:
          scores and rows [Q, depth]: of `ids`, best first; -inf and NO_ROW where there are fewer.
        """
        found = np.where(rows == NO_ROW, NO_ROW, self._of[rows])
        order = np.argsort(found, axis=1, kind="stable")  # equal ones side by side, best first
        ordered = np.take_along_axis(found, order, axis=1)
        again = np.zeros(found.shape, bool)
        again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        again |= ordered == NO_ROW
        dropped = np.zeros(found.shape, bool)
        np.put_along_axis(dropped, order, again, axis=1)
        kept = np.argsort(dropped, axis=1, kind="stable")[:, :depth]
        gone = np.take_along_axis(dropped, kept, axis=1)
        return (
            np.where(gone, -np.inf, np.take_along_axis(scores, kept, axis=1)),
            np.where(gone, NO_ROW, np.take_along_axis(found, kept, axis=1)),
        )


def search(
    among_rows: Search, ids: Sequence[str], documents: Documents | None, depth: int
) -> tuple[Sequence[str], np.ndarray, np.ndarray]:
    """Search results, as `ranking.make_run` takes them: ids, scores and rows [Q, depth].

    Args:
      among_rows: searches the rows of an index.
      ids: of these.
      documents: of these, where they are blocks; None: they are what is looked for.
      depth: how many.
    """
    if documents is None:
        return ids, *among_rows(depth)
    k = min(len(ids), depth * documents.most_blocks)
    return documents.ids, *documents.best(*among_rows(k), depth)
