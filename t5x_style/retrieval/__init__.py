"""Encoding, vectors on disk, indexes, BM25."""
