"""Extend a published table of positions: XLM-R starts with 8,192 positions instead of 512.

Hierarchical decomposition (Su 2020, kexue.fm/archives/7947): row i of the published R is taken as
(1 - a) u_i + a u_0, which gives u; row q R + r of the longer table is a u_q + (1 - a) u_r. The
first R rows stay the same, and rows that are R apart differ by as much as their blocks do. The M3
paper (arXiv:2402.03216) does not say how its 8,194 rows began; a public script that makes them of
xlm-roberta-large's 514, the two rows before the first text position included, has this rule with
a = 0.4.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.interop import published_layout

TABLE = "encoder/embeddings/position/embedding"
SHARE = 0.4  # a


def lengthened(table: np.ndarray, rows: int) -> np.ndarray:
    """`table` [R, D] with `rows` rows; the first R are copies.

    Raises:
        ValueError: fewer rows than R, or more than R blocks of R.
    """
    count = len(table)
    if not count <= rows <= count**2:
        raise ValueError(
            f"a table of {count} positions can have {count} to {count**2} rows, found {rows}"
        )
    wide = table.astype(np.float64)
    parts = (wide - SHARE * wide[:1]) / (1 - SHARE)
    block, inside = np.divmod(np.arange(rows), count)
    longer = (SHARE * parts[block] + (1 - SHARE) * parts[inside]).astype(table.dtype)
    longer[:count] = table
    return longer


def require(
    layout: published_layout.PublishedLayout, fields: Mapping[str, Any], positions: int, what: str
) -> int:
    """The rows of a table for texts of `positions` tokens.

    Args:
        layout, fields: of the published encoder and its checked config.json.
        positions: tokens of the longest text.
        what: the setting and the folder, for errors.

    Raises:
        ValueError: the encoder has no such table, or it has more or too few rows.
    """
    offset = layout.position_offset(fields)
    published = int(fields["max_position_embeddings"])
    if TABLE not in layout.by_path:
        raise ValueError(
            f"{what}: expected an encoder with a table of positions, found model_type "
            f"{fields['model_type']!r}, which computes them. Leave positions out"
        )
    if not published <= positions + offset <= published**2:
        raise ValueError(
            f"{what}: expected {published - offset} positions, as config.json says, up to "
            f"{published**2 - offset}, found {positions}. For shorter texts bind PASSAGE_LENGTH, "
            "and leave positions out"
        )
    return positions + offset
