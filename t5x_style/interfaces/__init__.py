"""What the engine asks of models, texts, metrics, readers and indexes."""
