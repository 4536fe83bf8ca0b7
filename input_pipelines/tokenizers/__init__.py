"""Tokenizers: trained, imported, and what they make of words."""
