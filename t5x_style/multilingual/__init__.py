"""Evaluation across languages: translations, similarity, bitext mining."""
