"""Exported programs, and the check that they compute what the model does."""
