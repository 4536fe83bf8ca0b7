"""What the engine asks of models, of metrics and of indexes."""
