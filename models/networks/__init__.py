"""Encoders, decoders, heads and pooling."""
