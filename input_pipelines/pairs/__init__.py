"""Batches of queries, passages and translations."""
