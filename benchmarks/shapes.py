"""What training benchmarks vary, and what they time. Imports neither JAX nor PyTorch."""

import dataclasses

SIZES = {  # layers, width, heads; Turc et al. 2019, arXiv:1908.08962
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """A key of SIZES, rows of the word table (None: the tokenizer's size), and the batch."""

    size: str
    vocabulary: int | None
    rows: int
    length: int


@dataclasses.dataclass(frozen=True)
class Round:
    """Steps timed at a stretch; `tokens` of the `places` are not padding."""

    seconds: float
    tokens: int
    places: int
