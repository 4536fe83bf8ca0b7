"""Training data that depends on the model: retrieval on the host, new plans."""
