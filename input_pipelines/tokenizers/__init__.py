"""Tokenizers: trained or imported, and reports about them."""
