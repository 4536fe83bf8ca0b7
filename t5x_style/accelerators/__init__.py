"""TPU generations and the slices that Google Cloud makes of them: one table, for all that ask."""
