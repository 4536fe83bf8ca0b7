"""Interfaces of the engine: models, texts, sources of batches, metrics, readers and indexes."""
