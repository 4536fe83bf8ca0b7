"""Tests against the real PyTorch, transformers and sentence-transformers (extra `interop`)."""

import importlib.util

import pytest

MISSING = [
    name for name in ("torch", "sentence_transformers") if importlib.util.find_spec(name) is None
]
needs_interop = pytest.mark.skipif(
    bool(MISSING), reason=f"needs the extra interop (make interop); missing: {', '.join(MISSING)}"
)
