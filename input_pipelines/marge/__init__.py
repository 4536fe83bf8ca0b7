"""MARGE's data: documents in sub-batches."""
