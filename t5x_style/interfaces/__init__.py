"""What the engine asks of models, texts, sources of batches, metrics, readers and indexes."""
