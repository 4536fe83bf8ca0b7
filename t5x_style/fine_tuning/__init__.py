"""Additions to a training for fine-tuning a published encoder: a verdict, and weight mixing."""
