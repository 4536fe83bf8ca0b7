"""Masking, removal and replacement of tokens before a loss."""
