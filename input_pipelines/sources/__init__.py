"""Readers of the formats in which text, questions and judgements come."""
