"""What the engine asks of models, of sources of batches, of metrics and of indexes."""
