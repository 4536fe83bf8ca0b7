"""SavedModels that take texts: the tokenizer as a part of the TensorFlow graph."""
